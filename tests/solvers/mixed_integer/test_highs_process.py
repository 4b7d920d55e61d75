"""The process that HiGHS runs in: what it may load, and when it ends."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from checkmate import CheckmateError
from checkmate.solvers.mixed_integer import highs_process
from checkmate.solvers.mixed_integer.program import Answer, Program

from .test_dispatch import PRELUDE, run_script
from .test_program import random_program

#: How long to wait for what ought to happen at once.
PATIENCE = 300.0


@pytest.fixture(autouse=True)
def _fresh() -> None:
    highs_process.workers.close_idle()


def hard_program() -> Program:
    """A knapsack of many dimensions: all zeros is a solution, and the optimum takes hours to prove."""
    rng = np.random.default_rng(0)
    program = Program()
    x = program.variables(-rng.random(120) - 1, integer=True)
    for _ in range(40):
        weights = rng.random(120)
        program.at_most(x, weights, float(weights.sum() / 2))
    return program


def ask(program: Program, seconds: float = 60.0, stop: Any = lambda bound: False) -> Answer:
    return highs_process.solve("minimise", program, {"absolute_gap": 0.0, "seed": 0}, time.perf_counter() + seconds, stop)


def gone(pid: int) -> bool:
    """Within the time that we have."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # its parent has not looked yet
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


# --- when it ends ---


def test_one_process_answers_many_programs() -> None:
    assert ask(random_program(1, integer=True)).optimal
    worker = highs_process.workers.take()
    highs_process.workers.give_back(worker)
    assert ask(random_program(2, integer=True)).optimal
    assert highs_process.workers.take() is worker and worker.requests == 2
    highs_process.workers.give_back(worker)
    highs_process.workers.close_idle()
    assert gone(worker.pid)


def test_one_that_died_is_replaced() -> None:
    expected = ask(random_program(1, integer=True))
    worker = highs_process.workers.take()
    highs_process.workers.give_back(worker)
    os.kill(worker.pid, signal.SIGKILL)
    assert gone(worker.pid)
    assert ask(random_program(1, integer=True)).objective == expected.objective


def test_one_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(CheckmateError, match="HiGHS failed with exit code 1: no output"):
        ask(random_program(1))


@pytest.mark.parametrize("executable", [None, "/no/such/python"])
def test_without_an_interpreter(executable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(CheckmateError, match=f"cannot start another Python process .{executable}"):
        ask(random_program(1))


def test_what_it_cannot_do_is_an_error() -> None:
    with pytest.raises(CheckmateError, match="HiGHS failed: TypeError: .*no_such_option"):
        highs_process.solve("minimise", random_program(1), {"no_such_option": 1}, time.perf_counter() + 60, lambda bound: False)


def test_stopped_it_says_what_it_has() -> None:
    """The bound is proven: the linear relaxation of all rows together is one, and the solution fits."""
    program = hard_program()
    bounds: list[float] = []

    def stop(bound: float) -> bool:
        bounds.append(bound)
        return np.isfinite(bound)

    answer = ask(program, stop=stop)
    arrays = program.arrays()
    assert answer.x is not None and not answer.optimal
    assert np.all(arrays.matrix.times(answer.x) <= arrays.row_upper + 1e-5)
    assert bounds[-1] <= answer.bound < answer.objective < 0


def test_killed_it_leaves_what_it_had_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given no time at all to answer after it was asked to stop."""
    monkeypatch.setattr(highs_process, "_GRACE", -1.0)
    program = hard_program()
    answer = ask(program, stop=np.isfinite)
    assert answer.x is not None and answer.objective == pytest.approx(float(program.arrays().cost @ answer.x))
    assert answer.bound < answer.objective and not answer.optimal


@pytest.mark.parametrize("silent", ["from the start", "when it has work"])
def test_its_time_is_over_whatever_it_does(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where HiGHS presolves, and does not look at its clock."""
    start = "import time; time.sleep(600)"
    if silent == "when it has work":
        ready = "from multiprocessing.connection import Connection; answers = Connection(1); answers.send(('ready', None))"
        start = f"{ready}; {start}"
    monkeypatch.setattr(highs_process, "_START", start)
    began = time.perf_counter()
    answer = ask(random_program(1), seconds=1.0)
    assert (answer.x, answer.bound, answer.optimal) == (None, -np.inf, False)
    assert time.perf_counter() - began < PATIENCE
    assert not highs_process.workers.running()


def test_it_is_killed_at_the_deadline_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a tick whenever it is looked at; a process that held gigabytes takes a second to go."""
    monkeypatch.setattr(highs_process, "_START", "import time; time.sleep(600)")
    seconds, waiting = itertools.count(0.0, 0.05), []
    monkeypatch.setattr(highs_process, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    wait = subprocess.Popen.wait

    def waited(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waiting.append(threading.current_thread())
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    assert highs_process.solve("relax", random_program(1), {}, 1.0, lambda _: False).x is None
    assert next(seconds) < 1.2
    assert threading.main_thread() not in waiting and not highs_process.workers.running()


def test_it_is_told_to_be_done_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a tenth of the time, and by half a second at most: what it says then comes in time."""
    serve = (
        "import sys; sys.path[:] = sys.argv[1:]; from multiprocessing.connection import Connection; "
        "from checkmate.solvers.mixed_integer.program import Answer; requests, answers = Connection(0), Connection(1); "
        "answers.send(('ready', None)); seconds = requests.recv()[-1]; answers.send(('answer', Answer(None, seconds, 0, False, False)))"
    )
    monkeypatch.setattr(highs_process, "_START", serve)
    for seconds, most in ((2000.0, 1999.5), (3.0, 2.7)):
        monkeypatch.setattr(highs_process, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        assert highs_process.solve("relax", random_program(1), {}, seconds, lambda _: False).objective == pytest.approx(most)
        highs_process.workers.close_idle()


def test_no_process_is_started_when_time_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    deadline = time.perf_counter()
    assert highs_process.solve("relax", random_program(1), {}, deadline, lambda _: False).x is None
    assert not highs_process.write(random_program(1), tmp_path / "model.mps", deadline, lambda: False)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="cannot write the program: FileNotFoundError: "):
        highs_process.write(random_program(1), tmp_path / "none" / "model.mps", time.perf_counter() + PATIENCE, lambda: False)


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed, so that it can do nothing about it, while the worker is busy."""
    script = f"""
sys.path.insert(1, {str(Path(__file__).parents[2])!r})
from solvers.mixed_integer.test_highs_process import ask, hard_program, highs_process
import numpy, threading, time
said = []
def stop(bound):
    if numpy.isfinite(bound) and not said:
        said.append(next(iter(highs_process.workers.running())).pid)
        print(*said, flush=True)
    return False
ask(hard_program(), 600.0, stop)
"""
    (tmp_path / "script.py").write_text(PRELUDE + script, encoding="utf-8")
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert gone(pid)


def test_a_forked_process_has_workers_of_its_own(tmp_path: Path) -> None:
    script = """
import os
from checkmate.solvers.mixed_integer import dispatch, highs_process
dispatch.may_load = lambda: False
before = cost()
first = {worker.pid for worker in highs_process.workers.running()}
child = os.fork()
if not child:
    same = cost() == before
    apart = first.isdisjoint({worker.pid for worker in highs_process.workers.running()})
    highs_process.workers.close_idle()
    os._exit(0 if same and apart else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), cost() == before)
print(first == {worker.pid for worker in highs_process.workers.running()})
"""
    assert run_script(script, tmp_path) == "0 True\nTrue\n"


# --- what it may load ---


@pytest.mark.parametrize("path", ["''", "os.getcwd()", "'.'"])
def test_nothing_from_the_current_folder(path: str, tmp_path: Path) -> None:
    """Of which a script or an interactive session has it in its search path, like Python itself does."""
    planted, folder = tmp_path / "planted", tmp_path / "folder"
    planted.mkdir()
    folder.mkdir()
    for name in ("highspy", "numpy", "checkmate", "sitecustomize", "queue", "org"):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})", encoding="utf-8")
    script = f"""
import os
from checkmate.solvers.mixed_integer import dispatch
dispatch.may_load = lambda: False
import numpy, checkmate.solvers.default.auto, queue
os.chdir({str(planted)!r})
sys.path.insert(0, {path})
os.environ["PYTHONPATH"] = os.pathsep.join([{path}, os.environ.get("PYTHONPATH", "")])
print(cost())
"""
    assert run_script(script, folder) == "11.0\n"
    assert not (tmp_path / "executed").exists()
