"""CBC: the file it gets, the command it is, and what happens when it does not end by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import highspy
import numpy as np
import pytest

from checkmate import CheckmateError, Graph
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.mixed_integer import cbc, child_guard, dispatch, highs_process
from checkmate.solvers.mixed_integer.mps_file import write_mps
from checkmate.solvers.mixed_integer.program import Answer, Program
from support import training_chain

from .test_dispatch import PRELUDE
from .test_highs_process import PATIENCE, gone
from .test_program import random_program


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where temporary folders are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """A CBC that is this shell script; $solution is where the solution is to be written."""
    path = folder / "fake-cbc"
    path.write_text(f"#!/bin/sh\nfor solution; do :; done\necho $$ > {folder}/pid\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(cbc, "find_cbc", lambda: str(path))


def emptied(folder: Path) -> bool:
    """Within the time that we have."""
    end = time.monotonic() + PATIENCE
    while list(folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.02)
    return not list(folder.iterdir())


def search_of(graph: Graph | None = None) -> Search:
    return Search(graph or training_chain(3), 50)


def solve(program: Program, seconds: float = PATIENCE, search: Search | None = None) -> Answer:
    return cbc.solve_with_cbc(program, seconds, 1e-6, search or search_of())


# --- the file ---


def test_every_number_is_read_as_it_was(tmp_path: Path) -> None:
    """Also sizes of 2^53 bytes as parts of a budget, costs in seconds, and numbers that are hardly there."""
    for seed in range(30):
        program, rng = random_program(seed, integer=seed % 2 == 0), np.random.default_rng(seed)
        x = program.variables(rng.random(20) * 10.0 ** rng.integers(-12, 12, 20), integer=False, least=rng.random(20))
        program.at_most(x, rng.integers(1, 2**53, 20) / rng.integers(1, 2**53), float(rng.random()))
        arrays = program.arrays()
        write_mps(arrays, tmp_path / "model.mps")
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        assert highs.readModel(str(tmp_path / "model.mps")) == highspy.HighsStatus.kOk
        read = highs.getLp()
        matrix = read.a_matrix_
        assert matrix.format_ == highspy.MatrixFormat.kColwise
        for ours, theirs in (
            (arrays.cost, read.col_cost_),
            (arrays.lower, read.col_lower_),
            (np.ones(program.num_variables), read.col_upper_),
            (arrays.row_lower, read.row_lower_),
            (arrays.row_upper, read.row_upper_),
            (arrays.matrix.pointers, matrix.start_),
            (arrays.matrix.rows, matrix.index_),
            (arrays.matrix.entries, matrix.value_),
        ):
            assert np.array_equal(ours, theirs)
        integer = [kind == highspy.HighsVarType.kInteger for kind in read.integrality_] or [False] * program.num_variables
        assert integer == arrays.integer.tolist()


# --- the command ---


def test_the_command_of_the_extra_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cbcbox

    assert cbc.find_cbc() == cbcbox.cbc_bin_path()
    monkeypatch.setitem(sys.modules, "cbcbox", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CheckmateError, match=r"needs the solver CBC: run pip install 'checkmate-remat\[cbc\]'"):
        cbc.find_cbc()
    (tmp_path / "cbc").touch(mode=0o755)
    assert cbc.find_cbc() == str(tmp_path / "cbc")
    monkeypatch.undo()
    monkeypatch.setenv("CBCBOX_BUILD", "no such build")
    with pytest.raises(CheckmateError, match="CBCBOX_BUILD"):
        cbc.find_cbc()


def test_answers(folders: Path) -> None:
    program = random_program(3, integer=True)
    answer = solve(program)
    arrays = program.arrays()
    assert answer.optimal and answer.x is not None and answer.objective - 1e-5 < answer.bound < answer.objective
    assert answer.objective == pytest.approx(float(arrays.cost @ answer.x))
    assert np.all(arrays.matrix.times(answer.x) <= arrays.row_upper + 1e-8)
    program.at_least(100.0, [(np.array([0]), 1.0)])
    assert solve(program) == Answer(None, np.inf, np.inf, True, False)
    assert emptied(folders)


# --- when it does not end by itself ---


def test_it_is_killed_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, "trap '' INT TERM\nwhile :; do sleep 0.1; done")
    began = time.perf_counter()
    assert solve(random_program(1), seconds=1.5).x is None
    assert time.perf_counter() - began < PATIENCE
    assert gone(int((tmp_path / "pid").read_text())) and emptied(folders)


def test_a_program_that_takes_too_long_to_write_is_given_up(
    monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path
) -> None:
    """Where it is not small: the process that writes it is killed, CBC never starts, and nothing stays."""
    fake(monkeypatch, tmp_path, "")
    monkeypatch.setattr(dispatch, "_SMALL", 0)
    ready = "from multiprocessing.connection import Connection; answers = Connection(1); answers.send(('ready', None))"
    monkeypatch.setattr(highs_process, "_START", f"{ready}; import time; time.sleep(600)")
    highs_process.workers.close_idle()
    assert solve(random_program(1), seconds=1.5) == Answer(None, np.inf, -np.inf, False, False)
    assert not (tmp_path / "pid").exists() and not highs_process.workers.running()
    assert emptied(folders)


def test_it_is_told_what_is_left_of_the_time(monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path) -> None:
    """Once the program is written, by a clock that says that this took 60 seconds of 100."""
    now = iter([0.0, 60.0])
    monkeypatch.setattr(cbc, "time", SimpleNamespace(perf_counter=lambda: next(now, 60.0), sleep=time.sleep))
    fake(monkeypatch, tmp_path, f"echo $@ > {tmp_path}/command\nexit 3")
    with pytest.raises(CheckmateError, match="exit code 3"):
        solve(random_program(1), seconds=100.0)
    assert "-sec 30.000 " in (tmp_path / "command").read_text()
    assert emptied(folders)


def test_it_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path) -> None:
    """As by Ctrl-C: it then writes what it has."""
    monkeypatch.setattr(cbc, "_GRACE", PATIENCE)
    write = "echo 'Stopped on user event - objective value 2.5' > $solution; echo '  3 x3 0.5 0' >> $solution"
    fake(monkeypatch, tmp_path, f'trap "{write}; exit 0" INT\ntouch {tmp_path}/trapping\nwhile :; do sleep 0.1; done')
    search = search_of()

    def watch() -> None:
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "trapping").exists() and time.monotonic() < end:
            time.sleep(0.01)
        search.interrupted = True

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = solve(random_program(1), search=search)
    watcher.join()
    assert answer.x is not None and answer.x[3] == 0.5 and answer.x.sum() == 0.5
    assert (answer.objective, answer.bound, answer.optimal) == (2.5, -np.inf, False)
    assert emptied(folders)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("echo first; echo out of memory; exit 3", "CBC failed with exit code 3: out of memory"),
        ("exit 4", "CBC failed with exit code 4: no output"),
        ("kill -9 $$", "CBC failed with exit code -9"),
    ],
)
def test_its_failure_is_an_error(
    lines: str, message: str, monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path
) -> None:
    fake(monkeypatch, tmp_path, lines)
    with pytest.raises(CheckmateError, match=message):
        solve(random_program(1))
    assert emptied(folders)


def test_a_command_that_cannot_be_run_is_an_error(monkeypatch: pytest.MonkeyPatch, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "cbc").write_text("no program", encoding="utf-8")
    monkeypatch.setattr(cbc, "find_cbc", lambda: str(tmp_path / "cbc"))
    with pytest.raises(CheckmateError, match=f"cannot run {tmp_path}/cbc"):
        solve(random_program(1))
    assert emptied(folders)


def test_without_an_interpreter(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(CheckmateError, match="cannot start another Python process"):
        solve(random_program(1))
    assert emptied(folders)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_started_it(number: int, folders: Path, tmp_path: Path) -> None:
    """And its folder goes, whatever happened to that process."""
    path = tmp_path / "fake-cbc"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.part\nmv {tmp_path}/pid.part {tmp_path}/pid\nexec sleep 600\n")
    path.chmod(0o755)
    script = f"""
from checkmate.solvers.mixed_integer import cbc
cbc.find_cbc = lambda: {str(path)!r}
cost("milp-cbc")
"""
    (tmp_path / "script.py").write_text(PRELUDE + script, encoding="utf-8")
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], env=os.environ | {"TMPDIR": str(folders)}) as process:
        end = time.monotonic() + PATIENCE
        while not (tmp_path / "pid").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        assert list(folders.iterdir())
        process.send_signal(number)
    assert gone(pid)
    assert emptied(folders)


def test_the_guard_reports_before_the_folder_goes(tmp_path: Path) -> None:
    """It used to write the exit code while it removed the folder, which then stayed in 1 run of 25, with a traceback in most."""
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-S", child_guard.__file__, str(folder), "code"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b'["sleep", "600"]\n')
            while not (folder / child_guard.LOG).exists():
                time.sleep(0.001)
            process.stdin.close()
            assert not process.stderr.read()
        assert not folder.exists()
