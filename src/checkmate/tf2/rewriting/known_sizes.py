"""Sizes filled into a graph that leaves them open.

Plain Keras traces a step once for batches of several sizes, and TensorFlow rewrites that trace: sums, products and fused kernels may
come out otherwise than where all sizes are known. A plan has to know them. So they are filled in after the rewriting: inputs get the
shapes of the batch, and what follows from them is computed here. All else is what plain training runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np
import tensorflow as tf

from ..internals import eager_attributes, is_stateful, is_stateful_type, run_op
from ..ops.op_kinds import CALLS, is_shape, shape_value

#: What is computed here are sizes, axes and the like. A larger one, such as a mask, is made in every step, as in plain training.
_MOST_BYTES = 1024


def fill_in_sizes(definition: tf.compat.v1.GraphDef, results: Iterable[str], graph: tf.Graph) -> bool:
    """Compute what follows from the shapes of a graph's inputs alone: sizes, and the axes over which gradients are summed.

    Args:
        definition: constants take the places in it of what is known, and what nothing reads any more is left out. results: tensors that
            it is for. graph: made of it, with inputs of known shapes.

    Returns:
        Whether anything changed. Then more shapes may be known in a graph that is made of it once more.
    """
    found = _fill_in(definition, _known(graph.get_operations()))
    if found:
        _leave_out_unread(definition, results)
    return found


def _known(ops: Iterable[tf.Operation]) -> dict[str, np.ndarray]:
    """What is known of small tensors of whole numbers, by their names.

    Args:
        ops: each after those that it reads.
    """
    known: dict[str, np.ndarray] = {}
    with tf.device("CPU:0"):
        for op in ops:
            if not op.outputs or op.type in CALLS or is_stateful(op) or not all(map(_is_small, op.outputs)):
                continue
            values: list[np.ndarray] = []
            if is_shape(op):
                values = [shape_value(tensor) for tensor in op.outputs]
            elif op.type == "Const":
                values = [tf.get_static_value(op.outputs[0])]
            elif op.inputs and all(tensor.name in known for tensor in op.inputs):
                inputs = [tf.constant(known[tensor.name], tensor.dtype) for tensor in op.inputs]
                with suppress(tf.errors.OpError):  # the step will raise it
                    values = [value.numpy() for value in run_op(op.type, inputs, eager_attributes(op), len(op.outputs))]
            known.update(zip((tensor.name for tensor in op.outputs), values, strict=False))
    return known


def _is_small(tensor: tf.Tensor) -> bool:
    count = tensor.shape.num_elements()
    whole = tensor.dtype.is_integer or tensor.dtype.is_bool
    return whole and (count is None or count * tensor.dtype.size <= _MOST_BYTES)


def _fill_in(definition: tf.compat.v1.GraphDef, known: Mapping[str, np.ndarray]) -> bool:
    """Have nodes read constants in place of what is known; whether there was anything to be done."""
    kinds = {node.name: node.op for node in definition.node}
    constants: dict[str, tf.compat.v1.NodeDef] = {}
    sums = []
    for node in definition.node:
        for place, edge in enumerate(node.input):
            made_by, _, number = edge.partition(":")
            tensor = f"{made_by}:{number or 0}"
            if tensor in known and kinds[made_by] != "Const":
                if tensor not in constants:
                    constants[tensor] = _constant(f"{made_by}/known_{number or 0}", known[tensor])
                node.input[place] = constants[tensor].name
            if node.op == "Sum" and place == 1 and tensor in known and not known[tensor].size:
                sums.append(node)
    for node in sums:  # over no axes: the gradient of an addition whose terms have one size
        del node.input[1]
        node.op = "Identity"
        for attribute in ("Tidx", "keep_dims"):
            node.attr.pop(attribute, None)
    definition.node.extend(constants.values())
    return bool(constants or sums)


def _leave_out_unread(definition: tf.compat.v1.GraphDef, results: Iterable[str]) -> None:
    nodes = {node.name: node for node in definition.node}
    rest = [*results, *(name for name, node in nodes.items() if is_stateful_type(node.op))]
    needed = set()
    while rest:
        name = rest.pop().removeprefix("^").partition(":")[0]
        if name in nodes and name not in needed:
            needed.add(name)
            rest += nodes[name].input
    for place in reversed(range(len(definition.node))):
        if definition.node[place].name not in needed:
            del definition.node[place]


def _constant(name: str, array: np.ndarray) -> tf.compat.v1.NodeDef:
    node = tf.compat.v1.NodeDef(name=name, op="Const")
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype
    return node
