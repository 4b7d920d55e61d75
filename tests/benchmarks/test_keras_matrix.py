"""The tables of Keras rows and of named budgets: every row can be made, and the verdicts are fair."""

from __future__ import annotations

from typing import Any

import pytest


def test_rows_are_many_and_known(load: Any) -> None:
    matrix, networks = load("keras_matrix"), load("keras_matrix_networks")
    features = load("keras_matrix_script").FEATURES
    rows = matrix.rows()
    assert len(set(rows)) == len(rows) >= 50
    assert {model for model, _ in rows} == set(networks.TASKS)
    assert {feature for _, feature in rows} == set(features)


def test_pairs_are_many_and_known(load: Any) -> None:
    named, networks = load("keras_named_budgets"), load("keras_matrix_networks")
    features = load("keras_matrix_script").FEATURES
    pairs = named.pairs()
    assert len(set(pairs)) == len(pairs) >= 30
    assert all(model in networks.TASKS and feature in features for model, feature, _ in pairs)


@pytest.mark.parametrize("feature", ["adam", "fit", "loop", "save-and-load"])
def test_plain_training_is_watched(load: Any, feature: str) -> None:
    script, networks = load("keras_matrix_script"), load("keras_matrix_networks")
    task = networks.Task(networks.conv, networks.pictures(), examples=4)
    result = script.forked_with_cache(lambda: script.train(task, script.FEATURES[feature], None, 1.0, None), "unused", 300.0)
    assert result["error"] is None
    # Of each of the six blocks, the result of its convolution and of its norm or ReLU are there when the backward pass begins.
    one = 4 * 4 * 32 * 32 * 32
    assert list(result["peaks"]) == [str(number) for number in range(1, 9)]
    assert all(6 * one < result["peaks"][str(number)] < 30 * one for number in range(2, 9))
    assert len(result["losses"]) == 8


def row(**changed: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"error": None, "peaks": {"1": 90, "2": 90, "3": 90, "8": 100}, "warnings": {}, "budget": 100}
    result |= {"equal": True, "difference": 0.0} | changed
    return {"plain": {"error": None}, "refused": {"error": "no"}, "minimum": 50, "repeats": True, "levels": {"60%": result}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"error": "RuntimeError: no"}, "RuntimeError: no"),
        ({"peaks": {"1": 90, "2": 90, "3": 110, "8": 100}}, "step 3 over budget by 10 (10.0%), no warning"),
        ({"peaks": {"1": 110, "2": 90, "3": 90, "8": 100}}, "step 1 over budget by 10 (10.0%), no warning"),
        ({"peaks": {"1": 110, "2": 90, "3": 90, "8": 100}, "warnings": {"1": ["above"]}}, None),
        (
            {"peaks": {"1": 90, "2": 110, "3": 90, "8": 100}, "warnings": {"2": ["above"]}},
            "step 2 over budget by 10 (10.0%), warned",
        ),
        ({"equal": False, "difference": 0.5}, "differ (by 0.5)"),
    ],
)
def test_verdict_on_a_row(load: Any, changed: dict[str, Any], said: str | None) -> None:
    matrix = load("keras_matrix")
    found = matrix.problems(row(**changed))
    assert found == ([] if said is None else found[:1])
    assert said is None or said in found[0]


def test_first_steps_above_are_counted(load: Any) -> None:
    matrix = load("keras_matrix")
    assert matrix.first_steps_above(row()) == []
    assert matrix.first_steps_above(row(peaks={"1": 101})) == ["60%"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"error": "InfeasibleBudget: no"}, "the named budget: InfeasibleBudget"),
        ({"peaks": {"1": 90, "4": 110}}, "step 4 passes the named budget by 10"),
        ({"answers": [{"named": 100}, None]}, "answers differ"),
    ],
)
def test_verdict_on_a_named_budget(load: Any, changed: dict[str, Any], said: str | None) -> None:
    named = load("keras_named_budgets")
    pair: dict[str, Any] = {"error": None, "named": 100, "peaks": {"1": 90, "4": 100}, "answers": [{"named": 100}] * 2} | changed
    found = named.problems(pair)
    assert found == ([] if said is None else found[:1])
    assert said is None or said in found[0]
