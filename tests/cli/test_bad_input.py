"""Bad input: one clear line on standard error, exit code 2, and nothing that does something to a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import checkmate
from checkmate import Graph, InfeasibleBudget, Op, Value, cli
from checkmate.text import printable
from support import error_line, training_chain


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    path = tmp_path / "chain.json"
    training_chain(8, size=1000).save(path)
    return str(path)


BAD: dict[str, tuple[list[str], str]] = {
    "no command": ([], "COMMAND"),
    "unknown command": (["fly"], "invalid choice: 'fly'"),
    "no graph": (["info"], "GRAPH"),
    "no budget": (["solve", "GRAPH"], "--budget"),
    "unknown option": (["info", "GRAPH", "--colour"], "--colour"),
    "missing file": (["info", "none.json"], "cannot read none.json: No such file"),
    "malformed JSON": (["info", "MALFORMED"], "not valid JSON"),
    "cycle": (["solve", "CYCLE", "--budget", "10"], "cycle through ops 'op0' and 'op1'"),
    "unreadable budget": (["solve", "GRAPH", "--budget", "abc"], "cannot read 'abc' as an amount of memory: give bytes"),
    "unknown unit": (["solve", "GRAPH", "--budget", "3parsec"], "unknown unit 'parsec'"),
    "zero budget": (["solve", "GRAPH", "--budget", "0"], "at least one byte"),
    "below the minimum": (["solve", "GRAPH", "--budget", "2999"], "below the proven minimum.*ask for at least .*3.*bytes"),
    "no value": (["solve", "GRAPH", "--budget=--"], "--budget needs a value|cannot read '--'"),
    "no device": (["info", "GRAPH", "--device-model=--"], "--device-model needs a value|unknown device model '--'"),
    "no batch": (["info", "GRAPH", "--batch=--"], "--batch"),
    "unknown method": (
        ["solve", "GRAPH", "--budget", "50%", "--method", "magic"],
        "unknown method 'magic': choose one of auto, ",
    ),
    "compare: unknown method": (["compare", "GRAPH", "--budget", "50%", "--methods", "auto", "magic"], "unknown method 'magic'"),
    "compare: below the minimum": (["compare", "GRAPH", "--budget", "2999"], "below the proven minimum"),
    "sweep: unreadable budget": (["sweep", "GRAPH", "--budgets", "abc"], "cannot read 'abc'"),
    "sweep: unknown method": (["sweep", "GRAPH", "--method", "magic"], "unknown method 'magic'"),
    "sweep: picture format": (["sweep", "GRAPH", "--plot", "p.xyz"], "ends in .png, .pdf or .svg"),
    "sweep: negative gap": (["sweep", "GRAPH", "--gap", "-1"], "gap must be a number >= 0"),
    "unknown order": (["solve", "GRAPH", "--budget", "50%", "--order", "chaos"], "unknown order 'chaos': choose one of given"),
    "time limit": (["solve", "GRAPH", "--budget", "50%", "--time-limit", "soon"], "--time-limit: invalid float value: 'soon'"),
    "negative gap": (["solve", "GRAPH", "--budget", "50%", "--gap", "-1"], "gap must be a number >= 0"),
    "seed": (["solve", "GRAPH", "--budget", "50%", "--seed", "x"], "--seed: invalid int value"),
    "negative seed": (["solve", "GRAPH", "--budget", "50%", "--seed", "-1"], "seed must be a whole number from 0 to .*, not -1"),
    "large seed": (["sweep", "GRAPH", "--seed", "2147483647"], "seed must be a whole number from 0 to 2147483646"),
    "max-batch: negative seed": (["max-batch", "GRAPH", "--budget", "1MB", "--seed", "-1"], "seed must be"),
    "infinite overhead": (["max-batch", "GRAPH", "--budget", "1MB", "--max-overhead", "inf"], "max_overhead is .* finite"),
    "overhead not a number": (["max-batch", "GRAPH", "--budget", "1MB", "--max-overhead", "nan"], "max_overhead is"),
    "time limit not a number": (["solve", "GRAPH", "--budget", "50%", "--time-limit", "nan"], "time_limit must be a number"),
    "max-batch: time limit not a number": (
        ["max-batch", "GRAPH", "--budget", "1MB", "--time-limit", "nan"],
        "time_limit must be",
    ),
    "budget of 8 PiB": (["solve", "GRAPH", "--budget", "9007199254740992"], "less than 2..53 bytes"),
    "report: unknown order": (["report", "GRAPH", "--budget", "50%", "--order", "chaos"], "unknown order 'chaos'"),
    "compare: unknown order": (["compare", "GRAPH", "--budget", "50%", "--order", "chaos"], "unknown order 'chaos'"),
    "sizes of 8 PiB": (["info", "LARGE"], "below 2..53"),
    "an option as long as a file": (["info", "x" * 5000], "cannot read x{100,}.*x{100,}: File name too long"),
    "over the graph": (["solve", "GRAPH", "--budget", "50%", "-o", "GRAPH"], "it is also read, and would be lost"),
    "a name that is too long": (["solve", "GRAPH", "--budget", "50%", "-o", "x" * 300], "cannot write x*: File name too long"),
    "a picture that needs LaTeX": (["solve", "GRAPH", "--budget", "50%", "--plot", "p.pgf"], "ends in .png, .pdf or .svg"),
    "no such folder": (
        ["solve", "GRAPH", "--budget", "50%", "-o", "none/s.json"],
        "cannot write none/s.json: there is no folder none",
    ),
    "a folder": (["solve", "GRAPH", "--budget", "50%", "-o", "."], "cannot write .: it is a folder"),
    "picture format": (["solve", "GRAPH", "--budget", "50%", "--plot", "p.xyz"], "ends in .png, .pdf or .svg"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input(
    arguments: list[str],
    message: str,
    graph_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("malformed.json").write_text('{"nodes": [')
    nodes = [{"name": f"op{i}", "cost": 1, "memory": 1} for i in range(2)]
    Path("cycle.json").write_text(json.dumps({"nodes": nodes, "edges": [[0, 1], [1, 0]]}))
    Path("large.json").write_text(json.dumps({"nodes": [{"cost": 1, "memory": 2**53}], "edges": []}))
    names = {"GRAPH": graph_file, "MALFORMED": "malformed.json", "CYCLE": "cycle.json", "LARGE": "large.json"}
    assert cli.main([names.get(word, word) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, error_line(captured.err))


def test_python_errors_of_the_same_input(graph_file: str) -> None:
    graph = Graph.load(graph_file)
    with pytest.raises(InfeasibleBudget, match="ask for at least") as caught:
        checkmate.solve(graph, 2999, time_limit=2)
    assert caught.value.budget == 2999 < caught.value.proven_minimum
    fitting = checkmate.solve(graph, caught.value.smallest_found, time_limit=2)
    assert fitting.peak <= caught.value.smallest_found, "the budget that the message names must do"
    with pytest.raises(checkmate.UnknownMethod, match="choose one of auto"):
        checkmate.solve(graph, "50%", method="magic")
    with pytest.raises(checkmate.BudgetError, match="cannot read 'abc'"):
        checkmate.solve(graph, "abc")


ODD = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "two\nlines",
    "\r\x1b[2K",
    "[bold red]markup",
    "\u202egnp.exe",
    "\x9b31m",
    "$x_$",
]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("terminal", [False, True])
def test_names_do_nothing_to_a_terminal(
    name: str, terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those in a file nor those of files; the command may think that it writes to a terminal."""
    monkeypatch.chdir(tmp_path)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    ops = [Op(f"{name}{i}", 1.0, (i - 1,) if i else (), (i,)) for i in range(3)]
    Graph(ops, [Value(f"{name}{i}", 100) for i in range(3)], name=name).save(f"{name}.json")
    for command in (
        ["info", f"{name}.json"],
        ["solve", f"{name}.json", "--budget", "100%", "-o", f"{name}.out"],
        ["report", f"{name}.json", "-o", f"{name}.html"],
        ["compare", f"{name}.json", "--budget", "100%", "--methods", "keep-all"],
        ["sweep", f"{name}.json", "--budgets", "100%", "--method", "keep-all"],
        ["max-batch", f"{name}.json", "--budget", "100%"],
    ):
        assert cli.main(command) == 0
        out, err = capsys.readouterr()
        shown = re.sub(r"\x1b\[[0-9;]*m", "", out) if terminal else out + err
        assert shown.replace("\n", "").isprintable()
        assert printable(name) in shown
        assert name in shown or not name.isprintable()
    for command in (
        ["info", name],
        ["report", f"{name}.json", "--schedule", f"{name}.json"],
        ["fly", name],
        [name],
        ["info", "x", name],
    ):
        assert cli.main(command) == 2
        assert error_line(capsys.readouterr().err).isprintable()


def program(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """As a program, through a shell that redirects its streams."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m checkmate "$@" {shell}', sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )


def test_closed_streams(graph_file: str, tmp_path: Path) -> None:
    closed = program("info", graph_file, shell=">&-")
    assert (closed.returncode, closed.stdout) == (2, "")
    assert "standard output is closed" in error_line(closed.stderr)
    written = program("solve", graph_file, "--budget", "100%", "-o", f"{tmp_path}/s.json", "--quiet", shell=">&- <&- 2>&-")
    assert written.returncode == 0
    assert checkmate.Schedule.load(tmp_path / "s.json", Graph.load(graph_file)).overhead == 1.0
    unheard = program("info", "none.json", shell="2>&-")
    assert (unheard.returncode, unheard.stdout, unheard.stderr) == (2, "", "")


def test_full_standard_output(graph_file: str) -> None:
    for options in ([], ["--json"]):
        full = program("info", graph_file, *options, shell=">/dev/full")
        assert full.returncode == 1
        assert "No space left on device" in error_line(full.stderr)


def test_odd_environments(graph_file: str, tmp_path: Path) -> None:
    """An unknown backend, letters that the terminal does not have, sizes of terminals that there are none of."""
    refused = program("solve", graph_file, "--budget", "100%", "--plot", f"{tmp_path}/r.png", MPLBACKEND="no-such-backend")
    assert refused.returncode == 2
    assert "matplotlib does not start" in error_line(refused.stderr)
    assert not (tmp_path / "r.png").exists()
    Graph.from_arrays([1], [1], [], name="\u5377\ud800").save(tmp_path / "g.json")
    for columns in ("0", "1", "-5", "many"):
        shown = program("info", f"{tmp_path}/g.json", PYTHONIOENCODING="ascii", COLUMNS=columns)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.startswith("\\u5377\\ud800: 1 ops")
