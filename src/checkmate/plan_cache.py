"""What is kept from one process to the next, by the problem that it belongs to: schedules, and what a front end adds.

It is only ever a cache: a file that cannot be read, or whose schedule does not fit the graph, is a miss; a directory that
cannot be written to means that the work is done again. Nothing here raises because of the file system.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .costs import cache_directory, replace_file
from .errors import InvalidSchedule
from .graph import Graph
from .schedule import Schedule
from .solvers import solve
from .version import __version__

_WORTH_SECONDS = 0.5  # schedules found sooner than this are found again


def solve_cached(graph: Graph, budget: int, **options: Any) -> Schedule:
    """`checkmate.solve`, or what it found the last time: by this version, for an equal graph, budget and options.

    Args:
        budget: bytes. options: of `checkmate.solve`, as JSON can write them.

    Raises:
        InfeasibleBudget: no schedule was found.
    """
    path = path_of("plan", graph, budget, options)
    if path.exists():
        with suppress(InvalidSchedule):
            found = Schedule.load(path, graph)
            if found.peak <= budget:
                return found
    schedule = solve(graph, budget, **options)
    if schedule.solve_seconds >= _WORTH_SECONDS:
        replace_file(path, schedule.save)
    return schedule


def path_of(kind: str, graph: Graph, budget: int, about: Mapping[str, Any]) -> Path:
    """The file for one thing about a graph under a budget of so many bytes, and whatever else it depends on."""
    key = json.dumps([__version__, graph.to_dict(), budget, dict(about)], sort_keys=True)
    return cache_directory() / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
