"""Try plans out before anything is trained, until one keeps to the budget with no more room left free than is needed."""

from __future__ import annotations

import logging
import math
from typing import Protocol, TypeVar

from ..errors import InfeasibleBudget
from .plan import Plan
from .rehearsal_cache import Outcome
from .replan import Margins, note_excess

#: A first plan leaves this part of the budget free, for what frameworks take beyond what is asked for.
SPARE = 33

#: By this part of the budget the peak of a real step may well pass that of a rehearsal.
_NOISE = 200

#: Where there is no more room to be had, so many plans with less room are tried.
_MORE_PLANS = 4

#: Plans with less room are tried where they may be cheaper by more than this.
_CHEAPER = 1.05

_LOG = logging.getLogger("checkmate")


class Rehearsable(Protocol):
    """A plan that is ready to run."""

    @property
    def plan(self) -> Plan:
        """How it runs."""


Candidate = TypeVar("Candidate", bound=Rehearsable)


class Rehearser(Protocol[Candidate]):
    """Plans a step and tries the plans out."""

    def make(self, margin: int, *, again: bool) -> Candidate:
        """Plan with so many bytes left free; `again`: nearly the same problem was solved before.

        Raises:
            InfeasibleBudget: that cannot be had.
        """

    def rehearse(self, candidate: Candidate) -> int | None:
        """Bytes that the step takes at its peak, everything included; None if that cannot be found without training."""


def first_margin(margins: Margins, known: Outcome | None) -> None:
    """Begin with what an earlier process found to be enough, if that is more than what is known here."""
    if known is not None and known.margin >= margins.margin:
        margins.margin, margins.failures = known.margin, known.failures
    elif not margins.failures:
        margins.margin = margins.budget // SPARE


def plan_that_fits(
    rehearser: Rehearser[Candidate], margins: Margins, known: Outcome | None, trusted_from: float
) -> tuple[Candidate, bool]:
    """Plan and rehearse until a plan keeps to the budget; where nothing can be rehearsed the first plan is taken.

    Args:
        margins: the first margin is tried first; what the plans show is noted there.
        known: what an earlier process found. trusted_from: seconds of a step from which on that is not tried again.

    Returns:
        The plan, and whether it was tried out here.

    Raises:
        InfeasibleBudget: no plan keeps to the budget.
    """
    candidate: Candidate | None = None  # the last plan that is within the budget, if only just
    tries, cheapest = _MORE_PLANS, math.inf  # `cheapest` of the plans that passed the budget
    while True:
        try:
            made = _made(rehearser, margins)
        except InfeasibleBudget as error:
            if candidate is not None:
                break  # no more room to be had
            if not tries or not margins.no_room(error.smallest_found):
                raise
            tries -= 1
            continue
        plan = made.plan
        if known is not None and known.is_of(plan.schedule) and plan.schedule.cost > trusted_from:
            plan.rehearsed_peak = known.rehearsed_peak
            return made, False
        plan.rehearsed_peak = rehearser.rehearse(made)
        if plan.rehearsed_peak is None:
            return made, False
        candidate = made if plan.rehearsed_peak <= plan.budget else None
        if within(plan, plan.rehearsed_peak):
            break
        note_excess(margins, plan, plan.rehearsed_peak)
        cheapest = min(cheapest, plan.schedule.cost)
        if candidate is None and margins.failures == 1:
            # Not a warning: nothing was trained above the budget, and nothing will be.
            _LOG.warning("a rehearsal of the step %s: it is planned again with more room", plan.excess_of(plan.rehearsed_peak))
    assert candidate is not None
    return _with_less_room(rehearser, margins, candidate, cheapest), True


def within(plan: Plan, rehearsed_peak: int) -> bool:
    """A real step will keep to the budget, as far as a rehearsal can tell."""
    return rehearsed_peak <= plan.budget - plan.budget // _NOISE


def _made(rehearser: Rehearser[Candidate], margins: Margins) -> Candidate:
    try:
        return rehearser.make(margins.margin, again=margins.failures > 0)
    except InfeasibleBudget:
        if margins.failures or not margins.margin:
            raise
        margins.margin = 0  # nobody knows yet whether it is needed
        return rehearser.make(0, again=False)


def _with_less_room(rehearser: Rehearser[Candidate], margins: Margins, kept: Candidate, cheapest: float) -> Candidate:
    """Where plans passed the budget, the one that did not may leave more room than is needed: try what lies between."""
    for _ in range(_MORE_PLANS):
        margin = margins.less(kept.plan.margin)
        if kept.plan.schedule.cost <= _CHEAPER * cheapest or margin is None:
            break
        try:
            other = rehearser.make(margin, again=True)
        except InfeasibleBudget:  # for want of time
            break
        cheaper = other.plan.schedule.cost < kept.plan.schedule.cost
        other.plan.rehearsed_peak = rehearser.rehearse(other) if cheaper else None
        if other.plan.rehearsed_peak is not None and within(other.plan, other.plan.rehearsed_peak):
            kept = other
        else:
            margins.tried.append(margin)
    return kept
