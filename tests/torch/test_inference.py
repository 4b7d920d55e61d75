"""Models that run without gradients, under budgets in bytes, between steps of training."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate.errors import BudgetWarning
from checkmate.torch.backend import sessions_of
from checkmate.torch.memory.measure import measure
from torch_models import identical

WIDTH = 256


class Late(nn.Module):
    """It reads at its end what was computed at its beginning: without gradients too, a plan has something to save."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        early = [torch.relu(self.first(x) + number) for number in range(6)]
        y = x
        for _ in range(3):
            y = torch.tanh(self.last(y))
        for one in early:
            y = y + one
        return y


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """What it returns, and bytes that it takes besides what lives."""
    with torch.no_grad(), measure("cpu") as seen:
        y = model(x)
    return y, seen.peak - seen.base


def test_what_training_holds_leaves_less_for_an_evaluation() -> None:
    torch.manual_seed(0)
    plain = Late()
    small, large = torch.randn(4, WIDTH), torch.randn(2048, WIDTH)
    expected, most = evaluate(plain, large)
    parameters = sum(parameter.nbytes for parameter in plain.parameters())
    budget = large.nbytes + 4 * parameters + most * 9 // 10  # so that with the optimizer's state a tenth has to go
    torch.manual_seed(0)
    model = checkmate.torch.compile(Late(), budget=budget, time_limit=2)
    found, taken = evaluate(model, large)
    assert identical([found], [expected])
    optimizers = [torch.optim.Adam(one.parameters()) for one in (plain, model)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            train(one, optimizer, small)
        expected, most = evaluate(plain, large)
        found, taken = evaluate(model, large)
    assert identical([found], [expected])
    state = sum(value.nbytes for values in optimizers[1].state.values() for value in values.values())
    assert large.nbytes + parameters + state + taken <= budget < large.nbytes + parameters + state + most


def test_an_evaluation_is_planned_for_as_long_as_training_holds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checkmate.torch.rounds.growth._GROWTHS", 2)
    torch.manual_seed(0)
    model = Late()
    small, large = torch.randn(4, WIDTH), torch.randn(2048, WIDTH)
    _, most = evaluate(model, large)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    budget = large.nbytes + 2 * parameters + most
    checkmate.torch.compile(model, budget=budget, time_limit=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    averages = []
    for _ in range(12):
        train(model, optimizer, small)
        held = (1 + len(averages)) * parameters + large.nbytes
        _, taken = evaluate(model, large)
        assert held + taken <= budget
        averages.append(torch.optim.swa_utils.AveragedModel(model))
    assert taken <= most - 9 * parameters
    assert 3 <= len(checkmate.torch.plans(model)) < 9


def test_an_evaluation_that_takes_more_is_told_once_and_ends_no_training() -> None:
    torch.manual_seed(0)
    plain = Late()
    torch.manual_seed(0)
    model = checkmate.torch.compile(Late(), budget="4MiB", time_limit=2)
    small, large = torch.randn(4, WIDTH), torch.randn(2048, WIDTH)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (plain, model)]
    for one, optimizer in zip((plain, model), optimizers, strict=True):
        train(one, optimizer, small)
    with pytest.warns(BudgetWarning, match="without gradients, with what training holds, .* above the budget of 4.00 MiB"):
        found, taken = evaluate(model, large)
    expected, most = evaluate(plain, large)
    assert identical([found], [expected])
    assert taken <= most
    del found, expected  # else training is told that the script holds them
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        evaluate(model, large[1:])
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            train(one, optimizer, small)
    assert identical([*plain.parameters()], [*model.parameters()])


@pytest.mark.parametrize("teacher", ["another model", "the model itself"])
def test_what_runs_without_gradients_before_a_backward_pass_is_under_the_budget_once_it_was_seen(teacher: str) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.ReLU())))
    other = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).requires_grad_(False)
    x, more = torch.randn(512, 64), torch.randn(2048, 64)

    def step() -> None:
        y = student(x)
        with torch.no_grad():
            target = other(x) if teacher == "another model" else student(more)[:512].clone()
        nn.functional.mse_loss(y, target).backward()
        student.zero_grad()

    with measure() as plain:
        step()
    own = sum(tensor.nbytes for tensor in (x, *student.parameters(), *other.parameters()))
    own += more.nbytes if teacher == "the model itself" else 0
    budget = own + (plain.peak - plain.base) * 8 // 10
    reserved = sum(parameter.nbytes for parameter in other.parameters())
    checkmate.torch.compile(student, budget=budget, reserved=reserved, time_limit=2, cost_model="flops")
    if teacher == "another model":
        checkmate.torch.compile(other, budget=budget, reserved=reserved, time_limit=2, cost_model="flops")
    with pytest.warns(BudgetWarning, match="or runs without gradients meanwhile"):
        step()
    step()
    with measure() as planned:
        step()
    assert own + planned.peak - planned.base <= budget


def test_a_plan_serves_evaluations_at_smaller_sizes() -> None:
    torch.manual_seed(0)
    plain = Late()
    torch.manual_seed(0)
    model = Late()
    large = torch.randn(2048, WIDTH)
    _, most = evaluate(plain, large)
    parameters = sum(parameter.nbytes for parameter in plain.parameters())
    budget = parameters + large.nbytes + most * 8 // 10
    checkmate.torch.compile(model, budget=budget, time_limit=2, dynamic=True)
    for size in (2048, 2040, 1999, 2048, 7):
        x = large[:size].clone()
        found, taken = evaluate(model, x)
        expected, _ = evaluate(plain, x)
        assert identical([found], [expected])
        assert parameters + x.nbytes + taken <= budget
    (session,) = sessions_of(model.parameters(), [model])
    assert [len(graph.plans) for graph in session.no_gradients.values()] == [1]


def test_gradients_leave_less_for_an_evaluation_before_the_first_step() -> None:
    torch.manual_seed(0)
    model, small, large = Late(), torch.randn(4, WIDTH), torch.randn(2048, WIDTH)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    _, most = evaluate(checkmate.torch.compile(Late(), budget="1GiB", time_limit=2), large)
    budget = parameters + large.nbytes + most + parameters // 2
    checkmate.torch.compile(model, budget=budget, time_limit=2)
    for gradients in (0, parameters):
        _, taken = evaluate(model, large)
        assert parameters + gradients + large.nbytes + taken <= budget
        model(small).square().mean().backward()
