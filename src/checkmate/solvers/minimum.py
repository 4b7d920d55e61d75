"""The smallest budget that a graph can be scheduled under."""

from __future__ import annotations

from ..graph import Graph
from .greedy import SETTINGS, Greedy
from .problem import Problem


def smallest_budget_found(graph: Graph, at_least: int = 0, tolerance: float = 0.005) -> int:
    """A budget, in bytes, that greedy eviction finds a schedule for: the least it finds by bisection.

    Args:
        at_least: only budgets above this one are of interest. tolerance: relative precision of the search.
    """
    planner = Greedy(Problem(graph))
    best = graph.no_recompute_peak
    low = max(at_least, graph.min_working_set - 1)  # taken as infeasible
    first = True
    while best - low > tolerance * (best - graph.fixed_memory) or (first and low < best):
        middle = max(low + 1, graph.min_working_set) if first else (low + best) // 2
        first = False
        peaks = [found.peak for setting in SETTINGS if (found := planner.run(middle, setting)) is not None]
        if peaks and min(peaks) <= middle:
            best = min(peaks)
        else:
            low = middle
    return best
