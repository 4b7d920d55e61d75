"""What was found when a step was tried out under a plan, kept for later processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..graph import Graph
from ..schedule import Schedule
from ..version import __version__
from .cache_files import load, store
from .plan import Plan

_KIND = "rehearsal"


@dataclass(frozen=True)
class Outcome:
    """What trying a plan out has shown.

    Attributes:
        margin: bytes that the plan leaves free. failures: plans that passed the budget before it was found.
        cost, peak: of its schedule, to know it again. rehearsed_peak: bytes.
    """

    margin: int
    failures: int
    cost: float
    peak: int
    rehearsed_peak: int

    @classmethod
    def of(cls, plan: Plan, failures: int) -> Outcome:
        """What is known of a plan that was tried out."""
        assert plan.rehearsed_peak is not None
        return cls(plan.margin, failures, plan.schedule.cost, plan.schedule.peak, plan.rehearsed_peak)

    def is_of(self, schedule: Schedule) -> bool:
        """It is about this schedule."""
        return (self.cost, self.peak) == (schedule.cost, schedule.peak)


def recall(graph: Graph, budget: int, about: Mapping[str, Any]) -> Outcome | None:
    """What an earlier process found for the same graph, budget and whatever else matters; None if there is nothing."""
    data = load(_KIND, _key(graph, budget, about))
    if not isinstance(data, dict) or data.keys() != {field.name for field in fields(Outcome)}:
        return None
    found = Outcome(**data)
    return found if found.margin < budget else None


def remember(graph: Graph, budget: int, about: Mapping[str, Any], outcome: Outcome) -> None:
    """Keep an outcome for `recall`."""
    store(_KIND, _key(graph, budget, about), asdict(outcome))


def _key(graph: Graph, budget: int, about: Mapping[str, Any]) -> str:
    return json.dumps([__version__, graph.to_dict(), budget, dict(about)], sort_keys=True, default=str)
