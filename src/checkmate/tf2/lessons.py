"""What was learnt when a step was tried out under a plan, kept for later processes; see `checkmate.plan_cache`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..costs import replace_file
from ..graph import Graph
from ..plan_cache import path_of
from ..schedule import Schedule


@dataclass(frozen=True)
class Lesson:
    """What trying a plan out has shown.

    Attributes:
        margin: bytes that the plan leaves free. failures: plans that passed the budget before it was found. cost, peak: of its
            schedule, to know it again.
        rehearsed_peak: bytes.
    """

    margin: int
    failures: int
    cost: float
    peak: int
    rehearsed_peak: int

    def is_about(self, schedule: Schedule) -> bool:
        return (self.cost, self.peak) == (schedule.cost, schedule.peak)


def recall(graph: Graph, budget: int, about: Mapping[str, Any]) -> Lesson | None:
    """The lesson of an earlier process with the same graph, budget and whatever else matters; None if there is none."""
    try:
        data = json.loads(path_of("lesson", graph, budget, about).read_text(encoding="utf-8"))
        whole = all(isinstance(data[name], int) and data[name] >= 0 for name in ("margin", "failures", "peak", "rehearsed_peak"))
        return Lesson(**data) if whole and data["margin"] < budget else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember(graph: Graph, budget: int, about: Mapping[str, Any], lesson: Lesson) -> None:
    """Keep a lesson for `recall`."""
    text = json.dumps(asdict(lesson))
    replace_file(path_of("lesson", graph, budget, about), lambda name: Path(name).write_text(text, encoding="utf-8"))
