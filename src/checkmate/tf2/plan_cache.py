"""What is kept from one process to the next: schedules, and what was learnt when a step was tried out under a plan.

It is only ever a cache: a file that cannot be read, or whose schedule does not fit the graph, is a miss; a directory that
cannot be written to means that the work is done again. Nothing here raises because of the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..costs import cache_directory
from ..errors import InvalidSchedule
from ..graph import Graph
from ..schedule import Schedule
from ..solvers import solve

_WORTH_SECONDS = 0.5  # schedules found sooner than this are found again


def solve_cached(graph: Graph, budget: int, **options: Any) -> Schedule:
    """`checkmate.solve`, or what it found the last time.

    Raises:
        InfeasibleBudget: no schedule was found.
    """
    path = _path("plan", graph, budget, options)
    if path.exists():
        with suppress(InvalidSchedule):
            found = Schedule.load(path, graph)
            if found.peak <= budget:
                return found
    schedule = solve(graph, budget, **options)
    if schedule.solve_seconds >= _WORTH_SECONDS:
        _write(path, schedule.save)
    return schedule


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
        data = json.loads(_path("lesson", graph, budget, about).read_text(encoding="utf-8"))
        whole = all(isinstance(data[name], int) and data[name] >= 0 for name in ("margin", "failures", "peak", "rehearsed_peak"))
        return Lesson(**data) if whole and data["margin"] < budget else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember(graph: Graph, budget: int, about: Mapping[str, Any], lesson: Lesson) -> None:
    """Keep a lesson for `recall`."""
    text = json.dumps(asdict(lesson))
    _write(_path("lesson", graph, budget, about), lambda name: Path(name).write_text(text, encoding="utf-8"))


def _path(kind: str, graph: Graph, budget: int, about: Mapping[str, Any]) -> Path:
    key = json.dumps([__version__, graph.to_dict(), budget, dict(about)], sort_keys=True)
    return cache_directory() / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _write(path: Path, save: Callable[[str], Any]) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        os.close(handle)
        save(temporary)
        os.replace(temporary, path)  # readers see the old file or the new one, never half of one
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
