"""A Python function of tensors -> the ops of one step, in a topological order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from .internals import is_stateful, variable_bytes
from .kinds import ALIASES, SMALL, is_shape, source, tensor_bytes
from .order import in_creation_order, with_early_updates

#: Producers of what is there during the whole step: inputs, constants, variables.
_FIXED = frozenset({"Placeholder", "Const", "ReadVariableOp", "VarHandleOp", "PlaceholderWithDefault"})


@dataclass(eq=False)
class Traced:
    """One step as a static graph.

    Attributes:
        function: the trace; it keeps the graph and its captures alive.
        ops: what the step needs, inputs left out, every op after what it reads.
        argument_count: how many of `inputs` are arguments; the rest are captures (variables, mostly).
        varying_batch: plain training traces this step once for batches of every size; see `emit.counts_elements`.
    """

    function: Any
    ops: list[tf.Operation]
    argument_count: int
    varying_batch: bool = False

    @property
    def inputs(self) -> list[tf.Tensor]:
        return list(self.function.inputs)

    @property
    def captured(self) -> list[Any]:
        """What stands behind the inputs that are not arguments."""
        return list(self.function.captured_inputs)

    @property
    def outputs(self) -> list[tf.Tensor]:
        return list(self.function.outputs)

    @cached_property
    def fixed_bytes(self) -> int:
        """Inputs, variables and large constants: live from the first op to the last."""
        total = sum(tensor_bytes(x) for x in self.inputs[: self.argument_count])
        for tensor in {id(x): x for x in self.captured}.values():
            total += variable_bytes(tensor) if tensor.dtype == tf.resource else tensor_bytes(tensor)
        constants = [tensor_bytes(op.outputs[0]) for op in self.ops if op.type == "Const"]
        return total + sum(size for size in constants if size > SMALL)

    def pack(self, flat: Sequence[tf.Tensor]) -> Any:
        """Flat outputs in the structure that the function returned (None and composites, such as slices, included)."""
        structure = self.function.structured_outputs
        rest: Iterator[tf.Tensor] = iter(flat)
        leaves = [None if x is None else next(rest) for x in tf.nest.flatten(structure, expand_composites=True)]
        return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def trace(function: Callable[..., Any], specs: Sequence[Any]) -> Traced:
    """Trace `function(*specs)` once, with the static shapes of the specs.

    Args:
        function: it must not create variables.
        specs: nests of `tf.TensorSpec`, one per argument.
    """
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    ops = concrete.graph.get_operations()
    wanted = [source(t).op for t in concrete.outputs] + [op for op in ops if is_stateful(op) and op.type not in _FIXED]
    needed = _reachable(wanted)
    order = [op for op in in_creation_order(ops) if op.name in needed and op.type != "Placeholder"]
    return Traced(concrete, with_early_updates(order), len(concrete.inputs) - len(concrete.captured_inputs))


def root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory this one shares: itself, unless it is an alias."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


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
