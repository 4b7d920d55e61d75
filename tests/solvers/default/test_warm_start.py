"""Searches that begin with a schedule of another budget."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import checkmate
from checkmate import Compute, Free, Graph, InfeasibleBudget, InvalidSchedule, Schedule
from checkmate.networks import mobilenet, unet
from support import random_graph, renamed, training_chain


def share_of(graph: Graph, share: float) -> int:
    return graph.fixed_memory + int(share * (graph.no_recompute_peak - graph.fixed_memory))


@pytest.mark.parametrize("network", [mobilenet, unet])
@pytest.mark.parametrize("order", ["given", "any"])
def test_what_fits_is_never_made_worse(network: Callable[[], Graph], order: str) -> None:
    graph = network()
    start = checkmate.solve(graph, share_of(graph, 0.6), order=order, time_limit=3, gap=0.01)
    at_once = checkmate.solve(graph, share_of(graph, 0.7), order=order, time_limit=0, start=start)
    assert at_once.cost <= start.cost and at_once.peak <= share_of(graph, 0.7)
    later = checkmate.solve(graph, share_of(graph, 0.7), order=order, time_limit=3, start=start)
    assert later.cost <= start.cost


@pytest.mark.parametrize("order", ["given", "any"])
def test_what_does_not_fit_is_repaired(order: str) -> None:
    graph = mobilenet()
    start = checkmate.solve(graph, share_of(graph, 0.5), order=order, time_limit=2)
    budget = share_of(graph, 0.4)
    assert start.peak > budget
    notes: list[str] = []
    schedule = checkmate.solve(
        graph, budget, order=order, time_limit=3, start=start, progress=lambda report: notes.append(report.note)
    )
    assert schedule.peak <= budget and notes[0] == "repaired start"


def test_random_graphs_and_any_start() -> None:
    """The result is that of the search without a start: small graphs are solved to the end."""
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=10)
        budgets = [rng.randint(graph.min_working_set, graph.no_recompute_peak) for _ in range(2)]
        try:
            start = checkmate.solve(graph, budgets[0], "greedy", time_limit=1)
            plain = checkmate.solve(graph, budgets[1], gap=0)
        except InfeasibleBudget:
            continue
        assert checkmate.solve(graph, budgets[1], gap=0, start=start).cost == plain.cost


def test_starts_of_no_use() -> None:
    graph = training_chain(5)
    start = checkmate.solve(graph, "70%")
    assert checkmate.solve(renamed(graph, "the same"), "60%", start=start).peak <= 0.6 * graph.no_recompute_peak
    with pytest.raises(InvalidSchedule, match="another graph"):
        checkmate.solve(training_chain(6), "60%", start=start)
    with pytest.raises(InvalidSchedule, match="another graph"):
        checkmate.solve(graph.scaled(2), "60%", start=start)
    with pytest.raises(InvalidSchedule, match="not a valid schedule"):
        checkmate.solve(graph, "60%", start=Schedule(graph, start.steps[1:]))
    with pytest.raises(checkmate.UnknownMethod, match="use method 'auto'"):
        checkmate.solve(graph, "60%", method="chen-sqrt", start=start)


def test_the_order_of_a_start() -> None:
    """One of another order is refused where the order is given, and welcome where it is not."""
    graph = Graph.from_arrays([1.0] * 4, [10, 10, 1, 1], [(0, 2), (1, 3)])
    steps = [Compute(0), Compute(2), Free(0), Free(2), Compute(1), Compute(3), Free(1), Free(3)]
    start = Schedule(graph, steps)
    assert checkmate.solve(graph, start.peak, order="any", start=start).cost == 4.0
    with pytest.raises(InvalidSchedule, match="another order"):
        checkmate.solve(graph, start.peak, start=start)
