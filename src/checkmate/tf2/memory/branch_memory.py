"""What a branch takes that changes variables, which can neither be tried out nor run by itself.

Its ops run in turn, so that what it takes is no matter of chance: those that one change of a variable needs, and then those of the next.
An optimizer that accumulates gradients updates all variables in a branch: left alone, TensorFlow begins with the sums for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import tensorflow as tf

from ..internals import copy_handle_data
from ..ops.nodes import PLACED, Emitted
from ..ops.op_kinds import ALIASES, IN_PLACE, SMALL, Held, counted_bytes, is_free, root, tensor_bytes
from ..ops.order import depth_first

#: Attribute of a branch: bytes that it takes at most beyond what it is given, if nothing else reads that.
BRANCH_BYTES = "_checkmate_bytes"

#: What has it.
BRANCHES = frozenset({"If", "StatelessIf"})


def in_turn(emitted: Emitted) -> tuple[Emitted, int]:
    """The same nodes in an order that needs little memory, which those keep that take or free some; and bytes that they take at most."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = []
        for argument in emitted.arguments.values():
            inputs.append(tf.compat.v1.placeholder(argument.dtype, argument.shape))
            copy_handle_data(argument, inputs[-1])
        try:
            emitted.place(inputs)
        except ValueError:  # there are ops that TensorFlow makes only while it rewrites
            return emitted, 0
    placed = {op.name.removeprefix(f"{PLACED}/"): op for op in graph.get_operations()}
    names = {op: name for name, op in placed.items()}
    nodes = {node.name: node for node in emitted.nodes}
    ends = [*emitted.effects, *(name.partition(":")[0] for name in emitted.outputs), *nodes]
    order = depth_first([placed[name] for name in ends if name in placed], _before)
    for before, after in pairwise(names[op] for op in order if _matters(op)):
        nodes[after].input.append(f"^{before}")
    return replace(emitted, nodes=[nodes[names[op]] for op in order if names[op] in nodes]), _peak(order)


def _before(op: tf.Operation) -> list[tf.Operation]:
    return [*op.control_inputs, *(tensor.op for tensor in op.inputs)]


def _matters(op: tf.Operation) -> bool:
    """It takes memory, or what it reads may be gone after it."""
    return not is_free(op) and any(tensor_bytes(tensor) > SMALL for tensor in (*op.inputs, *op.outputs))


def _peak(order: Sequence[tf.Operation]) -> int:
    """Bytes that ops in this order take at most beyond what they are given."""
    running = [op for op in order if not is_free(op)]
    readers = Counter(name for op in running for name in {root(tensor).name for tensor in op.inputs})
    # What is given to a branch is gone with its last reader, too.
    live = {tensor.name: tensor_bytes(tensor) for op in order if op.type == "Placeholder" for tensor in op.outputs}
    given = now = sum(live.values())
    peak = 0
    for op in running:
        own = {root(tensor).name for tensor in op.inputs}
        made = {tensor.name: tensor_bytes(tensor) for tensor in op.outputs}
        taken = sum(made.values())
        if op.type in IN_PLACE and any(readers[name] == 1 and live.get(name) == taken for name in own):
            taken = 0
        inside = op.node_def.attr[BRANCH_BYTES].i if op.type in BRANCHES else 0
        peak = max(peak, now + taken + inside)
        live |= made
        for name in own:
            readers[name] -= 1
        live = {name: size for name, size in live.items() if readers[name]}
        now = sum(live.values())
    return max(0, peak - given)


def branch_held(op: tf.Operation) -> Held | None:
    """What is known of a branch in a traced graph without running it."""
    if op.type != "If" or BRANCH_BYTES not in op.node_def.attr:
        return None
    stay = {tensor.name: tensor_bytes(tensor) for tensor in map(root, op.inputs) if len(_readers(tensor)) > 1}
    size = op.node_def.attr[BRANCH_BYTES].i + sum(stay.values())
    return Held(None, size, tuple(map(tensor_bytes, op.outputs)), tuple(map(counted_bytes, op.outputs)))


def _readers(tensor: tf.Tensor) -> set[str]:
    """Names of the ops that read what lies in its memory."""
    found: set[str] = set()
    for op in tensor.consumers():
        found |= _readers(op.outputs[0]) if op.type in ALIASES and op.type != "IdentityN" else {op.name}
    return found
