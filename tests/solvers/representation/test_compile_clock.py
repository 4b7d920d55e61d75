"""What kernels take to compile is not taken from the time for a search."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from checkmate import Graph
from checkmate.solvers import Progress, Search, solve
from checkmate.solvers.representation import compile_clock
from checkmate.solvers.representation.compile_clock import NOTE, CompileClock, search_clock

#: Four ops in a row.
CHAIN = Graph.from_arrays([1.0] * 4, [8] * 4, [(0, 1), (1, 2), (2, 3)])


class Wall:
    """A clock that goes on when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_clock_stands_still_while_anything_compiles() -> None:
    wall = Wall()
    clock = CompileClock(wall)
    began = clock()
    wall.now += 2
    with clock.stopped():
        wall.now += 10
        assert clock() - began == 2
        with clock.stopped():  # a kernel that the first one calls
            wall.now += 10
        wall.now += 10
        assert clock() - began == 2
    wall.now += 3
    assert clock() - began == 5


def test_compilations_of_several_threads_count_once() -> None:
    wall = Wall()
    clock = CompileClock(wall)
    began = clock()
    inside, leave = threading.Barrier(3), threading.Barrier(3)

    def compiling() -> None:
        with clock.stopped():
            inside.wait(timeout=60)
            leave.wait(timeout=60)

    threads = [threading.Thread(target=compiling) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(timeout=60)
    wall.now += 7
    leave.wait(timeout=60)
    for thread in threads:
        thread.join()
    wall.now += 1
    assert clock() - began == 1


def test_a_search_does_not_count_what_compiles_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall()
    monkeypatch.setattr(search_clock, "_seconds", wall)
    search = Search(CHAIN, 10**9, time_limit=5.0)
    with search_clock.stopped():
        wall.now += 60
    assert (search.seconds(), search.stopped()) == (0.0, False)
    wall.now += 5
    assert search.stopped()


def test_listeners_hear_of_it_once_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, heard = CompileClock(Wall()), list[str]()
    with caplog.at_level(logging.INFO, compile_clock.__name__):
        with clock.telling(lambda: heard.append("first")):
            clock.tell()
            clock.tell()
        with clock.telling(lambda: heard.append("second")):
            clock.tell()
        clock.tell()
    assert heard == ["first", "second"]
    assert [record.message for record in caplog.records] == [NOTE]


_COMPILING = """
from numba import njit
from checkmate.solvers.representation.compile_clock import search_clock
from checkmate.solvers.representation.kernels import kernel
heard = []
stopped = []
stop = search_clock.stop
search_clock.stop = lambda: (stopped.append(1), stop())
def double(number: int) -> int:
    return 2 * number
with search_clock.telling(lambda: heard.append("compiling")):
    njit(double)(3)
    assert not heard and not stopped, "a function of someone else"
    kernel()(double)(3)
    assert heard == ["compiling"] and stopped, (heard, stopped)
    known = len(stopped)
    kernel()(double)(3.0)
    assert len(stopped) > known
assert search_clock._running == 0
"""


def test_kernels_stop_the_clock_and_functions_of_others_do_not() -> None:
    done = subprocess.run([sys.executable, "-c", _COMPILING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_search_says_that_kernels_compile() -> None:
    notes = list[str]()

    def progress(report: Progress) -> None:
        notes.append(report.note)
        search_clock.tell()  # a kernel that is not there yet

    solve(CHAIN, CHAIN.no_recompute_peak, progress=progress)
    assert notes.count(NOTE) == 1
