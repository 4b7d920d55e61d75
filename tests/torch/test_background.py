"""The first steps run under a schedule that is found at once; a better one takes its place when a round begins."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate.errors import BudgetWarning, Contradiction, UnknownMethod
from checkmate.graph import Graph
from checkmate.planning import plan_cache
from checkmate.schedule import Schedule
from checkmate.solvers.smallest_budget import least_peak_found, schedule_of
from checkmate.torch.backend import sessions_of
from checkmate.torch.memory.script_memory import Script
from checkmate.torch.options import read_options
from fake_search import Child, without_processes
from torch_models import identical, state


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> type[Child]:
    def poor(graph: Graph, budget: int, order: str, gap: float, seed: int, time_limit: float) -> Schedule | None:
        """What fits a smaller budget as well."""
        if graph.no_recompute_peak <= budget:
            return checkmate.solve(graph, budget)
        least, _ = least_peak_found(graph, order)
        return replace(schedule_of(graph, least, order), budget=budget)

    monkeypatch.setattr(plan_cache, "first_schedule", poor)
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CHECKMATE_WAIT")
    return without_processes(monkeypatch)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(5)]
    return nn.Sequential(*layers)


def train(model: nn.Module, steps: int) -> list[Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(256, 32)).square().mean().backward()
        optimizer.step()
    return state(model)


def step(model: nn.Module) -> None:
    model(torch.ones(256, 32)).square().mean().backward()
    model.zero_grad()


def planned(**options: Any) -> nn.Module:
    """Costs are FLOPs: measured ones would decide how long a search takes, and which schedule is the better one."""
    return checkmate.torch.compile(network(), budget="75%", cost_model="flops", **options)


def test_the_schedule_of_larger_sizes_is_not_the_last_word(children: type[Child]) -> None:
    plain = planned()
    step(plain)
    budget = checkmate.torch.plans(plain)[0].budget
    children.begun[-1].runs = False
    model = checkmate.torch.compile(network(), budget=budget, cost_model="flops", dynamic=False)
    step(model)
    children.begun[-1].runs = False
    step(model)
    (large,) = checkmate.torch.plans(model)
    assert large.final and large.schedule.overhead > 1
    model(torch.ones(224, 32)).square().mean().backward()
    _, small = checkmate.torch.plans(model)
    assert small.schedule.steps == large.schedule.steps
    assert not small.final
    children.begun[-1].runs = False
    model(torch.ones(224, 32)).square().mean().backward()
    _, small = checkmate.torch.plans(model)
    assert small.final and 1 < small.schedule.overhead < large.schedule.overhead


def test_the_better_schedule_takes_over_between_rounds(children: type[Child]) -> None:
    model = planned()
    step(model)
    (first,) = checkmate.torch.plans(model)
    assert not first.final
    assert len(children.begun) == 1
    step(model)
    assert checkmate.torch.plans(model) == [first]  # nothing has been found yet
    loss = model(torch.ones(256, 32)).square().mean()
    children.begun[0].runs = False
    loss.backward()
    assert checkmate.torch.plans(model) == [first]  # a round ends as it began
    model.zero_grad()
    del loss
    step(model)
    (better,) = checkmate.torch.plans(model)
    assert better.final
    assert better.schedule.cost < first.schedule.cost
    assert better.budget == first.budget
    for plan in (first, better):
        assert plan.measured_peak is not None
        assert plan.measured_peak <= plan.budget
    best = checkmate.solve(better.graph, better.budget - better.outside)
    assert better.schedule.cost == pytest.approx(best.cost)


def test_results_are_those_of_plain_training_whichever_plan_runs(children: type[Child]) -> None:
    plain, model = network(), planned()
    assert identical(train(model, 3), train(plain, 3))  # held by nobody, or there would be another plan
    children.begun[0].runs = False
    assert identical(train(model, 3), train(plain, 3))
    assert checkmate.torch.plans(model)[0].final


def test_what_the_script_was_seen_to_take_counts_for_what_the_search_finds(children: type[Child]) -> None:
    """The first schedule has room for that; the better one, whose search began before, has not."""
    model = planned()
    step(model)
    (session,) = sessions_of(model.parameters())
    group = session.group
    (first,) = group.plans

    def taken(plan: Any) -> int:
        return plan.taken(plan.passes, group.planner.profile, group._scripts.of(plan.order)) or 0

    loss = 0
    while taken(first) <= first.plan.budget:
        loss += 8192
        group._scripts._known[first.order] = Script(gaps={0: loss})
    group._scripts._known[first.order] = Script(gaps={0: 3 * loss // 4})  # near the most, searches take long
    for _ in range(2):
        children.begun[-1].runs = False
        for _ in range(2):
            step(model)
    (better,) = group.plans
    assert better.plan.final
    assert better.plan.schedule.cost < first.plan.schedule.cost
    assert taken(better) <= better.plan.budget


def test_a_schedule_that_is_no_better_proves_the_first_one(children: type[Child]) -> None:
    model = planned()
    step(model)
    (first,) = checkmate.torch.plans(model)
    written = plan_cache.written(replace(first.schedule, graph=first.graph, budget=None))
    children.says = {"schedule": {**written, "lower_bound": first.schedule.cost}}
    children.begun[0].runs = False
    step(model)
    assert checkmate.torch.plans(model) == [first]
    assert first.final
    assert first.schedule.status == "optimal"


def test_a_search_that_fails_warns_once_and_training_goes_on(children: type[Child]) -> None:
    model = planned()
    step(model)
    children.says = {"failed": "exit code -9: no output"}
    children.begun[0].runs = False
    with pytest.warns(BudgetWarning, match="found at once.*exit code -9"):
        step(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model)
    assert len(children.begun) == 1
    assert checkmate.torch.plans(model)[0].final


def test_a_contradiction_is_an_error(children: type[Child]) -> None:
    model = planned()
    step(model)
    children.says = {"contradiction": "two and two are five"}
    children.begun[0].runs = False
    with pytest.raises(Contradiction, match="two and two are five"):
        step(model)
    step(model)  # said once


def test_a_script_can_wait(children: type[Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for wait in (True, False):
        monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / str(wait)))  # what takes long is kept for the next one
        monkeypatch.setenv("CHECKMATE_WAIT", str(int(not wait)))
        model = planned(wait=wait)
        step(model)
        assert checkmate.torch.plans(model)[0].final == wait
    assert len(children.begun) == 1
    monkeypatch.setenv("CHECKMATE_WAIT", "1")
    assert read_options({}).wait
    with pytest.raises(UnknownMethod, match="wait is True or False, not 'yes'"):
        planned(wait="yes")


def test_a_method_that_is_named_has_its_time(children: type[Child]) -> None:
    model = planned(method="greedy")
    step(model)
    assert checkmate.torch.plans(model)[0].schedule.method == "greedy"
    assert not children.begun


def test_a_budget_that_cannot_be_met_is_an_error_as_ever(children: type[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "first_schedule", lambda *_, **__: None)
    model = checkmate.torch.compile(network(), budget="5%", cost_model="flops")
    with pytest.raises(checkmate.InfeasibleBudget) as error:
        step(model)
    assert error.value.smallest_found > error.value.budget
    assert not children.begun
