"""Plans are tried out until one keeps to the budget: the policy alone, on steps that are made up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import checkmate
from checkmate.planning import Allowance, Margins, Options, Plan, make_plan
from checkmate.planning.rehearsal import SPARE, first_margin, plan_that_fits
from checkmate.planning.rehearsal_cache import Outcome, recall, remember
from support import training_chain

GRAPH = training_chain(16, size=1000)
BUDGET = 14_000


@dataclass
class Made:
    plan: Plan


class Rehearsal:
    """`takes(margin)` bytes more than predicted are taken by a plan with that margin; None: it cannot be tried out."""

    def __init__(self, takes: Callable[[int], int | None]):
        self.takes = takes
        self.margins: list[int] = []
        self.rehearsed: list[int] = []

    def make(self, margin: int, *, again: bool) -> Made:
        self.margins.append(margin)
        options = Options(gap=0.05, time_limit=60.0)
        return Made(make_plan(GRAPH, options, Allowance(BUDGET, margin=margin), Plan))

    def rehearse(self, candidate: Made) -> int | None:
        self.rehearsed.append(candidate.plan.margin)
        more = self.takes(candidate.plan.margin)
        return None if more is None else candidate.plan.modelled_peak + more


def fitted(takes: Callable[[int], int | None], known: Outcome | None = None) -> tuple[Rehearsal, Margins, Plan, bool]:
    stage, margins = Rehearsal(takes), Margins(BUDGET, BUDGET // 200 + 1)
    first_margin(margins, known)
    made, tried_out = plan_that_fits(stage, margins, known, trusted_from=0.0)
    return stage, margins, made.plan, tried_out


def test_a_first_plan_leaves_a_little_room() -> None:
    stage, _, plan, tried_out = fitted(lambda margin: 10)
    assert stage.margins == [BUDGET // SPARE] == [plan.margin]
    assert plan.rehearsed_peak == plan.modelled_peak + 10 == plan.predicted_peak
    assert tried_out


def test_a_plan_that_passes_the_budget_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stage, margins, plan, _ = fitted(lambda margin: 2500)
    assert plan.rehearsed_peak is not None
    assert plan.rehearsed_peak <= BUDGET
    assert plan.margin >= 2000
    assert margins.failures == 1
    assert margins.tried[0] == BUDGET // SPARE
    (said,) = caplog.messages
    assert "a rehearsal of the step peaked at" in said
    assert plan.margin in stage.rehearsed


def test_no_more_room_is_left_than_is_needed() -> None:
    """The first plan takes 5000 more; others that leave 1500 take no more than that, and cost less than one that leaves 5000."""
    _, _, plan, _ = fitted(lambda margin: 5000 if margin < 1500 else 1000)
    costly = make_plan(GRAPH, Options(gap=0.05), Allowance(BUDGET, margin=5000), Plan)
    assert 1000 <= plan.margin < 4000
    assert plan.schedule.cost < costly.schedule.cost


def test_a_plan_just_within_the_budget_is_taken_where_there_is_no_more_room() -> None:
    least = checkmate.minimum_budget(GRAPH).smallest_found
    _, _, plan, _ = fitted(lambda margin: BUDGET - make(margin).modelled_peak)
    assert plan.rehearsed_peak == BUDGET
    assert plan.budget - plan.margin >= least


def make(margin: int) -> Plan:
    return make_plan(GRAPH, Options(gap=0.05, time_limit=60.0), Allowance(BUDGET, margin=margin), Plan)


def test_a_step_that_never_fits_is_an_error() -> None:
    with pytest.raises(checkmate.InfeasibleBudget):
        fitted(lambda margin: BUDGET)


def test_what_cannot_be_tried_out_is_taken_as_it_is() -> None:
    _, _, plan, tried_out = fitted(lambda margin: None)
    assert plan.rehearsed_peak is None
    assert plan.predicted_peak == plan.modelled_peak
    assert not tried_out


def test_what_an_earlier_process_found_is_not_tried_again() -> None:
    _, margins, plan, _ = fitted(lambda margin: 2500)
    known = Outcome.of(plan, margins.failures)
    stage, _, again, tried_out = fitted(lambda margin: pytest.fail("was tried out"), known)
    assert stage.margins == [plan.margin]
    assert again.schedule.steps == plan.schedule.steps
    assert again.rehearsed_peak == plan.rehearsed_peak
    assert not tried_out


def test_an_outcome_is_found_again_for_the_same_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    outcome = Outcome(1, 2, 2.0, 20, 15)
    remember(GRAPH, 100, {"a": 1}, outcome)
    assert recall(GRAPH, 100, {"a": 1}) == outcome
    assert recall(GRAPH, 100, {"a": 2}) is None
    assert recall(GRAPH, 101, {"a": 1}) is None
    remember(GRAPH, 100, {"a": 1}, Outcome(100, 2, 2.0, 20, 15))
    assert recall(GRAPH, 100, {"a": 1}) is None, "a margin of the whole budget leaves nothing"
