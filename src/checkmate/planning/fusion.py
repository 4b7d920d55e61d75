"""Ops that a compiler runs as one kernel are planned as one op.

A compiler with fusion computes an elementwise op inside the kernel that reads its result: the result never takes memory, and the
kernel moves the bytes of its own inputs and outputs only. A graph of single ops says neither. Here ops are joined into groups, the
schedule is found for the graph of groups, and expanded to one of single ops before it is emitted: a group that is computed again
is all of its ops once more, next to each other, so that the compiler joins them again.

Limit: whether the compiler really joins them is its own decision. What it takes at its peak has to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from ..graph import Graph, Op, Value
from ..schedule import Compute, Free, Step
from .op_costs import OpCost
from .parts import PartGraph, PartInput


class Kind(Enum):
    """What a compiler does with an op.

    Attributes:
        INLINE: computed inside the kernel that reads it, if there is only one.
        KERNEL: a kernel of its own that computes such inputs itself (a sum over elements).
        CALL: a call of a library, whose inputs and outputs are in memory (a matrix product).
    """

    INLINE = auto()
    KERNEL = auto()
    CALL = auto()


@dataclass(frozen=True)
class Fusion:
    """A graph of groups, and the graph of single ops that it came from.

    Attributes:
        single: the graph of single ops. graph: that of groups.
        members: for each group its ops, in their order; the last one makes what the group makes.
        values: for each value of `graph` the value of `single` that it is.
    """

    single: Graph
    graph: Graph
    members: tuple[tuple[int, ...], ...]
    values: tuple[int, ...]

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """For each single op its group."""
        found = [0] * self.single.num_ops
        for group, ops in enumerate(self.members):
            for op in ops:
                found[op] = group
        return tuple(found)

    @cached_property
    def value_of(self) -> dict[int, int]:
        """For each value of `single` that a group makes, the value of `graph`."""
        return {value: number for number, value in enumerate(self.values)}

    @cached_property
    def _steps(self) -> tuple[tuple[Step, ...], ...]:
        """For each group the steps that compute it."""
        return tuple(tuple(self._steps_of(ops)) for ops in self.members)

    def _steps_of(self, ops: Sequence[int]) -> Iterable[Step]:
        last = {value: op for op in ops for value in self.single.ops[op].inputs}
        inside = {value for op in ops for value in self.single.ops[op].outputs if value not in self.value_of}
        for op in ops:
            yield Compute(op)
            yield from (Free(value) for value in sorted(inside) if last.get(value) == op)

    def expand(self, steps: Iterable[Step]) -> list[Step]:
        """A schedule of single ops from one of groups."""
        found: list[Step] = []
        for step in steps:
            if isinstance(step, Compute):
                found += self._steps[step.op]
            else:
                found.append(Free(self.values[step.value]))
        return found

    def groups(self, ops: Iterable[int]) -> tuple[int, ...]:
        """The groups that these single ops are in, each once."""
        return tuple(dict.fromkeys(self.group_of[op] for op in ops))

    def whole_groups(self, ops: Collection[int]) -> frozenset[int]:
        """The groups all of whose ops are among these."""
        return frozenset(group for group, members in enumerate(self.members) if set(members) <= set(ops))

    def part(self, part: PartGraph) -> PartGraph:
        """A part whose graph is `single`, as one of groups."""
        inputs = tuple(PartInput(given.size, self.groups(given.readers), self._value(given.gradient)) for given in part.inputs)
        between = None if part.between is None else self.group_of[part.between]
        outputs = tuple(self._value(value) for value in part.outputs)
        return PartGraph(self.graph, between, inputs, outputs, tuple(self._value(value) for value in part.tangents))

    def _value(self, value: int | None) -> int | None:
        return None if value is None else self.value_of[value]


def fuse(graph: Graph, kinds: Sequence[Kind], needed: Collection[int], cost: Callable[[Sequence[int], bool], OpCost]) -> Fusion:
    """Join each op that can be computed where it is read with the one group that reads it.

    Args:
        kinds: of the ops. needed: values that are read by more than ops of the graph.
        cost: of a group, from its ops in their order. The second argument: whether to compute the group once more means to compute it
            inside of kernels that run anyway, which then read its inputs in place of its result.
    """
    readers: list[list[int]] = [[] for _ in graph.values]
    for number, op in enumerate(graph.ops):
        for value in op.inputs:
            readers[value].append(number)
    root = list(range(graph.num_ops))  # the last op of each op's group
    for number in range(graph.num_ops - 1, -1, -1):
        op = graph.ops[number]
        if kinds[number] is not Kind.INLINE or len(op.outputs) != 1 or not op.recomputable:
            continue
        (value,) = op.outputs
        roots = {root[reader] for reader in readers[value]}
        if len(roots) != 1 or graph.values[value].keep or value in needed:
            continue
        (into,) = roots
        if kinds[into] is not Kind.CALL and graph.ops[into].phase == op.phase:
            root[number] = into
    members: dict[int, list[int]] = {}
    for number, last in enumerate(root):
        members.setdefault(last, []).append(number)
    groups = [tuple(members[last]) for last in sorted(members)]
    values = [value for group in groups for value in graph.ops[group[-1]].outputs]
    number_of = {value: number for number, value in enumerate(values)}

    def inside(op: int) -> bool:
        late = [reader for value in graph.ops[op].outputs for reader in readers[value] if graph.ops[reader].phase == "backward"]
        return kinds[op] is Kind.INLINE and bool(late) and all(kinds[root[reader]] is not Kind.CALL for reader in late)

    costs = [cost(group, inside(group[-1])) for group in groups]
    elementwise = [kinds[group[-1]] is Kind.INLINE for group in groups]
    ops = [_joined(graph, number_of, *given) for given in zip(groups, costs, elementwise, strict=True)]
    kept = [Value(one.name, one.size, one.keep) for one in (graph.values[value] for value in values)]
    return Fusion(graph, Graph(ops, kept, graph.fixed_memory, graph.name), tuple(groups), tuple(values))


def _joined(graph: Graph, number_of: dict[int, int], group: Sequence[int], cost: OpCost, elementwise: bool) -> Op:
    """One op in place of several.

    Args:
        elementwise: all of them are, so that what one of them could write over can take what the last one makes.
    """
    ops, last = [graph.ops[op] for op in group], graph.ops[group[-1]]
    inputs = tuple(dict.fromkeys(number_of[value] for op in ops for value in op.inputs if value in number_of))
    outputs = tuple(number_of[value] for value in last.outputs)
    again = all(op.recomputable for op in ops)
    size = graph.values[last.outputs[0]].size if len(last.outputs) == 1 else None
    usable = [op.reuses for op in (ops if elementwise else [last]) if op.reuses in number_of]
    reuses = next((number_of[value] for value in usable if graph.values[value].size == size), None)
    layer = next((op.layer for op in reversed(ops) if op.layer), "")
    return Op(last.name, cost.seconds, inputs, outputs, cost.workspace, again, last.phase, reuses, layer)
