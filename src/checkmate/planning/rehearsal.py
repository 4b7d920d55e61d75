"""Which plan a step runs under: plans are tried out before anything is trained, until one keeps to the budget with no more room left
free than is needed; a plan that takes more in a real step after all is mended."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

from ..errors import InfeasibleBudget
from ..units import format_bytes
from .plan import Plan
from .rehearsal_cache import Notebook, Outcome, Refusal
from .replan import Margins, note_excess

#: A first plan leaves this part of the budget free, for what frameworks take beyond what is asked for; and so does the plan for a budget
#: that an error names.
SPARE = 33

#: By this part of the budget the peak of a real step may well pass that of a rehearsal.
_NOISE = 200

#: Where there is no more room to be had, so many plans with less room are tried.
_MORE_PLANS = 4

#: What a plan takes by chance it may not take with its computations in another order: so many are tried where a plan passes the budget by no
#: more than such a part of it. For plans with three margins each of the small U-Net and transformer in `benchmarks/tf_models.py`, trials of
#: the best of six orders took up to 7% less than those of the first, 2% at the median.
_ORDERS, _NEAR = 6, 10

#: No more than so many where they take the very bytes that the plan took at first: then it is hardly for the order that it takes too much. Of
#: eight plans of two U-Nets, a BiLSTM and a vision transformer that passed the budget, three began so, and none of their other orders took
#: less; three others kept to it in another order, the first to the fourth.
_ALIKE = 2

#: Where the smallest plan takes more than is modelled, one with this part more is tried; nearer than this the budget that is named need not be.
_A_LITTLE = 16

#: So many plans are tried between a budget that is refused and what a plan took for it.
_BETWEEN = 3

#: Plans with less room are tried where they may be cheaper by more than this. Two processes of `benchmarks/tf_ways.py` with each, in
#: turn: against 1.05, steps of the small U-Net took 0.93 of the time at 116 MiB, 0.98 at 151 and 0.99 at 100.
_CHEAPER = 1.005

_LOG = logging.getLogger("checkmate")


class Rehearsable(Protocol):
    """A plan that is ready to run.

    Attributes:
        way: how it runs as far as that was found by trying it out, as JSON data.
    """

    way: Any

    @property
    def plan(self) -> Plan:
        """The plan."""


Candidate = TypeVar("Candidate", bound=Rehearsable)


def _never() -> bool:
    return False


class Rehearser(Protocol[Candidate]):
    """Plans a step and tries the plans out."""

    def make(self, budget: int, margin: int, *, again: bool) -> Candidate:
        """Plan with so many bytes of the budget left free; `again`: nearly the same problem was solved before.

        Raises:
            InfeasibleBudget: that cannot be had.
        """

    def rehearse(self, candidate: Candidate, *, whole: bool = False, below: int | None = None) -> int | None:
        """Bytes that the step takes at its peak, everything included; None if that cannot be found without training.

        Args:
            whole: go on where the plan's budget is passed, and look for nothing but the peak.
            below: once it is seen to take so many bytes, it need not be found out how many it takes.
        """

    def vary(self, candidate: Candidate, order: int) -> Candidate | None:
        """The same schedule with its computations in another order, the same one for the same number from 1 on; None if
        that is no other order, or takes more by what is modelled."""

    def improve(self, candidate: Candidate) -> Iterator[Candidate]:
        """Try quicker plans out; after each of them the best one that was seen to keep to the budget, which may be the same one."""


class Policy(Generic[Candidate]):
    """Finds the plan of one step, and another one when it takes too much.

    Args:
        margins: with the budget, and what is known of the room that plans have to leave. notebook: what earlier processes found.

    Attributes:
        settled: no better plan than the present one is known.
    """

    def __init__(self, rehearser: Rehearser[Candidate], margins: Margins, notebook: Notebook):
        self.margins = margins
        self.settled = False
        self._rehearser = rehearser
        self._notebook = notebook
        self._first: Candidate | None = None  # the plan that was given the whole time limit
        self._tried: list[Candidate] = []  # plans that passed the budget when they were tried out
        self._passed: list[tuple[int, Candidate]] = []  # bytes of real steps above the budget, and their plans
        self._search: Iterator[Candidate | None] | None = None  # what there was no time for

    def choose(self, enough: Callable[[], bool] = _never, late: Callable[[], bool] = _never) -> Candidate:
        """The plan of the first step.

        What an earlier process found is taken as it is, so that every process gives the same answer; but a budget is never refused where
        a smaller one was kept to.

        Args:
            enough: asked after every plan that was tried out; once it says so, the best plan so far is taken as soon as there is one that
                keeps to the budget, and `go_on` does the rest.
            late: once it says so and none keeps to it yet, plans are tried in other orders only if there is no more room to leave.

        Raises:
            InfeasibleBudget: no plan keeps to the budget. A plan for the budget that is named was tried out.
        """
        known = self._notebook.recall(self.margins.budget)
        if isinstance(known, Refusal):
            if (found := self._with_less()) is not None:
                return found
            raise self._refusal(known)
        margins, inherited = self.margins, self.margins.margin
        if known is not None:
            margins.margin, margins.failures = known.margin, int(known.again)
            with suppress(InfeasibleBudget):
                return self._best_of(self._that_fits(known, late), enough)
            margins.failures = 0
            margins.tried.clear()
        margins.margin = max(inherited, margins.budget // SPARE)
        try:
            return self._best_of(self._that_fits(None, late), enough)
        except InfeasibleBudget as error:
            best = min(self._tried, key=_rehearsed, default=None)
            if best is not None:
                # What an allocator does differs from time to time: the best plan gets another chance before the budget is refused.
                best.plan.rehearsed_peak = self._rehearser.rehearse(best, whole=True)
                if _fits(best):
                    self._keep(best)
                    return best
            if (found := self._with_less()) is not None:
                return found
            refusal = self._refused(error, best)
            self._notebook.remember(self.margins.budget, refusal)
            raise self._refusal(refusal) from None

    def go_on(self) -> Candidate | None:
        """Try out one more plan of those that there was no time for: the best one now; None if there are no more."""
        if self._search is None:
            return None
        with suppress(InfeasibleBudget):
            for found in self._search:
                if found is not None:
                    return found
        self._search = None
        return None

    def stop(self) -> None:
        """Try nothing more out: a step took too much under a plan that was tried out."""
        self._search = None

    def mend(
        self, candidate: Candidate, peak: int, enough: Callable[[], bool] = _never, late: Callable[[], bool] = _never
    ) -> Candidate:
        """Another plan after a real step took so many bytes, more than its budget; the best one known if there is no better one.

        Args:
            enough, late: as in `choose`.
        """
        self._search = None
        note_excess(self.margins, candidate.plan, peak)
        self._passed.append((peak, candidate))
        try:
            return self._best_of(self._that_fits(None, late), enough)
        except InfeasibleBudget:
            self.settled = True
            return min(self._passed, key=lambda seen: seen[0])[1]

    def _best_of(self, search: Iterator[Candidate | None], enough: Callable[[], bool]) -> Candidate:
        """The last plan that a search comes to, or the best one so far when that is enough."""
        best: Candidate | None = None
        for found in search:
            best = best if found is None else found
            if best is not None and enough():
                self._search = search
                self._keep(best)
                break
        assert best is not None
        return best

    def _that_fits(self, known: Outcome | None, late: Callable[[], bool]) -> Iterator[Candidate | None]:
        """Plan and rehearse until a plan keeps to the budget; where nothing can be rehearsed the first plan is taken.

        After every plan that was tried out comes the best one of those that keep to the budget.
        """
        margins, rehearser = self.margins, self._rehearser
        candidate: Candidate | None = None  # the last plan that is within the budget, if only just
        tries, cheapest = _MORE_PLANS, math.inf  # `cheapest` of the plans that passed the budget
        put_off: list[Candidate] = []  # plans that were not tried in all orders
        while True:
            try:
                made = self._made()
            except InfeasibleBudget as error:  # no more room to be had
                if candidate is None:
                    for best in chain.from_iterable(map(self._in_orders, put_off)):
                        candidate = best if _rehearsed(best) <= margins.budget else candidate
                        if _fits(best):
                            break
                        yield candidate
                    put_off.clear()
                if candidate is not None:
                    break
                if not tries or not margins.no_room(error.smallest_found):
                    raise
                tries -= 1
                continue
            if known is not None and (same := self._known(made, known)) is not None:
                yield same
                return
            best = made
            for tried in self._in_orders(made, put_off, late):
                best = tried
                if best.plan.rehearsed_peak is None:
                    yield best
                    return
                candidate = best if best.plan.rehearsed_peak <= margins.budget else None
                if not _fits(best):
                    yield candidate
            if _fits(best):
                break
            plan = best.plan
            note_excess(margins, plan, _rehearsed(best))
            self._tried.append(best)
            cheapest = min(cheapest, plan.schedule.cost)
            if candidate is None and margins.failures == 1:
                # Not a warning: nothing was trained above the budget, and nothing will be.
                _LOG.warning("a rehearsal of the step %s: it is planned again with more room", plan.excess_of(_rehearsed(best)))
        assert candidate is not None
        best = candidate
        yield best
        for other in self._with_less_room(candidate, cheapest):
            yield (best := other)
        for other in rehearser.improve(best):
            yield (best := other)
        self._keep(best)

    def _in_orders(
        self, made: Candidate, put_off: list[Candidate] | None = None, late: Callable[[], bool] = _never
    ) -> Iterator[Candidate]:
        """Try a plan out, and in other orders until it keeps to the budget; after each trial the one that took least so far.

        Args:
            put_off: the plan comes here if not all orders are tried, because it is late, or because the first ones make no difference.
                None: all are tried.
        """
        best = made
        first = best.plan.rehearsed_peak = self._rehearser.rehearse(best)
        yield best
        alike = 0
        for order in range(1, _ORDERS + 1):
            if best.plan.rehearsed_peak is None or _fits(best) or _rehearsed(best) > best.plan.budget + best.plan.budget // _NEAR:
                return
            if put_off is not None and (late() or alike == order - 1 == _ALIKE):
                put_off.append(made)
                return
            other = self._rehearser.vary(made, order)
            if other is None:
                continue
            other.plan.rehearsed_peak = self._rehearser.rehearse(other, below=best.plan.rehearsed_peak)
            alike += other.plan.rehearsed_peak == first
            if other.plan.rehearsed_peak is not None and _rehearsed(other) < _rehearsed(best):
                best = other
            yield best

    def _known(self, made: Candidate, known: Outcome) -> Candidate | None:
        """The plan that an earlier process found, made again; None if this is another one."""
        same = self._rehearser.vary(made, known.variant) if known.variant else made
        if same is None or not known.is_of(same.plan):
            return None
        same.plan.rehearsed_peak, same.way = known.rehearsed_peak, known.way
        return same

    def _with_less(self) -> Candidate | None:
        """The plan that was seen to keep to a smaller budget: it keeps to this one. None if none is known."""
        known = self._notebook.under_less(self.margins.budget)
        if known is None:
            return None
        self.margins.margin, self.margins.failures = known.margin, int(known.again)
        with suppress(InfeasibleBudget):
            found = self._known(self._made(), known)
            if found is not None:
                self._keep(found)
            return found
        return None

    def _keep(self, candidate: Candidate) -> None:
        self.margins.margin = candidate.plan.margin
        if candidate.plan.rehearsed_peak is not None:
            self._notebook.remember(self.margins.budget, self._outcome(candidate))

    def _outcome(self, candidate: Candidate) -> Outcome:
        first = None if self._first is None else self._first.plan
        plan = candidate.plan
        again = first is None or (plan.allowance, plan.schedule.cost) != (first.allowance, first.schedule.cost)
        return Outcome.of(plan, again, candidate.way)

    def _made(self) -> Candidate:
        margins = self.margins
        if margins.failures:
            return self._rehearser.make(margins.budget, margins.margin, again=True)
        try:
            self._first = self._rehearser.make(margins.budget, margins.margin, again=False)
        except InfeasibleBudget as error:
            least = error.smallest_found - margins.margin
            if not margins.margin or margins.budget < error.proven_minimum <= least:
                # Nothing left free would not help either: the search that named the least budget would only be made once more.
                raise InfeasibleBudget(margins.budget, error.proven_minimum, least) from None
            margins.margin = 0  # nobody knows yet whether it is needed
            self._first = self._rehearser.make(margins.budget, 0, again=False)
        return self._first

    def _with_less_room(self, kept: Candidate, cheapest: float) -> Iterator[Candidate]:
        """Where plans passed the budget, the one that did not may leave more room than is needed: try what lies between.

        After every plan that was tried out comes the best one.
        """
        rehearser, margins = self._rehearser, self.margins
        for _ in range(_MORE_PLANS):
            margin = margins.less(kept.plan.margin)
            if kept.plan.schedule.cost <= _CHEAPER * cheapest or margin is None:
                break
            try:
                other = rehearser.make(margins.budget, margin, again=True)
            except InfeasibleBudget:  # for want of time
                break
            if other.plan.schedule.cost < kept.plan.schedule.cost:
                for tried in self._in_orders(other, []):
                    other = tried
                    if not _fits(other):
                        yield kept
            if _fits(other):
                kept = other
            else:
                margins.tried.append(margin)
            yield kept

    def _refused(self, error: InfeasibleBudget, best: Candidate | None) -> Refusal:
        """A budget for which there is a plan that was tried out, noted so that it is taken at once when it is asked for.

        Args:
            best: of the plans that passed the budget.
        """
        budget, proven = self.margins.budget, error.proven_minimum
        if proven <= budget + 1:  # with a budget in view a search proves no more than that it cannot be met
            proven = max(proven, self._notebook.proven_minimum())
        # What plans were seen to take beyond the model is of no concern in `error` where there are none.
        best = self._smallest(error.smallest_found) if best is None else self._that_asks_for_less(best)
        if best is None:
            return Refusal(proven, error.smallest_found)
        plan, peak = best.plan, best.plan.rehearsed_peak
        if peak is None:
            return Refusal(proven, plan.budget)
        # Nobody knows how real steps under it will turn out, and it is a promise: it leaves as much free as a first plan does.
        named = max(plan.budget, peak + peak // (SPARE - 1) + 1)
        self._notebook.remember(named, self._outcome(best).with_margin(plan.margin + named - plan.budget))
        return Refusal(proven, named)

    def _that_asks_for_less(self, best: Candidate) -> Candidate:
        """With hardly any room plans can take much more than is modelled; with a little more room less may do."""
        low = self.margins.budget
        for _ in range(_BETWEEN):
            if _asks_for(best) <= low + low // _A_LITTLE:
                break
            middle = (low + _asks_for(best)) // 2
            made = self._tried_out(middle)
            if made is not None and _asks_for(made) < _asks_for(best):
                best = made
            else:
                low = middle
        return best

    def _smallest(self, budget: int) -> Candidate | None:
        """Of plans for about the least budget that was found, the one that takes least when it is tried out."""
        found: list[Candidate] = []
        for more in (0, budget // _A_LITTLE):
            made = self._tried_out(budget + more)
            if made is None:
                continue
            found.append(made)
            if made.plan.rehearsed_peak is None or _asks_for(made) <= budget + budget // _A_LITTLE:
                break  # one with more room asks for no less
        return min(found, key=_asks_for, default=None)

    def _tried_out(self, budget: int) -> Candidate | None:
        """A plan for this budget or, where that is too small, a little more."""
        made = self._with_budget(budget)
        if made is not None:
            made.plan.rehearsed_peak = self._rehearser.rehearse(made, whole=True)
        return made

    def _with_budget(self, budget: int) -> Candidate | None:
        for _ in range(_MORE_PLANS):
            try:
                return self._rehearser.make(budget, 0, again=True)
            except InfeasibleBudget as error:  # for want of time
                budget = max(error.smallest_found, budget + budget // 100)
        return None

    def _refusal(self, refusal: Refusal) -> InfeasibleBudget:
        budget, proven, named = self.margins.budget, refusal.proven, refusal.named
        why = "is below the proven minimum" if budget < proven else "was not met by any plan that was tried out"
        message = (
            f"budget {format_bytes(budget)} ({budget} bytes){self._notebook.taken} {why}; no schedule exists below "
            f"{format_bytes(proven)} ({proven} bytes); ask for at least {format_bytes(named)} ({named} bytes)"
        )
        return InfeasibleBudget(budget, proven, named, message)


def _fits(candidate: Rehearsable) -> bool:
    """A real step will keep to the budget, as far as its rehearsal can tell."""
    peak, budget = candidate.plan.rehearsed_peak, candidate.plan.budget
    return peak is not None and peak <= budget - budget // _NOISE


def _rehearsed(candidate: Rehearsable) -> int:
    return candidate.plan.rehearsed_peak or 0


def _asks_for(candidate: Rehearsable) -> int:
    """Bytes of a budget that will do, about."""
    return max(_rehearsed(candidate), candidate.plan.budget)
