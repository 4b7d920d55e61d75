"""What the search for a smaller budget may take."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import checkmate
from checkmate.solvers import smallest_budget, solving
from checkmate.solvers.heuristics.greedy_eviction import Greedy
from support import random_step, training_chain, with_reuse


@pytest.mark.parametrize("limit", [0.0, 0.5, 2.0, 100.0])
def test_naming_a_budget_that_would_do_keeps_to_the_time_limit(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the budget is below what one op needs, and the search itself ends at once."""
    asked: list[dict[str, Any]] = []

    def record(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        return smallest_budget.least_peak_found(*args, **kwargs)

    monkeypatch.setattr(solving, "least_peak_found", record)
    graph = training_chain(20)
    with pytest.raises(checkmate.InfeasibleBudget):
        checkmate.solve(graph, graph.min_working_set - 1, time_limit=limit)
    assert asked[0]["seconds"] <= max(1.0, limit) and asked[0]["units"] <= max(1.0, limit)


def test_a_few_passes_are_made_even_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine nothing may have been tried by then: what an error names is less than the peak without recomputation."""
    passes: list[int] = []
    run = Greedy.run
    monkeypatch.setattr(
        Greedy, "run", lambda self, budget, *rest, **more: passes.append(budget) or run(self, budget, *rest, **more)
    )
    graph = training_chain(400)
    best, proven = smallest_budget.least_peak_found(graph, seconds=0.0)
    assert passes[0] == proven == graph.min_working_set and len(passes) == 4
    assert best.peak < graph.no_recompute_peak / 2


def test_what_is_found_depends_on_the_work_and_not_on_the_clock() -> None:
    graph = training_chain(150)
    one, two = (smallest_budget.least_peak_found(graph, units=0.3, seconds=seconds) for seconds in (300.0, 600.0))
    assert one[0].sequence == two[0].sequence and one[1] == two[1]


@pytest.mark.parametrize("seed", [126, 133])
def test_writing_in_inputs_needs_no_more_memory(seed: int) -> None:
    """Greedy eviction keeps other values then; here it finds less for buffers of their own."""
    rng = random.Random(seed)
    graph = with_reuse(rng, random_step(rng))
    apart = checkmate.Graph([replace(op, reuses=None) for op in graph.ops], graph.values, graph.fixed_memory)
    within, without = (smallest_budget.least_peak_found(one, units=0.5)[0].peak for one in (graph, apart))
    assert within <= without
