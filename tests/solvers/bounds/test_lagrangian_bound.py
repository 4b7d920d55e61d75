"""The Lagrangian bound: never above an optimum, exact for its program, and far above the relaxation near the minimum."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from checkmate import Graph, Op, networks
from checkmate.solvers.bounds.lagrangian_bound import LagrangianBound, LagrangianRelaxation
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.representation.graph_arrays import Floats, problem_of
from support import brute_force, random_budget, random_graph, random_training


def best_bound(graph: Graph, budget: int) -> float:
    steps = LagrangianBound(problem_of(graph), float(budget - graph.fixed_memory))
    while not steps.exhausted:
        steps.step(lambda: False)
        steps.refine([])
    return steps.bound


def random_relaxation(rng: random.Random, graph: Graph, budget: int) -> tuple[LagrangianRelaxation, Floats]:
    """Any snapshots, any multipliers."""
    snapshots = sorted(rng.sample(range(graph.num_ops), rng.randint(1, min(4, graph.num_ops))))
    multipliers = np.array([rng.choice([0.0, rng.random() * 30]) for _ in snapshots])
    return LagrangianRelaxation(problem_of(graph), float(budget - graph.fixed_memory), snapshots), multipliers


def test_never_above_the_optimum() -> None:
    useful = 0
    for seed in range(200):
        rng = random.Random(seed)
        graph = random_training(rng, 4) if seed % 2 else random_graph(rng, 8, 2)
        budget = random_budget(rng, graph)
        optimum = brute_force(graph, budget)
        if optimum is None or budget <= graph.fixed_memory:
            continue
        found = best_bound(graph, budget)
        assert found <= optimum, seed
        useful += found > graph.ideal_cost + 1e-3
        for _ in range(3):
            relaxation, multipliers = random_relaxation(rng, graph, budget)
            assert relaxation.solve(multipliers).bound <= optimum, seed
    assert useful >= 20


@pytest.mark.parametrize("seed", range(20))
def test_the_program_is_solved_exactly(seed: int) -> None:
    """The same least cost by trying all sets of recomputations, for graphs in which every value has one reader at most."""
    rng = random.Random(seed)
    n = rng.randint(2, 5)
    cost, size = ([rng.randint(1, 9) for _ in range(n + 1)] for _ in range(2))
    edges = [(i, rng.randint(i + 1, n)) for i in range(n)]
    graph = Graph.from_arrays(cost, size, edges)
    snapshots = sorted(rng.sample(range(n + 1), min(3, n + 1)))
    relaxation = LagrangianRelaxation(problem_of(graph), 20.0, snapshots)
    multipliers = np.array([rng.random() * 10 for _ in snapshots])
    least = np.inf
    slots = [(i, k) for i in range(n) for k in range(len(snapshots)) if snapshots[k] >= i]
    for chosen in itertools.product([False, True], repeat=len(slots)):
        again = {slot for slot, taken in zip(slots, chosen, strict=True) if taken}
        total = float(sum(cost[i] for i, _ in again))
        for i, reader in edges:
            needed = False
            for k in range(len(snapshots) - 1, -1, -1):
                end = snapshots[k + 1] if k + 1 < len(snapshots) else n
                if snapshots[k] < i:
                    break
                reads = snapshots[k] < reader <= end or (reader, k) in again
                needed = (i, k) not in again and (needed or reads)
                if needed and snapshots[k] not in (i, reader):
                    left = 20.0 - graph.working_set(snapshots[k])
                    total += multipliers[k] * size[i] / 20.0 if size[i] <= left else np.inf
        least = min(least, total)
    left = [20.0 - graph.working_set(stage) for stage in snapshots]
    expected = graph.ideal_cost + least - sum(multipliers * np.array(left) / 20.0)
    assert relaxation.solve(multipliers).bound == pytest.approx(expected)


def test_far_above_the_relaxation_near_the_least_memory() -> None:
    graph = networks.resnet50()
    budget = int(graph.fixed_memory + 1.3 * (graph.min_working_set - graph.fixed_memory))
    problem = problem_of(graph)
    one = SnapshotRelaxation(problem).solve(budget - graph.fixed_memory, [int(problem.profile.argmax())], 10.0, 1e-4)
    assert best_bound(graph, budget) > one.bound + 0.02 * graph.ideal_cost


def test_an_impossible_budget_has_no_finite_bound() -> None:
    graph = Graph.from_arrays([1, 1, 1], [4, 4, 4], [(0, 1), (0, 2), (1, 2)])
    assert np.isfinite(LagrangianRelaxation(problem_of(graph), 12.0, [1]).solve(np.zeros(1)).bound)
    ops = [*graph.ops, Op("last", 1.0, (0, 2))]
    pinned = Graph([replace(ops[0], recomputable=False), ops[1], replace(ops[2], inputs=(1,)), ops[3]], graph.values)
    assert np.isinf(LagrangianRelaxation(problem_of(pinned), 11.0, [2]).solve(np.zeros(1)).bound)
