"""What is known about the ops of TensorFlow by their type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from ..internals import is_stateful, rows_behind

#: Outputs up to this many bytes are computed once and kept until their last use: copies of them would cost more than they save.
SMALL = 64 * 1024

#: With oneDNN the allocator of the CPU does not count blocks of fewer bytes.
SMALL_BLOCK = 256 * 1024

#: The outputs of these share the memory of their inputs, position by position.
ALIASES = frozenset(
    {"Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape"}
)

#: Run once, where they stand; they take no memory of their own (a variable that is read is fixed memory).
FREE = ALIASES | {"Const", "Placeholder", "ReadVariableOp", "NoOp", "VarHandleOp", "PlaceholderWithDefault"}

#: Known from the shapes alone, so they need not hold on to their inputs.
SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size"})

#: Calls of other graphs: what happens inside is not known here.
CALLS = frozenset(
    {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}
)

#: Where a graph keeps what its ops were found to hold.
_HELD = "checkmate_held"

#: Bytes of the tensors of a graph by name: they are asked for a hundred times each.
_SIZES: WeakKeyDictionary[tf.Graph, dict[str, int]] = WeakKeyDictionary()

#: The most elements of tensors with open sizes, by the graph and their names: one may be read by many that are asked about.
_MOST: WeakKeyDictionary[tf.Graph, dict[str, int | None]] = WeakKeyDictionary()

#: They choose among graphs by their first input.
CHOICES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})

#: Stateful for TensorFlow, but they only read variables.
READERS = frozenset({"ResourceGather", "ResourceGatherNd", "VariableShape"})

#: Elementwise kernels that write into an input which nothing else will read.
IN_PLACE = frozenset(
    {
        *(
            "Abs",
            "Add",
            "AddN",
            "AddV2",
            "BiasAdd",
            "Ceil",
            "Cos",
            "Div",
            "Elu",
            "EluGrad",
            "Erf",
            "Erfc",
            "Exp",
            "Expm1",
            "Floor",
        ),
        *("LeakyRelu", "LeakyReluGrad", "Log", "Log1p", "LogSoftmax", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv"),
        *("Reciprocal", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad", "Selu", "SeluGrad", "Sigmoid"),
        *("SigmoidGrad", "Sign", "Sin", "Softmax", "Softplus", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh"),
        *("TanhGrad", "Xlogy", "_UnaryOpsComposition"),
    }
)


def root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory this one shares: itself, unless it is an alias."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def source(tensor: tf.Tensor) -> tf.Tensor:
    """Where a tensor comes from, past every IdentityN: such an op passes on many tensors, but each stands for one input only.

    Keras hands all gradients to its optimizers through one; to wait for it would keep every gradient until the last is there.
    """
    while tensor.op.type == "IdentityN":
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def needs(tensor: tf.Tensor) -> list[tf.Tensor]:
    """The tensors that have to be there before a copy of this one can be."""
    origin = source(tensor)
    if is_shape(tensor.op):
        return []
    return list(tensor.op.inputs) if origin is tensor else [origin]


def is_handle(tensor: tf.Tensor) -> bool:
    """It points at a variable or a list instead of holding numbers."""
    return tensor.dtype in (tf.resource, tf.variant)


@dataclass(frozen=True, slots=True)
class Held:
    """What running a loop, a branch, a call or an op on lists has shown, or is known of one that cannot be run.

    Attributes:
        seconds: of one run; None without one. workspace: bytes, as in `OpCost`. outputs: bytes of each; none for what is only passed on. counted: those
            of them that TensorFlow counts.
    """

    seconds: float | None
    workspace: int
    outputs: tuple[int, ...]
    counted: tuple[int, ...]


def note_held(graph: tf.Graph, found: Mapping[str, Held]) -> None:
    """Keep with a graph what its ops were found to hold, by the name of the op."""
    graph.add_to_collection(_HELD, dict(found))
    _SIZES.pop(graph, None)


def held(op: tf.Operation) -> Held | None:
    """What was noted of an op; None for those that shapes tell enough about, and those that could not be run."""
    for found in op.graph.get_collection_ref(_HELD):
        if op.name in found:
            return found[op.name]
    return None


def tensor_bytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor: as far as they were not found by running its op, 0 for handles, and for sizes not known beforehand the most that
    they may be, or 0 where that is not known either.
    """
    graph = getattr(tensor, "graph", None)
    if graph is None:  # not of a graph, but there
        return _bytes_by_shape(tensor)
    sizes = _SIZES.get(graph)
    if sizes is None:
        sizes = _SIZES[graph] = {}
    name = tensor.name
    size = sizes.get(name)
    if size is None:
        found = held(tensor.op)
        size = sizes[name] = _bytes_by_shape(tensor) if found is None else found.outputs[tensor.value_index]
    return size


def _bytes_by_shape(tensor: tf.Tensor) -> int:
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return (most_elements(tensor) or 0) * tensor.dtype.size


def most_elements(tensor: tf.Tensor) -> int | None:
    """How many elements a tensor has at most; None if that is not known before the step runs.

    Of those with open sizes it is known of sparse gradients: the gradient of an embedding has a row for each index of the batch. Where an
    index comes up several times an optimizer adds up its rows, and how many are left depends on the batch: no more than there are
    indices, nor than the embedding has rows.
    """
    if tensor.shape.is_fully_defined():
        return int(tensor.shape.num_elements() or 0)
    op = getattr(tensor, "op", None)
    if op is None or tensor.shape.rank is None:
        return None
    known = _MOST.setdefault(op.graph, {})
    if tensor.name not in known:
        known[tensor.name] = _most_by_op(tensor)
    return known[tensor.name]


def _most_by_op(tensor: tf.Tensor) -> int | None:
    op = tensor.op
    if op.type in ALIASES:
        return most_elements(op.inputs[tensor.value_index])
    if op.type == "Unique":
        return _most_different(tensor)
    if op.type == "UnsortedSegmentSum":
        return _most_in_rows(tensor, _counted_by(op.inputs[2]))
    if op.type == "ResourceGather":
        return _most_in_rows(tensor, op.inputs[1])
    return _most_by_element(tensor) if op.type in IN_PLACE else None


def _most_different(tensor: tf.Tensor) -> int | None:
    """Of different indices: no more than there are, nor than variables have rows that are looked up or changed by them."""
    counts = [most_elements(tensor.op.inputs[0])]
    for reader in tensor.consumers():
        if len(reader.inputs) > 1 and is_handle(reader.inputs[0]) and reader.inputs[1] is tensor:
            counts.append(rows_behind(reader.inputs[0]))
    return min((count for count in counts if count is not None), default=None)


def _counted_by(count: tf.Tensor) -> tf.Tensor | None:
    """The tensor of one dimension whose length this number is, if it is one's."""
    shape = count.op.inputs[0].op if count.op.type == "StridedSlice" else count.op
    return root(shape.inputs[0]) if shape.type == "Shape" and shape.inputs[0].shape.rank == 1 else None


def _most_in_rows(tensor: tf.Tensor, indices: tf.Tensor | None) -> int | None:
    """Of a tensor with a row for each index."""
    each = tensor.shape[1:]
    count = None if indices is None or indices.shape.rank != 1 or not each.is_fully_defined() else most_elements(root(indices))
    return None if count is None else count * int(each.num_elements() or 0)


def _most_by_element(tensor: tf.Tensor) -> int | None:
    """Of what is computed element by element, with one open size, which is that of an input."""
    if tensor.shape.as_list().count(None) != 1:
        return None
    lengths = []
    for given in tensor.op.inputs:
        if not given.shape.is_fully_defined():
            most = most_elements(given)
            if most is None:
                return None
            lengths.append(most // _known_part(given.shape))
    return max(lengths) * _known_part(tensor.shape) if lengths else None


def _known_part(shape: tf.TensorShape) -> int:
    """Elements for each of an open size."""
    return prod(max(1, size or 1) for size in shape.as_list())


def counted_bytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor or list that TensorFlow's counter sees where it leaves out small blocks."""
    found = held(tensor.op)
    if found is not None:
        return found.counted[tensor.value_index]
    size = tensor_bytes(tensor)
    return size if size >= SMALL_BLOCK else 0


def are_sizes_known(tensors: Iterable[tf.Tensor | tf.TensorSpec]) -> bool:
    """None of the tensors, or specs of tensors, leaves a size open."""
    return all(tensor.shape.is_fully_defined() for tensor in tensors)


def is_shape(op: tf.Operation) -> bool:
    """Its result follows from the shapes, which are known."""
    return op.type in SHAPES and are_sizes_known(op.inputs)


def shape_value(tensor: tf.Tensor) -> Any:
    """The result of an op on shapes, as an array."""
    op = tensor.op
    shape = op.inputs[tensor.value_index].shape
    number = {"Rank": shape.rank, "Size": shape.num_elements()}.get(op.type)
    return np.array(shape.as_list() if number is None else number, tensor.dtype.as_numpy_dtype)


def is_free(op: tf.Operation) -> bool:
    """It takes neither time nor memory of its own worth planning."""
    return op.type in FREE or is_shape(op)


def is_big(op: tf.Operation) -> bool:
    """It takes memory worth planning: more than `SMALL` bytes in outputs of its own."""
    return not is_free(op) and sum(tensor_bytes(output) for output in op.outputs) > SMALL


def is_opaque(op: tf.Operation) -> bool:
    """Control flow and calls, and whatever passes handles around: runs once."""
    return op.type in CALLS or any(is_handle(t) for t in (*op.inputs, *op.outputs))


def is_recomputable(op: tf.Operation) -> bool:
    """A second run gives the same result and has no other effect."""
    return is_big(op) and not is_stateful(op) and not is_opaque(op)


def counts_elements(op: tf.Operation) -> bool:
    """It is the division in the gradient of a mean: by a number of elements, known because shapes are, in Python or to the rewriting.

    TensorFlow multiplies by the reciprocal of what it knows to be constant, which rounds differently. Where plain training
    does not know the number, the graph rewriting must not see it here either.
    """
    if op.type != "RealDiv":
        return False
    divisor = op.inputs[1].op
    while divisor.type == "Cast":
        divisor = divisor.inputs[0].op
    return divisor.type in ("Const", "Prod") and "gradient_tape" in divisor.name


def is_one_kernel(bias: tf.Operation, filters: tf.Operation) -> bool:
    """OneDNN runs these two gradients as one op: an edge between them would be a cycle."""
    return bias.type == "BiasAddGrad" and filters.type == "Conv2DBackpropFilter" and bias.inputs[0].name == filters.inputs[2].name
