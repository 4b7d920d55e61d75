"""A Python function of tensors -> the ops of one step, in a topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import tensorflow as tf

from ..internals import is_stateful, variable_bytes
from ..ops.functions import lasting_bytes
from ..ops.op_kinds import CALLS, are_sizes_known, is_free, is_shape, most_elements, source, tensor_bytes
from ..ops.order import in_creation_order, in_order_of, with_early_updates, with_late_broadcasts
from ..rewriting.rewrite import hide_counts, rewriting_of
from .constants import take_out_constants
from .layers import Scopes, scopes_of
from .random_state import RandomStates

#: Producers of what is there during the whole step: inputs, constants, variables.
_FIXED = frozenset({"Placeholder", "Const", "ReadVariableOp", "VarHandleOp", "PlaceholderWithDefault"})


@dataclass(eq=False)
class Traced:
    """One step as a static graph.

    Attributes:
        graph: it holds the ops.
        ops: what the step needs, inputs left out, every op after what it reads.
        inputs, outputs: flat.
        captured: what stands behind those of the inputs, the last ones, that are not arguments: variables, and large constants.
        structure: what the function returned.
        rewritten: the graph is what TensorFlow runs and needs no rewriting any more; see `rewrite`.
        plain: the concrete function that plain training traces, where that leaves sizes open.
        scopes: which layers the ops come from.
        random: states of its random ops, among what is captured.
    """

    graph: tf.Graph
    ops: list[tf.Operation]
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    captured: list[Any]
    structure: Any
    rewritten: bool
    plain: Any = None
    scopes: Scopes = field(default_factory=Scopes)
    random: RandomStates = field(default_factory=RandomStates)

    @property
    def argument_count(self) -> int:
        return len(self.inputs) - len(self.captured)

    @cached_property
    def handles(self) -> dict[str, Any]:
        """What stands behind inputs that are no arguments, by the names of these."""
        return dict(zip((x.name for x in self.inputs[self.argument_count :]), self.captured, strict=True))

    @cached_property
    def nodes(self) -> Mapping[str, Any]:
        """The node of each op, as TensorFlow stores it, by name."""
        return {node.name: node for node in self.graph.as_graph_def().node}

    @cached_property
    def argument_bytes(self) -> int:
        """Of a batch."""
        return sum(tensor_bytes(x) for x in self.inputs[: self.argument_count])

    @cached_property
    def fixed_bytes(self) -> int:
        """Inputs, variables and large constants: live from the first op to the last."""
        total = self.argument_bytes
        for tensor in {id(x): x for x in self.captured}.values():
            total += variable_bytes(tensor) if tensor.dtype == tf.resource else tensor_bytes(tensor)
        return total + self.constant_bytes

    @cached_property
    def constant_bytes(self) -> int:
        """Large constants and the like inside of loops and branches: a `tf.function` makes them in its first run and keeps them."""
        return sum(map(lasting_bytes, self.ops))

    @cached_property
    def of_unknown_size(self) -> list[tf.Tensor]:
        """Results with gradients of which it is known only when the step runs how large they are at most, such as those of layers behind
        the splitting of text.

        What some ops put aside besides their result, such as batch norm on a GPU, is left out.
        """
        outputs = [op.outputs[0] for op in self.ops if op.outputs and op.type not in CALLS and not is_free(op)]
        return [tensor for tensor in outputs if tensor.dtype.is_floating and most_elements(tensor) is None]

    def pack(self, flat: Sequence[tf.Tensor]) -> Any:
        """Flat outputs in the structure that the function returned (None and composites, such as slices, included)."""
        rest: Iterator[tf.Tensor] = iter(flat)
        leaves = [None if x is None else next(rest) for x in tf.nest.flatten(self.structure, expand_composites=True)]
        return tf.nest.pack_sequence_as(self.structure, leaves, expand_composites=True)


class Trace:
    """A step function, traced once: the ops of the step for all sizes that the trace leaves open.

    Args:
        function: it must not create variables.
        specs: nests of `tf.TensorSpec`, one per argument. What plain training leaves open is best left open here, too: TensorFlow
            rewrites the step otherwise where it knows all sizes, and its results may differ in their last bits.
    """

    def __init__(self, function: Callable[..., Any], specs: Sequence[Any]):
        self._function = function
        self._concrete = _concrete(function, specs)
        self._arguments = self._concrete.inputs[: len(self._concrete.inputs) - len(self._concrete.captured_inputs)]
        self._rewriting = rewriting_of(self._concrete, len(self._arguments))
        self._random = RandomStates()

    def at(self, specs: Sequence[Any]) -> Traced:
        """The step for arguments of known sizes. Nothing is run."""
        arguments = tf.nest.flatten(tuple(specs), expand_composites=True)
        is_open = not are_sizes_known(self._arguments)
        of_these_sizes = cache(lambda: _concrete(self._with_counts_hidden, specs) if is_open else self._concrete)
        found = None if self._rewriting is None else self._rewriting.at(arguments, lambda: of_these_sizes().graph)
        concrete = self._concrete if found is not None else of_these_sizes()
        traced = concrete.graph
        graph, inputs, outputs = found or (traced, list(concrete.inputs), list(concrete.outputs))
        names, captured = [op.name for op in traced.get_operations()], list(concrete.captured_inputs)
        replaced = self._random.replace(graph, inputs, outputs, captured)
        replaced |= take_out_constants(graph, inputs, outputs, captured)
        ops = in_order_of([op for op in graph.get_operations() if op.name not in replaced], names)
        wanted = [source(t).op for t in outputs] + [op for op in ops if is_stateful(op) and op.type not in _FIXED]
        needed = _reachable(wanted)
        order = [op for op in in_creation_order(ops) if op.name in needed and op.type != "Placeholder"]
        order = with_late_broadcasts(with_early_updates(order))
        plain, is_rewritten = self._concrete if is_open else None, found is not None
        structure, scopes = concrete.structured_outputs, scopes_of(traced)
        return Traced(graph, order, inputs, outputs, captured, structure, is_rewritten, plain, scopes, self._random)

    def _with_counts_hidden(self, *arguments: Any) -> Any:
        """For a step that is rewritten in the end, when all sizes are known: plain training does not know them then."""
        result = self._function(*arguments)
        hide_counts(tf.compat.v1.get_default_graph().get_operations())
        return result


def trace(function: Callable[..., Any], specs: Sequence[Any]) -> Traced:
    """A step function for arguments of known sizes, as in `Trace`."""
    return Trace(function, specs).at(specs)


def _concrete(function: Callable[..., Any], specs: Sequence[Any]) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def is_fixed(tensor: tf.Tensor) -> bool:
    """It is an input, a constant or a variable, and takes no memory of its own."""
    return tensor.op.type in _FIXED or is_shape(tensor.op)


def _reachable(ops: Iterable[tf.Operation]) -> set[str]:
    seen: set[str] = set()
    stack = list(ops)
    while stack:
        op = stack.pop()
        if op.name not in seen:
            seen.add(op.name)
            if is_shape(op):
                continue
            stack += [source(tensor).op for tensor in op.inputs]
            stack += op.control_inputs
    return seen
