"""The process that solves programs with HiGHS for another one: `serve` is all it does.

Requests (number, function of `highs` or "write", model if it takes one, arguments, seconds) come through standard input; an integer asks the request
of that number to stop. Answers go out through standard output, as (kind, content): "ready" once, and for each request any number of
"bound" (proven so far) and "found" (a better solution), then "answer" or "failed". The process ends when standard input does, that
is, also when whoever started it has been killed, and by itself when nothing was asked for a while.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ..representation.graph_arrays import Floats
from . import highs
from .mps_file import write_mps
from .program import Answer, Model

Request = tuple[int, str, Model | None, dict[str, Any], float]

#: Seconds without a request after which the process ends.
_IDLE = 15.0
#: Seconds between two reports of the bound.
_REPORT = 0.05


def serve() -> None:
    """Answer requests until nobody asks any more."""
    requests, answers = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what prints to standard output must not get between the answers
    waiting: queue.Queue[Request] = queue.Queue()
    stopped = 0  # number of the last request that is to stop

    def listen() -> None:
        nonlocal stopped
        try:
            while True:
                message = requests.recv()
                if isinstance(message, int):
                    stopped = message
                else:
                    waiting.put(message)
        except (EOFError, OSError):
            os._exit(0)  # in the middle of what it does: nobody waits for it

    def stopping(number: int) -> Callable[[], bool]:
        return lambda: stopped >= number

    threading.Thread(target=listen, daemon=True).start()
    answers.send(("ready", None))
    while True:
        try:
            number, name, model, arguments, seconds = waiting.get(timeout=_IDLE)
        except queue.Empty:
            return
        answers.send(_answer(name, model, arguments, seconds, answers, stopping(number)))


def _answer(
    name: str, model: Model | None, arguments: dict[str, Any], seconds: float, answers: Connection, stop: Callable[[], bool]
) -> tuple[str, Answer | str | None]:
    deadline, reported = time.perf_counter() + seconds, time.monotonic()

    def report(bound: float) -> bool:
        nonlocal reported
        if time.monotonic() - reported > _REPORT:
            reported = time.monotonic()
            answers.send(("bound", bound))
        return stop()

    def found(x: Floats) -> None:
        answers.send(("found", Answer(x, float(arrays.cost @ x), -np.inf, False, False)))

    try:
        if model is None:
            return "answer", highs.highest_point(**arguments)
        arrays = model.arrays()
        if name == "write":
            write_mps(arrays, **arguments)
            return "answer", None
        left = deadline - time.perf_counter()
        if name == "relax":
            return "answer", highs.relax(arrays, left, **arguments, stop=stop)
        return "answer", highs.minimise(arrays, left, **arguments, stop=report, found=found)
    except Exception as error:  # noqa: BLE001 - whatever it is, the one who asked has to hear of it
        what = "cannot write the program" if name == "write" else "HiGHS failed"
        return "failed", f"{what}: {type(error).__name__}: {error}".splitlines()[0]
