"""Kernels that run for long run in slices: that changes nothing of what they find, and each slice asks whether to stop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from checkmate import Graph
from checkmate.solvers.heuristics import annealing, greedy_eviction
from checkmate.solvers.heuristics.annealing import Anneal
from checkmate.solvers.heuristics.greedy_eviction import SETTINGS, Greedy
from checkmate.solvers.representation.decoding import retained_by
from checkmate.solvers.representation.graph_arrays import problem_of
from support import random_budget, random_graph


def cases() -> list[tuple[Graph, int]]:
    rngs = [random.Random(number) for number in range(12)]
    graphs = [random_graph(rng, max_ops=40) for rng in rngs]
    return [(graph, random_budget(rng, graph)) for graph, rng in zip(graphs, rngs, strict=True)]


def evicted() -> list[list[int] | None]:
    found = []
    for graph, budget in cases():
        greedy = Greedy(problem_of(graph))
        stages = list(range(0, graph.num_ops, 3))
        plan = retained_by(graph, range(graph.num_ops), stages)
        passes = [*(greedy.run(budget, setting) for setting in SETTINGS), greedy.run(budget, SETTINGS[0], stages, plan)]
        found += [None if one is None else one.sequence for one in passes]
    return found


def annealed() -> list[list[int]]:
    found = []
    for number, (graph, budget) in enumerate(cases()):
        anneal = Anneal(problem_of(graph), budget, ("given", "any")[number % 2], seed=number)
        found += [anneal.run(range(graph.num_ops), 2500, shifts_only=only).sequence for only in (False, True)]
    return found


def test_slices_of_greedy_eviction_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evicted()
    assert sum(one is not None for one in whole) > len(whole) // 2
    for most in (1, 30):
        monkeypatch.setattr(greedy_eviction, "_SLICE", most)
        assert evicted() == whole


def test_slices_of_annealing_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = annealed()
    for most in (1, 1000):
        monkeypatch.setattr(annealing, "_SLICE", most)
        assert annealed() == whole


def test_greedy_eviction_stops_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = next(
        (graph, budget) for graph, budget in cases() if Greedy(problem_of(graph)).run(budget, SETTINGS[0]) is not None
    )
    monkeypatch.setattr(greedy_eviction, "_SLICE", 1)
    asked = []
    assert Greedy(problem_of(graph), lambda: bool(asked.append(1) or len(asked) >= 5)).run(budget, SETTINGS[0]) is None
    assert len(asked) == 5


def test_annealing_stops_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = cases()[3]
    monkeypatch.setattr(annealing, "_SLICE", 1)
    asked = []
    found = Anneal(problem_of(graph), budget, "given", 0).run(
        range(graph.num_ops), 10**9, stop=lambda: bool(asked.append(1) or len(asked) >= 7)
    )
    assert len(asked) >= 7 and len(found.sequence) >= graph.num_ops
    assert np.isfinite(found.cost)
