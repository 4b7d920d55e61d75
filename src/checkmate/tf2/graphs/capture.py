"""Groups of ops of a trace -> `Graph`: values are tensors with memory of their own, and what happens inside a group is workspace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from ...graph import Graph, Op, Value, common_layer
from ...planning import OpCost
from ..ops.op_kinds import IN_PLACE, is_big, root, tensor_bytes
from ..ops.order import is_gradient
from .layers import Scopes
from .op_groups import OpGroup
from .trace import Traced, is_fixed

#: What adds up gradients.
_SUMS = ("AddN", "AddV2")


@dataclass(eq=False)
class Captured:
    """A step, ready for planning: op i of `graph` is `groups[i]`; costs are by the name of the op.

    Attributes:
        wasted: bytes by which blocks of the memory pool are larger than the variables that lie in them.
    """

    traced: Traced
    groups: list[OpGroup]
    costs: Mapping[str, OpCost]
    graph: Graph
    wasted: int = 0


def planned_ops(groups: Sequence[OpGroup]) -> list[tf.Operation]:
    """The ops that need a cost."""
    return [op for group in groups for op in group.ops]


def capture(traced: Traced, groups: list[OpGroup], costs: Mapping[str, OpCost], name: str) -> Captured:
    """Build the graph.

    Args:
        groups: of `make_groups`. costs: by op name.
    """
    inside = {op.name: number for number, group in enumerate(groups) for op in group.ops}
    kept = {r.name for r in map(root, traced.outputs)}
    outside_readers: set[str] = set(kept)
    for number, group in enumerate(groups):
        for op in group.ops:
            for source in map(root, op.inputs):
                if not is_fixed(source) and inside[source.op.name] != number:
                    outside_readers.add(source.name)
    values: list[Value] = []
    ids: dict[str, int] = {}
    ops: list[Op] = []
    maker: dict[int, int] = {}  # value -> op
    phase = "forward"
    for group in groups:
        read: dict[int, None] = {}
        outputs: list[int] = []
        for op in group.ops:
            for source in map(root, op.inputs):
                if source.name in ids and ids[source.name] not in outputs:
                    read[ids[source.name]] = None
            for tensor in op.outputs:
                if tensor.name in outside_readers:
                    ids[tensor.name] = len(values)
                    outputs.append(len(values))
                    values.append(Value(tensor.name, tensor_bytes(tensor), tensor.name in kept))
        if any(map(is_gradient, group.ops)):
            phase = "backward"
        ops.append(
            Op(
                group.name,
                sum(costs[op.name].seconds for op in group.ops),
                tuple(read),
                tuple(outputs),
                _workspace(group, costs, outside_readers),
                group.recomputable,
                phase,
                layer=_layer(group, traced.scopes, [ops[maker[value]].layer for value in read] if phase == "backward" else ()),
            )
        )
        maker.update(dict.fromkeys(outputs, len(ops) - 1))
    return Captured(traced, groups, costs, Graph(_with_reuse(ops, values, groups, ids), values, traced.fixed_bytes, name))


def _with_reuse(ops: Sequence[Op], values: Sequence[Value], groups: Sequence[OpGroup], ids: Mapping[str, int]) -> list[Op]:
    """The ops of a graph with the storage that TensorFlow's kernels write over: that of an input which nothing else reads."""
    readers = Counter(value for op in ops for value in op.inputs)
    found = []
    for op, group in zip(ops, groups, strict=True):
        if len(op.outputs) == 1:
            made = values[op.outputs[0]].size
            fitting = (ids[tensor.name] for tensor in _overwritten(group) if tensor.name in ids)
            own = (value for value in fitting if readers[value] == 1 and values[value].size == made and not values[value].keep)
            op = replace(op, reuses=next(own, None))
        found.append(op)
    return found


def _overwritten(group: OpGroup) -> Iterator[tf.Tensor]:
    """Tensors that are read once, by the first op of a group all of whose ops may write over what they read."""
    first = group.ops[0]
    if is_big(first) and all(op.type in IN_PLACE for op in group.ops):
        reads = Counter(root(tensor).name for op in group.ops for tensor in op.inputs)
        (made,) = first.outputs
        for tensor in map(root, first.inputs):
            if reads[tensor.name] == 1 and tensor.dtype == made.dtype:
                yield tensor


def _layer(group: OpGroup, scopes: Scopes, read: Sequence[str]) -> str:
    """The layer of the last op that has one. A sum of gradients comes from what all those have in common that are added up.

    Args:
        read: the layers of what makes the values that the group reads.
    """
    known = next((layer for op in reversed(group.ops) if (layer := scopes.layer_of(op.name))), "")
    return common_layer(read) if not known and group.ops[-1].type in _SUMS else known


def _workspace(group: OpGroup, costs: Mapping[str, OpCost], outside_readers: set[str]) -> int:
    """Bytes at the group's peak beyond what it reads and what it leaves behind."""
    if len(group.ops) == 1:
        (op,) = group.ops
        return costs[op.name].workspace + sum(tensor_bytes(t) for t in op.outputs if t.name not in outside_readers)
    last: dict[str, int] = {}
    for number, op in enumerate(group.ops):
        for source in map(root, op.inputs):
            last[source.name] = number
    made: dict[str, int] = {}
    left = live = peak = 0
    for number, op in enumerate(group.ops):
        dying = {
            r.name for r in map(root, op.inputs) if r.name in made and last[r.name] == number and r.name not in outside_readers
        }
        own = sum(tensor_bytes(t) for t in op.outputs)
        if op.type in IN_PLACE:
            # It writes over an input of its size that nothing reads afterwards.
            over = next((name for name in dying if made[name] == own), None)
            if over is not None:
                live -= made[over]
                dying.discard(over)
        live += own
        peak = max(peak, live + costs[op.name].workspace)
        for tensor in op.outputs:
            made[tensor.name] = tensor_bytes(tensor)
            if tensor.name in outside_readers:
                left += made[tensor.name]
            elif tensor.name not in last:
                live -= made[tensor.name]
        live -= sum(made[name] for name in dying)
    return max(0, peak - left)
