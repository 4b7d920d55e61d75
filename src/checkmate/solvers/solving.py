"""`solve`: one signature for all methods, and the checks that every schedule passes before a caller gets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BudgetError, CheckmateError, InfeasibleBudget, InvalidSchedule, UnknownMethod
from ..graph import Graph
from ..schedule import Compute, Schedule, Step
from ..units import Budget, format_bytes, parse_bytes
from .default.warm_start import begin_with, sequence_of
from .interface.running_search import Progress, Search, check_seed
from .registry import methods, run
from .smallest_budget import UNITS, least_peak_found

if TYPE_CHECKING:
    from .representation.decoding import Evaluation

_ORDERS = ("given", "any")


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
        time_limit: seconds after which the best schedule so far is returned.
        gap: stop once the cost is proven within this fraction of the optimum; 0 means to the end.
        seed: same input, same seed, same schedule, in any process and however busy the machine, unless the time limit ends the
            search.
        progress: called with a `Progress` whenever the schedule or the bound improves.
        start: a schedule of the same graph to begin with (method "auto"), such as that of another budget; repaired if it does
            not fit.

    Returns:
        A schedule that was re-simulated by `simulate`, with its proven lower bound.

    Raises:
        InfeasibleBudget: no schedule was found; the message names a budget that would do.
        BudgetError, UnknownMethod: an argument cannot be read. InvalidSchedule: `start` is of no use here.
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
        smallest, proven = _least_peak_found(search, limit)
        if method != "auto" or smallest.peak > limit:
            raise _infeasible(search, smallest, proven, method)
        search.offer(smallest.sequence, smallest.cost, "schedule of least peak")
    schedule = search.schedule(method)
    if schedule.peak > limit:  # simulated here, and only here
        raise CheckmateError(
            f"method {method!r} returned a schedule of {schedule.peak} bytes for a budget of {limit}: please report it"
        )
    if not _in_order(graph, schedule.steps, order):
        raise CheckmateError(f"method {method!r} returned a schedule that is not in the order {order!r}: please report it")
    return schedule


def _least_peak_found(search: Search, asked: int = 0) -> tuple[Evaluation, int]:
    """The schedule of least peak, and the proven minimum, by what the time limit leaves; within a second where that is nothing."""
    units, seconds = min(UNITS, max(1.0, search.time_limit)), max(1.0, search.time_left())
    return least_peak_found(search.graph, search.order, asked, units=units, seconds=seconds)


def _first_sequence(start: Schedule, graph: Graph, method: str, order: str) -> list[int]:
    """The ops of a schedule to begin with, if the search can use it."""
    if method != "auto":
        raise UnknownMethod(f"method {method!r} does not begin with a schedule: use method 'auto', or leave out start")
    sequence = sequence_of(start, graph)
    if not _in_order(graph, start.steps, order):
        raise InvalidSchedule(
            f"start computes ops in another order than order={order!r} asks for: use order='any', or leave out start"
        )
    return sequence


def _in_order(graph: Graph, steps: list[Step], order: str) -> bool:
    """First computations come in the order asked for (that inputs come before their readers is for `simulate` to say)."""
    firsts = list(dict.fromkeys(step.op for step in steps if isinstance(step, Compute)))
    if order == "given":
        return firsts == sorted(firsts)
    phases = [op.phase for op in graph.ops]
    if "backward" not in phases:
        return True
    forward = {op for op in range(phases.index("backward")) if phases[op] in ("forward", "loss")}
    start = next(position for position, op in enumerate(firsts) if phases[op] == "backward")
    return forward <= set(firsts[:start])


def _infeasible(search: Search, least: Evaluation, proven: int, method: str = "auto") -> InfeasibleBudget:
    """The error for a budget that no schedule was found for, with the numbers that help (see `least_peak_found`)."""
    if search.proven_infeasible:
        proven = max(proven, search.budget + 1)
    smallest = max(least.peak, proven)
    message = None
    if method != "auto" and smallest <= search.budget:
        message = (
            f"method {method!r} found no schedule under {format_bytes(search.budget)} ({search.budget} bytes), but there are "
            f"some, down to {format_bytes(smallest)} ({smallest} bytes): use method 'auto'"
        )
    return InfeasibleBudget(search.budget, proven, smallest, message)
