"""Run every op once, in order: the schedule of a framework that has enough memory."""

from __future__ import annotations

from .search import Search


def keep_all(search: Search) -> None:
    """No recomputation; infeasible below the no-recompute peak."""
    if search.graph.no_recompute_peak <= search.budget:
        search.offer(range(search.graph.num_ops), search.graph.ideal_cost)
