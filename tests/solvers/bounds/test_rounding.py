"""No bound is above the optimum for want of precision: costs of which no sum is exact, against brute force in fractions.

The only rounding that is left is that of the result itself: the ideal cost, what comes on top, and their sum.
"""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from checkmate import Graph
from checkmate.float_rounding import UNIT
from checkmate.solvers.bounds.lagrangian_bound import LagrangianBound, LagrangianRelaxation
from checkmate.solvers.bounds.nested_snapshot_bound import nested_bound
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.exact.best_first_search import Exact
from checkmate.solvers.representation.graph_arrays import problem_of
from support import exact_least_cost, random_graph, random_training


def uneven(graph: Graph, rng: random.Random) -> Graph:
    """Costs over six orders of magnitude."""
    return Graph([replace(op, cost=10 ** rng.uniform(-3, 3)) for op in graph.ops], graph.values, graph.fixed_memory)


@pytest.mark.parametrize("block", range(3))
def test_against_fractions(block: int) -> None:
    tight = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        graph = uneven(random_training(rng, 4) if seed % 2 else random_graph(rng, 8, 3), rng)
        budget = rng.randint(graph.min_working_set, graph.no_recompute_peak)
        least = exact_least_cost(graph, budget)
        if least is None or budget <= graph.fixed_memory:
            continue
        problem, capacity = problem_of(graph), budget - graph.fixed_memory
        limit = least * (1 + 4 * Fraction(UNIT))

        def below(bound: float, limit: Fraction = limit, seed: int = seed) -> float:
            assert Fraction(bound) <= limit, (seed, bound, float(limit))
            return bound

        relaxation = SnapshotRelaxation(problem)
        for _ in range(3):
            snapshots = sorted(rng.sample(range(graph.num_ops), rng.randint(1, 3)))
            inside = [(stage, op) for stage in snapshots for op in range(stage) if rng.random() < 0.5]
            below(relaxation.solve(capacity, snapshots, 10.0, 0.0, transients=inside).bound)
            below(relaxation.relax(capacity, snapshots, 10.0).bound)
            multipliers = np.array([rng.random() * 3 * graph.ideal_cost for _ in snapshots])
            below(LagrangianRelaxation(problem, float(capacity), snapshots).solve(multipliers).bound)
        lagrangian = LagrangianBound(problem, float(capacity))
        for _ in range(4):
            lagrangian.step(lambda: False)
            lagrangian.refine([])
            below(lagrangian.bound)
        below(nested_bound(problem, capacity, 1, multipliers=6))
        solver = Exact(graph, capacity)
        for most in (1, 30, 10**6):
            solver.run(most)
            below(solver.bound)
        assert solver.sequence is not None and Fraction(solver.bound) >= least * (1 - Fraction(1, 10**9))
        every = list(range(graph.num_ops))
        tight += relaxation.solve(capacity, every, 10.0, 0.0).bound >= float(least) - 1e-6 * graph.ideal_cost > graph.ideal_cost
    assert tight >= 3, "what is taken off for tolerances is hardly seen"
