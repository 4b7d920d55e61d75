"""order="any" against brute force over all orders, the given order, and orders known to be better."""

from __future__ import annotations

import contextlib
import random
import time

import pytest

import checkmate
from checkmate import Compute, Graph, InfeasibleBudget, Schedule, simulate
from checkmate.solvers.default import any_order, auto
from support import brute_force, random_budget, random_graph, training_chain


def firsts(schedule: Schedule) -> list[int]:
    return list(dict.fromkeys(step.op for step in schedule.steps if isinstance(step, Compute)))


def two_chains(phases: list[str] | None = None) -> Graph:
    """Two independent chains, interleaved: one after the other they need little memory, at no cost."""
    edges = [(i, i + 2) for i in range(18)]
    return Graph.from_arrays([1.0] * 20, [10, 30] * 10, edges, phases=phases)


@pytest.mark.parametrize("block", range(3))
def test_against_brute_force_over_all_orders(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block with the exact search, the others by annealing alone, as larger graphs are searched."""
    if block:
        for module in (any_order, auto):
            monkeypatch.setattr(module, "exact", lambda *_: False)
    feasible = optimal = better = missed = 0
    for seed in range(60 * block, 60 * block + 60):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=6)
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget, "any")
        given = brute_force(graph, budget, "given")
        try:
            schedule = checkmate.solve(graph, budget, order="any", gap=0, time_limit=5)
        except InfeasibleBudget as error:
            missed += truth is not None
            assert error.proven_minimum <= budget or truth is None
            continue
        assert truth is not None, f"seed {seed}: a schedule where none exists"
        assert simulate(graph, schedule.steps).peak <= budget
        assert graph.ideal_cost <= schedule.lower_bound <= truth <= schedule.cost
        assert given is None or schedule.cost <= given
        feasible += 1
        optimal += schedule.cost == truth
        better += given is None or truth < given
    assert feasible > 30 and optimal >= (0.95 if block else 1.0) * feasible and missed <= (2 if block else 0)
    assert better, "some graphs of every block gain by another order"


def test_finds_an_order_that_needs_no_recomputation() -> None:
    graph = two_chains()
    budget = graph.min_working_set
    with_order = checkmate.solve(graph, budget, order="any")
    assert (with_order.cost, with_order.status, with_order.order) == (graph.ideal_cost, "optimal", "any")
    with contextlib.suppress(InfeasibleBudget):
        assert checkmate.solve(graph, budget, time_limit=5).cost > graph.ideal_cost


def test_forward_ops_stay_before_backward_ops() -> None:
    """Two branches: one after the other they fit as they are, but only if a backward op may run before a forward op."""

    def branches(*phases: str) -> Graph:
        return Graph.from_arrays([1.0] * 4, [10, 10, 1, 1], [(0, 2), (1, 3)], phases=phases)

    phased = checkmate.solve(branches("forward", "forward", "backward", "backward"), 12, order="any", gap=0)
    assert phased.cost == 5.0 and set(firsts(phased)[:2]) == {0, 1}
    loss = checkmate.solve(branches("forward", "loss", "backward", "backward"), 12, order="any", gap=0)
    assert loss.cost == 5.0 and set(firsts(loss)[:2]) == {0, 1}
    free = checkmate.solve(branches("op", "op", "op", "op"), 12, order="any", gap=0)
    assert free.cost == 4.0 and free.status == "optimal"


@pytest.mark.parametrize("share", [0.35, 0.5, 0.8])
def test_never_worse_than_the_given_order(share: float) -> None:
    for graph in (training_chain(15), training_chain(32), two_chains()):
        budget = int(graph.min_working_set + share * (graph.no_recompute_peak - graph.min_working_set))
        given = checkmate.solve(graph, budget, gap=0, time_limit=2)
        anywhere = checkmate.solve(graph, budget, order="any", gap=0, time_limit=5)
        assert graph.ideal_cost <= anywhere.lower_bound and anywhere.cost <= given.cost
        if graph.num_ops > 62:
            assert anywhere.lower_bound > graph.ideal_cost
        else:
            assert anywhere.status == "optimal"


def test_other_methods_report_no_bound_of_the_given_order() -> None:
    graph = training_chain(8)
    schedule = checkmate.solve(graph, "60%", method="milp", order="any", time_limit=20)
    assert schedule.lower_bound == graph.ideal_cost < schedule.cost and firsts(schedule) == list(range(graph.num_ops))


def test_same_seed_same_schedule() -> None:
    graph = training_chain(10)
    one, two = (checkmate.solve(graph, "50%", order="any", gap=0, seed=5) for _ in range(2))
    assert one.steps == two.steps


def test_time_limit_holds() -> None:
    graph = training_chain(200)
    began = time.process_time()
    schedule = checkmate.solve(graph, "12%", order="any", gap=0, time_limit=3)
    assert time.process_time() - began < 8 and schedule.peak <= 0.12 * graph.no_recompute_peak
