"""What the benchmarks of named budgets and of joined graphs call a failure."""

from __future__ import annotations

from typing import Any

import pytest


def test_named_budgets_are_thirty(load: Any) -> None:
    named, matrix = load("torch_named_budgets"), load("torch_matrix")
    known = {f"{architecture}/{feature}" for architecture, feature, _ in matrix.rows()}
    assert set(named.ROWS) <= known
    assert len(named.ROWS) * (1 + len(named.SHARES)) >= 30


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([{"infeasible": {"smallest": 90, "proven": 80}}, {"peaks": {"1": 80, "2": 90}, "error": None}], ""),
        (
            [{"infeasible": {"smallest": 90, "proven": 80}}, {"peaks": {"1": 95, "2": 90}, "error": None}],
            "step 1 is 5 bytes over",
        ),
        (
            [{"infeasible": {"smallest": 90, "proven": 80}}, {"peaks": {}, "error": "InfeasibleBudget: no"}],
            "InfeasibleBudget: no",
        ),
        ([{"infeasible": None, "error": None}], "it is not refused: it trained"),
    ],
)
def test_verdict_on_a_named_budget(
    load: Any, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], problem: str
) -> None:
    named = load("torch_named_budgets")
    budgets: list[Any] = []

    def trained(task: Any, feature: Any, run: Any, seconds: float) -> dict[str, Any]:
        budgets.append(run.budget)
        return {"warnings": [], **answers[min(len(budgets), len(answers)) - 1]}

    monkeypatch.setattr(named, "trained", trained)
    made = named.pair("gpt/adamw", "name", "1%", type("Options", (), {"time_limit": 1.0, "timeout": 1.0}))
    assert made["problem"] == problem
    assert made["passed"] is not bool(problem)
    assert budgets == (["1%", 90, 90] if len(answers) > 1 else ["1%"])  # the first step is measured by itself
    assert "gpt/adamw" in named.line(made)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"overhead": 1.14}, "4.0 points more"),
        ({"lower_bound": 11.5}, "above the cost"),
        ({"overhead": 1.04}, "the bound of the one graph"),
        ({"peak": 103}, "3 bytes over"),
        ({"error": "InfeasibleBudget: no"}, "InfeasibleBudget: no"),
    ],
)
def test_verdict_on_a_joined_plan(load: Any, changed: dict[str, Any], said: str | None) -> None:
    joined = load("torch_joined")
    one = {"error": None, "cost": 11.0, "overhead": 1.1, "ideal_cost": 10.0, "lower_bound": 10.5, "budget": 100, "peak": 99}
    found = joined.problems({**one, "overhead": 1.11, **changed}, one)
    assert (found == []) if said is None else (len(found) == 1 and said in found[0])
