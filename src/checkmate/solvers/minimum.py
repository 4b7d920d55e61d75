"""The smallest budget that a graph can be scheduled under."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..graph import Graph

if TYPE_CHECKING:
    from .decode import Evaluation


#: Ops per segment of nested checkpointing.
_OPS = 25


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
    return MinimumBudget(graph.min_working_set, smallest_budget_found(graph).peak)


def smallest_budget_found(graph: Graph, tolerance: float = 0.005, seconds: float = 15.0) -> Evaluation:
    """The schedule of least peak that is found by bisection over budgets; its cost is of no interest.

    Greedy eviction is asked first, then nested checkpointing, then some rounds of the default method, each for what the ones
    before did not reach.

    Args:
        tolerance: relative precision of the search. seconds: return what is found by about then.
    """
    from .auto import auto  # solver and compiled kernels: not at import time
    from .decode import evaluate
    from .greedy import SETTINGS, Greedy
    from .nested import Nested
    from .problem import problem_of
    from .search import Search

    problem = problem_of(graph)
    started = time.perf_counter()
    planner = Greedy(problem)
    best = evaluate(graph, range(graph.num_ops))

    def late(part: float = 1.0) -> bool:
        return time.perf_counter() - started > part * seconds

    def by_eviction(budget: int) -> Evaluation | None:
        found: Evaluation | None = None
        for setting in SETTINGS:
            one = planner.run(budget, setting, longest=8)
            if one is not None and (found is None or one.peak < found.peak):
                found = one
            if late(1 / 3) or (found is not None and found.peak <= budget):
                break
        return found

    def by_rounds(budget: int) -> Evaluation | None:
        search = Search(graph, budget, time_limit=max(0.1, started + seconds - time.perf_counter()), gap=1.0)
        auto(search, rounds=3)
        return None if search.best is None else evaluate(graph, search.best)

    def bisect(search: Callable[[int], Evaluation | None], part: float) -> None:
        nonlocal best
        low = graph.min_working_set - 1  # no schedule here
        while best.peak - low > max(1.0, tolerance * (best.peak - graph.fixed_memory)) and not late(part):
            # Often the least of all will do.
            middle = low + 1 if low < graph.min_working_set else (low + best.peak) // 2
            found = search(middle)
            if found is not None and found.peak < best.peak:
                best = found
            if best.peak > middle:
                low = middle

    bisect(by_eviction, 1 / 3)
    if best.peak > (1 + tolerance) * graph.min_working_set and not late(1 / 3):
        nested = Nested(problem, graph.num_ops // _OPS, best.peak - graph.fixed_memory, 0, lambda: late(2 / 3))
        bisect(nested.run, 2 / 3)
    bisect(by_rounds, 1.0)
    return best
