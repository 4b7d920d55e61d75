"""The process of a search in the background: `main` is all it does. See `background`.

The answer is one JSON object on standard output: the schedule, or what went wrong. The process ends when its standard input does,
that is, also when whoever started it has been killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import CheckmateError, Contradiction, InfeasibleBudget
from ..graph import Graph
from .plan_cache import read, solve_cached, written

#: How far it gives way to others. It still has a tenth of a processor that is wanted by all.
_NICENESS = 10


def main(request: str) -> None:
    """Answer the request in a file, which goes."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what prints to standard output must not get between the answers
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    _give_way()
    file = Path(request)
    asked = json.loads(file.read_bytes())
    file.unlink(missing_ok=True)
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        json.dump(answer(asked), out)
    sys.stdout.flush()
    os._exit(0)  # not in the middle of ending a thread that reads


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; the plan cache has the schedule, too."""
    graph = Graph.from_dict(asked["graph"])
    start = read(asked["start"], graph, asked["budget"])
    try:
        schedule = solve_cached(graph, asked["budget"], start=start, keep_always=True, **asked["options"])
    except Contradiction as error:
        return {"contradiction": error.what}
    except InfeasibleBudget as error:
        return {"infeasible": str(error)}
    except CheckmateError as error:
        return {"failed": str(error)}
    return {"schedule": written(schedule)}


def _end_with_the_other() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _give_way() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    with suppress(OSError):  # a session of its own may count as a group of its own, which the scheduler is fair to
        Path("/proc/self/autogroup").write_text(str(_NICENESS), encoding="ascii")
