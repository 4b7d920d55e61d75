"""HiGHS in a process of its own, for programs that this process cannot, or should not, solve itself.

HiGHS does not look at its clock while it presolves, nor while the simplex method starts up, which takes many seconds on
programs with hundreds of thousands of variables: a process can be killed when its time is over. To make the arrays of such a program,
or a file of it for another solver, takes seconds as well: that is done there, too. And some packages bring a HiGHS
of their own, with which ours cannot be loaded. A process that has answered waits for the next program for some seconds.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckmateError
from . import python_process
from .program import Answer, Model

#: HiGHS is told to stop so many seconds before the process is killed, so that it can say what it has, or after this part of the
#: time where that is less; asked to stop before, it has as long.
_GRACE, _PART = 0.5, 0.9
#: Seconds between two looks at the clock.
_TICK = 0.02
_START = "import sys; sys.path[:] = sys.argv[1:]; from checkmate.solvers.mixed_integer.highs_worker import serve; serve()"


class Worker:
    """One process, which solves one program at a time.

    Attributes:
        requests: programs that it was asked for.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._ready = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        theirs_in, self._ours_out = Pipe(duplex=False)
        self._ours_in, theirs_out = Pipe(duplex=False)
        with theirs_in, theirs_out:
            try:
                self._process = python_process.start(
                    ["-c", _START, *python_process.search_path()],
                    stdin=theirs_in.fileno(),
                    stdout=theirs_out.fileno(),
                    stderr=self._errors,
                )
            except CheckmateError:
                self._errors.close()
                raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(
        self, name: str, model: Model | None, arguments: dict[str, Any], deadline: float, stop: Callable[[float], bool]
    ) -> tuple[Answer | None, bool]:
        """The answer to a request, if it has one, and whether that came by itself: False if its time had to be cut.

        Then the process is of no more use, and the answer is the best it had found, if that is of any use.

        Raises:
            EOFError, OSError: the process is gone.
            CheckmateError: it could not solve the program.
        """
        self.requests += 1
        finish = deadline - min(_GRACE, (1 - _PART) * (deadline - time.perf_counter()))
        best, bound, stopping, sent, end = Answer(None, np.inf, -np.inf, False, False), -np.inf, False, False, deadline
        while True:
            if self._ready and not sent:
                left = max(0.0, finish - time.perf_counter())
                self._ours_out.send((self.requests, name, model, arguments, left))
                sent = True
            if self._ours_in.poll(_TICK):
                kind, content = self._ours_in.recv()
                if kind == "answer":
                    return content, True
                if kind == "failed":
                    raise CheckmateError(content)
                if kind == "ready":
                    self._ready = True
                elif kind == "bound":
                    bound = max(bound, content)
                else:
                    best = content
            now = time.perf_counter()
            if not stopping and stop(bound):
                stopping, end = True, min(end, now + _GRACE if sent else now)
                if sent:
                    self._ours_out.send(self.requests)
            if now > end:
                return replace(best, bound=bound), False

    def kill(self) -> None:
        """End the process, whatever it does, and do not wait for that."""
        self._process.kill()
        python_process.leave(self._process)
        self._ours_in.close()
        self._ours_out.close()
        self._errors.close()

    def close(self) -> str:
        """End the process; returns what it said last."""
        self._process.kill()
        self._process.wait()
        self._ours_in.close()
        self._ours_out.close()
        with self._errors:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return f"exit code {self._process.returncode}: {said[-1] if said else 'no output'}"

    def forget(self) -> None:
        """Close this copy's ends of the pipes, so that the worker sees the original go."""
        self._process.returncode = 0
        self._ours_in.close()
        self._ours_out.close()
        self._errors.close()


class _Workers:
    """Those that run, and those of them that wait for work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []

    def running(self) -> set[Worker]:
        """All of them."""
        with self._lock:
            return set(self._all)

    def take(self) -> Worker:
        """One that waits, or else a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = Worker()
        with self._lock:
            self._all.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        """It waits for the next program."""
        with self._lock:
            self._idle.append(worker)

    def close(self, worker: Worker) -> str:
        """End it; returns what it said last."""
        with self._lock:
            self._all.discard(worker)
        return worker.close()

    def kill(self, worker: Worker) -> None:
        """End it, whatever it does."""
        with self._lock:
            self._all.discard(worker)
        worker.kill()

    def close_idle(self) -> None:
        """End those that wait for work."""
        while self._idle:
            self.close(self.take())

    def after_fork(self) -> None:
        """In a copy of this process: the workers are the original's."""
        for worker in self._all:
            worker.forget()
        self._lock, self._all, self._idle = threading.Lock(), set(), []


workers = _Workers()
atexit.register(workers.close_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=workers.after_fork)


def solve(name: str, model: Model | None, arguments: dict[str, Any], deadline: float, stop: Callable[[float], bool]) -> Answer:
    """Have another process make a program and solve it.

    Args:
        name: the function of `highs`. model: None if it takes none. arguments: of it, without arrays, time limit, `stop` and `found`.
        deadline: on the clock `time.perf_counter`. Past it, what was found until then is the answer.
        stop: called now and then with the bound proven so far; True ends the search.

    Raises:
        CheckmateError: the process failed, as for want of memory.
    """
    answer, _ = _ask(name, model, arguments, deadline, stop)
    assert answer is not None
    return answer


def write(model: Model, path: Path, deadline: float, stop: Callable[[], bool]) -> bool:
    """Have another process make a program and write it to a file (see `mps_file`); False if that had to be cut.

    Raises:
        CheckmateError: the process failed, as for want of space.
    """
    return _ask("write", model, {"path": path}, deadline, lambda _: stop())[1]


def _ask(
    name: str, model: Model | None, arguments: dict[str, Any], deadline: float, stop: Callable[[float], bool]
) -> tuple[Answer | None, bool]:
    if time.perf_counter() >= deadline:  # not even the process would start in no time
        return Answer(None, np.inf, -np.inf, False, False), False
    while True:
        worker = workers.take()
        first = worker.requests == 0
        try:
            answer, finished = worker.ask(name, model, arguments, deadline, stop)
        except (EOFError, OSError):
            end = workers.close(worker)
            if first:
                raise CheckmateError(f"HiGHS failed with {end}") from None
            continue  # it had nothing to do for too long, and ended when it was asked: ask another one
        except BaseException:
            workers.close(worker)
            raise
        if finished:
            workers.give_back(worker)
        else:
            workers.kill(worker)
        return answer, finished
