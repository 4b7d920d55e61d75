"""Schedules that are kept from one process to the next, by the problem that they solve."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidSchedule
from ..graph import Graph
from ..schedule import Compute, Free, Schedule
from ..solvers import solve
from ..solvers.interface.running_search import interrupting
from ..version import __version__
from .cache_files import load, store

_KIND = "plan"

_WORTH_SECONDS = 0.5  # schedules found sooner than this are found again


def solve_cached(graph: Graph, budget: int, **options: Any) -> Schedule:
    """`checkmate.solve`, or what it found the last time: by this version, for an equal graph, budget and options.

    An interrupt interrupts. What is kept is signed with the problem that it solves: the bound of another problem is never taken.

    Args:
        budget: bytes. options: of `checkmate.solve`, as JSON can write them.

    Raises:
        InfeasibleBudget: no schedule was found.
    """
    key = json.dumps([__version__, graph.to_dict(), budget, options], sort_keys=True)
    found = _read(load(_KIND, key), graph, budget)
    if found is not None:
        return found
    with interrupting():
        schedule = solve(graph, budget, **options)
    if schedule.solve_seconds >= _WORTH_SECONDS:
        store(_KIND, key, _written(schedule))
    return schedule


def _written(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON data: op i as i, and that value i is freed as -1 - i."""
    steps = [step.op if isinstance(step, Compute) else -1 - step.value for step in schedule.steps]
    names = ("method", "lower_bound", "order", "solve_seconds", "seed", "cost", "peak")
    return {"steps": steps, **{name: getattr(schedule, name) for name in names}}


def _read(data: Any, graph: Graph, budget: int) -> Schedule | None:
    """What `_written` wrote; None if it is not that, or not within the budget when it is simulated."""
    try:
        cost, peak = data.pop("cost"), data.pop("peak")
        steps = [Compute(number) if number >= 0 else Free(-1 - number) for number in data.pop("steps")]
        schedule = Schedule(graph, steps, budget, **data)
        fits = (schedule.cost, schedule.peak) == (cost, peak) and peak <= budget
        return schedule if fits and 0 <= schedule.lower_bound <= cost * (1 + 1e-9) else None
    except (InvalidSchedule, AttributeError, KeyError, TypeError, ValueError):
        return None
