"""Schedules kept from one process to the next: one file for each graph, budget and set of options.

It is only ever a cache: a file that cannot be read, or whose schedule does not fit the graph, is a miss; a directory that
cannot be written to means that the schedule is searched for again. Nothing here raises because of the file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
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
    key = json.dumps([__version__, graph.to_dict(), budget, options], sort_keys=True)
    path = cache_directory() / f"plan-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    if path.exists():
        with suppress(InvalidSchedule):
            found = Schedule.load(path, graph)
            if found.peak <= budget:
                return found
    schedule = solve(graph, budget, **options)
    if schedule.solve_seconds >= _WORTH_SECONDS:
        _write(schedule, path)
    return schedule


def _write(schedule: Schedule, path: Path) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        os.close(handle)
        schedule.save(temporary)
        os.replace(temporary, path)  # readers see the old file or the new one, never half of one
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
