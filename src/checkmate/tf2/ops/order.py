"""The order in which the ops of a step run first: as they were made, with two exceptions that save memory.

Every variable is updated as early as it can be. Keras updates all variables when all gradients are there. One by one, as soon
as its own gradient is known and the backward pass has read it last, frees that gradient soon. Numbers would not change if it
were still to be read, because a tensor read from a variable keeps its value; but TensorFlow would copy it.

What is made large from small things, such as the gradient of a mean, is made as late as it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from ..internals import is_stateful
from .op_kinds import ALIASES, IN_PLACE, SMALL, is_big, is_recomputable, root, source, tensor_bytes

_GRADIENT = "gradient_tape"  # in the names of the ops of a backward pass


def is_gradient(op: tf.Operation) -> bool:
    """The op belongs to a backward pass."""
    return _GRADIENT in op.name


def in_order_of(ops: Sequence[tf.Operation], names: Sequence[str]) -> list[tf.Operation]:
    """Ops as their names stand in `names`; the others come last, and so where a later one needs them."""
    places = {name: number for number, name in enumerate(names)}
    return sorted(ops, key=lambda op: places.get(op.name, len(names)))


def in_creation_order(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """In the order of creation wherever that is topological (it is not where gradients change a loop made earlier)."""
    return depth_first(ops, lambda op: [*(source(tensor).op for tensor in op.inputs), *op.control_inputs])


def depth_first(ends: Iterable[tf.Operation], before: Callable[[tf.Operation], Sequence[tf.Operation]]) -> list[tf.Operation]:
    """The first op after all that has to be `before` it, then the next one after what it needs besides, and so on."""
    order: list[tf.Operation] = []
    entered: set[str] = set()
    for first in ends:
        stack = [(first, False)]
        while stack:
            op, done = stack.pop()
            if done:
                order.append(op)
            elif op.name not in entered:
                entered.add(op.name)
                stack.append((op, True))
                stack += [(one, False) for one in reversed(before(op))]
    return order


def apart_from(tensors: Iterable[tf.Tensor], ops: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Those that wait for none of the tensors.

    Args:
        ops: in a topological order.
    """
    waiting = {tensor.op.name for tensor in tensors}
    apart = []
    for op in ops:
        before = {*(source(tensor).op.name for tensor in op.inputs), *(other.name for other in op.control_inputs)}
        if op.name in waiting or not before.isdisjoint(waiting):
            waiting.add(op.name)
        else:
            apart.append(op)
    return apart


def with_early_updates(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Move what changes variables after the backward pass to right behind the last op it needs.

    Args:
        ops: in a topological order.
    """
    begin = max((number for number, op in enumerate(ops) if is_gradient(op)), default=len(ops)) + 1
    head, tail = ops[:begin], ops[begin:]
    known = {op.name: number for number, op in enumerate(head)}
    before: dict[str, list[tf.Operation]] = {op.name: [source(t).op for t in op.inputs] + list(op.control_inputs) for op in tail}
    # Nothing may come between the two gradients of a convolution with bias: oneDNN makes one kernel of them.
    filters = {op.inputs[2].name: number for number, op in enumerate(head) if op.type == "Conv2DBackpropFilter"}
    for number, op in enumerate(head):
        if op.type == "BiasAddGrad":
            known[op.name] = max(number, filters.get(op.inputs[0].name, 0))
        elif op.type in ALIASES:
            known[op.name] = max(number, known.get(op.inputs[0].op.name, 0))
    ends = _ends(head)
    read: dict[str, int] = {}  # variable -> position in the head of what follows the last op that reads it
    for number, op in enumerate(head):
        values = [base.op for base in map(root, op.inputs) if base.op.type == "ReadVariableOp"]
        read.update((value.inputs[0].name, ends[number]) for value in values)
    ready: dict[str, int] = {}  # position in the head of the last op to wait for
    for op in tail:
        ready[op.name] = max((ready.get(b.name, known.get(b.name, 0)) for b in before[op.name]), default=0)
        if _is_change(op):
            ready[op.name] = max([ready[op.name], *(read.get(tensor.name, 0) for tensor in op.inputs)])
    place = {op.name: number for number, op in enumerate(tail)}
    following: dict[int, list[tf.Operation]] = {}
    placed: set[str] = set()
    for change in sorted(filter(_is_change, tail), key=lambda op: (ready[op.name], place[op.name])):
        needed = _not_placed(change, before, placed)
        following.setdefault(ready[change.name], []).extend(sorted(needed, key=lambda op: place[op.name]))
    order: list[tf.Operation] = []
    for number, op in enumerate(head):
        order += [op, *following.get(number, ())]
    return order + [op for op in tail if op.name not in placed]


def _ends(ops: Sequence[tf.Operation]) -> list[int]:
    """For each op the position of the last of those behind it that write into its result in place: they belong together."""
    readers: dict[str, list[int]] = {}
    for number, op in enumerate(ops):
        if op.type not in ALIASES:
            for base in map(root, op.inputs):
                readers.setdefault(base.name, []).append(number)
    ends = list(range(len(ops)))
    for number in reversed(range(len(ops))):
        read = [readers.get(tensor.name, []) for tensor in ops[number].outputs]
        if len(read) == 1 and len(read[0]) == 1 and ops[read[0][0]].type in IN_PLACE:
            following = read[0][0]
            if not any(map(is_big, ops[number + 1 : following])):
                ends[number] = ends[following]
    return ends


def with_late_broadcasts(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Move what makes large tensors of none to right before the first op that reads them; so too what reads only such.

    Args:
        ops: in a topological order.
    """
    before = {op.name: [source(tensor).op for tensor in op.inputs] for op in ops}
    readers = Counter(name for op in ops for name in {one.name for one in before[op.name]})
    waited_for = {one.name for op in ops for one in op.control_inputs}
    late: dict[str, list[tf.Operation]] = {}
    for op in ops:
        large = [source(tensor).op.name for tensor in op.inputs if tensor_bytes(tensor) > SMALL]
        movable = is_recomputable(op) or (op.type in ALIASES and large)
        if movable and readers[op.name] and op.name not in waited_for and all(n in late and readers[n] == 1 for n in large):
            late[op.name] = before[op.name]
    order: list[tf.Operation] = []
    placed: set[str] = set()
    for op in ops:
        if op.name not in late:
            for one in before[op.name]:
                order += reversed(_not_placed(one, late, placed))
            order.append(op)
    return order


def _is_change(op: tf.Operation) -> bool:
    return is_stateful(op) and op.type != "ReadVariableOp"


def _not_placed(op: tf.Operation, before: dict[str, list[tf.Operation]], placed: set[str]) -> list[tf.Operation]:
    """The op and what it needs, as far as it has no place yet; they have one afterwards."""
    found: list[tf.Operation] = []
    stack = [op]
    while stack:
        one = stack.pop()
        if one.name in before and one.name not in placed:
            placed.add(one.name)
            found.append(one)
            stack += before[one.name]
    return found
