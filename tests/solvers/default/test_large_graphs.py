"""The course for large graphs: sound on tiny ones, near-optimal and quick on what it is for."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import checkmate
from checkmate import networks, simulate
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.default.large_graphs import large
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.representation.graph_arrays import Problem
from support import brute_force, random_budget, random_graph, training_chain


def test_tiny_graphs_against_brute_force() -> None:
    found = 0
    for seed in range(300):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=7)
        search = Search(graph, max(graph.min_working_set, random_budget(rng, graph)), gap=0.0, time_limit=0.5)
        truth = brute_force(graph, search.budget)
        large(search)
        assert truth is None or not search.proven_infeasible
        if search.best is not None:
            trace = simulate(graph, search.schedule("large").steps)
            assert truth is not None
            assert trace.peak <= search.budget and search.lower_bound <= truth * (1 + 1e-9) and truth <= trace.cost
            found += 1
    assert found >= 200


def test_the_bound_of_the_linear_relaxation() -> None:
    """Just below the optimum of the same program with whole numbers, however early the solver stops."""
    for seed in range(40):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=40, min_ops=10)
        relaxation, snapshot = SnapshotRelaxation(Problem(graph)), int(np.argmax(graph.no_recompute_profile))
        room = rng.randint(graph.min_working_set, graph.no_recompute_peak) - graph.fixed_memory
        whole = relaxation.solve(room, [snapshot], 10.0, 0.0)
        fractional = relaxation.relax(room, [snapshot], 10.0)
        assert graph.ideal_cost <= fractional.bound <= whole.cost * (1 + 1e-9)
    graph = networks.transformer(40)
    relaxation, snapshot = SnapshotRelaxation(Problem(graph)), int(np.argmax(graph.no_recompute_profile))
    room = (graph.no_recompute_peak - graph.fixed_memory) // 10
    whole = relaxation.solve(room, [snapshot], 20.0, 1e-4)
    assert relaxation.relax(room, [snapshot], 10.0).bound == pytest.approx(whole.cost, rel=2e-3)
    assert relaxation.relax(room, [snapshot], 10.0, stop=lambda: True).bound <= whole.cost


@pytest.mark.parametrize("share", [0.7, 0.3, 0.2])
@pytest.mark.parametrize(
    "graph", [networks.transformer(80), networks.transformer(250), training_chain(2500)], ids=lambda graph: graph.name
)
def test_thousands_of_ops(graph: checkmate.Graph, share: float) -> None:
    assert graph.num_ops > TUNING.large.many_ops
    budget = int(graph.fixed_memory + share * (graph.no_recompute_peak - graph.fixed_memory))
    checkmate.solve(graph, budget, time_limit=1)  # compiles
    began = time.process_time()
    schedule = checkmate.solve(graph, budget, time_limit=300)
    assert schedule.peak <= budget and schedule.gap <= 0.005
    assert time.process_time() - began < 60


def test_same_seed_same_schedule() -> None:
    graph = networks.transformer(130)
    one, two = (checkmate.solve(graph, "40%", seed=3) for _ in range(2))
    assert one.steps == two.steps and one.lower_bound == two.lower_bound
