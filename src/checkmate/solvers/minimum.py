"""The smallest budget that a graph can be scheduled under."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..graph import Graph
from .decode import Evaluation, evaluate
from .problem import Problem


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
    """The schedule of least peak that greedy eviction finds, by bisection over budgets; its cost is of no interest.

    Args:
        tolerance: relative precision of the search. seconds: return what is found by then.
    """
    from .greedy import SETTINGS, Greedy  # compiled kernels: not at import time

    planner = Greedy(Problem(graph))
    best = evaluate(graph, range(graph.num_ops))
    low = graph.min_working_set - 1  # no schedule here
    deadline = time.perf_counter() + seconds
    while best.peak - low > max(1.0, tolerance * (best.peak - graph.fixed_memory)):
        middle = (low + best.peak) // 2
        for setting in SETTINGS:
            found = planner.run(middle, setting, longest=8)
            if found is not None and found.peak < best.peak:
                best = found
            if best.peak <= middle or time.perf_counter() > deadline:
                break
        if time.perf_counter() > deadline:
            break
        if best.peak > middle:
            low = middle
    return best
