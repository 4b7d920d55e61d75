"""What Inductor makes of one part: which ops it runs as one kernel, and the functions that run its passes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ...graph import Graph
from ...planning import FREE, OpCost
from ...planning.fusion import Fusion, Kind, fuse
from ..memory.measure import same_device
from ..ops.in_place import writable_inputs
from ..ops.nodes import GROUP, Computation, reached_from, tensors_of
from ..ops.sizes import Concrete, Number, hint, storage_key
from ..pytorch.internals import Boxed, frees_gradients, mark_boxed
from .dry_run import Profiler, dry_run
from .internals import Lowered, leave_layouts_to_inductor, lower, sized_mode
from .kinds import RatesOf, fused, is_scatter, kind_of
from .local import ComputeWhereRead


class Inductor:
    """How parts are planned and run where their passes are compiled by Inductor.

    Args:
        profile: measures calls of libraries. rates_of: a device, for float32.
    """

    def __init__(self, profile: Profiler, rates_of: RatesOf):
        self.profile, self.rates_of = profile, rates_of

    def costs(self, nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
        """Of library calls; what a kernel costs is a matter of its group."""
        calls = [node for node in nodes if kind_of(node) is Kind.CALL]
        return {**dict.fromkeys(nodes, FREE), **self.profile(calls, number)}

    def fused(self, graph: Graph, nodes: Sequence[fx.Node | None], needed: Collection[int], number: Number) -> Fusion:
        """The graph of the groups that run as one kernel each; see `kinds.fused`. Nodes are told their groups."""
        found = fused(graph, nodes, needed, number, self.rates_of)
        for node, group in zip(nodes, found.group_of, strict=True):
            if node is not None:
                node.meta[GROUP] = group
        return found

    def groups(self, graph: Graph, nodes: Sequence[fx.Node | None], needed: Collection[int]) -> Fusion:
        """The same without costs."""
        return fuse(graph, [kind_of(node) for node in nodes], needed, lambda group, inside: FREE)

    def improve(
        self,
        module: fx.GraphModule,
        groups: Fusion,
        nodes: Sequence[fx.Node | None],
        returned: Collection[int],
        overwritten: Collection[int],
        number: Number,
    ) -> bool:
        """Change a joint graph to one that takes less time; whether anything was changed. See `local.ComputeWhereRead`."""
        return ComputeWhereRead(module, groups, nodes, returned, overwritten, number, self.rates_of).run()

    def writable(self, node: fx.Node) -> list[fx.Node]:
        """The inputs in which an op may write its output."""
        return [node.all_input_nodes[0]] if is_scatter(node) else writable_inputs(node)


class Compiled:
    """A function of one list of inputs, whose kernels are compiled when they are needed."""

    def __init__(self, lowered: Lowered, around: Callable[[Boxed], Boxed] = lambda run: run):
        self._lowered, self._around = lowered, around
        self._run: Boxed | None = None
        self._lock = threading.Lock()

    def load(self) -> Boxed:
        """Compile the kernels."""
        with self._lock:
            if self._run is None:
                self._run = mark_boxed(self._around(self._lowered.load()))
            return self._run


@dataclass(frozen=True)
class Pair:
    """The two functions of a part under a schedule, at given sizes.

    Attributes:
        forward, backward: as in `Halves`.
        added: for each of the two, bytes live at its peak beyond those live when it begins; None where it could not be found out.
        more: bytes that the forward pass leaves for the backward pass beyond those of the values that were to be left.
    """

    forward: Compiled
    backward: Compiled
    added: tuple[int | None, int | None]
    more: int


def compile_pair(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    num_outputs: int,
    number: Number,
    device: torch.device,
    profile: Profiler,
    apart: Collection[Computation] | None,
) -> Pair:
    """Have Inductor write programs for both passes, and see what they take.

    Args:
        forward: inputs -> outputs, then what the backward pass needs. backward: that, then gradients of outputs -> gradients. Numbers
            are the last inputs of each. num_outputs: of the forward pass.
        number: what symbolic sizes are.
        device: whose bytes count. profile: measures calls of libraries. apart: see `lower`.
    """
    mode = sized_mode()
    early, places = _without_passed_on(forward, num_outputs)
    num_written, writing = _take_writes_out(early)
    planned = _planned(early, number, device)
    leave_layouts_to_inductor(early)
    inputs = _inputs(early, mode, number)
    first = lower(early, _alike(inputs, mode), num_outputs, apart=apart)
    ran = dry_run(first, list(inputs), mode, device, profile)
    results = _outputs_like(early, first, mode, number) if ran is None else ran.outputs
    del results[len(results) - num_written :]
    late = _copied(backward)
    saved = _with_passed_on(results[num_outputs:], places, dict(enumerate(inputs)))
    given = [*saved, *_inputs(late, mode, number)[len(saved) :]]
    second = lower(late, _alike(given, mode), len(_outputs(late)), backward=True, apart=apart)
    # What the caller holds all the time must not die: inputs, what the forward pass returned, and gradients that autograd holds on to.
    held = [*results[:num_outputs], *filter(_held_by_autograd, given[len(saved) :])]
    results.clear()
    saved.clear()
    ran_late = dry_run(second, given, mode, device, profile)
    held.clear()
    more = 0 if ran is None else max(0, ran.left - planned)

    def passing_on(run: Boxed) -> Boxed:
        run = writing(run)

        def call(arguments: list[Any]) -> list[Any]:
            passed = {place: arguments[place] for place in places if place is not None}
            results = run(arguments)
            return [*results[:num_outputs], *_with_passed_on(results[num_outputs:], places, passed)]

        return call

    added = (None if ran is None else ran.added, None if ran_late is None else ran_late.added)
    return Pair(Compiled(first, passing_on), Compiled(second), added, more)


def _held_by_autograd(gradient: Any) -> bool:
    """Of what a backward pass is given: autograd holds it to its end, as it does the gradient of the loss."""
    return isinstance(gradient, torch.Tensor) and (gradient.numel() <= 1 or not frees_gradients())


def compile_alone(module: fx.GraphModule, number: Number) -> Compiled:
    """The function of a graph without a backward pass, at given sizes."""
    own, mode = _copied(module), sized_mode()
    count = len(_outputs(own))
    _, writing = _take_writes_out(own)
    return Compiled(lower(own, _inputs(own, mode, number), count, inference=True), writing)


# --- what goes from the forward to the backward pass as it is ---


def _without_passed_on(module: fx.GraphModule, num_outputs: int) -> tuple[fx.GraphModule, list[int | None]]:
    """A forward pass that does not return its own inputs for the backward pass: Inductor would return copies in layouts that it likes.

    Returns:
        The forward pass, and for each tensor for the backward pass which input it is; None for what is computed.
    """
    own = _copied(module)
    placeholders = {node: place for place, node in enumerate(own.graph.find_nodes(op="placeholder"))}
    outputs = _outputs(own)
    places = [placeholders.get(node) for node in outputs[num_outputs:]]
    (output,) = own.graph.find_nodes(op="output")
    kept = [node for node, place in zip(outputs[num_outputs:], places, strict=True) if place is None]
    output.args = ((*outputs[:num_outputs], *kept),)
    return own, places


def _with_passed_on(computed: Sequence[Any], places: Sequence[int | None], inputs: Mapping[int, Any]) -> list[Any]:
    """What the backward pass gets."""
    made = iter(computed)
    return [next(made) if place is None else inputs[place] for place in places]


# --- what is written into inputs ---


def _take_writes_out(module: fx.GraphModule) -> tuple[int, Callable[[Boxed], Boxed]]:
    """Have a graph leave to the function around it what it would write into inputs wrongly, or slowly.

    Returns:
        So many more things it returns, last of all; and what makes the function around it.
    """
    counters, written = _take_counters_out(module), _return_contents(module)
    return len(written), lambda run: _counting(_writing(run, written), counters)


def _return_contents(module: fx.GraphModule) -> list[int]:
    """Where anything else that a graph returns follows from an input that it writes: let it return the new content, after all others.

    Inductor may compute in the place of such an input what is returned, and then write the new content over it: with 2.13, of
    `x[0] = a; y = x.clone(); x[1] = b` it returns a `y` that has `b` in it.

    Returns:
        Which inputs they are: they are to be written with what is returned last.
    """
    (output,) = module.graph.find_nodes(op="output")
    returned = {node for node in _outputs(module) if isinstance(node, fx.Node)}
    found, contents = [], []
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        write = next((user for user in node.users if user.target is torch.ops.aten.copy_.default and user.args[0] is node), None)
        if write is not None and not returned.isdisjoint(reached_from([node])):
            found.append(place)
            contents.append(write.args[1])
            module.graph.erase_node(write)
    output.args = ((*_outputs(module), *contents),)
    return found


def _writing(run: Boxed, places: Sequence[int]) -> Boxed:
    """The function of a graph that returns the new contents of these inputs: it writes them, and returns the others."""
    if not places:
        return run

    def call(arguments: list[Any]) -> list[Any]:
        inputs = [arguments[place] for place in places]
        results = list(run(arguments))
        torch._foreach_copy_(inputs, results[-len(places) :])
        return results[: -len(places)]

    return call


def _take_counters_out(module: fx.GraphModule) -> dict[int, int]:
    """Integers to which a graph adds: batch norms count how often they ran. Let it leave that.

    In a kernel of Inductor for CPUs all threads wait for each of them: of 1220 waits in the forward pass of DenseNet-121 120 were for these.

    Returns:
        Which inputs they are, and what is to be added.
    """
    found = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.dim() or value.is_floating_point() or len(node.users) != 2:
            continue
        added, write = sorted(node.users)
        if (
            added.target is torch.ops.aten.add.Tensor
            and write.target is torch.ops.aten.copy_.default
            and write.args[:2] == (node, added)
            and added.args[0] is node
            and isinstance(added.args[1], int)
            and not added.kwargs
            and len(added.users) == 1
            and not write.users
        ):
            found[place] = added.args[1]
            module.graph.erase_node(write)
            module.graph.erase_node(added)
    return found


def _counting(run: Boxed, counters: Mapping[int, int]) -> Boxed:
    """The function of a graph that leaves these inputs to be added to."""
    if not counters:
        return run

    def call(arguments: list[Any]) -> list[Any]:
        counted = [arguments[place] for place in counters]
        results = run(arguments)
        torch._foreach_add_(counted, list(counters.values()))
        return results

    return call


# --- graphs and their fake tensors ---


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """Inductor changes what it is given."""
    return fx.GraphModule(module, copy.deepcopy(module.graph))


def _outputs(module: fx.GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return list(output.args[0])


def _inputs(module: fx.GraphModule, mode: FakeTensorMode, number: Number) -> list[Any]:
    """Fake tensors for the inputs of a graph at given sizes, and numbers."""
    return [_fake(node.meta["val"], mode, number) for node in module.graph.find_nodes(op="placeholder")]


def _fake(value: Any, mode: FakeTensorMode, number: Number, stride: Sequence[int] | None = None) -> Any:
    if not isinstance(value, torch.Tensor):
        return number(value)
    known = Concrete.of(value, number)
    with mode:
        return torch.empty_strided(known.shape, stride or known.stride, dtype=known.dtype, device=known.device)


def _alike(values: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """The same once more: graphs hold on to the tensors that they are compiled with."""
    return [_fake(value, mode, hint) for value in values]


def _outputs_like(module: fx.GraphModule, lowered: Lowered, mode: FakeTensorMode, number: Number) -> list[Any]:
    """Fake tensors for what a program returns."""
    made = []
    for place, node in enumerate(_outputs(module)):
        stride = lowered.output_strides[place] if place < len(lowered.output_strides) else None
        made.append(_fake(node.meta["val"], mode, number, stride) if isinstance(node, fx.Node) else node)
    return made


def _planned(module: fx.GraphModule, number: Number, device: torch.device) -> int:
    """Bytes of the storages that a forward pass makes and returns."""
    given = {storage_key(x) for node in module.graph.find_nodes(op="placeholder") for x in tensors_of(node)}
    nodes = [node for node in _outputs(module) if isinstance(node, fx.Node)]
    made = {storage_key(x): x for node in nodes for x in tensors_of(node) if same_device(x.device, device)}
    return sum(Concrete.of(tensor, number).nbytes for key, tensor in made.items() if key not in given)
