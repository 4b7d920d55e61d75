"""`solve`: one signature for all methods, and the checks that every schedule passes before a caller gets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BudgetError, Contradiction, InfeasibleBudget, InvalidSchedule, UnknownMethod
from ..graph import Graph
from ..schedule import Schedule
from ..units import Budget, format_bytes, parse_bytes
from ..verification import in_order, verify
from .default.warm_start import begin_with, sequence_of
from .interface.running_search import Progress, Search, check_seed
from .registry import methods, run
from .smallest_budget import UNITS, least_peak_found, schedule_of

if TYPE_CHECKING:
    from .representation.decoding import Evaluation

_ORDERS = ("given", "any")
#: For the schedule of least peak, where time is over and there is no other.
_LEAST_SECONDS = 0.5


def solve(
    graph: Graph,
    budget: Budget,
    method: str = "auto",
    order: str = "given",
    time_limit: float = 60.0,
    gap: float = 1e-3,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    start: Schedule | None = None,
) -> Schedule:
    """Find a schedule of `graph` with the least recomputation whose peak stays within `budget`.

    Args:
        graph: the training step.
        budget: bytes, "2GiB", or "50%" of `graph.no_recompute_peak`; fixed memory included.
        method: one of `methods()`.
        order: "given": the first computations come in the graph's order, and the bound holds for that order. "any": ops may
            change places; dependencies are kept, ops of phase "forward" and "loss" first run before those of phase "backward"
            (where they stand before all of them in the graph), and the bound holds for all such orders.
        time_limit: seconds after which the best schedule so far is returned. If there is none by then, as many again, at most
            15, go into the schedule of least peak: it is returned where it fits, and else the message names its peak.
        gap: stop once the cost is proven within this fraction of the optimum; 0 means to the end.
        seed: same input, same seed, same schedule, in any process and however busy the machine, unless the time limit ends the
            search.
        progress: called with a `Progress` whenever the schedule or the bound improves.
        start: a schedule of the same graph to begin with (method "auto"), such as that of another budget; repaired if it does
            not fit.

    Returns:
        A schedule that has passed `verify`, which shares no code with the methods nor with `simulate`, and its proven lower bound.

    Raises:
        InfeasibleBudget: no schedule was found; the message names a budget that would do.
        BudgetError, UnknownMethod: an argument cannot be read. InvalidSchedule: `start` is of no use here.
        Contradiction: two results exclude each other; that is a defect of this package.
        KeyboardInterrupt: on Ctrl-C before the first schedule; later, Ctrl-C returns the best so far.
    """
    if method not in methods():
        raise UnknownMethod(f"unknown method {method!r}: choose one of {', '.join(methods())}")
    if order not in _ORDERS:
        raise UnknownMethod(f"unknown order {order!r}: choose one of {', '.join(_ORDERS)}")
    for name, number in (("time_limit", time_limit), ("gap", gap)):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or math.isnan(number) or number < 0:
            raise BudgetError(f"{name} must be a number >= 0, not {number!r}")
    check_seed(seed)
    limit = parse_bytes(budget, percent_of=graph.no_recompute_peak)
    begin = None if start is None else _first_sequence(start, graph, method, order)
    search = Search(graph, limit, order, float(time_limit), float(gap), seed, progress)
    if limit < graph.min_working_set:
        search.prove_infeasible("what one op needs while it runs", order)
        raise _infeasible(search, *_least_peak_found(search))
    with search.catching_interrupts():
        if method == "auto" and graph.no_recompute_peak <= limit:
            search.offer(range(graph.num_ops), graph.ideal_cost, "no recomputation")
        elif begin is not None:
            begin_with(search, begin)
        run(search, method)
    if search.best is None:
        if search.interrupted:
            raise KeyboardInterrupt
        smallest, proven = _least_peak_found(search, limit if method == "auto" else 0)
        if method != "auto" or smallest.peak > limit:
            raise _infeasible(search, smallest, proven, method)
        search.offer(smallest.sequence, smallest.cost, "schedule of least peak")
    return _verified(search, method)


def first_schedule(graph: Graph, budget: int, order: str, gap: float, seed: int, time_limit: float) -> Schedule | None:
    """A fair schedule soon; None if none was found, which proves nothing.

    Args:
        budget: bytes. order, gap, seed: as in `solve`. time_limit: seconds.
    """
    search = Search(graph, budget, order, time_limit, gap, seed)
    if graph.no_recompute_peak <= budget:
        search.offer(range(graph.num_ops), graph.ideal_cost, "no recomputation")
    elif budget >= graph.min_working_set:
        from .default.first_schedule import first_schedule as find  # not at import time

        with search.catching_interrupts():
            find(search)
    return None if search.best is None else _verified(search, "auto")


def _least_peak_found(search: Search, enough: int = 0) -> tuple[Evaluation, int]:
    """The schedule of least peak, or one of `enough` bytes, and the proven minimum.

    It has what the time limit leaves or, where that is less, as much time again: on a busy machine a search that found nothing
    leaves too little to find anything.
    """
    again = min(UNITS, max(_LEAST_SECONDS, search.time_limit))  # a unit takes about a second
    return least_peak_found(search.graph, search.order, enough, units=again, seconds=max(again, search.time_left()))


def _verified(search: Search, method: str) -> Schedule:
    """The best schedule of a search, once it has passed the checks that share no code with what made it.

    Raises:
        Contradiction: it is not what the method says it is.
    """
    schedule = search.schedule(method)
    made = f"method {method!r} made a schedule that"
    try:
        cost, peak = verify(search.graph, schedule.steps)
    except InvalidSchedule as error:
        raise Contradiction(f"{made} cannot run ({error})") from None
    if (cost, peak) != (schedule.cost, schedule.peak):
        simulated = f"{schedule.cost!r} and {schedule.peak} bytes"
        raise Contradiction(f"{made} by two independent counts takes {simulated}, and {cost!r} and {peak} bytes")
    if peak > search.budget:
        raise Contradiction(f"{made} takes {peak} bytes, for a budget of {search.budget} bytes")
    if abs(cost - search.best_cost) > search.rounding():
        raise Contradiction(f"{made} costs {cost!r}, and not {search.best_cost!r}")
    if not in_order(search.graph, schedule.steps, search.order):
        raise Contradiction(f"{made} does not keep order={search.order!r}")
    return schedule


def _first_sequence(start: Schedule, graph: Graph, method: str, order: str) -> list[int]:
    """The ops of a schedule to begin with, if the search can use it."""
    if method != "auto":
        raise UnknownMethod(f"method {method!r} does not begin with a schedule: use method 'auto', or leave out start")
    sequence = sequence_of(start, graph)
    if not in_order(graph, start.steps, order):
        raise InvalidSchedule(
            f"start computes ops in another order than order={order!r} asks for: use order='any', or leave out start"
        )
    return sequence


def _infeasible(search: Search, least: Evaluation, proven: int, method: str = "auto") -> InfeasibleBudget:
    """The error for a budget that no schedule was found for, with the numbers that help (see `least_peak_found`).

    Raises:
        Contradiction: it is proven that there is no schedule, and there is one.
    """
    message = None
    if search.infeasible_source is not None:
        proven = max(proven, search.budget + 1)
        if least.peak <= search.budget:
            search.offer(least.sequence, least.cost, "schedule of least peak")
    if method != "auto" and least.peak <= search.budget:
        message = (
            f"method {method!r} found no schedule under {format_bytes(search.budget)} ({search.budget} bytes), but there are "
            f"some, down to {format_bytes(least.peak)} ({least.peak} bytes): use method 'auto'"
        )
    error = InfeasibleBudget(search.budget, proven, least.peak, message)
    error.schedule = schedule_of(search.graph, least, search.order)
    return error
