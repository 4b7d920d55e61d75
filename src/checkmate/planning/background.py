"""A search that goes on in a process of its own while the program trains under the schedule that it has.

It is a process and no thread, because the search and the training step would take turns otherwise: both are Python. It gives way to
all else on the machine, one runs at a time, and it ends when the program does.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import CheckmateError, Contradiction
from ..graph import Graph
from ..schedule import Schedule
from .plan_cache import read, written

_START = "import sys; sys.path[:] = sys.argv[2:]; from checkmate.planning.background_worker import main; main(sys.argv[1])"


class BackgroundSearch:
    """The search for a better schedule; it begins as soon as no other one runs.

    Args:
        budget: bytes. start: a schedule to begin with. options: of `checkmate.solve`, as JSON can write them.

    Attributes:
        ended: nothing more will come.
    """

    def __init__(self, graph: Graph, budget: int, start: Schedule, options: dict[str, Any]):
        self._graph, self._budget = graph, budget
        self._request: dict[str, Any] | None = {"budget": budget, "options": options, "start": written(start)}
        self._child: _Child | None = None
        self._failure: str | None = None
        self._owner = os.getpid()
        self.ended = False
        _turns.join(self)

    def result(self) -> Schedule | None:
        """The schedule, once it is there, if there is one within the budget; None before. Never waits.

        Raises:
            Contradiction: that is what the search ended with. CheckmateError: it failed.
        """
        if os.getpid() != self._owner:
            return None  # a copy of the process: the search is the original's
        _turns.move()
        if self._failure is not None:
            self.ended = True
            raise CheckmateError(self._failure)
        if self.ended or self._child is None or self._child.runs:
            return None
        self.ended, child = True, self._child
        answer = child.answer()
        _turns.move()
        if "contradiction" in answer:
            raise Contradiction(answer["contradiction"])
        if "infeasible" in answer:
            return None
        schedule = read(answer.get("schedule"), self._graph, self._budget)
        if schedule is None:
            raise CheckmateError(f"the search for a better schedule failed: {answer.get('failed', 'it gave none')}")
        return schedule

    # --- called by `_Turns` ---

    @property
    def runs(self) -> bool:
        """Its process has work to do."""
        return self._child is not None and not self.ended and self._child.runs

    def start(self) -> None:
        """It is its turn."""
        assert self._request is not None
        request, self._request = {**self._request, "graph": self._graph.to_dict()}, None
        try:
            self._child = _Child(json.dumps(request))
        except (CheckmateError, OSError) as error:
            self._failure = f"the search for a better schedule cannot begin: {error}"
            return
        weakref.finalize(self, self._child.end)  # also when the program ends


class _Turns:
    """Lets one search after the other have its turn; those that nobody asks for any more are left out."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[weakref.ref[BackgroundSearch]] = deque()
        self._current: weakref.ref[BackgroundSearch] | None = None

    def join(self, search: BackgroundSearch) -> None:
        """It waits for its turn."""
        with self._lock:
            self._waiting.append(weakref.ref(search))
            self.move()

    def move(self) -> None:
        """Begin the next search if none runs."""
        with self._lock:
            current = self._current() if self._current is not None else None
            while self._waiting and (current is None or not current.runs):
                self._current = self._waiting.popleft()
                current = self._current()
                if current is not None:
                    current.start()


_turns = _Turns()


class _Child:
    """The process of one search: it reads its request from a file, and sees the asking process go by the end of its input."""

    def __init__(self, request: str):
        from ..solvers.mixed_integer import python_process  # SciPy: not before it is needed

        self._owner = os.getpid()
        descriptor, name = tempfile.mkstemp(prefix="checkmate-search-", suffix=".json")
        self._file = Path(name)
        self._answer, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(request)
            self._process = python_process.start(
                ["-c", _START, name, *python_process.search_path()],
                stdin=subprocess.PIPE,
                stdout=self._answer,
                stderr=self._errors,
            )
        except BaseException:
            self.end()
            raise

    @property
    def runs(self) -> bool:
        """It has not ended."""
        return self._process is not None and self._process.poll() is None

    def answer(self) -> dict[str, Any]:
        """What it said, once it has ended."""
        assert self._process is not None
        for file in (self._answer, self._errors):
            file.seek(0)
        said, errors = self._answer.read(), self._errors.read().decode(errors="replace")
        code = self._process.returncode
        self.end()
        with suppress(ValueError):
            return dict(json.loads(said))
        lines = [line for line in errors.split("\n") if line.strip()]
        return {"failed": f"exit code {code}: {lines[-1] if lines else 'no output'}"}

    def end(self) -> None:
        """End the process, whatever it does, and leave nothing behind."""
        process, self._process = self._process, None
        if os.getpid() != self._owner:
            if process is not None:
                process.returncode = 0  # the original's: not ours to wait for
            return
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._answer.close()
        self._errors.close()
        self._file.unlink(missing_ok=True)
