"""A third front end, in a file: it trains within its budget, to the bit as plain Python does, and learns from what it measures.

Peaks are counted by Python's allocator, which knows nothing of plans.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkmate
from checkmate.errors import BudgetWarning
from checkmate.planning import OpCost, plan_cache
from checkmate.planning.cost_cache import close_cost_caches
from planning import toy
from planning.toy import Array

LAYERS, BATCH, WIDTH = 8, 2048, 32


def layer(x: Array, w: Array) -> Array:
    return np.tanh(x @ w)


def error(x: Array, y: Array) -> Array:
    return np.mean((x - y) ** 2).reshape(1)


def error_gradient(x: Array, y: Array) -> Array:
    return (x - y) * (2.0 / x.size)


def before_tanh(gradient: Array, after: Array) -> Array:
    return gradient * (1.0 - after * after)


def updated(w: Array, x: Array, gradient: Array) -> Array:
    return w - 0.5 * (x.T @ gradient)


def input_gradient(gradient: Array, w: Array) -> Array:
    return gradient @ w.T


def training_step(tape: Callable[..., Any], x: Any, y: Any, *weights: Any) -> list[Any]:
    """One step of gradient descent; with a tape that runs what it is given, in plain Python."""
    activations = [x]
    for w in weights:
        activations.append(tape(layer, activations[-1], w))
    loss = tape(error, activations[-1], y)
    gradient = tape(error_gradient, activations[-1], y)
    new = []
    for w, after, before in zip(reversed(weights), activations[::-1], activations[-2::-1], strict=False):
        gradient = tape(before_tanh, gradient, after)
        new.append(tape(updated, w, before, gradient))
        gradient = tape(input_gradient, gradient, w)
    return [loss, *reversed(new)]


def plain_step(x: Array, y: Array, *weights: Array) -> list[Array]:
    return training_step(lambda function, *arrays: function(*arrays), x, y, *weights)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))


def batch(size: int = BATCH) -> tuple[list[Array], list[Array]]:
    random = np.random.default_rng(0)
    data = [random.normal(size=(size, WIDTH)), random.uniform(-1, 1, size=(size, WIDTH))]
    return data, [random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(LAYERS)]


def trained(step: Callable[..., list[Array]], steps: int = 4) -> tuple[list[float], list[Array], list[int]]:
    """Losses, weights, and the bytes that each step had live at its peak."""
    data, weights = batch()
    losses, peaks = [], []
    for _ in range(steps):
        fixed = sum(array.nbytes for array in (*data, *weights))
        loss, *weights = step(*data, *weights)
        with toy.measure() as seen:
            step(*data, *weights)
        peaks.append(fixed + seen.added)
        losses.append(float(loss[0]))
    return losses, weights, peaks


def test_it_trains_within_its_budget_to_the_bit() -> None:
    expected, weights, plain_peaks = trained(plain_step)
    assert expected[-1] < expected[0]
    step = toy.compile(training_step, budget="50%", gap=0.1)
    losses, found, peaks = trained(step)
    assert losses == expected
    assert all(np.array_equal(one, other) for one, other in zip(found, weights, strict=True))
    (plan,) = step.plans.values()
    assert plan.budget < 0.6 * min(plain_peaks)
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert max(peaks) <= plan.budget
    assert plan.executions == 8


def test_a_step_above_the_budget_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = toy.Runner.measure

    def without_workspace(self: toy.Runner, op: toy.Call) -> OpCost | None:
        cost = measure(self, op)
        return cost and OpCost(cost.seconds, 0)

    monkeypatch.setattr(toy.Runner, "measure", without_workspace)
    expected, weights, _ = trained(plain_step)
    step = toy.compile(training_step, budget="60%", gap=0.1)
    data, given = batch()
    with pytest.warns(BudgetWarning, match="the step peaked at .*, above the budget of"):
        step(*data, *given)
    (first,) = step.plans.values()
    assert first.measured_peak is not None
    assert first.measured_peak > first.budget
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # a plan with more room may err by more
        for _ in range(3):
            step(*data, *given)
    (last,) = step.plans.values()
    assert last.margin >= first.measured_peak - first.predicted_peak
    assert last.budget == first.budget
    losses, found, peaks = trained(step)
    assert max(peaks) <= first.budget
    assert losses == expected
    assert all(np.array_equal(one, other) for one, other in zip(found, weights, strict=True))


def test_each_set_of_shapes_has_a_plan_and_the_next_process_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    found = []
    for _ in range(2):
        step = toy.compile(training_step, budget="50%", gap=0.1)
        for size in (BATCH, BATCH // 2):
            data, weights = batch(size)
            step(*data, *weights)
        assert len(step.plans) == 2
        found.append([plan.schedule.steps for plan in step.plans.values()])
        monkeypatch.setattr(plan_cache, "solve", None)  # must not be needed
        monkeypatch.setattr(toy.Runner, "measure", None)  # nor this
        close_cost_caches()
    assert found[0] == found[1]


def test_options_and_errors_are_those_of_every_front_end() -> None:
    data, weights = batch()
    with pytest.raises(checkmate.UnknownMethod, match="'bugdet'"):
        toy.compile(training_step, bugdet=3)
    with pytest.raises(checkmate.InfeasibleBudget, match="ask for at least") as caught:
        toy.compile(training_step, budget=10_000)(*data, *weights)
    assert caught.value.budget == 10_000
    for budget in ("auto", caught.value.smallest_found):
        step = toy.compile(training_step, budget=budget, cost_model="flops")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetWarning)
            step(*data, *weights)
    step = toy.compile(training_step, budget="100%", reserved="1MiB", gap=0.1)
    step(*data, *weights)
    (plan,) = step.plans.values()
    assert plan.reserved == 2**20
    assert plan.schedule.peak <= plan.schedule.budget == plan.budget
