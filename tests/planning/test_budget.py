"""The user's budget, and what of it a schedule can have."""

from __future__ import annotations

import pytest

import checkmate
from checkmate.planning import Allowance, Options, Plan, make_plan
from support import training_chain

OPTIONS = Options(gap=0.0, time_limit=60.0)


def test_arithmetic() -> None:
    allowance = Allowance(1000, reserved=100, margin=30, outside=7)
    assert (allowance.taken, allowance.limit) == (137, 863)
    assert Allowance(10, reserved=20).limit == 1


def test_the_schedule_of_a_plan_is_in_the_numbers_of_the_user() -> None:
    """What is taken is fixed memory of its graph; the budget, the peak and the bound belong together."""
    graph = training_chain(12)
    plan = make_plan(graph, OPTIONS, Allowance(100, reserved=20, margin=7, outside=3), Plan)
    alone = checkmate.solve(graph, 70, gap=0.0)
    assert plan.schedule.budget == plan.budget == 100
    assert plan.schedule.peak <= 100
    assert plan.schedule.peak == alone.peak + 30
    assert plan.predicted_peak == plan.modelled_peak == plan.simulated_peak == alone.peak + 23
    assert (plan.reserved, plan.margin, plan.outside) == (20, 7, 3)
    assert plan.graph is graph
    wider = checkmate.Graph(graph.ops, graph.values, graph.fixed_memory + 30, graph.name)
    assert plan.schedule.graph == wider
    assert plan.schedule.lower_bound == pytest.approx(checkmate.solve(wider, 100, gap=0.0).cost)


def test_nothing_taken_changes_nothing() -> None:
    graph = training_chain(12)
    plan = make_plan(graph, OPTIONS, Allowance(70), Plan)
    assert plan.schedule.graph is graph
    assert plan.schedule.budget == 70


def test_a_budget_that_cannot_be_met_is_told_in_the_numbers_of_the_user() -> None:
    graph = training_chain(12)
    alone = checkmate.minimum_budget(graph)
    with pytest.raises(
        checkmate.InfeasibleBudget, match="50 B .*of which 23 B are taken by what is reserved and what training holds"
    ) as caught:
        make_plan(graph, OPTIONS, Allowance(50, reserved=20, outside=3), Plan)
    assert caught.value.budget == 50
    assert caught.value.smallest_found == alone.smallest_found + 23
    assert caught.value.proven_minimum == alone.proven_minimum + 23
    make_plan(graph, OPTIONS, Allowance(caught.value.smallest_found, reserved=20, outside=3), Plan)
    with pytest.raises(checkmate.InfeasibleBudget, match="measured to take beyond the prediction") as caught:
        make_plan(graph, OPTIONS, Allowance(50, margin=23), Plan)
    assert caught.value.smallest_found == alone.smallest_found + 23
    assert caught.value.proven_minimum == alone.proven_minimum, "that a step takes more than predicted is no proof"
