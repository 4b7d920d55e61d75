"""Large constants of a step, such as a table that a layer looks up numbers in: once in memory, whatever number of graphs read them.

A graph makes its constants in its first run and keeps them. There is one for batches of each size and for each plan; so what stands in a
constant is given to all of them from outside.
"""

from __future__ import annotations

import hashlib
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from ..internals import replace_op
from ..memory.measure import default_device, outside
from ..ops.op_kinds import SMALL, tensor_bytes

#: By what they hold and where, as long as a step needs them.
_MADE: WeakValueDictionary[Any, tf.Tensor] = WeakValueDictionary()


def take_out_constants(graph: tf.Graph, inputs: list[tf.Tensor], outputs: list[tf.Tensor], captured: list[Any]) -> set[str]:
    """Replace the large constants of a graph by inputs.

    Args:
        inputs, outputs, captured: of the graph, as in `Traced`. The constants are added to what is captured.

    Returns:
        The names of the ops that nothing needs any more.
    """
    ops = [op for op in graph.get_operations() if op.type == "Const" and tensor_bytes(op.outputs[0]) > SMALL]
    for op in ops:
        (old,) = op.outputs
        with graph.as_default():
            place = tf.compat.v1.placeholder(old.dtype, old.shape, name=f"large_constant__{len(inputs)}")
        replace_op(op, place, outputs)
        inputs.append(place)
        captured.append(_made(op))
    return {op.name for op in ops}


def _made(op: tf.Operation) -> tf.Tensor:
    value = op.get_attr("value")
    key = hashlib.sha256(value.SerializeToString(deterministic=True)).digest(), op.device
    found = _MADE.get(key)
    if found is None:
        array, dtype = tf.make_ndarray(value), op.outputs[0].dtype
        with tf.init_scope(), tf.device(op.device):
            # The pool of the CPU might put it into a block that is nearly twice as large.
            found = _MADE[key] = outside(array, dtype) if default_device() == "CPU:0" else tf.constant(array, dtype)
    return found
