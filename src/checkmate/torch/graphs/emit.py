"""A captured graph and its schedule -> the forward and the backward function that run it.

Every `Compute` of the schedule becomes a new copy of the op's FX node, reading the current copies of its inputs. Views are
made again next to their readers, from the current copy of their base. A name is dropped after its last reader by the
generated code, so a value is gone when the schedule says so. What the backward pass reads and the forward pass computed
is an output of the forward function and an input of the backward function.

Numbers that follow from the sizes of a call are worked out outside and handed over, each half's after its other inputs. So the
same functions run at all sizes, and no tensor is kept alive for its shape.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import fx

from ...errors import CheckmateError
from ...schedule import Compute, Free, Step, freed_next
from ..ops.batch_norm import is_batch_norm, without_statistics
from ..ops.in_place import like, out_variant, write_over_saved
from ..ops.nodes import COMPUTATION, is_random, tensors_of
from ..ops.outputs import write
from ..ops.sizes import Bindings, storage_key
from ..pytorch.internals import forget_version_check, is_tangent
from ..pytorch.random import draw, draw_again, empty_state
from .capture import RNG_STATE_BYTES, Captured

#: Copies of nodes that functions before have made, and of states of the random number generator (by op).
Copies: TypeAlias = "Mapping[fx.Node, fx.Node] | Mapping[int, fx.Node] | Mapping[fx.Node | int, fx.Node]"
#: The numbers that a function wants after its other inputs.
Numbers = Callable[[Bindings], tuple[Any, ...]]


@dataclass(frozen=True)
class Emitted:
    """The functions of a training step.

    Attributes:
        forward: inputs, then `forward_numbers` -> outputs, then what the backward needs.
        backward: what the forward saved, the gradients of the outputs, then `backward_numbers` -> gradients. None without a
            backward pass.
        forward_numbers, backward_numbers: from the bindings of a call; nothing in a graph with fixed sizes.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    forward_numbers: Numbers
    backward_numbers: Numbers


def emit(captured: Captured, steps: Sequence[Step], *, functional: bool = False) -> Emitted:
    """The two functions of a training step, at all sizes.

    Args:
        steps: a valid schedule of `captured.graph`.
        functional: for a compiler, which finds out itself what can be written in place; random ops run once, and are ops like others.

    Raises:
        CheckmateError: the schedule starts the backward pass before the forward's end, or the like.
    """
    emitter = PartEmitter(captured, functional)
    for op, count in Counter(step.op for step in steps if isinstance(step, Compute)).items():
        if count > 1:
            emitter.repeats(op)
    forward, backward = Function(), None
    emitter.enter(forward)
    emitter.take_inputs()
    returned: list[Any] | None = None
    for number, step in enumerate(steps):
        if isinstance(step, Free):
            emitter.drop(step.value)
        elif step.op == captured.between:
            returned, backward = emitter.outputs(), Function()
            emitter.enter(backward)
            emitter.take_gradients()
        else:
            in_place = not functional and captured.graph.ops[step.op].reuses in freed_next(steps, number)
            emitter.compute(step.op, in_place)
    if returned is None or backward is None:
        return Emitted(
            forward.close(tuple(emitter.outputs()), captured.module), None, _numbers(captured, forward), _numbers(captured)
        )
    closed = backward.close(tuple(emitter.gradients()), captured.module)
    opened = forward.close((*returned, *backward.brought), captured.module)
    return Emitted(opened, closed, _numbers(captured, forward), _numbers(captured, backward))


def _numbers(captured: Captured, function: Function | None = None) -> Numbers:
    return captured.scalars.function([] if function is None else [node for _, node in function.numbers])


class Function:
    """A function under construction.

    Attributes:
        brought: what functions before it have computed and it reads -> its inputs for that.
        numbers: its last inputs, in order: for which graph of the step, and for which node of it.
        attributes: of the traced modules, as far as it reads them, by the names that they have here.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.brought: dict[fx.Node, fx.Node] = {}
        self.numbers: list[tuple[int, fx.Node]] = []
        self.attributes: dict[str, Any] = {}
        self._given: fx.Node | None = None  # the first input that it is called with

    def take(self, node: fx.Node) -> fx.Node:
        """An input that the function is called with: of the caller, or a gradient."""
        copy = self.graph.node_copy(node)
        copy.meta = dict(node.meta)
        self._given = self._given or copy
        return copy

    def bring(self, copy: fx.Node) -> fx.Node:
        """What an earlier function has computed: an input in front of all others."""
        if copy not in self.brought:
            with self.graph.inserting_before(self._given):
                placeholder = self._input(copy.name, copy.meta)
            forget_version_check(copy)
            forget_version_check(placeholder)
            self.brought[copy] = placeholder
        return self.brought[copy]

    def number(self, graph: int, node: fx.Node) -> fx.Node:
        """One more input at the end, for a number."""
        inputs = self.graph.find_nodes(op="placeholder")
        with self.graph.inserting_after(inputs[-1] if inputs else self.graph._root):
            placeholder = self._input(node.name, node.meta)
        self.numbers.append((graph, node))
        return placeholder

    def attribute(self, name: str, module: torch.nn.Module) -> str:
        """Another name for an attribute of a traced module."""
        own = f"{len(self.attributes)}_{name.replace('.', '_')}"
        self.attributes[own] = operator.attrgetter(name)(module)
        return own

    def _input(self, name: str, meta: dict[str, Any]) -> fx.Node:
        """The name is another one where the function has something of that name. The generated code assigns the inputs under their
        targets first, and then, one by one, to their names: were the two not equal, an input could overwrite the next."""
        placeholder = self.graph.placeholder(name)
        placeholder.target = placeholder.name
        placeholder.meta = dict(meta)
        return placeholder

    def close(self, returned: tuple[Any, ...], root: torch.nn.Module | None = None) -> fx.GraphModule:
        """The function is complete; it reads attributes of this module, or its own."""
        self.graph.output(returned)
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and node.target is operator.getitem and not node.users:
                self.graph.erase_node(node)
        self.graph.lint()
        return fx.GraphModule(self.attributes if root is None else root, self.graph)


class PartEmitter:
    """Emits computations of one graph into the function that is under construction.

    Args:
        functional: as for `emit`.
        number: of the graph in its step; None where its functions have no other graph's ops.
    """

    def __init__(self, captured: Captured, functional: bool = False, number: int | None = None):
        self.captured = captured
        self.functional = functional
        self.position = number
        self.computed = {node: op for op, node in enumerate(captured.nodes) if node is not None}
        #: Random ops that run more than once: all but the first time they draw the same numbers again.
        self.drawn_again: set[int] = set()
        self.runs = [0] * captured.graph.num_ops
        self.scalars = captured.scalars
        self.here = Function()
        self.current: dict[fx.Node, Any] = {}  # the copies in this function; a plain number where the trace has one
        self.behind: dict[fx.Node, fx.Node] = {}  # those in functions before
        self.first: dict[fx.Node, fx.Node] = {}  # the copies of sticky nodes that count
        self.states: dict[int, fx.Node] = {}  # op -> saved state of the random number generator, in this function
        self.states_behind: dict[int, fx.Node] = {}
        self.brings: set[tuple[fx.Node | int, fx.Node]] = set()  # node, or op with a state, and the copy that was brought over
        self._same_looks: dict[fx.Node, fx.Node | None] = {}
        #: Inputs that another graph of the step has returned -> where they can be had from once they were dropped.
        self.lenders: dict[fx.Node, tuple[PartEmitter, fx.Node]] = {}

    def repeats(self, op: int) -> None:
        """The op will be computed more than once."""
        node = self.captured.nodes[op]
        if node is not None and is_random(node):
            self.drawn_again.add(op)

    # --- functions ---

    def go_on(self, behind: Copies, first: Copies, states: Copies) -> None:
        """Functions before these have run the forward pass, and these copies of it can be brought over.

        Args:
            first: among them those of sticky nodes. states: those of random number generators, by op.
        """
        assert self.captured.between is not None
        self.runs[: self.captured.between] = [1] * self.captured.between
        self.behind = {n: c for n, c in behind.items() if isinstance(n, fx.Node) and n not in self.captured.sticky}
        self.first = {n: c for n, c in first.items() if isinstance(n, fx.Node) and n in self.captured.sticky}
        self.states_behind = {op: c for op, c in states.items() if isinstance(op, int)}
        self.drawn_again = set(self.states_behind)

    def enter(self, function: Function) -> None:
        """Go on in another function."""
        came = set(self.here.brought.values())
        self.behind.update((n, c) for n, c in self.current.items() if isinstance(c, fx.Node) and c not in came)
        self.states_behind = {**self.states, **self.states_behind}
        self.here, self.current, self.states = function, {}, {}

    def take_inputs(self) -> None:
        """The function is called with the inputs of the graph."""
        for node in self.captured.module.graph.nodes:
            if node.op == "placeholder" and not is_tangent(node):
                self.current[node] = self.here.take(node)

    def take_gradients(self) -> None:
        """The function is called with the gradients of the outputs."""
        for node in self.captured.module.graph.nodes:
            if is_tangent(node):
                self.current[node] = self.here.take(node)

    def outputs(self) -> list[Any]:
        """What the forward pass returns. It ends here, with what it writes into its inputs."""
        contents = [self.first.get(node) or self.get(node) for node in self.captured.contents]
        write(self.here.graph, [self.current[node] for node in self.captured.written], contents, self.functional)
        nodes = self.captured.outputs
        return [self.first.get(node) or self._as_traced(node) if isinstance(node, fx.Node) else node for node in nodes]

    def gradients(self) -> list[Any]:
        """What the backward pass returns."""
        nodes = [node for node in self.captured.gradients if node is not None]
        # Autograd keeps a gradient as it is where nothing else holds on to it, such as a view that is returned, too.
        times = Counter(storage_key(tensor) for node in nodes for tensor in tensors_of(node))
        shared = {node for node in nodes if any(times[storage_key(tensor)] > 1 for tensor in tensors_of(node))}
        given = [node is not None and (node in shared or self._is_given(node)) for node in self.captured.gradients]
        gradients = zip(self.captured.gradients, given, strict=True)
        return [None if node is None else self._as_traced(node) if own else self.get(node) for node, own in gradients]

    def _is_given(self, node: fx.Node) -> bool:
        """It is, or looks like, something that the function was called with."""
        copy = self.get(node)
        return isinstance(copy, fx.Node) and copy.op == "placeholder"

    def _copy(self, node: fx.Node) -> fx.Node:
        copy = self.here.graph.node_copy(node, lambda argument: self.current[argument])
        copy.meta = dict(node.meta)
        if node.op == "get_attr" and self.position is not None:
            copy.target = self.here.attribute(str(node.target), self.captured.module)
        return copy

    # --- the steps ---

    def drop(self, value: int) -> None:
        """Forget the current copy of a value and all views of it."""
        self.forget(self.captured.holders[value])

    def forget(self, nodes: Iterable[fx.Node]) -> None:
        """Forget the current copies of nodes."""
        for node in nodes:
            self.current.pop(node, None)
            self.behind.pop(node, None)

    def compute(self, op: int, in_place: bool) -> None:
        """One more computation of an op.

        Args:
            in_place: the value that it reuses dies here.
        """
        node = self.captured.nodes[op]
        assert node is not None
        for argument in self.reads(op):
            self.get(argument)
        again = self.runs[op] > 0
        self.runs[op] += 1
        batch_norm = is_batch_norm(node) and again
        for value in self.captured.graph.ops[op].outputs:
            self.drop(value)
        copy = self._emit_in_place(op, node) if in_place else self._emit_op(op, node, again, batch_norm)
        copy.meta[COMPUTATION] = self.runs[op]
        self.current[node] = copy
        for user in node.users:
            if user.target is operator.getitem and not (batch_norm and user in self.captured.sticky):
                part = self._copy(user)
                self.current[user] = part
                if user in self.captured.sticky:
                    self.first[user] = part
        if node not in self.captured.value and all(user.target is operator.getitem for user in node.users):
            del self.current[node]  # a tuple dies once its parts are taken, or it would keep them all alive

    def _emit_op(self, op: int, node: fx.Node, again: bool, batch_norm: bool) -> fx.Node:
        current, graph = self.current, self.here.graph
        if batch_norm:
            target, arguments, value = without_statistics(node)
            copy = graph.call_function(target, fx.map_arg(arguments, current.__getitem__))
            copy.meta = {**node.meta, "val": value}
        elif is_random(node) and not self.functional:
            copy = self._emit_draw(op, node, again)
        else:
            copy = self._copy(node)
        return copy

    def _emit_in_place(self, op: int, node: fx.Node) -> fx.Node:
        """An op that writes in the storage of an input."""
        reused, variant = self.captured.graph.ops[op].reuses, out_variant(node.target)
        assert reused is not None and variant is not None
        storage = self.current[self.captured.bases[reused]]
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda argument: self.current[argument])
        if storage.op == "placeholder":  # the forward pass saved it
            given = (storage, cast(Any, node.target), *variant, arguments, keywords)
            copy = self.here.graph.call_function(write_over_saved, given)
        else:
            copy = self.here.graph.call_function(variant[0], arguments, {**keywords, variant[1]: storage})
        copy.meta = dict(node.meta)
        return copy

    def _emit_draw(self, op: int, node: fx.Node, again: bool) -> fx.Node:
        """A random op: all draw in turn; the first computation of one that comes again saves the generator's state."""
        device = tensors_of(node)[0].device
        state = self._state(op, device) if op in self.drawn_again else None
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda argument: self.current[argument])
        function = draw_again if again else draw
        copy = self.here.graph.call_function(function, (state, device, cast(Any, node.target), arguments, keywords))
        copy.meta = dict(node.meta)
        return copy

    def _state(self, op: int, device: torch.device) -> fx.Node:
        """The saved state of an op's generator, here; room for it where the op runs for the first time."""
        state = self.states.get(op)
        if state is None and self.runs[op] > 1:
            state = self._bring(op, self.states_behind[op])
        elif state is None:
            state = self.here.graph.call_function(empty_state, (device,))
            like = next(n for n in self.captured.module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
            state.meta["val"] = like.meta["val"].new_empty((RNG_STATE_BYTES,), dtype=torch.uint8, device="cpu")
        self.states[op] = state
        return state

    def get(self, node: fx.Node) -> Any:
        """The current copy of a node in the function under construction; views are made, saved values are brought over."""
        current = self.current
        if node in current:
            return current[node]
        if node in self.scalars:
            constant = self.scalars.constant(node)
            current[node] = self.here.number(self.position or 0, node) if constant is None else constant
        elif node.op == "get_attr":
            current[node] = self._copy(node)
        elif node in self.captured.sticky:
            current[node] = self._bring(node, self.first[node])
        elif node in self.behind and self._crosses(node):
            current[node] = self._bring(node, self.behind[node])
        elif node in self.lenders:
            lender, lent = self.lenders[node]
            current[node] = lender.get(lent)
        elif (same := self._same_part(node)) is not None:
            current[node] = self.get(same)
        elif self._is_view(node):
            current[node] = self._view(node)
        else:
            raise CheckmateError(f"the schedule reads {node.name!r} when it is not live: please report it")
        return current[node]

    def _view(self, node: fx.Node) -> fx.Node:
        if (same := self._looks_like(node)) is not None:
            return cast(fx.Node, self.get(same))
        return self._copy_of_view(node)

    def _copy_of_view(self, node: fx.Node) -> fx.Node:
        for argument in node.all_input_nodes:
            self.get(argument)
        return self._copy(node)

    def _looks_like(self, node: fx.Node) -> fx.Node | None:
        """What the view is made from, directly or not, if it looks just like the view: a matrix transposed twice, say."""
        if node not in self._same_looks:
            found, source = None, node
            while self._is_view(source) and len(source.all_input_nodes) == 1:
                source = source.all_input_nodes[0]
                if not self.functional and _look_alike(node, source):
                    found = source
            self._same_looks[node] = found
        found = self._same_looks[node]
        return found if found is not None and self._missing(found) is None else None

    def _as_traced(self, node: fx.Node) -> Any:
        """The copy of a node that leaves the function: a view of its own where the trace has one."""
        copy = self.get(node)
        if not self._is_view(node) or self._looks_like(node) is None:
            return copy
        return self._copy_of_view(node)

    def _bring(self, what: fx.Node | int, copy: fx.Node) -> fx.Node:
        self.brings.add((what, copy))
        return self.here.bring(copy)

    def find(self, nodes: Iterable[fx.Node]) -> None:
        """Compute again whatever is needed to get these nodes."""
        wanted: list[tuple[PartEmitter, fx.Node]] = [(self, node) for node in nodes]
        while wanted:
            emitter, node = wanted[-1]
            missing = emitter._missing(node)
            if missing is None:
                wanted.pop()
                continue
            owner, op = missing
            needed = [(owner, source) for source in owner.reads(op) if owner._missing(source) is not None]
            wanted += needed
            if not needed:
                owner.compute(op, in_place=False)

    def _missing(self, node: fx.Node) -> tuple[PartEmitter, int] | None:
        """The op that is to be computed before `get` finds the node; None if it does."""
        if node in self.current or node in self.scalars or node.op == "get_attr" or node in self.captured.sticky:
            return None
        if node in self.behind and self._crosses(node):
            return None
        if node in self.lenders:
            lender, lent = self.lenders[node]
            return lender._missing(lent)
        if (same := self._same_part(node)) is not None:
            return self._missing(same)
        if self._is_view(node):
            return next((lacks for argument in node.all_input_nodes if (lacks := self._missing(argument)) is not None), None)
        maker = node.args[0] if node.target is operator.getitem and node not in self.computed else node
        if not isinstance(maker, fx.Node) or maker not in self.computed:
            raise CheckmateError(f"the schedule reads {node.name!r} when it is not live: please report it")
        return self, self.computed[maker]

    def reads(self, op: int) -> list[fx.Node]:
        """What the next computation of the op looks at."""
        node = self.captured.nodes[op]
        assert node is not None
        if is_batch_norm(node) and self.runs[op]:  # its running statistics may have been overwritten: do not even look at them
            return [argument for argument in node.args[:3] if isinstance(argument, fx.Node)]
        return list(node.all_input_nodes)

    def _is_view(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node in self.computed:
            return False
        value = self.captured.value.get(node)
        return value is None or node is not self.captured.bases[value]

    def _same_part(self, node: fx.Node) -> fx.Node | None:
        """Another `getitem` of the same item of the same op, which stands for the value."""
        value = self.captured.value.get(node)
        if value is None or node.target is not operator.getitem or node.args[0] not in self.computed:
            return None
        base = self.captured.bases[value]
        return base if base is not node and base.args == node.args else None

    def _crosses(self, node: fx.Node) -> bool:
        """A parameter, an input, or the base of a value that is still live at the end of the forward pass."""
        value = self.captured.value.get(node)
        if value is None:  # an input, or a number that an op has read from its data
            return node.op == "placeholder" or (node in self.computed and not tensors_of(node))
        return node is self.captured.bases[value]


def _look_alike(one: fx.Node, other: fx.Node) -> bool:
    """Both are a single tensor, in the same places of the same storage."""
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return storage_key(first) == storage_key(second) and like(first, second)
