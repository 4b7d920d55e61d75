"""One graph from PyTorch, traced once. What runs behind it is chosen anew at every call, so a new plan needs no new trace.

AOT autograd fixes which tensors the forward pass saves for the backward pass when it splits a traced graph. Here that is one empty
tensor, the ticket; what a plan really saves hangs on it, and dies with it when autograd lets go of the pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import torch
from torch import fx

from ...errors import CheckmateError
from ..inductor.inner import Inductor
from ..inductor.internals import decompositions, joint_passes, write_out_layouts
from ..inductor.kinds import RatesOf
from ..ops.layers import names_of
from ..ops.nodes import arguments_of
from ..ops.outputs import flat_outputs
from ..pytorch.gradient_batches import keeps_graph, one_by_one
from ..pytorch.internals import Boxed, effect_tokens, is_tangent, mark_boxed, saved_tensor_hooks, trace_and_compile
from ..pytorch.random import preserved_random_state
from .capture import Captured, Profiler, read_joint_graph
from .nested_regions import with_regions_in_place
from .undefined_gradients import Inputs, may_go_without, without_undefined, zeros_of


class Left:
    """A tensor that a pass has left for later ones, in a box that may be emptied before those who hold it are gone.

    Attributes:
        full: it is there.
    """

    def __init__(self, tensor: Any):
        self.full = True
        self.tensor = tensor
        self._versions = versions([tensor])

    def take(self, empties: bool) -> Any:
        """The tensor, for a backward pass.

        Raises:
            RuntimeError: it was changed in place; as in plain training.
        """
        tensor = self.tensor
        _check([tensor], self._versions)
        if empties:
            self.full, self.tensor = False, None
        return tensor


class Ticket:
    """What a forward pass left for its backward pass.

    Attributes:
        run: the runner's own note of the forward pass.
        saved: tensors, as the forward function returned them; None once a backward pass has used them up.
        inputs: those of the forward pass that may have no gradient.
    """

    def __init__(self, run: Any, saved: Sequence[Any]):
        self.run = run
        self.inputs: Inputs = {}
        self.saved: list[Any] | None = list(saved)
        self._versions = versions(saved)

    def add(self, left: Left) -> None:
        """One more thing to hold for the backward pass, if that is still to come."""
        if self.saved is not None:
            self.saved.append(left)
            self._versions.append(0)

    def exchange(self, saved: Sequence[Any], before: Sequence[int]) -> None:
        """Hold these instead, which were changed so often when they were right."""
        self.saved, self._versions = list(saved), list(before)

    def take(self) -> list[Any]:
        """The saved tensors, for a backward pass; they stay only if autograd is to run it again.

        Raises:
            RuntimeError: they are gone, or one of them was changed in place; as in plain training.
        """
        if self.saved is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time: say retain_graph=True in the first backward pass"
            )
        saved = list(self.saved)
        _check(saved, self._versions)
        if not keeps_graph():
            self.saved = None
        return saved


def without_history(saved: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """What a forward pass leaves, where autograd will not add to it.

    What it returns, too, gets the pass itself as its history, which holds the ticket: if no backward pass came, neither would ever die.
    So would a view of it.
    """
    returned = {id(x) for x in outputs if isinstance(x, torch.Tensor)}
    return [x.detach() if _may_have_history(x) and (id(x) in returned or x._base is not None) else x for x in saved]


def _may_have_history(x: Any) -> bool:
    """Integers never do, and which tensor they are in matters: nested tensors tell their ragged sizes apart by that of their offsets."""
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def versions(tensors: Sequence[Any]) -> list[int]:
    """How often each was changed in place so far."""
    try:
        return [tensor._version for tensor in tensors]
    except (AttributeError, RuntimeError):  # numbers, and tensors made under inference mode, have no count
        return [x._version if isinstance(x, torch.Tensor) and not x.is_inference() else 0 for x in tensors]


def _check(tensors: Sequence[Any], before: list[int]) -> None:
    now = versions(tensors)
    if now != before:
        tensor, new, old = next(known for known in zip(tensors, now, before, strict=True) if known[1] != known[2])
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {list(tensor.shape)} is at version {new}, expected version {old} instead; where plain training does not need it, "
            "have the model read a clone() of it"
        )


#: Tickets by number. They live as long as their tensors, or, where the user's hooks replace what autograd saves (offloading), until
#: their backward pass.
_tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
_hooked: dict[int, Ticket] = {}
_numbers = count()


def _issue(ticket: Ticket) -> torch.Tensor:
    """The tensor that stands for a ticket: its number."""
    number = next(_numbers)
    tensor = torch.tensor([number])
    _tickets[number] = ticket
    if saved_tensor_hooks():
        _hooked[number] = ticket
    else:
        tensor._checkmate_ticket = ticket  # type: ignore[attr-defined]  # it dies with the tensor
    return tensor


def _redeem(tensor: torch.Tensor) -> Ticket:
    number = int(tensor)
    ticket = _tickets.get(number)
    if ticket is None:
        raise CheckmateError("a forward pass left nothing for its backward pass: please report it")
    if not keeps_graph():
        _hooked.pop(number, None)
    return ticket


class Runner(Protocol):
    """Decides what runs when a part is called."""

    def forward(self, part: Part, arguments: list[Any]) -> tuple[list[Any], Ticket]:
        """Run the forward pass: what it returns, and what it leaves for the backward pass."""

    def backward(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        """Run the backward pass on the gradients of what the forward pass returned."""

    def inference(self, part: Part, arguments: list[Any]) -> Sequence[Any]:
        """Run a graph without a backward pass."""


class Part:
    """A graph from PyTorch.

    Attributes:
        runner: what runs it. inner: what its passes are compiled by, as in `Options`.
        trains: it has a backward pass. called: it has run.
        num_outputs: of its forward pass, or of the graph where there is no backward pass.
        more_follows: the compiler broke the user's function off after this graph. model: of the user, where it is known. names: of its modules.
    """

    def __init__(
        self,
        runner: Runner,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        rates_of: RatesOf,
        inner: str = "eager",
        model: torch.nn.Module | None = None,
    ):
        self.runner = runner
        self.names, self.model = names_of(model), None if model is None else weakref.ref(model)
        self.inner, self._rates_of = inner, rates_of
        reason = getattr(module, "compile_subgraph_reason", None)
        self.more_follows = bool(getattr(reason, "graph_break", False))
        self.trains = self.called = False
        self.num_outputs = 0
        self._module: fx.GraphModule | None = None
        self._captured: Captured | None = None
        self._positions: list[int] = []
        self._tangents: list[fx.Node] = []
        self._tokens: list[int] = []
        self._lock = threading.RLock()
        devices = list({x.device for x in inputs if isinstance(x, torch.Tensor)})
        written_out = decompositions() if self.inductor else None
        with preserved_random_state(devices):
            self.call = trace_and_compile(
                with_regions_in_place(module),
                inputs,
                self._partition,
                self._forward,
                self._backward,
                self._inference,
                written_out,
            )

    @property
    def inductor(self) -> bool:
        """Its passes are compiled by Inductor."""
        return self.inner == "inductor"

    def captured(self, profile: Profiler) -> Captured:
        """The graph as it is planned; read at the first call, so that what is wrong with it reaches the caller as it is."""
        with self._lock:
            if self._captured is None:
                assert self._module is not None
                inner = Inductor(profile, self._rates_of) if self.inductor else None
                self._captured = read_joint_graph(self._module, self.num_outputs, profile, inner=inner, names=self.names)
                placeholders = arguments_of(self._module)
                self._positions = [placeholders.index(entry.nodes[0]) for entry in self._captured.inputs]
            return self._captured

    def inputs_of(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors behind the `inputs` of the captured graph in one call."""
        return [arguments[position] for position in self._positions]

    @property
    def module(self) -> fx.GraphModule:
        """What was traced: the joint graph, or the graph itself where there is no backward pass."""
        assert self._module is not None
        return self._module

    # --- called back by AOT autograd ---

    def _partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        if self.inductor:
            joint = joint_passes(joint)
            write_out_layouts(joint)
        self.trains, self.num_outputs, self._module = True, num_fwd_outputs, joint
        self._tangents = [node for node in joint.graph.find_nodes(op="placeholder") if is_tangent(node)]
        self._tokens = effect_tokens(joint)
        return skeletons(joint, num_fwd_outputs)

    def _forward(self, skeleton: fx.GraphModule) -> Boxed:
        def forward(arguments: list[Any]) -> list[Any]:
            for place in self._tokens:
                arguments[place] = torch.empty(0)
            differentiated = (x for place, x in enumerate(arguments) if place not in self._tokens)
            inputs = may_go_without(differentiated) if len(self._tangents) > 1 else {}
            outputs, ticket = self.runner.forward(self, arguments)
            ticket.inputs = inputs
            return [*outputs, _issue(ticket)]

        return mark_boxed(forward)

    def _backward(self, skeleton: fx.GraphModule) -> Boxed:
        def backward(arguments: list[Any]) -> Sequence[Any]:
            ticket, tangents = _redeem(arguments[0]), arguments[1:]
            arguments.clear()
            return one_by_one(partial(self._backward_of, ticket), tangents)

        return mark_boxed(backward)

    def _backward_of(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        if all(tangent is not None for tangent in tangents):
            return ticket.run.runner.backward(ticket, tangents)  # type: ignore[no-any-return]  # `run` is the runner's own
        return self._with_undefined(ticket, tangents)

    def _with_undefined(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        """Run a backward pass where some outputs have no gradients."""
        assert self._captured is not None
        number = self._captured.sizes.at(ticket.run.sizes)
        defined = [node for node, tangent in zip(self._tangents, tangents, strict=True) if tangent is not None]
        for place, node in enumerate(self._tangents):
            if tangents[place] is None:
                tangents[place] = zeros_of(node, number)
        gradients = ticket.run.runner.backward(ticket, tangents)
        return without_undefined(gradients, self.module, self.num_outputs, defined, ticket.inputs)

    def _inference(self, module: fx.GraphModule) -> Boxed:
        (output,) = module.graph.find_nodes(op="output")
        self.num_outputs, self._module = len(output.args[0]), joint_passes(module) if self.inductor else module
        return mark_boxed(lambda arguments: self.runner.inference(self, arguments))


def skeletons(joint: fx.GraphModule, num_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """What AOT autograd looks at in place of a forward and a backward function: inputs and outputs with their fake tensors.

    Nothing of it ever runs. The forward saves the ticket alone.
    """
    tensor = next(value for node in joint.graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor))
    ticket = tensor.new_empty((1,), dtype=torch.int64, device="cpu")
    outputs = flat_outputs(joint)
    placeholders = joint.graph.find_nodes(op="placeholder")
    forward = _Skeleton(arguments_of(joint))
    returned = [forward.copy(node) for node in outputs[:num_outputs]]
    forward.graph.output((*returned, forward.stand_in(ticket)))
    backward = _Skeleton([])
    backward.input("ticket", ticket)
    for node in placeholders:
        if is_tangent(node):
            backward.take(node)
    backward.graph.output(tuple(backward.copy(node) for node in outputs[num_outputs:]))
    return fx.GraphModule(joint, forward.graph), fx.GraphModule(joint, backward.graph)


class _Skeleton:
    def __init__(self, inputs: Sequence[fx.Node]):
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            self.take(node)

    def take(self, node: fx.Node) -> None:
        copy = self.copies[node] = self.graph.node_copy(node)
        copy.meta = dict(node.meta)

    def input(self, name: str, value: torch.Tensor) -> None:
        self.graph.placeholder(name).meta["val"] = value

    def copy(self, node: Any) -> Any:
        """An output: an input itself, a stand-in for what is computed, or whatever it is if it is no node."""
        if not isinstance(node, fx.Node):
            return node
        if node not in self.copies:
            self.copies[node] = self.stand_in(node.meta.get("val"))
            self.copies[node].meta = dict(node.meta)
        return self.copies[node]

    def stand_in(self, value: Any) -> fx.Node:
        node = self.graph.call_function(torch.empty, ((),))
        node.meta["val"] = value
        return node
