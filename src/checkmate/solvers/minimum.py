"""The smallest budget that a graph can be scheduled under."""

from __future__ import annotations

from ..graph import Graph
from .decode import Evaluation, evaluate
from .greedy import SETTINGS, Greedy
from .problem import Problem


def smallest_budget_found(graph: Graph, tolerance: float = 0.005) -> Evaluation:
    """The schedule of least peak that greedy eviction finds, by bisection over budgets; its cost is of no interest.

    Args:
        tolerance: relative precision of the search.
    """
    planner = Greedy(Problem(graph))
    best = evaluate(graph, range(graph.num_ops))
    low = graph.min_working_set - 1  # no schedule here
    middle = low + 1  # often the minimum working set itself will do
    while best.peak - low > max(1.0, tolerance * (best.peak - graph.fixed_memory)):
        tries = [found for setting in SETTINGS if (found := planner.run(middle, setting)) is not None]
        best = min([best, *tries], key=lambda found: found.peak)
        if best.peak > middle:
            low = middle
        middle = (low + best.peak) // 2
    return best
