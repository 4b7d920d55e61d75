"""Schedules that are kept from one process to the next, by the problem that they solve."""

from __future__ import annotations

import json
from typing import Any

from ..errors import InfeasibleBudget, InvalidSchedule
from ..graph import Graph
from ..schedule import OPTIMAL_GAP, Compute, Free, Schedule
from ..solvers import first_schedule, solve
from ..solvers.interface.running_search import interrupting
from ..solvers.smallest_budget import UNITS, least_peak_found, schedule_of
from ..version import __version__
from .cache_files import load, store

_KIND = "plan"
#: Of schedules to begin with, while better ones are searched for; of proofs that there is none, as [proven minimum, smallest found]; and
#: of schedules of least peak: who is told to ask for a budget need not wait for another one.
_FIRST_KIND, _NONE_KIND, _LEAST_KIND = "first", "none", "least"

_WORTH_SECONDS = 0.5  # schedules found sooner than this are found again
#: For a schedule to begin with; any will do where that does not bring one.
_FIRST_SECONDS, _ANY_GAP = 3.0, 1e3


def solve_cached(
    graph: Graph, budget: int, *, start: Schedule | None = None, keep_always: bool = False, **options: Any
) -> Schedule:
    """`checkmate.solve`, or what it found the last time: by this version, for an equal graph, budget and options.

    An interrupt interrupts. What is kept is signed with the problem that it solves: the bound of another problem is never taken.

    Args:
        budget: bytes. options: of `checkmate.solve`, as JSON can write them.
        start: a schedule to begin with. keep_always: what is found at once, too.

    Raises:
        InfeasibleBudget: no schedule was found.
    """
    key = _key(graph, budget, options)
    found = read(load(_KIND, key), graph, budget)
    if found is not None:
        return found
    schedule = _solved(graph, budget, start, options)
    if keep_always or schedule.solve_seconds >= _WORTH_SECONDS:
        store(_KIND, key, written(schedule))
    return schedule


def first_cached(graph: Graph, budget: int, **options: Any) -> tuple[Schedule, bool]:
    """A schedule soon, and whether `solve_cached` would find no better one: what that found the last time, or else a fair one.

    The search is a long one only where nothing is found in a short one. An interrupt interrupts.

    Args:
        budget: bytes. options: of `checkmate.solve` with method "auto", as JSON can write them.

    Raises:
        InfeasibleBudget: no schedule was found, in all the time that `solve_cached` has.
    """
    quick = {name: options[name] for name in ("order", "gap", "seed")} | {
        "time_limit": min(_FIRST_SECONDS, options["time_limit"])
    }
    if graph.no_recompute_peak <= budget:
        plain = first_schedule(graph, budget, **quick)
        assert plain is not None
        return plain, True
    key = _key(graph, budget, options)
    if (known := read(load(_KIND, key), graph, budget)) is not None:
        return known, True
    first = read(load(_FIRST_KIND, key), graph, budget)
    if first is None:
        match load(_NONE_KIND, key):
            case [int(proven), int(found)] if budget < proven <= found:
                raise InfeasibleBudget(budget, proven, found)
        try:
            with interrupting():
                first = first_schedule(graph, budget, **quick)
            first = first or _solved(graph, budget, None, {**options, "gap": _ANY_GAP})
        except InfeasibleBudget as error:
            if budget < error.proven_minimum:  # that nothing was found may have been for lack of time
                store(_NONE_KIND, key, [error.proven_minimum, error.smallest_found])
            raise
        store(_FIRST_KIND, key, written(first))
    return first, first.gap <= max(options["gap"], OPTIMAL_GAP)


def least_cached(graph: Graph, order: str, seconds: float) -> int:
    """The least peak in bytes that is found in about so many seconds, or fewer; its schedule is kept to begin with."""
    found, _ = least_peak_found(graph, order, units=min(UNITS, seconds))  # a unit takes about a second
    _keep_least(schedule_of(graph, found, order))
    return found.peak


def _solved(graph: Graph, budget: int, start: Schedule | None, options: dict[str, Any]) -> Schedule:
    """`checkmate.solve`, which begins with the schedule of least peak if one is known that fits and there is no other."""
    if start is None and options.get("method", "auto") == "auto" and budget < graph.no_recompute_peak:
        start = read(load(_LEAST_KIND, _least_key(graph, options.get("order", "given"))), graph, budget)
    try:
        with interrupting():
            return solve(graph, budget, start=start, **options)
    except InfeasibleBudget as error:
        if error.schedule is not None:
            _keep_least(error.schedule)
        raise


def _keep_least(schedule: Schedule) -> None:
    """Keep it, unless one of less peak is kept."""
    key = _least_key(schedule.graph, schedule.order)
    if read(load(_LEAST_KIND, key), schedule.graph, schedule.peak - 1) is None:
        store(_LEAST_KIND, key, written(schedule))


def _least_key(graph: Graph, order: str) -> str:
    return json.dumps([__version__, graph.to_dict(names=False), order], sort_keys=True)


def _key(graph: Graph, budget: int, options: dict[str, Any]) -> str:
    return json.dumps([__version__, graph.to_dict(names=False), budget, options], sort_keys=True)


def written(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON data: op i as i, and that value i is freed as -1 - i."""
    steps = [step.op if isinstance(step, Compute) else -1 - step.value for step in schedule.steps]
    names = ("method", "lower_bound", "order", "solve_seconds", "seed", "cost", "peak")
    return {"steps": steps, **{name: getattr(schedule, name) for name in names}}


def read(data: Any, graph: Graph, budget: int) -> Schedule | None:
    """What `written` wrote; None if it is not that, or not within the budget when it is simulated."""
    try:
        cost, peak = data.pop("cost"), data.pop("peak")
        steps = [Compute(number) if number >= 0 else Free(-1 - number) for number in data.pop("steps")]
        schedule = Schedule(graph, steps, budget, **data)
        fits = (schedule.cost, schedule.peak) == (cost, peak) and peak <= budget
        return schedule if fits and 0 <= schedule.lower_bound <= cost * (1 + 1e-9) else None
    except (InvalidSchedule, AttributeError, KeyError, TypeError, ValueError):
        return None
