"""Work in a process of its own, and what figures depend on: the part that benchmarks share."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any


def result_of(script: str, work: list[Any], **settings: str) -> dict[str, Any]:
    """What `script --worker WORK` prints in its last line, as JSON; `settings` are added to the environment."""
    command = [sys.executable, script, "--worker", json.dumps(work)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=_surroundings(settings), check=True)
    return dict(json.loads(process.stdout.splitlines()[-1]))


def forked(work: Callable[[], dict[str, Any]], seconds: float, failed: dict[str, Any]) -> dict[str, Any]:
    """What `work` returns, in a process of its own: this one, copied.

    Args:
        seconds: that it may take. failed: what to return, with an "error" added, where it takes longer or its process ends.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        there.send(work())
        there.close()
        sys.stdout.flush()
        os._exit(0)  # what packages do at the end does not count

    process = context.Process(target=child)
    process.start()
    there.close()
    try:
        if here.poll(seconds):
            return dict(here.recv())
        return {**failed, "error": f"not done after {seconds:g} s"}
    except EOFError:
        process.join()
        return {**failed, "error": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


class Worker:
    """A script that answers requests, one line of JSON each, until its input ends.

    Args:
        script: in this folder, or a path. log: a file that takes what it says besides. settings: added to the environment.
    """

    def __init__(self, script: str, log: Path | None = None, **settings: str):
        path = str(Path(__file__).parent / script)
        with nullcontext() if log is None else log.open("ab") as errors:
            # A session of its own, so that whatever it starts ends with it.
            self._process = subprocess.Popen(
                [sys.executable, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_surroundings(settings),
                start_new_session=True,
            )

    def ask(self, request: Any, seconds: float | None = None) -> dict[str, Any]:
        """The answer. A process that has none within so many seconds is killed.

        Raises:
            CalledProcessError: the process has ended, or was killed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(max(0.0, seconds), self.kill) if seconds is not None else None
        if late is not None:
            late.start()
        try:
            with suppress(BrokenPipeError):  # it has ended, and so has its output
                print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        finally:
            if late is not None:
                late.cancel()
        if not answer:
            raise subprocess.CalledProcessError(self._process.wait(), self._process.args)
        return dict(json.loads(answer))

    def kill(self) -> None:
        """End it at once, with what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.kill()
        self.close()


def _surroundings(settings: dict[str, str]) -> dict[str, str]:
    """Of a process: this one's environment variables, TensorFlow quiet, and what is set."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **settings}


def quartiles_of_ratios(seconds: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Quartiles of time over time, round by round."""
    ratios = [a / b for a, b in zip(seconds, others, strict=True)]
    first, middle, third = statistics.quantiles(ratios * 2 if len(ratios) == 1 else ratios, n=4, method="inclusive")
    return first, middle, third


def environment() -> dict[str, Any]:
    """What figures depend on: versions and the machine."""
    from importlib.metadata import version

    import tensorflow as tf

    import checkmate
    from checkmate.planning.environment import processor_name
    from checkmate.tf2.internals import onednn_is_on

    return {
        "checkmate": checkmate.__version__,
        "tensorflow": tf.__version__,
        "keras": version("keras"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "onednn": onednn_is_on(),
    }
