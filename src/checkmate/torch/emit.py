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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from ..errors import CheckmateError
from ..schedule import Compute, Free, Step, freed_next
from .capture import RNG_STATE_BYTES, Captured
from .in_place import out_variant, write_over_saved
from .internals import forget_version_check, is_tangent
from .nodes import aten, is_batch_norm, is_random, tensors_of
from .random import draw, draw_again, empty_state
from .sizes import Bindings

#: Training-mode batch norm without running statistics: the same numbers, and nothing to update.
_BATCH_NORM_PLAIN = aten._native_batch_norm_legit.no_stats


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
    emitter = _Emitter(captured, steps, functional)
    for number, step in enumerate(steps):
        if isinstance(step, Free):
            emitter.drop(step.value)
        elif step.op == captured.between:
            emitter.cross()
        else:
            in_place = not functional and captured.graph.ops[step.op].reuses in freed_next(steps, number)
            emitter.compute(step.op, in_place)
    return emitter.finish()


class _Pass:
    """One function under construction, and the current copy of every node of the joint graph in it."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.current: dict[fx.Node, Any] = {}  # a plain number where the trace has one
        self.states: dict[int, fx.Node] = {}  # op -> saved state of the random number generator
        self.numbers: dict[fx.Node, fx.Node] = {}  # node -> the last inputs, in order

    def number(self, node: fx.Node) -> fx.Node:
        """One more input at the end, for a number."""
        inputs = self.graph.find_nodes(op="placeholder")
        with self.graph.inserting_after(inputs[-1] if inputs else self.graph._root):
            placeholder = self.graph.placeholder(node.name)
        placeholder.target = placeholder.name  # see `_Emitter._save`
        placeholder.meta = dict(node.meta)
        self.numbers[node] = placeholder
        return placeholder


class _Emitter:
    def __init__(self, captured: Captured, steps: Sequence[Step], functional: bool):
        self.captured = captured
        self.functional = functional
        self.computed = {node for node in captured.nodes if node is not None}
        runs = [0] * captured.graph.num_ops
        for step in steps:
            if isinstance(step, Compute):
                runs[step.op] += 1
        #: Random ops that run more than once: all but the first time they draw the same numbers again.
        self.drawn_again = {op for op, count in enumerate(runs) if count > 1 and self._is_random(op)}
        self.runs = [0] * captured.graph.num_ops
        self.forward = _Pass()
        self.backward: _Pass | None = None
        self.here = self.forward
        self.scalars = captured.scalars
        self.first: dict[fx.Node, fx.Node] = {}  # the copies of sticky nodes that count
        self.returned: list[Any] = []  # what the forward returns, outputs first
        self.saved: dict[fx.Node, fx.Node] = {}  # copy in the forward -> placeholder in the backward
        self.tangents: list[fx.Node] = []
        for node in captured.module.graph.nodes:
            if node.op == "placeholder" and not is_tangent(node):
                self.forward.current[node] = self._copy(node, self.forward)

    def _is_random(self, op: int) -> bool:
        node = self.captured.nodes[op]
        return node is not None and is_random(node)

    @staticmethod
    def _copy(node: fx.Node, into: _Pass) -> fx.Node:
        copy = into.graph.node_copy(node, lambda argument: into.current[argument])
        copy.meta = dict(node.meta)
        return copy

    # --- the steps ---

    def drop(self, value: int) -> None:
        """Forget the current copy of a value and all views of it."""
        for node in self.captured.holders[value]:
            self.here.current.pop(node, None)

    def compute(self, op: int, in_place: bool) -> None:
        """One more computation of an op.

        Args:
            in_place: the value that it reuses dies here.
        """
        node = self.captured.nodes[op]
        assert node is not None
        again = self.runs[op] > 0
        self.runs[op] += 1
        batch_norm = is_batch_norm(node) and again
        read = node.all_input_nodes
        if batch_norm:  # its running statistics may have been overwritten: do not even look at them
            read = [argument for argument in node.args[:3] if isinstance(argument, fx.Node)]
        for argument in read:
            self.get(argument)
        for value in self.captured.graph.ops[op].outputs:
            self.drop(value)
        copy = self._emit_in_place(op, node) if in_place else self._emit_op(op, node, again, batch_norm)
        self.here.current[node] = copy
        for user in node.users:
            if user.target is operator.getitem and not (batch_norm and user in self.captured.sticky):
                part = self._copy(user, self.here)
                self.here.current[user] = part
                if user in self.captured.sticky:
                    self.first[user] = part
        if node not in self.captured.value and all(user.target is operator.getitem for user in node.users):
            del self.here.current[node]  # a tuple dies once its parts are taken, or it would keep them all alive

    def _emit_op(self, op: int, node: fx.Node, again: bool, batch_norm: bool) -> fx.Node:
        current, graph = self.here.current, self.here.graph
        if batch_norm:
            given = [current[a] if isinstance(a, fx.Node) else a for a in node.args[:3]]
            copy = graph.call_function(_BATCH_NORM_PLAIN, (*given, True, *node.args[6:8]))
            copy.meta = {**node.meta, "val": tuple(node.meta["val"][:3])}
        elif is_random(node) and not self.functional:
            copy = self._emit_draw(op, node, again)
        else:
            copy = self._copy(node, self.here)
        return copy

    def _emit_in_place(self, op: int, node: fx.Node) -> fx.Node:
        """An op that writes in the storage of an input."""
        reused, variant = self.captured.graph.ops[op].reuses, out_variant(node.target)
        assert reused is not None and variant is not None
        storage = self.here.current[self.captured.bases[reused]]
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda argument: self.here.current[argument])
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
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda argument: self.here.current[argument])
        function = draw_again if again else draw
        copy = self.here.graph.call_function(function, (state, device, cast(Any, node.target), arguments, keywords))
        copy.meta = dict(node.meta)
        return copy

    def _state(self, op: int, device: torch.device) -> fx.Node:
        """The saved state of an op's generator, here; room for it where the op runs for the first time."""
        state = self.here.states.get(op)
        if state is None and self.runs[op] > 1:
            state = self._save(self.forward.states[op])
        elif state is None:
            state = self.here.graph.call_function(empty_state, (device,))
            like = next(n for n in self.captured.module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
            state.meta["val"] = like.meta["val"].new_empty((RNG_STATE_BYTES,), dtype=torch.uint8, device="cpu")
        self.here.states[op] = state
        return state

    def get(self, node: fx.Node) -> Any:
        """The current copy of a node in the function under construction; views are made, saved values are brought over."""
        current = self.here.current
        if node in current:
            return current[node]
        if node in self.scalars:
            constant = self.scalars.constant(node)
            current[node] = self.here.number(node) if constant is None else constant
        elif node.op == "get_attr":
            current[node] = self._copy(node, self.here)
        elif node in self.captured.sticky:
            current[node] = self._save(self.first[node])
        elif self.here is self.backward and node in self.forward.current and self._crosses(node):
            current[node] = self._save(self.forward.current[node])
        elif (same := self._same_part(node)) is not None:
            current[node] = self.get(same)
        elif self._is_view(node):
            for argument in node.all_input_nodes:
                self.get(argument)
            current[node] = self._copy(node, self.here)
        else:
            raise CheckmateError(f"the schedule reads {node.name!r} when it is not live: please report it")
        return current[node]

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

    # --- from the forward to the backward ---

    def cross(self) -> None:
        """End the forward function here and begin the backward function."""
        self._return_outputs()
        self.backward = self.here = _Pass()
        for node in self.captured.module.graph.nodes:
            if is_tangent(node):
                self.tangents.append(self._copy(node, self.backward))
                self.backward.current[node] = self.tangents[-1]

    def _return_outputs(self) -> None:
        for output in self.captured.outputs:
            if isinstance(output, fx.Node):
                self.returned.append(self.first.get(output) or self.get(output))
            else:
                self.returned.append(output)

    def _save(self, copy: fx.Node) -> fx.Node:
        """Make a node of the forward function an input of the backward function."""
        assert self.backward is not None
        if copy not in self.saved:
            with self.backward.graph.inserting_before(self.tangents[0]):
                placeholder = self.backward.graph.placeholder(copy.name)
            # The name is another one where the backward pass has an op of that name. The generated code assigns the inputs under
            # their targets first, and then, one by one, to their names: were the two not equal, an input could overwrite the next.
            placeholder.target = placeholder.name
            placeholder.meta = dict(copy.meta)
            forget_version_check(copy)
            forget_version_check(placeholder)
            self.saved[copy] = placeholder
        return self.saved[copy]

    def finish(self) -> Emitted:
        """Close both functions."""
        module = self.captured.module
        if self.backward is None:
            self._return_outputs()
        else:
            gradients = tuple(None if node is None else self.get(node) for node in self.captured.gradients)
            self._close(self.backward, gradients)
        self._close(self.forward, (*self.returned, *self.saved))
        return Emitted(
            fx.GraphModule(module, self.forward.graph),
            None if self.backward is None else fx.GraphModule(module, self.backward.graph),
            self.scalars.function(list(self.forward.numbers)),
            self.scalars.function(list(self.backward.numbers if self.backward is not None else ())),
        )

    @staticmethod
    def _close(half: _Pass, returned: tuple[Any, ...]) -> None:
        half.graph.output(returned)
        for node in reversed(list(half.graph.nodes)):
            if node.op == "call_function" and node.target is operator.getitem and not node.users:
                half.graph.erase_node(node)
        half.graph.lint()
