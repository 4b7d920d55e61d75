"""Faults in methods are errors: `solve` and what is built on it return nothing that another result excludes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import checkmate
from checkmate import Contradiction, InfeasibleBudget
from checkmate.schedule import Compute
from checkmate.solvers import Search, solving
from checkmate.solvers.default import auto as default
from checkmate.solvers.exact import best_first_search
from checkmate.solvers.heuristics.greedy_eviction import greedy
from support import training_chain

GRAPH = training_chain(6)
TIGHT = 50


def faulty(monkeypatch: pytest.MonkeyPatch, method: Callable[[Search], object]) -> None:
    monkeypatch.setattr(solving, "run", lambda search, _: method(search))


def test_a_method_without_a_schedule_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty(monkeypatch, lambda search: search.prove_infeasible("bad proof"))
    for method in ("auto", "greedy"):
        with pytest.raises(Contradiction, match=rf"no schedule fits {TIGHT} bytes \(bad proof\), but there is"):
            checkmate.solve(GRAPH, TIGHT, method)


def test_a_budget_that_is_too_small_in_truth_stays_an_ordinary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    least = checkmate.minimum_budget(GRAPH)
    faulty(monkeypatch, lambda search: search.prove_infeasible("good proof"))
    for method in ("auto", "greedy"):
        with pytest.raises(InfeasibleBudget) as caught:
            checkmate.solve(GRAPH, least.proven_minimum - 1, method)
        assert caught.value.proven_minimum == caught.value.smallest_found == least.smallest_found


def test_a_bound_above_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(search: Search) -> None:
        search.raise_bound(1000.0, "bad proof")
        greedy(search)

    faulty(monkeypatch, method)
    with pytest.raises(Contradiction, match=r"costs less than 1000.0 \(bad proof\)"):
        checkmate.solve(GRAPH, TIGHT)


@pytest.mark.parametrize(
    ("sequence", "cost", "order", "words"),
    [
        (range(12), 12.0, "given", "takes 70 bytes, for a budget of 50"),
        ([1, 0, *range(2, 12)], 12.0, "given", "does not keep order='given'"),
        ([*range(6), 7, 6, *range(8, 12)], 12.0, "any", "cannot run"),
    ],
)
def test_a_schedule_that_is_none(
    monkeypatch: pytest.MonkeyPatch, sequence: list[int], cost: float, order: str, words: str
) -> None:
    def method(search: Search) -> None:
        search.best, search.best_cost = sequence, cost
        search.best_steps = [Compute(op) for op in sequence] if words == "cannot run" else None

    graph = training_chain(6)
    if words.startswith("does not keep"):  # two ops that do not depend on each other
        edges = [(value, index) for index, op in enumerate(graph.ops) for value in op.inputs if (value, index) != (0, 1)]
        graph = checkmate.Graph.from_arrays([1.0] * 12, [10] * 12, edges)
    faulty(monkeypatch, method)
    with pytest.raises(Contradiction, match=words):
        checkmate.solve(graph, TIGHT if words.startswith("takes") else 120, "greedy", order)


def test_a_wrong_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(search: Search) -> None:
        search.best, search.best_cost = range(12), 13.0

    faulty(monkeypatch, method)
    with pytest.raises(Contradiction, match="costs 12.0, and not 13.0"):
        checkmate.solve(GRAPH, 120, "greedy")


def test_the_two_counts_of_memory_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "verify", lambda *_: (12.0, 69))
    with pytest.raises(Contradiction, match="two independent counts takes 12.0 and 70 bytes, and 12.0 and 69 bytes"):
        checkmate.solve(GRAPH, 120)


def test_a_least_peak_below_the_proven_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_first_search, "least_peak", lambda graph, known, low, *_: (known, known.peak + 1))
    with pytest.raises(Contradiction, match="no schedule needs less than 71 bytes .* one of 70 bytes"):
        checkmate.minimum_budget(GRAPH)


def test_a_batch_above_the_largest_proven_one(monkeypatch: pytest.MonkeyPatch) -> None:
    solve_well = default.auto

    def method(search: Search) -> None:
        if search.budget < 90:
            search.raise_bound(1000.0, "bad proof")
            return
        inner = Search(search.graph, TIGHT, gap=0.0)
        solve_well(inner)
        assert inner.best is not None
        search.offer(inner.best, inner.best_cost)

    largest = checkmate.max_batch_size(GRAPH, 280, 3.0, time_limit=20)
    assert largest.batch == largest.upper_bound > 5
    monkeypatch.setattr(default, "auto", method)
    with pytest.raises(
        Contradiction, match=r"no batch above 3 fits 280 bytes at 3.0 times the ideal cost \(bad proof\).*batch 5"
    ):
        checkmate.max_batch_size(GRAPH, 280, 3.0, time_limit=20)
