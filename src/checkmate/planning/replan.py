"""Plan again after a measured excess: how much more of the budget the next plan leaves free.

How much a step takes beyond what is modelled depends on the schedule, and where a framework's memory pool is part of it, on chance.
A plan that passed the budget by so many bytes therefore says something about the next, but not everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from .plan import Plan

#: So many plans may fail before the room that they leave is doubled each time.
_PATIENCE = 3


@dataclass
class Margins:
    """The margin of the next plan, from what the plans before have shown.

    Attributes:
        budget: bytes, everything included.
        unit: bytes; margins grow by whole units, so that the next process, which measures a little less or more, meets the same
            problem and finds its plan in the cache. 1 where the same step always takes the same.
        margin: bytes that the next plan is to leave free.
        failures: plans that passed the budget so far.
        tried: margins whose plans passed the budget, and those that no schedule can leave.
    """

    budget: int
    unit: int = 1
    margin: int = 0
    failures: int = 0
    tried: list[int] = field(default_factory=list)

    def passed(self, margin: int, predicted: int, peak: int) -> None:
        """A plan passed the budget: the next one leaves more room.

        Args:
            margin: of that plan, in bytes. predicted, peak: bytes that it was to take, and that it took.
        """
        self.failures += 1
        self.tried.append(margin)
        room = -(-(peak - predicted) // self.unit) * self.unit
        # Where that is not enough time and again, ask for much more, so that few steps pass the budget.
        self.margin = max(room, (2 if self.failures > _PATIENCE else 1) * self.margin + self.unit)

    def no_room(self, smallest_found: int) -> bool:
        """No schedule leaves that much free: go back to a margin that was not tried yet. False if there is none.

        Args:
            smallest_found: bytes of a budget that would do for this margin.
        """
        most, apart = self.margin - (smallest_found - self.budget), self.budget // 100
        tried = sorted(margin for margin in self.tried if margin <= most)
        if not tried:
            return False
        if most - tried[-1] > apart:
            self.margin = most
            return True
        gap, low = max(((high - low, low) for low, high in pairwise(tried)), default=(0, 0))
        if gap > 2 * apart:
            self.margin = low + gap // 2
        return gap > 2 * apart

    def less(self, margin: int) -> int | None:
        """A margin between one that kept to the budget and the next smaller one that did not; None where they are too close."""
        low = max((other for other in self.tried if other < margin), default=margin)
        return (low + margin) // 2 if margin - low > self.budget // 100 else None


def note_excess(margins: Margins, plan: Plan, peak: int) -> None:
    """A step took so many bytes under a plan, more than its budget."""
    margins.passed(plan.margin, min(plan.modelled_peak, plan.simulated_peak), peak)
