"""No budget is passed in silence: what the model of the ops misses is measured, said, and planned for."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

import checkmate.tf2
from checkmate.tf2 import BudgetWarning
from checkmate.tf2.capture import OpCost
from checkmate.tf2.profile import profile_ops
from tf2_models import CASES, identical, state, train_plain

#: Where the names that the tests replace are looked up.
STEP, EXECUTE = sys.modules["checkmate.tf2.step"], sys.modules["checkmate.tf2.execute"]


def without_workspace(*arguments: Any) -> dict[str, OpCost]:
    return {name: OpCost(cost.seconds, 0) for name, cost in profile_ops(*arguments).items()}


@pytest.mark.parametrize("rehearsed", [True, False])
def test_an_understatement_leads_to_a_new_plan(rehearsed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["conv"]()
    expected, _, _ = train_plain(case)
    model, optimizer = case.make(), case.optimizer()
    graph = checkmate.tf2.capture(model, case.loss, case.x, case.y, optimizer=optimizer)
    budget = int(0.6 * graph.no_recompute_peak)
    # A third of the memory is unknown to the plan: variables and inputs that it does not count.
    monkeypatch.setattr(STEP, "_profile", without_workspace)
    monkeypatch.setattr(sys.modules["checkmate.tf2.replay"], "tensor_bytes", lambda t: 2 * tensor_bytes(t) // 3)
    monkeypatch.setattr(sys.modules["checkmate.tf2.capture"], "tensor_bytes", lambda t: 2 * tensor_bytes(t) // 3)
    if not rehearsed:
        monkeypatch.setattr(EXECUTE, "can_run_dry", lambda captured: False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = checkmate.tf2.compile(model, case.loss, optimizer, case.x, case.y, budget=budget, time_limit=3, gap=0.02)
        peaks = []
        for _ in range(5):
            step(case.x, case.y)
            peaks.append(step.plans[0].measured_peak)
    said = [str(w.message) for w in caught if issubclass(w.category, BudgetWarning)]
    assert len(said) == 1
    assert ("a rehearsal of the step peaked" if rehearsed else "the first step peaked") in said[0]
    assert (peaks[0] <= budget) == rehearsed
    assert peaks[-1] <= budget
    assert step.plans[0].margin > 0
    assert step.plans[0].executions == 5
    assert identical(state(model, optimizer), expected)


def tensor_bytes(tensor: Any) -> int:
    from checkmate.tf2 import kinds

    return kinds.tensor_bytes(tensor)


def test_a_budget_that_cannot_be_met_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["conv"]()
    model = case.make()
    with pytest.raises(checkmate.InfeasibleBudget, match="ask for at least") as caught:
        checkmate.tf2.compile(model, case.loss, case.optimizer(), case.x, case.y, budget="1MiB")
    assert caught.value.smallest_found > 2**20
    with pytest.raises(checkmate.InfeasibleBudget, match="are taken by what is reserved") as caught:
        checkmate.tf2.compile(model, case.loss, case.optimizer(), case.x, case.y, budget="100MiB", reserved="99MiB")
    assert caught.value.smallest_found > 100 * 2**20
