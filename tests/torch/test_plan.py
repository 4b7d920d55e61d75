"""What PyTorch adds to plans: devices, percentages, and interrupts that interrupt."""

from __future__ import annotations

import copy
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import checkmate
import checkmate.torch
from checkmate.errors import BudgetError
from checkmate.planning import OpCost, environment, memory
from checkmate.solvers import solving
from checkmate.torch.memory.measure import measure
from checkmate.torch.ops import op_work, profile
from checkmate.torch.plan import automatic_budget
from torch_models import case, identical, train, twin

#: Where the name that the test replaces is looked up.
PLANNER = sys.modules["checkmate.torch.rounds.planner"]


def test_auto_is_resolved_once_and_everything_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = iter([5 * 2**30, 2**20])  # the second time the model's own memory is taken
    monkeypatch.setattr(memory, "available_memory", lambda: next(amounts))
    which = case("residual")
    model = checkmate.torch.compile(twin(which.model))
    inputs, labels = which.inputs
    for size in (4, 2):
        model(inputs[:size], labels[:size]).backward()
    for plan in checkmate.torch.plans(model):
        assert plan.budget == plan.schedule.budget == 4 * 2**30


@pytest.mark.parametrize("budget", ["auto", "4GiB", "80%"])
def test_no_op_is_tried_out_that_needs_more_than_the_budget(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 5 * 2**30)
    limits = set()

    def noted(*arguments: Any, limit: int | None, **keywords: Any) -> Any:
        limits.add(limit)
        return profile.profile_nodes(*arguments, limit=limit, **keywords)

    monkeypatch.setattr(PLANNER, "profile_nodes", noted)
    which = case("residual")
    model = checkmate.torch.compile(twin(which.model), budget, cost_model="flops")
    model(*which.inputs).backward()
    lives = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *which.inputs))
    # What a percentage comes to is not known before.
    assert limits == {None if budget == "80%" else 4 * 2**30 - lives}


def test_auto_on_a_device_that_does_not_say() -> None:
    with pytest.raises(BudgetError, match="'meta' device"):
        automatic_budget(torch.device("meta"))


def test_a_percentage_does_not_bind_what_runs_without_gradients() -> None:
    """As `Options` says: there is little to save, and half of so little often cannot be had; bytes bind it."""
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    x = torch.zeros(16, 64)
    relative = checkmate.torch.compile(twin(model), budget="1%")
    with torch.no_grad():
        assert relative(x).shape == x.shape
    assert checkmate.torch.plans(relative) == []
    absolute = checkmate.torch.compile(twin(model), budget=1000)
    with torch.no_grad(), pytest.raises(checkmate.InfeasibleBudget):
        absolute(x)


def test_ctrl_c_while_a_script_plans_interrupts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    which = case("residual")
    run = solving.run

    def interrupted(search: Any, method: str) -> None:
        run(search, method)
        signal.raise_signal(signal.SIGINT)  # a schedule is there already

    monkeypatch.setattr(solving, "run", interrupted)
    model = checkmate.torch.compile(twin(which.model), budget="70%", gap=0.1, time_limit=2)
    with pytest.raises(KeyboardInterrupt):
        which.step(model)
    assert not list(tmp_path.glob("plan-*"))
    assert checkmate.torch.plans(model) == []
    monkeypatch.setattr(solving, "run", run)
    train(which, model, steps=1)  # and the model can be trained afterwards
    assert len(checkmate.torch.plans(model)) == 1


def test_the_budget_in_bytes_stays_when_a_step_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    which = case("residual")

    def without_workspace(nodes: list[fx.Node], cost_model: str, **rest: Any) -> dict[fx.Node, OpCost]:
        return {node: OpCost(cost.seconds, 0) for node, cost in profile.profile_nodes(nodes, cost_model, **rest).items()}

    monkeypatch.setattr(PLANNER, "profile_nodes", without_workspace)
    model = checkmate.torch.compile(twin(which.model), budget="70%", time_limit=2, gap=0.05)
    with pytest.warns(checkmate.torch.BudgetWarning, match="above the budget"):
        which.step(model)
    (first,) = checkmate.torch.plans(model)
    monkeypatch.setattr(PLANNER, "profile_nodes", profile.profile_nodes)  # whose plain peak is another
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", checkmate.torch.BudgetWarning)  # whether one new plan is enough depends on measured costs
        which.step(model)
    (second,) = checkmate.torch.plans(model)
    assert second is not first
    assert second.budget == second.schedule.budget == first.budget


def test_costs_are_kept_for_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [profile._cache(torch.device("cpu"))]
    monkeypatch.setattr(environment, "processor_name", lambda: "another processor")
    caches.append(profile._cache(torch.device("cpu")))
    assert caches[0] is not caches[1]


@pytest.mark.parametrize("outside", [False, True])
def test_what_was_only_estimated_proves_nothing(outside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither copies that an op is thought to make, nor what a loss outside the model is thought to take."""
    monkeypatch.setattr(op_work, "known_workspace", lambda node, moved: 100 * moved)
    monkeypatch.setattr(profile, "known_workspace", lambda node, moved: 100 * moved)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(*layers, *([] if outside else [nn.Flatten(), nn.Linear(8 * 16 * 16, 1)]))
    x = torch.randn(4, 8, 16, 16)

    def step(model: nn.Module) -> None:
        model(x).square().sum().backward()

    for _ in range(2):
        with measure() as plain:
            step(model)
    own = plain.peak - plain.base  # without what tests before this one have left
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        step(checkmate.torch.compile(copy.deepcopy(model), budget=own // 4, cost_model="flops"))
    assert own // 4 < caught.value.proven_minimum < own < caught.value.smallest_found


class Branches(nn.Module):
    """What the first branches make is read last, so that another order takes less."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor, breaks: bool) -> Tensor:
        branches = [nn.functional.dropout(torch.relu(layer(x)), 0.3) for layer in self.layers]
        if breaks:
            torch._dynamo.graph_break()
        y = torch.zeros_like(x)
        for branch in reversed(branches):
            y = torch.tanh(y + branch)
        return y.square().mean()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("breaks", [False, True])
def test_numbers_are_drawn_in_turn_whatever_order_is_asked_for(breaks: bool) -> None:
    torch.manual_seed(0)
    plain, x = Branches(), torch.randn(512, 32)
    model = checkmate.torch.compile(
        copy.deepcopy(plain), budget="80%", order="any", cost_model="flops", time_limit=1, gap=0.05, wait=True
    )
    for _ in range(2):
        found = []
        for which in (plain, model):
            torch.manual_seed(1)
            which.zero_grad()
            loss = which(x, breaks)
            loss.backward()
            found.append([loss.detach(), *(parameter.grad for parameter in which.parameters())])
        assert identical(*found)
    with torch.no_grad():
        found = []
        for which in (plain, model):
            torch.manual_seed(1)
            found.append([which(x, breaks)])
        assert identical(*found)
