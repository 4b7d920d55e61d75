"""What a schedule holds at its peak, and what it computes again: the numbers that a report shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..graph import Graph
from ..schedule import Compute, Schedule, freed_next, steps_from_sequence


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
    """

    op: str
    times: int
    cost: float


def at_peak(schedule: Schedule) -> Peak:
    """What is in memory when the schedule takes most."""
    graph, during = schedule.graph, schedule.trace.during
    fixed = [Holding("parameters, buffers, inputs", "fixed", graph.fixed_memory)] if graph.fixed_memory else []
    if not during:
        return Peak(None, fixed)
    worst = during.index(max(during))
    live: set[int] = set()
    for step in schedule.steps[:worst]:
        if isinstance(step, Compute):
            live.update(graph.ops[step.op].outputs)
        else:
            live.discard(step.value)
    step = schedule.steps[worst]
    assert isinstance(step, Compute)  # a free adds nothing, and is preceded by what it frees
    op = graph.ops[step.op]
    if op.reuses is not None and op.reuses in freed_next(schedule.steps, worst):
        live.remove(op.reuses)  # an output has its storage
    holdings = fixed + [_held(graph, value) for value in live]
    holdings += [_held(graph, value) for value in op.outputs]  # also where there is one already, see `simulate`
    if op.workspace:
        holdings.append(Holding(op.name, "workspace", op.workspace))
    return Peak(op.name, sorted(holdings, key=lambda one: (-one.size, one.name)))


def _held(graph: Graph, value: int) -> Holding:
    phase = graph.ops[graph.producer[value]].phase
    return Holding(graph.values[value].name, "backward" if phase == "backward" else "forward", graph.values[value].size)


def recomputed(schedule: Schedule) -> list[Recomputed]:
    """The ops that run again, the ones that cost most first."""
    runs = Counter(step.op for step in schedule.steps if isinstance(step, Compute))
    ops = schedule.graph.ops
    found = [Recomputed(ops[op].name, count - 1, (count - 1) * ops[op].cost) for op, count in runs.items() if count > 1]
    return sorted(found, key=lambda one: (-one.cost, one.op))


def without_recomputation(graph: Graph) -> Schedule:
    """Every op once, in the graph's order; values are freed after their last use."""
    return Schedule(graph, steps_from_sequence(graph, range(graph.num_ops)), None, "none", graph.ideal_cost)
