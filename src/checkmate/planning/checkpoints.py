"""A step whose checkpointed regions run a second time, whatever the budget: what a user who placed the checkpoints asks for.

In the graph that is solved, the ops of these regions have a second run just before the backward pass first needs what they make, and
the backward pass reads what the second run made. Nothing can then be kept from the first run for it. Whatever else the
budget calls for is decided as for any other graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..graph import Graph, Op, Value
from ..schedule import Schedule, Step, steps_from_sequence


@dataclass(frozen=True)
class SecondRuns:
    """A graph with second runs as ops of their own.

    Attributes:
        graph: to be solved. original: the graph without them.
        ops: for each op of `graph` which one of the original it is.
    """

    graph: Graph
    original: Graph
    ops: tuple[int, ...]

    def merged(self, schedule: Schedule) -> Schedule:
        """A schedule of the original graph that computes the same in the same order, and takes no more memory.

        Its lower bound is that of all schedules, not only of those with these second runs.
        """
        if self.graph is self.original:
            return schedule
        sequence = [self.ops[op] for op in schedule.sequence]
        steps: list[Step] = steps_from_sequence(self.original, sequence)
        return replace(schedule, graph=self.original, steps=steps, lower_bound=self.original.ideal_cost)


def with_second_runs(graph: Graph, again: Collection[int]) -> SecondRuns:
    """Have ops of the forward pass run a second time for the backward pass.

    Args:
        again: the ops; those that the backward pass does not need run once all the same, and so do those that cannot run again.
    """
    twice = {op for op in again if graph.ops[op].recomputable}
    if not twice:
        return SecondRuns(graph, graph, tuple(range(graph.num_ops)))
    builder = _Builder(graph, twice)
    for op in range(graph.num_ops):
        builder.add(op)
    made = Graph(_with_own_buffers(builder.ops), builder.values, graph.fixed_memory, graph.name)
    return SecondRuns(made, graph, tuple(builder.originals))


class _Builder:
    def __init__(self, graph: Graph, twice: Collection[int]):
        self.graph, self.twice = graph, twice
        self.ops: list[Op] = []
        self.values = list(graph.values)
        self.originals: list[int] = []
        self._second: dict[int, int] = {}  # values -> those of the second run

    def add(self, number: int) -> None:
        op = self.graph.ops[number]
        if op.phase == "backward":
            for value in op.inputs:
                self._make_again(value)
            op = self._on_second(op)
        self._append(op, number)

    def _on_second(self, op: Op) -> Op:
        """The op, reading what second runs have made where there is such a thing."""
        inputs = tuple(self._second.get(value, value) for value in op.inputs)
        return replace(op, inputs=inputs, reuses=None if op.reuses is None else self._second.get(op.reuses, op.reuses))

    def _append(self, op: Op, number: int) -> None:
        self.ops.append(op)
        self.originals.append(number)

    def _make_again(self, value: int) -> None:
        """Have the second run that makes the value, and those that it reads from; nothing where its op has none."""
        pending = [value]
        while pending:
            number = self.graph.producer[pending[-1]]
            op = self.graph.ops[number]
            if number not in self.twice or pending[-1] in self._second:
                pending.pop()
                continue
            missing = [v for v in op.inputs if self.graph.producer[v] in self.twice and v not in self._second]
            if missing:
                pending += missing
                continue
            for output in op.outputs:
                self._second[output] = len(self.values)
                made = self.graph.values[output]
                self.values.append(Value(f"{made.name} (second run)", made.size))
            outputs = tuple(self._second[v] for v in op.outputs)
            second = replace(self._on_second(op), name=f"{op.name} (second run)", outputs=outputs, phase="backward")
            self._append(second, number)


def _with_own_buffers(ops: Sequence[Op]) -> list[Op]:
    """The ops; those no longer reuse the storage of an input that a second run reads, too."""
    readers = Counter(value for op in ops for value in op.inputs)
    return [replace(op, reuses=None) if op.reuses is not None and readers[op.reuses] > 1 else op for op in ops]
