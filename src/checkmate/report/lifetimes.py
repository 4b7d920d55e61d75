"""When each value of a schedule is in memory, counted in computations."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..graph import Graph
from ..schedule import Compute, Schedule, freed_next


@dataclass(frozen=True)
class Stay:
    """A value is in memory while the computations `begin` to `end - 1` run.

    The stays of one value overlap where its op runs again while it is live: until that op ends there are two copies.
    """

    value: int
    begin: int
    end: int


@dataclass(frozen=True)
class Lifetimes:
    """What a schedule computes, in order, and what is in memory meanwhile.

    At every position the fixed memory, the workspace of the op that runs and the sizes of the stays that cover it add up to
    `during`.

    Attributes:
        ops: the op of each computation.
        during: bytes in memory while each computation runs, as the simulator counts them.
        stays: in the order in which they end.
    """

    ops: list[int]
    during: list[int]
    stays: list[Stay]

    def live(self, position: int) -> list[int]:
        """The values in memory while this computation runs; one of which there are two copies is named twice."""
        return [stay.value for stay in self.stays if stay.begin <= position < stay.end]

    @property
    def worst(self) -> int | None:
        """The first computation at which most is in memory; None where there is none."""
        return self.during.index(max(self.during)) if self.during else None

    def longest_absences(self, graph: Graph) -> dict[int, int]:
        """For ops that run again: the most computations for which a value of theirs was out of memory in between."""
        found: defaultdict[int, int] = defaultdict(int)
        left: dict[int, int] = {}
        for stay in sorted(self.stays, key=lambda one: (one.value, one.begin, one.end)):
            if stay.value in left:
                op = graph.producer[stay.value]
                found[op] = max(found[op], stay.begin - left[stay.value])
            left[stay.value] = max(stay.end, left.get(stay.value, 0))
        return found


def lifetimes(schedule: Schedule) -> Lifetimes:
    """Read the lifetimes off the steps of a valid schedule."""
    graph, steps = schedule.graph, schedule.steps
    ops: list[int] = []
    during: list[int] = []
    stays: list[Stay] = []
    born: dict[int, int] = {}
    written_over: set[int] = set()  # freed already: an output has the storage
    for number, step in enumerate(steps):
        if isinstance(step, Compute):
            op, position = graph.ops[step.op], len(ops)
            if op.reuses is not None and op.reuses in freed_next(steps, number):
                stays.append(Stay(op.reuses, born.pop(op.reuses), position))
                written_over.add(op.reuses)
            for value in op.outputs:
                if value in born:
                    stays.append(Stay(value, position, position + 1))
                else:
                    born[value] = position
            ops.append(step.op)
            during.append(schedule.trace.during[number])
        elif step.value in written_over:
            written_over.remove(step.value)
        else:
            stays.append(Stay(step.value, born.pop(step.value), len(ops)))
    stays += [Stay(value, begin, len(ops)) for value, begin in born.items()]
    return Lifetimes(ops, during, stays)
