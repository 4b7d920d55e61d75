"""What was found when a step was tried out under a plan, kept for later processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from ..graph import Graph
from ..solvers.smallest_budget import least_peak_found
from ..units import format_bytes
from ..version import __version__
from .cache_files import load, store
from .plan import Plan

_KIND = "rehearsal"


@dataclass(frozen=True)
class Outcome:
    """What trying a plan out has shown.

    Attributes:
        margin: bytes that the plan leaves free. again: it was made with less time, after others.
        cost, peak: of its schedule, without what is left free, to know it again. rehearsed_peak: bytes.
        way: how it runs, see `Rehearsable`. variant: as in `Plan`.
    """

    margin: int
    again: bool
    cost: float
    peak: int
    rehearsed_peak: int
    way: Any = None
    variant: int = 0

    @classmethod
    def of(cls, plan: Plan, again: bool, way: Any = None) -> Outcome:
        """What is known of a plan that was tried out."""
        assert plan.rehearsed_peak is not None
        return cls(plan.margin, again, plan.schedule.cost, plan.simulated_peak, plan.rehearsed_peak, way, plan.variant)

    def with_margin(self, margin: int) -> Outcome:
        """The same plan under a larger budget."""
        return replace(self, margin=margin)

    def is_of(self, plan: Plan) -> bool:
        """It is about this plan's schedule."""
        return (self.cost, self.peak, self.variant) == (plan.schedule.cost, plan.simulated_peak, plan.variant)


@dataclass(frozen=True)
class Refusal:
    """No plan kept to a budget.

    Attributes:
        proven: no schedule exists below so many bytes. named: bytes of a budget that will do.
    """

    proven: int
    named: int


@dataclass(frozen=True)
class Notebook:
    """What was found about one step.

    Attributes:
        graph: the step. about: whatever else matters besides the budget. reserved: bytes of every budget that lie outside of the step.
        order: of first computations, as in `checkmate.solve`.
    """

    graph: Graph
    about: Mapping[str, Any] = field(default_factory=dict)
    reserved: int = 0
    order: str = "given"

    def proven_minimum(self) -> int:
        """No schedule exists below so many bytes, whatever the budget that was asked for."""
        return least_peak_found(self.graph, self.order)[1] + self.reserved

    @property
    def taken(self) -> str:
        """Words, for errors."""
        if not self.reserved:
            return ""
        return f", of which {format_bytes(self.reserved)} are taken by what is reserved or lives outside the step,"

    def recall(self, budget: int) -> Outcome | Refusal | None:
        """What an earlier process found under this budget; None if there is nothing."""
        data = load(_KIND, self._key(budget))
        try:
            found = Refusal(**data) if "named" in data else Outcome(**data)
            whole = found.named > budget if isinstance(found, Refusal) else 0 <= found.margin < budget
        except TypeError:
            return None
        return found if whole else None

    def remember(self, budget: int, found: Outcome | Refusal) -> None:
        """Keep something for `recall`."""
        store(_KIND, self._key(budget), asdict(found))
        if isinstance(found, Outcome) and budget not in (kept := self._kept()):
            store(_KIND, self._key(None), sorted([*kept, budget]))

    def under_less(self, budget: int) -> Outcome | None:
        """What was found under the largest budget below this one that a plan kept to, as an outcome of the same plan under this one."""
        for less in reversed(self._kept()):
            if less < budget and isinstance(found := self.recall(less), Outcome):
                return found.with_margin(found.margin + budget - less)
        return None

    def _kept(self) -> list[int]:
        """Budgets that plans kept to, the least first."""
        found = load(_KIND, self._key(None))
        return found if isinstance(found, list) else []

    def _key(self, budget: int | None) -> str:
        return f"{budget} {self._step}"

    @cached_property
    def _step(self) -> str:
        return json.dumps([__version__, self.graph.to_dict(names=False), dict(self.about)], sort_keys=True, default=str)
