"""What a schedule holds at its peak, and what it computes again: the numbers that a report shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..graph import Graph
from ..schedule import Schedule, steps_from_sequence
from .lifetimes import lifetimes


@dataclass(frozen=True)
class Holding:
    """Something that takes memory.

    Attributes:
        name: of the value, or of the op whose workspace it is.
        kind: "fixed" (parameters, buffers, inputs), "forward" or "backward" value (by the op that made it), or "workspace".
        size: bytes.
    """

    name: str
    kind: str
    size: int


@dataclass(frozen=True)
class Peak:
    """The moment at which a schedule takes most memory, the first if there are several.

    Attributes:
        op: the op that runs then; None for a graph without ops.
        holdings: all that is in memory then, the largest first; their sizes add up to the schedule's peak.
    """

    op: str | None
    holdings: list[Holding]


@dataclass(frozen=True)
class Recomputed:
    """An op that runs more than once.

    Attributes:
        times: computations after the first. cost: of these together, in the graph's unit.
        size: bytes of all its values.
        saved: bytes of its values that are in memory where the step without recomputation peaks, but not at the same place of this
            schedule (the first computation of the op that runs then).
        away: the most computations for which one of its values was out of memory before it was computed again.
    """

    op: str
    layer: str
    times: int
    cost: float
    size: int
    saved: int
    away: int


def at_peak(schedule: Schedule) -> Peak:
    """What is in memory when the schedule takes most."""
    graph, found = schedule.graph, lifetimes(schedule)
    holdings = [Holding("parameters, buffers, inputs", "fixed", graph.fixed_memory)] if graph.fixed_memory else []
    worst = found.worst
    if worst is None:
        return Peak(None, holdings)
    op = graph.ops[found.ops[worst]]
    holdings += [_held(graph, value) for value in found.live(worst)]
    if op.workspace:
        holdings.append(Holding(op.name, "workspace", op.workspace))
    return Peak(op.name, sorted(holdings, key=lambda one: (-one.size, one.name)))


def _held(graph: Graph, value: int) -> Holding:
    phase = graph.ops[graph.producer[value]].phase
    return Holding(graph.values[value].name, "backward" if phase == "backward" else "forward", graph.values[value].size)


def recomputed(schedule: Schedule) -> list[Recomputed]:
    """The ops that run again, the ones that cost most first."""
    graph, planned, plain = schedule.graph, lifetimes(schedule), lifetimes(without_recomputation(schedule.graph))
    runs = Counter(planned.ops)
    saved: set[int] = set()
    if plain.worst is not None:
        saved = set(plain.live(plain.worst)) - set(planned.live(planned.ops.index(plain.ops[plain.worst])))
    away = planned.longest_absences(graph)
    found = []
    for index, count in runs.items():
        if count > 1:
            op = graph.ops[index]
            sizes = {value: graph.values[value].size for value in op.outputs}
            less = sum(size for value, size in sizes.items() if value in saved)
            cost = (count - 1) * op.cost
            found.append(Recomputed(op.name, op.layer, count - 1, cost, sum(sizes.values()), less, away.get(index, 0)))
    return sorted(found, key=lambda one: (-one.cost, one.op))


def without_recomputation(graph: Graph) -> Schedule:
    """Every op once, in the graph's order; values are freed after their last use."""
    return Schedule(graph, steps_from_sequence(graph, range(graph.num_ops)), None, "none", graph.ideal_cost)
