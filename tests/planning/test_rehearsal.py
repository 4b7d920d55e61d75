"""Plans are tried out until one keeps to the budget: the policy alone, on steps that are made up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import Graph
from checkmate.planning import Allowance, Margins, Options, Plan, make_plan
from checkmate.planning.rehearsal import SPARE, Policy
from checkmate.planning.rehearsal_cache import Notebook, Outcome, Refusal
from support import training_chain

GRAPH = training_chain(16, size=1000)
BUDGET = 14_000


@pytest.fixture(autouse=True)
def _directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))


@dataclass
class Made:
    plan: Plan
    again: bool
    way: Any = None


class Rehearsal:
    """`takes(margin)` bytes more than predicted are taken by a plan with that margin; None: it cannot be tried out."""

    def __init__(self, takes: Callable[[int], int | None]):
        self.takes = takes
        self.margins: list[int] = []
        self.budgets: list[int] = []
        self.rehearsed: list[int] = []
        self.below: list[int | None] = []
        self.made: list[Made] = []
        self.better: list[Made] = []
        self.takes_under: Callable[[int, int], int] = lambda budget, more: more
        self.takes_in_order: dict[int, int] = {}  # by the number of an order; the plan has no others
        self.orders: list[int] = []

    def make(self, budget: int, margin: int, *, again: bool) -> Made:
        self.margins.append(margin)
        self.budgets.append(budget)
        self.made.append(Made(make(margin, budget), again))
        return self.made[-1]

    def rehearse(self, candidate: Made, *, whole: bool = False, below: int | None = None) -> int | None:
        self.rehearsed.append(candidate.plan.margin)
        self.below.append(below)
        candidate.way = "as rehearsed"
        if candidate.plan.variant:
            self.orders.append(candidate.plan.variant)
            return candidate.plan.modelled_peak + self.takes_in_order[candidate.plan.variant]
        more = self.takes(candidate.plan.margin)
        if more is not None:
            more = self.takes_under(candidate.plan.budget, more)
        return None if more is None else candidate.plan.modelled_peak + more

    def vary(self, candidate: Made, order: int) -> Made | None:
        if order not in self.takes_in_order:
            return None
        return Made(replace(candidate.plan, variant=order), candidate.again)

    def improve(self, candidate: Made) -> Iterator[Made]:
        yield from self.better


def policy(takes: Callable[[int], int | None], budget: int = BUDGET) -> tuple[Rehearsal, Policy[Made]]:
    stage = Rehearsal(takes)
    return stage, Policy(stage, Margins(budget, budget // 200 + 1), Notebook(GRAPH))


def fitted(takes: Callable[[int], int | None]) -> tuple[Rehearsal, Margins, Plan]:
    stage, chosen = policy(takes)
    made = chosen.choose()
    return stage, chosen.margins, made.plan


def test_a_first_plan_leaves_a_little_room() -> None:
    stage, _, plan = fitted(lambda margin: 10)
    assert stage.margins == [BUDGET // SPARE] == [plan.margin]
    assert plan.rehearsed_peak == plan.modelled_peak + 10 == plan.predicted_peak


def test_a_plan_that_passes_the_budget_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stage, margins, plan = fitted(lambda margin: 2500)
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
    _, _, plan = fitted(lambda margin: 5000 if margin < 1500 else 1000)
    costly = make_plan(GRAPH, Options(gap=0.05), Allowance(BUDGET, margin=5000), Plan)
    assert 1000 <= plan.margin < 4000
    assert plan.schedule.cost < costly.schedule.cost


def test_other_orders_are_tried_before_more_room_is_left() -> None:
    stage, chosen = policy(lambda margin: 1000)
    stage.takes_in_order = {1: 980, 2: 100, 3: 0}
    plan = chosen.choose().plan
    assert (plan.margin, plan.variant) == (BUDGET // SPARE, 2)
    assert stage.margins == [BUDGET // SPARE]
    assert stage.orders == [1, 2], "until one keeps to the budget"
    next_stage, again = policy(lambda margin: pytest.fail("was tried out again"))
    next_stage.takes_in_order = stage.takes_in_order
    known = again.choose()
    assert not next_stage.rehearsed
    assert (known.plan.variant, known.again, known.plan.rehearsed_peak) == (2, False, plan.rehearsed_peak)


def test_an_order_that_is_no_other_does_not_end_the_trying() -> None:
    stage, chosen = policy(lambda margin: 1000)
    stage.takes_in_order = {2: 980, 5: 0}
    plan = chosen.choose().plan
    assert (plan.margin, plan.variant) == (BUDGET // SPARE, 5)
    assert stage.orders == [2, 5]


def test_where_no_order_will_do_the_best_of_them_says_how_much_more_room() -> None:
    stage, chosen = policy(lambda margin: 1400 if margin < 1000 else 0)
    stage.takes_in_order = dict.fromkeys(range(1, 20), 1300) | {4: 1000}
    chosen.choose()
    assert stage.orders[:6] == [1, 2, 3, 4, 5, 6]
    assert 1000 <= stage.margins[1] < 1300


def test_another_order_only_has_to_be_seen_to_take_less() -> None:
    stage, chosen = policy(lambda margin: 1000)
    stage.takes_in_order = {1: 990, 2: 995, 3: 0}
    peak = chosen.choose().plan.modelled_peak
    assert stage.below == [None, peak + 1000, peak + 990, peak + 990]


def test_where_the_first_orders_take_the_very_same_more_room_is_left() -> None:
    stage, chosen = policy(lambda margin: 1200 if margin < 800 else 0)
    stage.takes_in_order = {1: 1200, 2: 1200, 3: 0}
    plan = chosen.choose().plan
    assert (plan.variant, stage.orders) == (0, [1, 2])
    assert plan.margin >= 800


def test_where_the_order_makes_a_difference_more_orders_are_tried() -> None:
    stage, chosen = policy(lambda margin: 1200 if margin < 800 else 0)
    stage.takes_in_order = {1: 1200, 2: 1201, 3: 0}
    assert chosen.choose().plan.variant == 3


def test_no_budget_is_refused_because_the_first_orders_took_the_very_same() -> None:
    stage, chosen = policy(lambda margin: margin + 1100)
    stage.takes_in_order = {1: BUDGET // SPARE + 1100, 2: BUDGET // SPARE + 1100, 3: 100}
    plan = chosen.choose().plan
    assert plan.rehearsed_peak is not None
    assert plan.rehearsed_peak <= BUDGET
    assert (plan.variant, stage.orders[:2], stage.orders[-1]) == (3, [1, 2], 3)


def test_when_it_is_late_more_room_is_left_at_once() -> None:
    stage, chosen = policy(lambda margin: 1200 if margin < 800 else 0)
    stage.takes_in_order = {1: 1100, 2: 1100, 3: 0}
    asked = iter([False, True])
    plan = chosen.choose(lambda: True, lambda: next(asked, True)).plan
    assert (plan.variant, stage.orders) == (0, [1])
    assert plan.margin >= 800


def test_no_budget_is_refused_because_it_was_too_late_to_try_other_orders() -> None:
    stage, chosen = policy(lambda margin: margin + 1100)
    stage.takes_in_order = {1: 1100, 2: 100}
    plan = chosen.choose(lambda: True, lambda: True).plan
    assert plan.rehearsed_peak is not None
    assert plan.rehearsed_peak <= BUDGET
    assert (plan.variant, stage.orders) == (2, [1, 2])
    assert len(set(stage.margins)) > 1, "more room was asked for first"


def test_no_other_order_is_tried_far_above_the_budget() -> None:
    stage, chosen = policy(lambda margin: 2500 if margin < 2000 else 0)
    stage.takes_in_order = {1: 0}
    chosen.choose()
    assert stage.rehearsed[1] > stage.rehearsed[0], "a plan with more room at once"


def test_a_plan_just_within_the_budget_is_taken_where_there_is_no_more_room() -> None:
    least = checkmate.minimum_budget(GRAPH).smallest_found
    _, _, plan = fitted(lambda margin: BUDGET - make(margin).modelled_peak)
    assert plan.rehearsed_peak == BUDGET
    assert plan.budget - plan.margin >= least


def make(margin: int, budget: int = BUDGET) -> Plan:
    return make_plan(GRAPH, Options(gap=0.05, time_limit=2.0), Allowance(budget, margin=margin), Plan)


def test_a_step_that_never_fits_is_an_error_that_names_what_was_tried_out() -> None:
    """All plans pass the budget; under the one that is named, the one that took least is taken at once."""
    stage, chosen = policy(lambda margin: BUDGET)
    with pytest.raises(checkmate.InfeasibleBudget, match="not met by any plan that was tried out") as caught:
        chosen.choose()
    least = checkmate.minimum_budget(GRAPH)
    assert caught.value.proven_minimum == least.proven_minimum < BUDGET, "what plans took beyond the model is no proof"
    named = caught.value.smallest_found
    assert named > BUDGET
    tried = {(made.plan.schedule.cost, made.again) for made in stage.made}
    stage, chosen = policy(lambda margin: pytest.fail("was tried out again"), named)
    made = chosen.choose()
    assert len(stage.margins) == 1
    assert (made.plan.schedule.cost, made.again) in tried, "made as it was, or another schedule might be found"
    assert made.way == "as rehearsed"
    assert made.plan.rehearsed_peak is not None
    assert made.plan.rehearsed_peak <= named - named // 200


@pytest.mark.parametrize("more", [0, 3000])
def test_below_the_minimum_the_budget_that_is_named_was_tried_out(more: int) -> None:
    least = checkmate.minimum_budget(GRAPH)
    stage, chosen = policy(lambda margin: more, least.proven_minimum - 500)
    with pytest.raises(checkmate.InfeasibleBudget, match="is below the proven minimum") as caught:
        chosen.choose()
    assert caught.value.proven_minimum == least.proven_minimum
    named = caught.value.smallest_found
    assert stage.budgets.count(least.proven_minimum - 500) == 1, "a search that names the least budget is made once"
    assert 1 <= len(stage.rehearsed) <= 2
    assert 1.02 * (least.smallest_found + more) <= named, "a real step may take more than one that was tried out"
    assert named <= 1.04 * (least.smallest_found + more)
    _, chosen = policy(lambda margin: pytest.fail("was tried out again"), named)
    assert chosen.choose().plan.rehearsed_peak == least.smallest_found + more


def test_a_refusal_names_the_least_that_is_known() -> None:
    """Plans under this budget take half as much again, those with a little more room nothing."""
    stage, chosen = policy(lambda margin: BUDGET // 2)
    stage.takes_under = lambda budget, more: more if budget <= 5000 else 0
    chosen.margins.budget = 5000
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        chosen.choose()
    assert 5000 < caught.value.smallest_found <= 5000 * 1.15


def test_a_refusal_names_no_more_than_another_does() -> None:
    """Plans under less than 6500 take half as much again: that is far above this budget, and far below what they take."""
    stage, chosen = policy(lambda margin: BUDGET // 2)
    stage.takes_under = lambda budget, more: more if budget < 6500 else 0
    chosen.margins.budget = 5000
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        chosen.choose()
    assert 6500 < caught.value.smallest_found <= 6500 * 1.11


def test_where_the_least_budget_is_as_modelled_one_plan_is_tried_out() -> None:
    """It takes all of the budget; with more room it would ask for more."""
    least = checkmate.minimum_budget(GRAPH)
    stage, chosen = policy(lambda margin: 0, least.proven_minimum - 500)
    with pytest.raises(checkmate.InfeasibleBudget):
        chosen.choose()
    assert len(stage.rehearsed) == 1


def test_the_next_process_gives_the_same_answer() -> None:
    _, chosen = policy(lambda margin: BUDGET)
    with pytest.raises(checkmate.InfeasibleBudget) as first:
        chosen.choose()
    _, chosen = policy(lambda margin: 0)  # had it been tried out now, it would do
    with pytest.raises(checkmate.InfeasibleBudget) as second:
        chosen.choose()
    assert str(second.value) == str(first.value)


def test_no_budget_is_refused_above_one_that_was_kept_to() -> None:
    """What plans take beyond the model is a matter of chance: here those for the larger budget happen to take too much."""
    kept = policy(lambda margin: 0, BUDGET - 700)[1].choose().plan
    _, chosen = policy(lambda margin: BUDGET)
    plan = chosen.choose().plan
    assert plan.schedule.steps == kept.schedule.steps
    assert (plan.budget, plan.rehearsed_peak) == (BUDGET, kept.rehearsed_peak)
    next_stage, again = policy(lambda margin: pytest.fail("was tried out again"))
    assert again.choose().plan.schedule.steps == kept.schedule.steps
    assert not next_stage.rehearsed


def test_a_refusal_is_forgotten_where_less_was_kept_to_since() -> None:
    _, chosen = policy(lambda margin: BUDGET)
    with pytest.raises(checkmate.InfeasibleBudget):
        chosen.choose()
    kept = policy(lambda margin: 0, BUDGET - 700)[1].choose().plan
    stage, chosen = policy(lambda margin: pytest.fail("was tried out"))
    assert chosen.choose().plan.schedule.steps == kept.schedule.steps
    assert not stage.rehearsed


def test_a_plan_gets_another_chance_before_a_budget_is_refused() -> None:
    seen: list[int] = []

    def takes(margin: int) -> int:
        seen.append(margin)
        return 4000 if seen.count(margin) == 1 else 0

    _, _, plan = fitted(takes)
    assert plan.rehearsed_peak is not None
    assert plan.rehearsed_peak <= BUDGET


def test_margins_of_another_shape_are_no_reason_to_refuse() -> None:
    stage, chosen = policy(lambda margin: 0)
    chosen.margins.margin = BUDGET - 1000
    with pytest.raises(checkmate.InfeasibleBudget):
        make(BUDGET - 1000)
    assert chosen.choose().plan.margin < BUDGET // 100
    assert stage.margins[:2] == [BUDGET - 1000, 0]


def test_a_step_that_takes_too_much_gets_another_plan() -> None:
    stage, chosen = policy(lambda margin: 10)
    first = chosen.choose()
    second = chosen.mend(first, BUDGET + 300)
    assert second.plan.margin >= first.plan.margin + 300
    assert not chosen.settled
    assert len(stage.rehearsed) == 2
    _, again = policy(lambda margin: pytest.fail("was tried out again"))
    assert again.choose().plan.margin == second.plan.margin, "the next process begins where this one ended"


def test_training_begins_when_it_has_waited_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first plan that keeps to the budget leaves more room than is needed; those between are tried later, one at a time."""

    def takes(margin: int) -> int:
        return 5000 if margin < 1500 else 1000

    _, margins, whole = fitted(takes)
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "another"))
    stage, chosen = policy(takes)
    first = chosen.choose(lambda: True)
    assert first.plan.rehearsed_peak is not None
    assert first.plan.rehearsed_peak <= BUDGET, "however long that takes"
    assert stage.rehearsed[-1] == first.plan.margin > whole.margin
    assert margins.failures == chosen.margins.failures > 0
    known = Notebook(GRAPH).recall(BUDGET)
    assert isinstance(known, Outcome)
    assert known.margin == first.plan.margin, "enough for the next process, should this one end now"
    plans = [first]
    while (better := chosen.go_on()) is not None:
        plans.append(better)
        assert len(stage.rehearsed) <= margins.failures + len(plans), "one at a time"
    assert plans[-1].plan.schedule.steps == whole.schedule.steps
    known = Notebook(GRAPH).recall(BUDGET)
    assert isinstance(known, Outcome)
    assert known.margin == whole.margin
    assert chosen.go_on() is None


def test_quicker_ways_to_run_are_tried_between_steps_too() -> None:
    stage, chosen = policy(lambda margin: 10)
    stage.better = [Made(make(BUDGET // SPARE), False, way) for way in ("one", "two")]
    for made in stage.better:
        made.plan.rehearsed_peak = made.plan.modelled_peak
    waited = iter([False, True])
    assert chosen.choose(lambda: next(waited)) is stage.better[0]
    assert chosen.go_on() is stage.better[1]
    assert chosen.go_on() is None
    known = Notebook(GRAPH).recall(BUDGET)
    assert isinstance(known, Outcome)
    assert known.way == "two"


def test_a_plan_that_takes_too_much_ends_the_trying_out() -> None:
    _, chosen = policy(lambda margin: 5000 if margin < 1500 else 1000)
    first = chosen.choose(lambda: True)
    second = chosen.mend(first, BUDGET + 300, lambda: True)
    assert second.plan.margin > first.plan.margin
    better = chosen.go_on()
    assert better is None or better.plan.margin > first.plan.margin
    stage, chosen = policy(lambda margin: 10, BUDGET + 1)
    stage.better = [first, second]
    chosen.choose(lambda: True)
    assert chosen.go_on() is first
    chosen.stop()
    assert chosen.go_on() is None


def test_training_goes_on_under_the_best_plan_that_is_known() -> None:
    budget = checkmate.minimum_budget(GRAPH).smallest_found + 1100
    _, chosen = policy(lambda margin: 10, budget)
    first = chosen.choose()
    second = chosen.mend(first, budget + 500)
    assert second is not first
    made = second
    for _ in range(20):
        if chosen.settled:
            break
        made = chosen.mend(made, 3 * budget)  # every other plan turns out worse
    assert made is first


def test_what_cannot_be_tried_out_is_taken_as_it_is() -> None:
    _, _, plan = fitted(lambda margin: None)
    assert plan.rehearsed_peak is None
    assert plan.predicted_peak == plan.modelled_peak
    assert Notebook(GRAPH).recall(BUDGET) is None


def test_what_an_earlier_process_found_is_not_tried_again() -> None:
    _, _, plan = fitted(lambda margin: 2500)
    stage, chosen = policy(lambda margin: pytest.fail("was tried out"))
    again = chosen.choose()
    assert stage.margins == [plan.margin]
    assert again.plan.schedule.steps == plan.schedule.steps
    assert again.plan.rehearsed_peak == plan.rehearsed_peak
    assert again.way == "as rehearsed"


def test_what_was_found_about_another_schedule_is_tried_again() -> None:
    _, _, plan = fitted(lambda margin: 10)
    Notebook(GRAPH).remember(BUDGET, Outcome(plan.margin, False, plan.schedule.cost + 1, plan.simulated_peak, 5))
    stage, _, again = fitted(lambda margin: 20)
    assert stage.rehearsed == [plan.margin]
    assert again.rehearsed_peak == again.modelled_peak + 20


def test_an_outcome_is_found_again_for_the_same_problem() -> None:
    outcome = Outcome(1, True, 2.0, 20, 15, [0, None])
    notebook = Notebook(GRAPH, {"a": 1})
    notebook.remember(100, outcome)
    assert notebook.recall(100) == outcome
    assert Notebook(GRAPH, {"a": 2}).recall(100) is None
    assert notebook.recall(101) is None
    named = Graph([replace(op, layer="net") for op in GRAPH.ops], GRAPH.values, GRAPH.fixed_memory, GRAPH.name)
    assert Notebook(named, {"a": 1}).recall(100) == outcome, "where ops come from is no other problem"
    notebook.remember(100, Outcome(100, True, 2.0, 20, 15))
    assert notebook.recall(100) is None, "a margin of the whole budget leaves nothing"
    notebook.remember(100, Refusal(90, 120))
    assert notebook.recall(100) == Refusal(90, 120)
    notebook.remember(100, Refusal(90, 99))
    assert notebook.recall(100) is None, "what is named has to be more than what was refused"
