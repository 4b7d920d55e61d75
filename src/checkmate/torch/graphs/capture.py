"""The joint forward and backward graph of PyTorch -> `checkmate.Graph`, and which FX nodes stand behind its ops.

An op is one FX node that computes something; its `getitem`s belong to it. A value is a storage that an op allocates.
Views are neither: they cost nothing, are made again wherever they are needed, and a reader of a view reads its storage.
Nor are numbers that follow from the sizes of the inputs.

The step is the forward ops, then one op that stands for what the user's script does between the forward and the
backward pass (a loss outside the compiled function), then the backward ops. Ops that only the backward pass needs are
backward ops even if they do not depend on a gradient (zeros to scatter into), so that they are not kept across.

A graph traced with symbolic sizes is read once. Its bytes and costs are then those of given sizes, see `Captured.at`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from ...graph import Graph, Op, Value
from ...planning import FREE, OpCost
from ...planning.fusion import Fusion
from ..inductor.inner import Inductor
from ..memory.caching_allocator import block_of, bytes_taken, in_blocks
from ..memory.measure import main_device, same_device
from ..ops.batch_norm import is_batch_norm, restore_kernels, write_statistics, writes_statistics
from ..ops.in_place import find_reuses, writable_inputs
from ..ops.layers import Layers, Names
from ..ops.nodes import (
    OpNode,
    arguments_of,
    checkpoint_of,
    depends_on_tangents,
    has_side_effects,
    is_clone,
    is_random,
    is_repeatable,
    split_passes,
    tensors_of,
    unpin_overwritten,
)
from ..ops.outputs import lift_written, outputs_of
from ..ops.sizes import Bindings, Number, Scalars, Sizes, elements, storage_bytes, storage_key, within
from ..pytorch.internals import frees_gradients, is_tangent
from .repeated_outputs import tell_gradients_apart

#: Name of the op between the two passes.
BETWEEN = "between forward and backward"
#: Bytes that a saved state of the random number generator takes (it lives on the CPU, whatever the device).
RNG_STATE_BYTES = 5056

#: Cost and workspace of nodes, where sizes are what the second argument says.
Profiler = Callable[[Sequence[fx.Node], Number], Mapping[fx.Node, OpCost]]


@dataclass(frozen=True)
class Input:
    """A tensor that the caller hands to the forward pass: a parameter, a buffer, an input.

    Attributes:
        nodes: its placeholders; several if they are views of one storage.
        size: bytes of the storage on the device of the budget.
        readers: ids of the ops that read it, through views too.
        overwritten: the forward pass changes its content.
        gradient: the value that holds its gradient; None if it has none.
    """

    nodes: tuple[fx.Node, ...]
    size: int
    readers: tuple[int, ...]
    overwritten: bool
    gradient: int | None


@dataclass(frozen=True)
class Captured:
    """A graph and the FX nodes behind it, at given sizes.

    Attributes:
        graph: what is scheduled.
        module: the joint graph.
        nodes: for each op the node that computes it; None for the op between the passes.
        between: the id of that op; None in a graph without a backward pass.
        value: for each node with a tensor that an op allocated, the value it reads (views included).
        holders: the inverse of `value`.
        bases: for each value the node that holds all of it.
        inputs: tensors that the caller hands over, in the order of their placeholders.
        outputs: of the forward pass, in order; a plain number where it is one, None where there is nothing.
        contents: what it writes into inputs besides, which are `written`, all of them placeholders.
        returned: for each output, then for each of `contents`, the value that it lies in; None for inputs, numbers, and nothing.
        tangents: for each output the value of its gradient; None where it has none.
        gradients: outputs of the backward pass, one for each placeholder of the forward pass; None where there is none.
        sticky: nodes whose first computation is the one that counts (new running statistics of batch norm).
        checkpointed: ops inside `torch.utils.checkpoint` whose results it would not keep.
        lendable: ops that run once only because the caller holds what they make.
        device: where the budget applies.
        resident: bytes of parameters, buffers and inputs.
        sizes: the symbols of the trace. scalars: nodes that stand for numbers which follow from them.
        bindings: what the symbols are here. costs: of the nodes.
        inner: what compiles the passes; None where they run as they are. fusion: the groups of ops that it runs as one each, which are
            planned in place of `graph`.
    """

    graph: Graph
    module: fx.GraphModule
    nodes: list[fx.Node | None]
    between: int | None
    value: dict[fx.Node, int]
    holders: list[list[fx.Node]]
    bases: list[fx.Node]
    inputs: list[Input]
    outputs: list[Any]
    contents: list[fx.Node]
    written: list[fx.Node]
    returned: list[int | None]
    tangents: list[int | None]
    gradients: list[fx.Node | None]
    sticky: set[fx.Node]
    checkpointed: frozenset[int]
    lendable: frozenset[int]
    device: torch.device
    resident: int
    sizes: Sizes
    scalars: Scalars
    bindings: Bindings
    costs: Mapping[fx.Node, OpCost]
    inner: Inductor | None
    fusion: Fusion | None
    _reader: _JointReader

    @cached_property
    def handed_out(self) -> list[int | None]:
        """`returned`, in the graph that is planned; None also for new contents of inputs, which the script never gets."""
        seen = list(zip(self.returned, self._reader.is_update, strict=True))[: len(self.outputs)]
        values = [None if update else value for value, update in seen]
        return values if self.fusion is None else [None if value is None else self.fusion.value_of[value] for value in values]

    @property
    def certain(self) -> Captured:
        """The same without workspaces that were only estimated: what it needs is needed indeed."""
        return self._reader.captured(self.bindings, {node: cost.certain for node, cost in self.costs.items()}, script=False)

    def covers(self, bindings: Bindings, by: Bindings) -> bool:
        """At the first sizes no tensor is larger than at the second.

        That the inputs are not is not enough: what a text is filled up with grows as the text gets shorter.
        """
        return bindings == by or (within(bindings, by) and within(*map(self._reader.bytes, (bindings, by))))

    def at(self, bindings: Bindings, costs_of: Captured | None = None) -> Captured:
        """The same ops and values at other sizes.

        Args:
            bindings: from `sizes.bind`.
            costs_of: take costs and workspaces from there instead of finding them for these sizes. Those of larger sizes are
                safe: ops need no more workspace when there is less to do.
        """
        if bindings == self.bindings and (costs_of is None or costs_of.costs is self.costs):
            return self
        return self._reader.captured(bindings, None if costs_of is None else costs_of.costs)


def read_joint_graph(
    module: fx.GraphModule,
    num_forward_outputs: int,
    profile: Profiler,
    *,
    between_workspace: int | None = None,
    name: str = "graph",
    block: int | None = None,
    inner: Inductor | None = None,
    names: Names | None = None,
) -> Captured:
    """Read a joint graph. It is cleaned in place: dead code goes, batch norm runs eager training's kernels and pins no running statistics.

    Args:
        module: the joint forward and backward graph of AOT autograd, with fake tensors in `node.meta["val"]`.
        num_forward_outputs: how many of its outputs are the forward's. profile: cost and workspace of ops; asked for other sizes, too.
        between_workspace: bytes that the user's script needs between the passes, beyond outputs and their gradients; None:
            an estimate, twice the bytes of the outputs with a gradient (what a cross entropy, or the forward pass of `F.mse_loss`, takes).
        name: of the graph.
        block: bytes in multiples of which memory is taken; None: as the device of the graph does.
        inner: what will compile the passes. names: of the modules of the user's model, for the layers of the ops.

    Raises:
        CheckmateError: a size depends on data.
    """
    module.graph.eliminate_dead_code()
    tell_gradients_apart(module)
    lift_written(module, num_forward_outputs, depends_on_tangents(module))
    if inner is None:
        restore_kernels(module)
    unpin_overwritten(module, outputs_of(module, num_forward_outputs).overwritten)
    if inner is None:
        write_statistics(module, num_forward_outputs)
    module.recompile()
    read = partial(_JointReader, module, num_forward_outputs, profile, between_workspace, name, block, inner, names or {})
    reader = read()
    while reader.improve():
        reader = read()
    return reader.captured(reader.sizes.hints)


class _JointReader:
    """Goes through a clean joint graph once, in the order of execution, and notes ops, values and who holds which value."""

    def __init__(
        self,
        module: fx.GraphModule,
        num_forward_outputs: int,
        profile: Profiler,
        between_workspace: int | None,
        name: str,
        block: int | None,
        inner: Inductor | None,
        names: Names,
    ):
        self.inner, self.layers = inner, Layers(names, module.graph.nodes)
        self.module, self.profile, self.between_workspace, self.name = module, profile, between_workspace, name
        found = outputs_of(module, num_forward_outputs)
        self.num_returned, self.written = num_forward_outputs, found.written
        self.outputs, self.gradients = found.forward, found.gradients
        self.is_update, self.tangent_of = found.is_update, found.tangents
        norms = [node for node in module.graph.nodes if writes_statistics(node)]
        overwritten = [*found.overwritten, *(node for norm in norms for node in norm.args[3:5])]
        self.overwritten = {storage_key(tensor) for node in overwritten for tensor in tensors_of(node)}
        self.device = main_device(tensor for node in module.graph.nodes for tensor in tensors_of(node))
        self.block = block_of(self.device) if block is None else block
        placeholders = module.graph.find_nodes(op="placeholder")
        self.tangents = [node for node in placeholders if is_tangent(node)]
        self.given = arguments_of(module)
        self.sizes = Sizes([node.meta.get("val") for node in self.given])
        self.scalars = Scalars(module, self.sizes)
        self.fixed: dict[int, torch.Tensor] = {}  # storages that live all the time
        for node in [*self.given, *module.graph.find_nodes(op="get_attr")]:
            self.fixed.update((storage_key(tensor), tensor) for tensor in tensors_of(node))
        self.num_resident = len(self.fixed)
        self.readers: dict[int, dict[int, None]] = {}  # storages of inputs -> ops that read them
        self.parts: list[OpNode] = []
        self.made: list[torch.Tensor] = []  # for each value a tensor in its storage
        self.bases: list[fx.Node] = []
        self.holders: list[list[fx.Node]] = []
        self.value_of: dict[fx.Node, int] = {}
        self.owner: dict[int, int] = {}  # storages that ops make: values
        self.sticky: set[fx.Node] = set()
        self.between: int | None = None
        self._read()
        self._nodes = [part.node for part in self.parts]
        self._returned = self._find_returned()
        leaving = {self._value_behind(node) for node in (*self.outputs, *self.gradients)}
        self._reuses = find_reuses(self.parts, self.value_of, self.bases, leaving, inner.writable if inner else writable_inputs)
        self._checkpointed = self._find_checkpointed()
        able = [part.node is not None and self._can_run_again(part.node, part.makes) for part in self.parts]
        # What the caller holds cannot be dropped.
        held = [not self._returned.keys().isdisjoint(part.makes) for part in self.parts]
        self._again = [can and not holds for can, holds in zip(able, held, strict=True)]
        self._lendable = frozenset(
            op
            for op, part in enumerate(self.parts)
            if part.node is not None and able[op] and held[op] and part.phase == "forward" and not is_random(part.node)
        )
        here = [tensor if same_device(tensor.device, self.device) else None for tensor in (*self.made, *self.fixed.values())]
        self.bytes = self.sizes.function(0 if tensor is None else storage_bytes(tensor) for tensor in here)

    def captured(self, bindings: Bindings, costs: Mapping[fx.Node, OpCost] | None = None, script: bool = True) -> Captured:
        """The graph where the symbols are these numbers.

        Args:
            costs: of the nodes, if they are known. script: estimate what the user's script takes between the passes.
        """
        number = self.sizes.at(bindings)
        if costs is None:
            costs = (self.inner.costs if self.inner else self.profile)([node for node in self._nodes if node is not None], number)
        graph, fixed = self._graph(bindings, costs, script)
        return Captured(
            graph=graph,
            module=self.module,
            nodes=self._nodes,
            between=self.between,
            value=self.value_of,
            holders=self.holders,
            bases=self.bases,
            inputs=self._inputs(fixed),
            outputs=self.outputs[: self.num_returned],
            contents=self.outputs[self.num_returned :],
            written=self.written,
            returned=[self._value_behind(node) for node in self.outputs],
            tangents=[self._value_behind(node) for node in self.tangent_of],
            gradients=[node if isinstance(node, fx.Node) else None for node in self.gradients],
            sticky=self.sticky,
            checkpointed=self._checkpointed,
            lendable=self._lendable,
            device=self.device,
            resident=sum(list(fixed.values())[: self.num_resident]),
            sizes=self.sizes,
            scalars=self.scalars,
            bindings=bindings,
            costs=costs,
            inner=self.inner,
            fusion=None if self.inner is None else self.inner.fused(graph, self._nodes, self._returned, number),
            _reader=self,
        )

    def improve(self) -> bool:
        """Let what compiles the passes change the graph to one that takes less time; whether it did."""
        if self.inner is None or self.between is None:
            return False
        graph, _ = self._graph(self.sizes.hints, dict.fromkeys(self.module.graph.nodes, FREE), script=False)
        groups, number = self.inner.groups(graph, self._nodes, self._returned), self.sizes.at(self.sizes.hints)
        return self.inner.improve(self.module, groups, self._nodes, self._returned, self.overwritten, number)

    # --- nodes, one by one ---

    def _read(self) -> None:
        forward, backward = split_passes(self.module, self.outputs)
        for node in forward:
            self._visit(node, "forward")
        if self.tangents:
            self.between = len(self.parts)
            self._add_between()
        for node in backward:
            self._visit(node, "backward")
        if self.tangents and (last := self.parts[-1]).phase == "backward" and not frees_gradients():
            held = [self.value_of[node] for node in self.tangents if node in self.value_of]
            self.parts[-1] = replace(last, reads=tuple(dict.fromkeys([*last.reads, *held])))

    def _visit(self, node: fx.Node, phase: str) -> None:
        """Take in the next node: a number, a part of a tuple, a view, or an op."""
        if node in self.scalars:
            return
        made, layer = tensors_of(node), self.layers.of(node, phase)
        if node.target is operator.getitem:
            if made and node not in self.value_of:
                self._hold_as_view(node, made[0])
            return
        fresh = {storage_key(t): t for t in made if storage_key(t) not in self.owner and storage_key(t) not in self.fixed}
        if made and not fresh and not has_side_effects(node):
            self._hold_as_view(node, made[0])
            return
        reads = self._values_of(node.all_input_nodes)
        if isinstance(node.meta.get("val"), torch.Tensor):
            makes = [self._new_value([node], tensor) for tensor in fresh.values()]
        else:
            makes = self._parts_of_tuple(node, fresh)
        self.parts.append(OpNode(node, reads, tuple(makes), phase, layer))

    def _parts_of_tuple(self, node: fx.Node, fresh: Mapping[int, torch.Tensor]) -> list[int]:
        """The values of an op with several outputs, each held by the `getitem`s that take it.

        An output that nobody takes dies with the op: its bytes are part of the workspace.
        """
        makes = []
        items = {user: tensors_of(user) for user in node.users if user.target is operator.getitem}
        for storage, tensor in fresh.items():
            users = [user for user, yielded in items.items() if [storage_key(t) for t in yielded] == [storage]]
            if is_batch_norm(node) and users and all(user.args[1] in (3, 4) for user in users):
                self.sticky.update(users)
                self.fixed[storage] = tensor
            elif users:
                makes.append(self._new_value(users, tensor))
        return makes

    def _add_between(self) -> None:
        """What the user's script does between the passes: it reads the outputs and makes their gradients."""
        reads = self._values_of([node for node in self.outputs if isinstance(node, fx.Node)])
        makes = [self._new_value([node], tensor) for node in self.tangents for tensor in tensors_of(node)]
        self.parts.append(OpNode(None, reads, tuple(makes), "loss"))

    def _new_value(self, nodes: Sequence[fx.Node], tensor: torch.Tensor) -> int:
        """A value for the storage of `tensor`, held by these nodes, the first of which is its base."""
        value = self.owner[storage_key(tensor)] = len(self.made)
        self.made.append(tensor)
        self.bases.append(nodes[0])
        self.holders.append([])
        for node in nodes:
            self._hold(node, value)
        return value

    def _hold(self, node: fx.Node, value: int) -> None:
        self.value_of[node] = value
        self.holders[value].append(node)

    def _hold_as_view(self, node: fx.Node, tensor: torch.Tensor) -> None:
        """A view of something that an op made holds that value; a view of an input holds nothing."""
        if storage_key(tensor) in self.owner:
            self._hold(node, self.owner[storage_key(tensor)])

    def _values_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        """The values behind what the next op reads, each once. That it reads inputs, too, is noted."""
        storages = dict.fromkeys(storage_key(tensor) for node in nodes for tensor in tensors_of(node))
        for storage in storages:
            self.readers.setdefault(storage, {})[len(self.parts)] = None
        return tuple(dict.fromkeys(self.owner[storage] for storage in storages if storage in self.owner))

    def _value_behind(self, node: object) -> int | None:
        return self.value_of.get(node) if isinstance(node, fx.Node) else None

    # --- once all nodes are known ---

    def _find_returned(self) -> dict[int, bool]:
        """Values that the forward pass returns: whether the caller holds them to the end.

        The new content of an input is copied into it right after the forward pass.
        """
        returned: dict[int, bool] = {}
        for output, update in zip(self.outputs, self.is_update, strict=True):
            value = self._value_behind(output)
            if value is not None:
                returned[value] = returned.get(value, False) or not (update and self.tangents)
        return returned

    def _find_checkpointed(self) -> frozenset[int]:
        """Ops of the forward pass that PyTorch has marked as ones to run again; what leaves a checkpointed region is kept."""
        regions = [checkpoint_of(part.node) if part.node is not None and part.phase == "forward" else None for part in self.parts]
        producer = {value: op for op, part in enumerate(self.parts) for value in part.makes}
        leaving = {
            producer[value]
            for op, part in enumerate(self.parts)
            for value in part.reads
            if part.phase != "backward" and regions[producer[value]] != regions[op]
        }
        return frozenset(op for op, region in enumerate(regions) if region is not None and op not in leaving)

    def _can_run_again(self, node: fx.Node, makes: Sequence[int]) -> bool:
        """It changes nothing but its outputs, and everything it reads and draws can be had a second time."""
        if not is_repeatable(node, self.device, self.inner is not None):
            return False
        # What a sparse tensor is made of may be parts of other values.
        if any(self.made[v].layout is not torch.strided for v in makes):
            return False
        read = {storage_key(tensor) for source in node.all_input_nodes for tensor in tensors_of(source)}
        if is_clone(node) and read.isdisjoint(self.owner):
            return False  # a copy of an input, which the script may be about to change
        # An input that the forward pass overwrites is another one afterwards; batch norm does not look at it the second time.
        return is_batch_norm(node) or read.isdisjoint(self.overwritten)

    def _saves_state(self, op: int) -> bool:
        """The state of the random number generator is saved for this op, on the device of the budget."""
        node = self.parts[op].node
        return node is not None and self._again[op] and is_random(node) and self.device.type == "cpu"

    # --- at given sizes ---

    def _graph(self, bindings: Bindings, costs: Mapping[fx.Node, OpCost], script: bool) -> tuple[Graph, dict[int, int]]:
        """The graph of single ops, and bytes of the storages that live all the time."""
        number, asked = self.sizes.at(bindings), self.bytes(bindings)
        sizes = [bytes_taken(size, self.block) for size in asked[: len(self.made)]]
        # What these take beyond that is known: the allocator has given it out.
        fixed = dict(zip(self.fixed, (in_blocks(size, self.block) for size in asked[len(self.made) :]), strict=True))
        kept = self._kept(number)
        values = [Value(b.name, size, keep=v in kept) for v, (b, size) in enumerate(zip(self.bases, sizes, strict=False))]
        states = RNG_STATE_BYTES * sum(map(self._saves_state, range(len(self.parts))))
        return Graph(self._ops(costs, number, script), values, sum(fixed.values()) + states, self.name), fixed

    def _estimate_between(self, number: Number) -> int:
        tensors = [tensor for node in self.tangents for tensor in tensors_of(node) if elements(tensor, number) > 1]
        return 2 * sum(int(number(storage_bytes(tensor))) for tensor in tensors)

    def _kept(self, number: Number) -> set[int]:
        """Values that are live to the end: what the caller gets, gradients, and the gradient of a scalar, which is the root of
        the backward pass: autograd holds it to its end."""
        kept = {value for value, to_the_end in self._returned.items() if to_the_end}
        kept.update(value for node in self.gradients if (value := self._value_behind(node)) is not None)
        scalars = [node for node in self.tangents if node in self.value_of and elements(tensors_of(node)[0], number) <= 1]
        return kept.union(self.value_of[node] for node in scalars)

    def _inputs(self, sizes: Mapping[int, int]) -> list[Input]:
        """What the caller hands over. Gradients come in the order of the placeholders."""
        gradients = dict(zip(self.given, self.gradients, strict=False))
        behind: dict[int, list[fx.Node]] = {}
        for node in self.given:
            for tensor in tensors_of(node):
                behind.setdefault(storage_key(tensor), []).append(node)
        found = []
        for storage, nodes in behind.items():
            held = [value for node in nodes if (value := self._value_behind(gradients.get(node))) is not None]
            readers = tuple(self.readers.get(storage, ()))
            found.append(Input(tuple(nodes), sizes[storage], readers, storage in self.overwritten, held[0] if held else None))
        return found

    def _ops(self, costs: Mapping[fx.Node, OpCost], number: Number, script: bool) -> list[Op]:
        estimate = self._estimate_between(number) if script else 0
        ops = []
        for index, part in enumerate(self.parts):
            if part.node is None:
                workspace = estimate if self.between_workspace is None else self.between_workspace
                ops.append(Op(BETWEEN, 0.0, part.reads, part.makes, workspace, recomputable=False, phase=part.phase))
                continue
            cost = costs[part.node]
            # While random numbers are drawn again, the state to go back to is kept.
            workspace = cost.workspace + (RNG_STATE_BYTES if self._saves_state(index) else 0)
            again, reuses = self._again[index], self._reuses[index]
            ops.append(Op(part.node.name, cost.seconds, part.reads, part.makes, workspace, again, part.phase, reuses, part.layer))
        return ops
