"""The smallest budget that a graph can be scheduled under."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Contradiction
from ..graph import Graph
from ..schedule import Schedule, simulate, steps_from_sequence
from .interface.work_limits import Limits, Work, eviction, exact_search, sets_of_values

if TYPE_CHECKING:
    from .representation.decoding import Evaluation


#: Ops per segment of nested checkpointing; so few ops that greedy eviction takes milliseconds as a rule, and is asked to the end.
_OPS, _FEW_OPS = 25, 300
#: Units of work (see interface/work_limits.py) in all; and for greedy eviction, of however few there are.
UNITS, _LEAST_UNITS = 15.0, 1.0
#: The most seconds, where nobody says how many: a search on a slow machine takes longer for the same work.
_SECONDS = 60.0
#: This much less than is known is sought before much less is: for a decoder of 186 ops, of which greedy eviction finds the least that is
#: known, the search ends after 12 seconds instead of 29.
_A_LITTLE = 0.02
#: Units for some rounds of the default method at one budget: those that find something take a few hundredths of one, as a rule. At the least
#: budget of all, which leaves nothing more to seek, they have what is left: for RL2 of MOCCASIN's graphs it takes 8.
_ROUNDS_UNITS = 2.0
#: Passes of greedy eviction that are made even when time is over.
_LATE_PASSES = 4
#: What is done between two questions whether to stop: successors of states in the exact search, sets of values in the peak bound.
_SUCCESSORS, _SETS = 50_000, 200_000


class MinimumBudget(NamedTuple):
    """What is known about the smallest budget of a graph, in bytes, fixed memory included.

    Attributes:
        proven_minimum: no schedule exists below it.
        smallest_found: a schedule was found at it.
    """

    proven_minimum: int
    smallest_found: int


def minimum_budget(graph: Graph) -> MinimumBudget:
    """The smallest budget that `graph` can be scheduled under: a proven lower limit, and the least one found."""
    best, proven = least_peak_found(graph)
    return MinimumBudget(proven, best.peak)


def proven_minimum(graph: Graph, at_most: int) -> int:
    """Bytes, fixed memory included, below which no schedule of `graph` exists: what a few seconds can prove, up to `at_most`."""
    from .bounds.peak_bound import least_peak_bound
    from .representation.graph_arrays import problem_of

    return least_peak_bound(problem_of(graph), at_most - 1)


def schedule_of(graph: Graph, least: Evaluation, order: str) -> Schedule:
    """What `least_peak_found` found, with the peak as its budget. Nothing is proven of its cost."""
    return Schedule(graph, steps_from_sequence(graph, least.sequence), least.peak, "auto", graph.ideal_cost, order)


def least_peak_found(
    graph: Graph,
    order: str = "given",
    enough: int = 0,
    tolerance: float = 0.005,
    units: float = UNITS,
    seconds: float = _SECONDS,
) -> tuple[Evaluation, int]:
    """The schedule of least peak that is found by bisection over budgets, and the budget below which none exists.

    Small graphs are searched exactly; greedy eviction, nested checkpointing and some rounds of the default method are asked in
    turn for what the ones before did not reach. The cost of the schedule is of no interest.

    Args:
        order: of first computations, as in `solve`. enough: bytes; a schedule of this peak will do, and is sought first.
        tolerance: relative precision where the search is not exact.
        units: of work that it takes at most, about; the same work finds the same schedule.
        seconds: return what is found by about then.

    Raises:
        Contradiction: a schedule was found below the proven minimum.
    """
    began = time.perf_counter()
    limits = Limits(
        Work(units), lambda: time.perf_counter() - began > seconds, lambda: max(0.0, began + seconds - time.perf_counter())
    )
    best, proven = _least_peak_found(graph, order, enough, tolerance, limits)
    trace = simulate(graph, steps_from_sequence(graph, best.sequence))
    if trace.peak != best.peak or best.peak < proven:
        raise Contradiction(
            f"no schedule needs less than {proven} bytes (what one op, or a few values, need, or the exact search), and none that was "
            f"found less than {best.peak}, but there is one of {trace.peak} bytes (order {order!r})"
        )
    return best, proven


def _least_peak_found(graph: Graph, order: str, enough: int, tolerance: float, limits: Limits) -> tuple[Evaluation, int]:
    from .bounds.peak_bound import least_peak_bound
    from .default.auto import auto  # the solver: not at import time
    from .default.warm_start import begin_with
    from .exact.best_first_search import ALL, FIRST, least_peak
    from .heuristics.greedy_eviction import SETTINGS, Greedy
    from .heuristics.nested_checkpointing import Nested
    from .interface.running_search import Search
    from .representation.decoding import evaluate
    from .representation.graph_arrays import problem_of

    problem, work = problem_of(graph), limits.work
    exact_units = exact_search(_SUCCESSORS)

    def late(part: float = 1.0, units: float = 0.0) -> bool:
        """So much work has been done: is that more than this part of all, or is time over?"""
        work.spend(units)
        return work.done >= part * work.limit or limits.stop()

    # Limited by its work, a fraction of a second, so that what small graphs need does not depend on how busy the machine is.
    best, proven = least_peak(graph, evaluate(graph, range(graph.num_ops)), graph.min_working_set, order, FIRST)

    def reached() -> bool:
        return best.peak <= max(proven, enough)

    if reached():
        return best, proven
    quick = max(1 / 3, min(0.8, _LEAST_UNITS / work.limit)) if graph.num_ops > _FEW_OPS else 1.0
    greedy = _greedy_eviction(graph, lambda: late(quick, eviction(graph.num_ops)), late)

    def by_rounds(budget: int) -> Evaluation | None:
        part = work.part(work.left if budget <= proven else min(_ROUNDS_UNITS, work.left))
        search = Search(graph, budget, time_limit=max(0.1, limits.time_left()), gap=1.0, work=part)
        if order == "given":
            begin_with(search, best.sequence)
        auto(search, rounds=3)
        return None if search.best is None else evaluate(graph, search.best)

    def precision() -> float:
        return max(1.0, tolerance * (best.peak - graph.fixed_memory))

    def bisect(search: Callable[[int], Evaluation | None], part: float, at_least: int = 0) -> None:
        nonlocal best
        low = proven - 1  # no schedule here
        while not reached() and best.peak - low > precision() and (at_least > 0 or not late(part)):
            at_least -= 1
            # Often the least of all will do.
            middle = enough if low < enough else low + 1 if low < proven else (low + best.peak) // 2
            found = search(middle)
            if found is not None and found.peak < best.peak:
                best = found
            if best.peak > middle:
                low = middle

    def descend(search: Callable[[int], Evaluation | None], part: float) -> None:
        """For searches that take seconds: what is not found a little below what is known is not sought far below it."""
        little = best.peak - int(max(precision(), _A_LITTLE * (best.peak - graph.fixed_memory)))
        if not reached() and little >= max(proven, enough) and not late(part) and search(little) is not None:
            bisect(search, part)

    bisect(greedy, quick)
    if not reached() and limits.stop():
        # On a busy machine time may be over before anything was tried: errors name better than the peak without recomputation.
        unhurried = Greedy(problem, lambda: False)
        bisect(lambda budget: unhurried.run(budget, SETTINGS[0], longest=8), 1.0, _LATE_PASSES)
    if not reached():
        proven = max(proven, least_peak_bound(problem, best.peak, lambda: late(2 / 3, sets_of_values(_SETS))))
    if not reached():
        best, proven = least_peak(graph, best, proven, order, ALL, lambda: late(1 / 2, exact_units))
    if not reached() and best.peak > (1 + tolerance) * proven and not late(1 / 3):
        part = Limits(work.part(max(0.0, 2 / 3 * work.limit - work.done)), limits.stop, limits.time_left)
        nested = Nested(problem, auto, graph.num_ops // _OPS, best.peak - graph.fixed_memory, 0, part)
        descend(nested.run, 2 / 3)
    descend(by_rounds, 1.0)
    return best, proven


def _greedy_eviction(graph: Graph, over: Callable[[], bool], late: Callable[[], bool]) -> Callable[[int], Evaluation | None]:
    """Greedy eviction within a budget: the least peak of its settings, tried until one fits or it is `over`; `late` ends each."""
    from .heuristics.greedy_eviction import SETTINGS, Greedy
    from .representation.decoding import evaluate
    from .representation.graph_arrays import problem_of

    planners = [Greedy(problem_of(graph), late)]
    if any(op.reuses is not None for op in graph.ops):
        # Greedy eviction keeps other values where ops write in their inputs, and not always better ones: both ways are tried.
        apart = Graph([replace(op, reuses=None) for op in graph.ops], graph.values, graph.fixed_memory)
        planners.append(Greedy(problem_of(apart), late))

    def by_eviction(budget: int) -> Evaluation | None:
        found: Evaluation | None = None
        for planner, setting in product(planners, SETTINGS):
            one = planner.run(budget, setting, longest=8)
            if one is not None and planner is not planners[0]:
                one = evaluate(graph, one.sequence)
            if one is not None and (found is None or one.peak < found.peak):
                found = one
            if over() or (found is not None and found.peak <= budget):
                break
        return found

    return by_eviction
