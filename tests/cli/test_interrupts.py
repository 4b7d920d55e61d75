"""Ctrl-C and SIGTERM, at every stage of a command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checkmate import Graph, Schedule, cli
from checkmate.cli import search
from checkmate.cli.interrupts import Interrupts
from support import error_line, training_chain


@pytest.fixture
def long_search(tmp_path: Path) -> Path:
    """A folder with the graph of a search that goes on for minutes."""
    layers = 120
    graph = training_chain(layers)
    sizes = [7 + (i * 37) % 23 for i in range(2 * layers)]
    costs = [1.0 + (i * 53) % 17 for i in range(2 * layers)]
    edges = [(v, i) for i, op in enumerate(graph.ops) for v in op.inputs]
    Graph.from_arrays(costs, sizes, edges, name="long").save(tmp_path / "g.json")
    return tmp_path


def interrupted(arguments: list[str], folder: Path, number: signal.Signals) -> tuple[int, str]:
    """The exit code and the output of a program that gets a signal when it has found its first schedule."""
    environment = {**os.environ, "TERM": "xterm", "TMPDIR": str(folder / "scratch")}
    (folder / "scratch").mkdir()
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "checkmate", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=its_end,
        text=True,
        env=environment,
    )
    os.close(its_end)
    shown = b""
    while b"overhead " not in shown:  # the first schedule is there
        shown += os.read(terminal, 4096)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    os.close(terminal)
    assert not any((folder / "scratch").iterdir()), "temporary folders must go"
    return process.returncode, out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_best_so_far_is_written(long_search: Path, number: signal.Signals) -> None:
    arguments = ["solve", "g.json", "--budget", "16%", "--gap", "0", "--time-limit", "300", "-o", "s.json", "--json"]
    code, out = interrupted(arguments, long_search, number)
    assert code == 0
    schedule = Schedule.load(long_search / "s.json", Graph.load(long_search / "g.json"))
    assert json.loads(out) == schedule.summary()
    assert schedule.solve_seconds < 250
    assert schedule.gap > 0, "the search was at its end, so this test tests nothing"


def test_a_sweep_ends_with_the_rows_so_far(long_search: Path) -> None:
    arguments = ["sweep", "g.json", "--budgets", "16%", "15%", "--gap", "0", "--time-limit", "300", "--json"]
    code, out = interrupted(arguments, long_search, signal.SIGTERM)
    data = json.loads(out)
    assert (code, len(data["rows"]), data["interrupted"]) == (0, 1, True)


def test_interrupted_while_it_is_imported(tmp_path: Path) -> None:
    """Whatever is imported then, the answer is one line."""
    for name in ("numpy", "argparse", "textwrap"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-c", "import sys; from checkmate.cli import main; sys.exit(main())", "info", "g.json"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (result.returncode, result.stdout) == (1, "")
        assert error_line(result.stderr) == "interrupted before there was a result"


def test_interrupted_within_an_exec(tmp_path: Path) -> None:
    """Python notes such an interrupt as one that nobody answered, and would end the process with the signal."""
    code = """
import sys
from checkmate.cli import main, run
run._COMMANDS["info"] = lambda *_: exec("raise KeyboardInterrupt")
sys.argv = ["checkmate", "info", "g.json"]
sys.exit(main())
"""
    (tmp_path / "program.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "program"]  # a file that is run by its name ends otherwise
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, error_line(result.stderr)) == (1, "interrupted before there was a result")


def test_ignored_signals_stay_ignored() -> None:
    """`nohup` and shells that run something in the background ignore some."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(program=False) as interrupts:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.came()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_works_where_ctrl_c_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), Interrupts(program=False):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_there_before_comes_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hook = sys.unraisablehook
    with Interrupts(program=False):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert sys.unraisablehook is hook


def test_a_result_is_written_down_before_an_interrupt_counts() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts(program=False) as interrupts:
        interrupts.finishing()
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.came()
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_where_python_cannot_raise_it_comes_again() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), Interrupts(program=False):
        thing = Finalized()
        del thing
        threading.Event().wait(60)


def test_in_another_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There signals cannot be answered, and commands work."""
    training_chain(3).save(tmp_path / "g.json")
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["info", str(tmp_path / "g.json")])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_an_interrupt_between_searches_keeps_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training_chain(8, size=1000).save(tmp_path / "g.json")
    solve, found = search.solve, []

    def interrupted_at_the_second(*arguments: object) -> object:
        if found:
            raise KeyboardInterrupt
        found.append(solve(*arguments))  # type: ignore[arg-type]
        return found[0]

    monkeypatch.setattr(search, "solve", interrupted_at_the_second)
    assert cli.main(["compare", str(tmp_path / "g.json"), "--budget", "100%", "--methods", "keep-all", "greedy", "milp"]) == 0
    text = capsys.readouterr().out
    assert "keep-all" in text and "interrupted; not searched: greedy, milp" in text
    monkeypatch.setattr(search, "solve", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert cli.main(["compare", str(tmp_path / "g.json"), "--budget", "100%"]) == 1
    assert error_line(capsys.readouterr().err) == "interrupted before there was a result"
