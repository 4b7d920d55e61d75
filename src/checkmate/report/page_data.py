"""What a page on a schedule is drawn from, as plain JSON data: its views compute nothing that is not in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import Graph
from ..schedule import Schedule
from ..text import named
from .facts import recomputed, without_recomputation
from .lifetimes import Lifetimes, lifetimes


@dataclass(frozen=True)
class Point:
    """What a budget costs.

    Attributes:
        kind: "this" schedule, one of the "others", or the "plain" step without recomputation.
        label: for people.
        budget, peak: bytes. overhead: of a schedule that was found.
        bound: overhead that every schedule under this budget has at least, as far as it is proven; None where the proof is about
            fewer schedules than the page's.
    """

    kind: str
    label: str
    budget: int
    peak: int
    overhead: float
    bound: float | None


def page_data(schedule: Schedule, others: Sequence[Schedule] = ()) -> dict[str, Any]:
    """The data of the page.

    Ops and values are columns; ids are places in them. A run has the op of each computation, the bytes in memory while it runs, and
    the stays of values as a flat list of (value, begin, end), see `Lifetimes`. Costs are shares of computing every op once.
    """
    graph = schedule.graph
    plan, plain = lifetimes(schedule), lifetimes(without_recomputation(graph))
    layers = list(dict.fromkeys(op.layer for op in graph.ops))
    number = {layer: place for place, layer in enumerate(layers)}
    ids = {op.name: index for index, op in enumerate(graph.ops)}
    ideal = graph.ideal_cost or 1.0
    return {
        "fixed": graph.fixed_memory,
        "budget": schedule.budget,
        "least": graph.min_working_set,
        "order": schedule.order,
        "layers": [named(layer) for layer in layers],
        "ops": {
            "name": [named(op.name) for op in graph.ops],
            "layer": [number[op.layer] for op in graph.ops],
            "backward": [int(op.phase == "backward") for op in graph.ops],
            "cost": [_short(op.cost / ideal) for op in graph.ops],
            "workspace": [op.workspace for op in graph.ops],
            "inputs": [list(op.inputs) for op in graph.ops],
        },
        "values": {
            "name": [named(value.name) for value in graph.values],
            "size": [value.size for value in graph.values],
            "keep": [int(value.keep) for value in graph.values],
            "op": list(graph.producer),
        },
        "plan": _run(plan),
        "plain": None if plan == plain else _run(plain),
        "again": [
            {"op": ids[one.op], "times": one.times, "cost": _short(one.cost / ideal)}
            | {"size": one.size, "saved": one.saved, "away": one.away}
            for one in recomputed(schedule)
        ],
        "points": [vars(point) for point in points(schedule, others)],
    }


def _run(found: Lifetimes) -> dict[str, list[int]]:
    stays = [number for stay in found.stays for number in (stay.value, stay.begin, stay.end)]
    return {"ops": found.ops, "during": found.during, "stays": stays}


def _short(share: float) -> float:
    return float(f"{share:.7g}")


def points(schedule: Schedule, others: Sequence[Schedule]) -> list[Point]:
    """What the curve of overhead against budget goes through, the largest budget first."""
    found = [_point("other", "other budget", one, schedule.order) for one in others]
    if schedule.num_recomputations:
        found.append(_point("this", "this schedule", schedule, schedule.order))
    graph = schedule.graph
    found.append(Point("plain", "without recomputation", graph.no_recompute_peak, graph.no_recompute_peak, 1.0, 1.0))
    return sorted(found, key=lambda point: (-point.budget, point.kind))


def _point(kind: str, label: str, schedule: Schedule, order: str) -> Point:
    budget = schedule.peak if schedule.budget is None else schedule.budget
    covers = schedule.order in ("any", order)  # schedules of the given order are among those of any
    bound = max(1.0, schedule.lower_bound / schedule.graph.ideal_cost) if covers and schedule.graph.ideal_cost else None
    return Point(kind, label, budget, schedule.peak, schedule.overhead, bound)


def even_budgets(graph: Graph, count: int, apart_from: int | None = None) -> list[int]:
    """Budgets between what no schedule peaks below and the peak without recomputation, the largest first.

    Args:
        apart_from: a budget that is looked at anyway: those close to it are left out.
    """
    low, high = graph.min_working_set, graph.no_recompute_peak
    found = sorted({low + round(step * (high - low) / (count + 1)) for step in range(1, count + 1)}, reverse=True)
    near = (high - low) / (3 * (count + 1))
    return [one for one in found if low < one < high and (apart_from is None or abs(one - apart_from) > near)]
