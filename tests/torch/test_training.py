"""Training under a budget against eager training: the same numbers, within the bytes."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import checkmate
import checkmate.torch
from checkmate.planning import OpCost, plan_cache
from checkmate.torch.ops.profile import profile_nodes
from torch_models import Case, case, identical, state, step_peak, train, twin

#: Where the name that the test replaces is looked up.
PLANNER = sys.modules["checkmate.torch.rounds.planner"]
NAMES = ("residual", "unet", "decoder")
#: Budget as a point between 1.25 x the minimum (0) and the plain peak (1).
LEVELS = (0.5, 0.0)


def graph_of(which: Case) -> checkmate.Graph:
    return checkmate.torch.capture(which.model, *which.inputs, loss=which.loss)


def budget_at(graph: checkmate.Graph, level: float) -> int:
    # Nothing is known to reach the transformer's bound, which looks at one op at a time: begin higher there.
    least = (1.5 if graph.name == "Decoder" else 1.25) * graph.min_working_set
    return int(least + level * (graph.no_recompute_peak - least))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:a step took up to")  # by the loss of the U-Net, outside of it
def test_training_is_identical_and_within_the_budget(name: str) -> None:
    which = case(name)
    plain = twin(which.model)
    expected = train(which, plain)
    graph = graph_of(which)
    plain_peak = step_peak(which, plain)
    tightness = []
    for level in LEVELS:
        budget = budget_at(graph, level)
        model = twin(which.model)
        keys = list(model.state_dict())
        compiled = checkmate.torch.compile(model, budget=budget, time_limit=2, gap=0.02)
        assert compiled is model
        assert isinstance(model, type(which.model))
        assert list(model.state_dict()) == keys
        assert identical(train(which, model), expected), level
        (plan,) = checkmate.torch.plans(model)
        assert plan.schedule.num_recomputations > 0
        # The loss of the U-Net is outside of it: what it takes, and its labels, are known after the first step.
        assert plan.executions in ({4, 5} if name == "unet" else {5})
        assert plan.predicted_peak <= budget < graph.no_recompute_peak
        assert plan.measured_peak is not None
        assert plan.measured_peak <= plan.predicted_peak
        tightness.append(plan.measured_peak / plan.predicted_peak)
        assert step_peak(which, model) <= budget < plain_peak
    # The most workspace that a convolution was seen to take is what is planned for; it does not always take that much.
    assert max(tightness) > 0.95


def test_entry_point_by_name() -> None:
    which = case("residual")
    expected = train(which, twin(which.model), steps=2)
    model = twin(which.model)
    compiled = torch.compile(model, backend="checkmate", options={"budget": "60%", "method": "auto", "time_limit": 2})
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(which.step(compiled))
        optimizer.step()
    assert identical([*losses, *state(model)], [*expected[:2], *expected[-1 - len(state(model)) : -1]])
    (plan,) = checkmate.torch.plans(compiled)
    assert plan.schedule.num_recomputations > 0
    assert checkmate.torch.plans(model)[0] is plan


def test_plain_budget_needs_no_recomputation() -> None:
    which = case("residual")
    model = checkmate.torch.compile(twin(which.model), budget="100%")
    train(which, model, steps=1)
    (plan,) = checkmate.torch.plans(model)
    assert plan.schedule.overhead == pytest.approx(1.0, abs=0.002)


def test_the_next_process_finds_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    which = case("residual")
    found = []
    for _ in range(2):
        model = checkmate.torch.compile(twin(which.model), budget="60%", time_limit=2)
        train(which, model, steps=1)
        found += checkmate.torch.plans(model)
        monkeypatch.setattr(plan_cache, "solve", None)  # must not be needed
    first, second = found
    assert first.schedule.num_recomputations > 0
    assert second.schedule.steps == first.schedule.steps
    assert second.predicted_peak == first.predicted_peak


def test_infeasible_budget_reaches_the_caller_as_it_is() -> None:
    which = case("residual")
    graph = graph_of(which)
    by_name = torch.compile(twin(which.model), backend="checkmate", options={"budget": 1000, "time_limit": 2})
    for model in (checkmate.torch.compile(twin(which.model), budget=1000, time_limit=2), by_name):
        with pytest.raises(checkmate.InfeasibleBudget) as caught:
            which.step(model)
        assert caught.value.budget == 1000
        assert caught.value.proven_minimum >= graph.min_working_set
    # What lives outside the graph in a step is known only after the first one: some small tensors.
    needed = caught.value.smallest_found + 4096
    again = checkmate.torch.compile(twin(which.model), budget=needed, time_limit=2)
    which.step(again)
    assert checkmate.torch.plans(again)[0].predicted_peak <= needed


def test_a_plan_that_passes_its_budget_is_reported_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    which = case("residual")
    graph = graph_of(which)
    largest = max(op.workspace for op in graph.ops)
    assert largest > 10_000

    def without_workspace(nodes: list[fx.Node], cost_model: str, **rest: Any) -> dict[fx.Node, OpCost]:
        return {node: OpCost(cost.seconds, 0) for node, cost in profile_nodes(nodes, cost_model, **rest).items()}

    # A plan that knows nothing of workspaces.
    monkeypatch.setattr(PLANNER, "profile_nodes", without_workspace)
    budget = budget_at(graph, 0.35)
    model = checkmate.torch.compile(twin(which.model), budget=budget, time_limit=2, gap=0.02)
    with pytest.warns(checkmate.torch.BudgetWarning, match="above the budget"):
        which.step(model)
    (first,) = checkmate.torch.plans(model)
    assert first.measured_peak is not None
    assert first.measured_peak > budget >= first.predicted_peak
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", checkmate.torch.BudgetWarning)  # a plan with more room may err by more
        for _ in range(4):
            which.step(model)
    assert step_peak(which, model) <= budget
    (last,) = checkmate.torch.plans(model)
    assert last.margin >= first.measured_peak - first.predicted_peak
    assert last.measured_peak is not None
    assert last.measured_peak <= budget
    assert last.predicted_peak <= budget - last.margin
    assert last.predicted_peak + last.margin == last.schedule.peak <= last.schedule.budget == budget


def test_reserved_bytes_count() -> None:
    which = case("residual")
    graph = graph_of(which)
    model = checkmate.torch.compile(twin(which.model), budget=graph.no_recompute_peak, reserved="200KiB", gap=0.01)
    which.step(model)
    (plan,) = checkmate.torch.plans(model)
    assert plan.reserved == 200 * 1024
    assert plan.schedule.peak == plan.predicted_peak <= plan.schedule.budget == plan.budget == graph.no_recompute_peak
    assert plan.schedule.num_recomputations > 0


def test_unknown_option_names_the_valid_ones() -> None:
    which = case("residual")
    with pytest.raises(checkmate.UnknownMethod, match=r"'bugdet'.*budget, reserved, method"):
        checkmate.torch.compile(which.model, bugdet=3)
    by_name = torch.compile(which.model, backend="checkmate", options={"bugdet": 3})
    with pytest.raises(checkmate.UnknownMethod, match="'bugdet'"):
        which.step(by_name)
    with pytest.raises(checkmate.BudgetError, match="'abc'"):
        checkmate.torch.compile(which.model, budget="abc")
    with pytest.raises(checkmate.UnknownMethod, match="'guess': choose one of profile"):
        checkmate.torch.compile(which.model, cost_model="guess")


def test_auto_budget_is_a_share_of_the_memory() -> None:
    which = case("residual")
    model = checkmate.torch.compile(twin(which.model))
    which.step(model)
    (plan,) = checkmate.torch.plans(model)
    assert plan.budget > 2**20
    assert plan.schedule.num_recomputations == 0
