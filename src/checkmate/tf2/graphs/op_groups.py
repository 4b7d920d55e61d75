"""Ops of a trace -> the groups that are planned: what is computed, and computed again, together.

A group is one op that takes memory, with the elementwise ops that write into its result in place; or a run of small ops.
Constants and aliases belong to no group: they take no memory and are emitted where they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from ..ops.op_kinds import ALIASES, IN_PLACE, is_big, is_free, is_recomputable, root, tensor_bytes
from .trace import Traced, is_fixed


@dataclass(eq=False)
class OpGroup:
    """Ops that are emitted together.

    Attributes:
        first: in order, with the reads of variables where they stood: these must not move past a change of the variable.
        recomputable: it may run again.
    """

    first: list[tf.Operation]
    recomputable: bool

    @cached_property
    def ops(self) -> list[tf.Operation]:
        """Without the reads: what another run repeats."""
        return [op for op in self.first if op.type != "ReadVariableOp"]

    @property
    def name(self) -> str:
        return str(self.ops[-1].name)


def make_groups(traced: Traced) -> list[OpGroup]:
    """Groups in execution order; every op that is not free is in exactly one."""
    uses = Counter(root(t).name for op in traced.ops if not is_free(op) for t in op.inputs)
    uses.update(root(t).name for t in traced.outputs)
    blocks = _blocks(traced.ops, uses)
    groups: list[OpGroup] = []
    reads: list[tf.Operation] = []
    open_run: set[str] | None = None  # big values that the current run of small ops reads
    for op in traced.ops:
        if op.type == "ReadVariableOp":
            reads.append(op)
        if is_free(op):
            continue
        block = blocks.get(op.name, [op])
        if block[-1] is not op:
            continue
        if len(block) > 1 or is_big(op):
            recomputable = any(map(is_recomputable, block)) and all(is_recomputable(o) or o.type == "BiasAddGrad" for o in block)
            groups.append(OpGroup([*reads, *block], recomputable))
            open_run = None
        else:
            big = {r.name for r in map(root, op.inputs) if not is_fixed(r) and is_big(r.op)}
            if open_run is None or not (big <= open_run or not open_run):
                groups.append(OpGroup([*reads, op], False))
                open_run = big
            else:
                groups[-1].first += [*reads, op]
                open_run |= big
        reads = []
    if reads and groups:  # nothing follows them: only an output can need them
        groups[-1].first += reads
    return groups


def _blocks(ops: Sequence[tf.Operation], uses: Mapping[str, int]) -> dict[str, list[tf.Operation]]:
    """Ops that belong together, under the name of each of them; a block stands where its last op stood."""
    position = {op.name: number for number, op in enumerate(ops)}
    big_before = [0]
    for op in ops:
        big_before.append(big_before[-1] + is_big(op))
    blocks: dict[str, list[tf.Operation]] = {}

    def join(block: list[tf.Operation], last: tf.Operation) -> None:
        block.append(last)
        blocks.update(dict.fromkeys((op.name for op in block), block))

    for op in ops:
        if op.type in IN_PLACE and is_recomputable(op):
            for source in sorted(_in_place_sources(op, uses), key=lambda s: -position[s.name]):
                if big_before[position[op.name]] - big_before[position[source.name] + 1] == 0:
                    join(blocks.get(source.name, [source]), op)
                    break
    # oneDNN makes one kernel of the two gradients of a convolution with bias: nothing may come between them.
    filters = {op.inputs[2].name: op for op in ops if op.type == "Conv2DBackpropFilter" and blocks.get(op.name, [op])[0] is op}
    readers: dict[str, int] = {}
    for op in ops:
        for tensor in map(root, [] if op.type in ALIASES else op.inputs):
            readers[tensor.op.name] = min(readers.get(tensor.op.name, len(ops)), position[op.name])
    for op in ops:
        if op.type == "BiasAddGrad" and (other := filters.pop(op.inputs[0].name, None)) is not None:
            block = [op, *blocks.get(other.name, [other])]
            if position[block[-1].name] < readers.get(op.name, len(ops)):
                blocks.update({member.name: block for member in block})
    return blocks


def _in_place_sources(op: tf.Operation, uses: Mapping[str, int]) -> list[tf.Operation]:
    """Producers of inputs that `op` may overwrite: of its size, and read by nothing else."""
    size = tensor_bytes(op.outputs[0])
    found = []
    for tensor in op.inputs:
        source = root(tensor)
        if uses[source.name] == 1 and tensor_bytes(source) == size and len(source.op.outputs) == 1 and is_recomputable(source.op):
            found.append(source.op)
    return found
