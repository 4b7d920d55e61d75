"""The bound from one moment: against brute force over all orders, and on graphs where it says nearly all or nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

import checkmate
from checkmate import Graph
from checkmate.solvers.bounds.cut_bound import CutBound, surely_before
from checkmate.solvers.representation.graph_arrays import problem_of
from support import brute_force, random_budget, random_graph, training_chain, with_reuse


def bounds(graph: Graph, budget: int) -> list[float]:
    """Of all moments at which more than the budget is needed."""
    cuts, capacity = CutBound(problem_of(graph)), float(budget - graph.fixed_memory)
    found = []
    for op in cuts.tightest(capacity, graph.num_ops):
        linear = cuts.relax(capacity, op, 60.0).bound
        whole = cuts.solve(capacity, op, 60.0, 0.0, 0, lambda: False, np.inf).bound
        assert whole >= linear - 1e-4 * max(1.0, graph.ideal_cost)
        found += [linear, whole]
    return found


@pytest.mark.parametrize("reuse", [False, True])
def test_no_schedule_in_any_order_is_cheaper(reuse: bool) -> None:
    above = tight = 0
    for seed in range(250):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=7, min_ops=4)
        graph = with_reuse(rng, graph) if reuse else graph
        budget = random_budget(rng, graph)
        best = max(bounds(graph, budget), default=0.0)
        if best <= graph.ideal_cost * (1 + 1e-9):
            continue
        least = brute_force(graph, budget, "any")
        assert least is None or best <= least * (1 + 1e-12)
        above += 1
        tight += least is None if best == np.inf else least is not None and best >= 0.999 * least
    assert above >= 20
    assert tight >= above // 2


def test_what_an_order_leaves_open_is_not_counted_on() -> None:
    """Of two branches either may run first; backward ops wait for the whole forward pass."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 4)]
    graph = Graph.from_arrays([1.0] * 5, [8] * 5, edges, phases=["forward", "forward", "forward", "backward", "backward"])
    before = surely_before(problem_of(graph))
    assert before.tolist() == [
        [False, False, False, False, False],
        [True, False, False, False, False],
        [True, False, False, False, False],
        [True, True, True, False, False],
        [True, True, True, False, False],
    ]


def test_any_order_of_a_training_step_is_proven_near_the_optimum() -> None:
    """Computing everything once, the bound without this one, is a fifth less."""
    graph = training_chain(60, 1000)
    schedule = checkmate.solve(graph, "50%", order="any", time_limit=20, gap=0.01)
    assert schedule.lower_bound > 1.15 * graph.ideal_cost
    assert schedule.gap <= 0.05
