"""A Python function of tensors -> the ops of one step, in a topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from .functions import lasting_bytes
from .internals import is_stateful, variable_bytes
from .layers import Scopes, scopes_of
from .op_kinds import CALLS, SMALL, is_free, is_shape, source, tensor_bytes
from .order import in_creation_order, in_order_of, with_early_updates, with_late_broadcasts
from .rewrite import hide_counts, rewritten

#: Producers of what is there during the whole step: inputs, constants, variables.
_FIXED = frozenset({"Placeholder", "Const", "ReadVariableOp", "VarHandleOp", "PlaceholderWithDefault"})


@dataclass(eq=False)
class Traced:
    """One step as a static graph.

    Attributes:
        graph: it holds the ops.
        ops: what the step needs, inputs left out, every op after what it reads.
        inputs, outputs: flat.
        captured: what stands behind those of the inputs, the last ones, that are not arguments: variables, mostly.
        structure: what the function returned.
        rewritten: the graph is what TensorFlow runs and needs no rewriting any more; see `rewrite`.
        scopes: which layers the ops come from.
    """

    graph: tf.Graph
    ops: list[tf.Operation]
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]
    captured: list[Any]
    structure: Any
    rewritten: bool
    scopes: Scopes = field(default_factory=Scopes)

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
        """Large constants and the like: a `tf.function` makes them in its first run and keeps them."""
        sizes = [tensor_bytes(op.outputs[0]) for op in self.ops if op.type == "Const"]
        return sum(size for size in sizes if size > SMALL) + sum(map(lasting_bytes, self.ops))

    @cached_property
    def of_unknown_size(self) -> list[tf.Tensor]:
        """Results with gradients whose shape is known only when the step runs, such as those of layers behind the splitting of text.

        What some ops put aside besides their result, such as batch norm on a GPU, is left out.
        """
        outputs = [op.outputs[0] for op in self.ops if op.outputs and op.type not in CALLS and not is_free(op)]
        return [tensor for tensor in outputs if tensor.dtype.is_floating and not tensor.shape.is_fully_defined()]

    def pack(self, flat: Sequence[tf.Tensor]) -> Any:
        """Flat outputs in the structure that the function returned (None and composites, such as slices, included)."""
        rest: Iterator[tf.Tensor] = iter(flat)
        leaves = [None if x is None else next(rest) for x in tf.nest.flatten(self.structure, expand_composites=True)]
        return tf.nest.pack_sequence_as(self.structure, leaves, expand_composites=True)


def trace(function: Callable[..., Any], specs: Sequence[Any], *, varying_batch: bool = False) -> Traced:
    """Trace `function(*specs)` once, with the static shapes of the specs. Nothing is run.

    Args:
        function: it must not create variables.
        specs: nests of `tf.TensorSpec`, one per argument.
        varying_batch: plain training traces this step once for batches of every size; see `op_kinds.counts_elements` and `sums`.
    """

    def step(*arguments: Any) -> Any:
        result = function(*arguments)
        if varying_batch:
            hide_counts(tf.compat.v1.get_default_graph().get_operations())
        return result

    concrete = tf.function(step, autograph=False).get_concrete_function(*specs)
    captured = list(concrete.captured_inputs)
    made = [op.name for op in concrete.graph.get_operations()]
    scopes = scopes_of(concrete.graph)
    graph, inputs, outputs = concrete.graph, list(concrete.inputs), list(concrete.outputs)

    def of_any_batch() -> Any:
        return tf.function(function, autograph=False).get_concrete_function(*tf.nest.map_structure(_of_any_batch, specs))

    found = rewritten(concrete, len(inputs) - len(captured), of_any_batch if varying_batch else None)
    if found is not None:
        graph, inputs, outputs = found.graph, found.inputs, found.outputs
    ops = in_order_of(graph.get_operations(), made)
    wanted = [source(t).op for t in outputs] + [op for op in ops if is_stateful(op) and op.type not in _FIXED]
    needed = _reachable(wanted)
    order = [op for op in in_creation_order(ops) if op.name in needed and op.type != "Placeholder"]
    order = with_late_broadcasts(with_early_updates(order))
    structure = concrete.structured_outputs
    return Traced(graph, order, inputs, outputs, captured, structure, found is not None, scopes)


def _of_any_batch(spec: tf.TensorSpec) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec


def is_fixed(tensor: tf.Tensor) -> bool:
    """It is an input, a constant or a variable, and takes no memory of its own."""
    return tensor.op.type in _FIXED or is_shape(tensor.op)


def shape_value(tensor: tf.Tensor) -> Any:
    """The result of an op on shapes, as an array."""
    op = tensor.op
    shape = op.inputs[tensor.value_index].shape
    number = {"Rank": shape.rank, "Size": shape.num_elements()}.get(op.type)
    return np.array(shape.as_list() if number is None else number, tensor.dtype.as_numpy_dtype)


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
