"""The bound from nested snapshots: never above an optimum, and above what one snapshot proves."""

from __future__ import annotations

import random

import pytest

import checkmate
from checkmate import Graph, networks
from checkmate.solvers.bounds.nested_snapshot_bound import nested_bound
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.representation.graph_arrays import problem_of
from support import brute_force, random_training, training_chain


def bound(graph: Graph, budget: int, *steps: int, multipliers: int = 12) -> float:
    """With a third of the multipliers that the default method tries: what more of them add is not what these tests are about."""
    capacity = budget - graph.fixed_memory
    return max(nested_bound(problem_of(graph), capacity, step, step - 1, multipliers=multipliers) for step in steps)


def test_never_above_the_optimum() -> None:
    useful = 0
    for seed in range(22):
        rng = random.Random(seed)
        graph = random_training(rng, 5)
        budget = rng.randint(graph.min_working_set, graph.no_recompute_peak)
        optimum = brute_force(graph, budget)
        if optimum is not None:
            found = bound(graph, budget, 1, 2, multipliers=8)
            assert found <= optimum, seed
            useful += found > graph.ideal_cost + 1e-3
    assert useful >= 5


@pytest.mark.parametrize(("layers", "budget", "least"), [(24, 40, 80.0), pytest.param(48, 110, 133.0, marks=pytest.mark.slow)])
def test_deep_chains(layers: int, budget: int, least: float) -> None:
    graph = training_chain(layers)
    found = bound(graph, budget, 1, 3)
    assert least <= found <= checkmate.solve(graph, budget, "griewank").cost


def test_above_one_snapshot_near_the_least_memory() -> None:
    graph = networks.transformer(16, batch=4)
    budget = int(graph.fixed_memory + 1.01 * (graph.min_working_set - graph.fixed_memory))
    room, problem = budget - graph.fixed_memory, problem_of(graph)
    one = SnapshotRelaxation(problem).solve(room, [int(problem.profile.argmax())], 10.0, 1e-4)
    assert one.bound < bound(graph, budget, 1)


def test_where_nothing_can_be_said() -> None:
    forward_only = Graph.from_arrays([1] * 9, [1] * 9, [(i, i + 1) for i in range(8)])
    assert nested_bound(problem_of(forward_only), 9, 3) == 0.0
    unet = networks.unet()  # no place where little passes
    assert nested_bound(problem_of(unet), unet.min_working_set, 1) in (0.0, unet.ideal_cost)
    graph = training_chain(20)
    assert nested_bound(problem_of(graph), 2 * graph.no_recompute_peak, 10) == graph.ideal_cost
    assert nested_bound(problem_of(graph), 50, 10, stop=lambda: True) == 0.0
