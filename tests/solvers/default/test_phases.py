"""Which phase of the default method comes when: counted in work, not in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkmate import Graph, networks, solve
from checkmate.solvers.default.auto import auto
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Work

PROFILED = Path(__file__).parents[3] / "benchmarks" / "results" / "paper" / "profiled"


@pytest.mark.parametrize(("name", "budget"), [("vgg16", 1_210_869_332), ("vgg19", 1_360_888_264)])
def test_what_relaxations_prove_at_once_does_not_wait_for_searches(name: str, budget: int) -> None:
    """Measured costs: the bound of one snapshot is 7 to 11% below the optimum, that of five is the optimum."""
    graph = Graph.load(PROFILED / f"{name}.json")
    search = Search(graph, budget, time_limit=1000.0, work=Work(2.0))
    auto(search)
    assert search.closed()
    milp = solve(graph, budget, method="milp")  # Checkmate's own program, without any of the bounds
    assert search.lower_bound <= milp.cost and search.best_cost <= 1.001 * milp.cost


def test_within_the_gap_no_dearer_than_greedy_eviction() -> None:
    """ResNet50 where the first relaxation leads to a schedule that is within 0.1%, and greedy eviction to a cheaper one."""
    graph = networks.resnet50()
    budget = graph.min_working_set + 3 * (graph.no_recompute_peak - graph.min_working_set) // 10
    greedy = solve(graph, budget, method="greedy")
    found = solve(graph, budget)
    assert found.gap <= 1e-3 and found.cost <= greedy.cost
