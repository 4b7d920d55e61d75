"""The command line: output, exit codes, one clear line for bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import Graph, InfeasibleBudget, Schedule, cli
from checkmate.cli import inspect, other_budgets, search
from checkmate.report.page_data import even_budgets
from support import error_line, training_chain, vgg19_like


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    path = tmp_path / "chain.json"
    training_chain(8, size=1000).save(path)
    return str(path)


# --- info ---


def test_info(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", graph_file]) == 0
    output = capsys.readouterr()
    assert "chain8: 16 ops, 16 values (0 kept to the end)" in output.out
    assert "8.79 KiB (9000 bytes)" in output.out
    assert output.err == ""


def test_info_json(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", graph_file, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    graph = Graph.load(graph_file)
    assert figures == {
        "name": "chain8",
        "ops": 16,
        "values": 16,
        "kept_values": 0,
        "not_recomputable_ops": 0,
        "ideal_cost": 16.0,
        "cost_unit": None,
        "fixed_memory": 0,
        "no_recompute_peak": graph.no_recompute_peak,
        "min_working_set": graph.min_working_set,
    }


# --- solve ---


def test_solve_writes_a_schedule_that_loads(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s.json"
    assert cli.main(["solve", graph_file, "--budget", "60%", "-o", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert captured.err == "", "no progress where nobody looks"
    schedule = Schedule.load(out, Graph.load(graph_file))
    assert figures == schedule.summary()
    assert schedule.peak <= 5400 == schedule.budget
    assert figures["overhead"] > 1


def test_solve_text(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s.json"
    assert cli.main(["solve", graph_file, "--budget", "9000", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert "16 ops, 0 recomputations, optimal" in text
    assert "overhead  1.000000" in text
    assert "gap 0%" in text
    assert f"wrote {out}" in text


def test_quiet(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["solve", graph_file, "--budget", "100%", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_plot(graph_file: str, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    assert cli.main(["solve", graph_file, "--budget", "70%", "--plot", str(picture), "--quiet"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_live_progress_on_a_terminal(
    graph_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["solve", graph_file, "--budget", "70%"]) == 0
    shown = capsys.readouterr().err
    assert "overhead 1." in shown
    assert "bound 1." in shown
    assert "gap" in shown
    *_, last, end = shown.split("\r")
    assert last.isspace() and end == "", "the line must be gone at the end"
    assert cli.main(["solve", graph_file, "--budget", "70%", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# --- report ---


def test_report_of_a_budget(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "r.html"
    assert cli.main(["report", graph_file, "--budget", "60%", "-o", str(page)]) == 0
    text = capsys.readouterr().out
    assert "chain8: peak 4.88 KiB (5000 bytes), while op8 runs; the largest:" in text
    assert f"wrote {page}" in text
    assert "more computing" in page.read_text()


def test_report_of_a_saved_schedule(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, page = tmp_path / "s.json", tmp_path / "r.html"
    assert cli.main(["solve", graph_file, "--budget", "60%", "-o", str(saved), "--quiet"]) == 0
    assert cli.main(["report", graph_file, "--schedule", str(saved), "-o", str(page), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    schedule = Schedule.load(saved, Graph.load(graph_file))
    assert {key: figures[key] for key in schedule.summary()} == schedule.summary()
    assert sum(one["size"] for one in figures["at_peak"]["holdings"]) == schedule.peak
    assert sum(one["times"] for one in figures["recomputed"]) == schedule.num_recomputations > 0


def test_report_with_a_trace(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, traced = tmp_path / "r.html", tmp_path / "t.json"
    arguments = ["report", graph_file, "--budget", "60%", "-o", str(page), "--trace", str(traced)]
    assert cli.main(arguments) == 0
    assert f"wrote {page}" in (text := capsys.readouterr().out) and f"wrote {traced}" in text
    events = json.loads(traced.read_text())["traceEvents"]
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"memory of this schedule", "budget"}
    assert cli.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"] == str(traced)
    assert cli.main([*arguments[:-1], graph_file]) == 2
    assert "it is also read" in error_line(capsys.readouterr().err)
    assert cli.main([*arguments[:-1], str(page)]) == 2
    assert "have the same name" in error_line(capsys.readouterr().err)


def test_the_trace_of_a_network_says_what_its_costs_are(tmp_path: Path) -> None:
    traced = tmp_path / "t.json"
    assert cli.main(["report", "vgg16", "-o", str(tmp_path / "r.html"), "--trace", str(traced), "--quiet"]) == 0
    assert json.loads(traced.read_text())["otherData"]["time"] == "a cost of 1e+12 multiply-adds is shown as one second"


def test_report_without_a_budget(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", graph_file, "-o", str(tmp_path / "r.html"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["peak"], figures["recomputations"], figures["budget"]) == (9000, 0, None)


def test_report_with_other_budgets(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", graph_file, "--budget", "60%", "-o", str(tmp_path / "r.html"), "--json"]
    assert cli.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    budgets = [one["budget"] for one in figures["others"]]
    assert len(budgets) > 2 and budgets == sorted(budgets, reverse=True) and figures["budget"] not in budgets
    assert all(one["peak"] <= one["budget"] for one in figures["others"])
    assert cli.main([*arguments, "--curve", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["others"] == []
    assert cli.main([*arguments, "--curve", "-1"]) == 2
    assert "--curve is a number of seconds, not -1" in error_line(capsys.readouterr().err)


def test_report_when_the_time_for_other_budgets_is_over(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search gets its share of what is left; one that finds nothing, or is interrupted, does not cost the page."""
    now, seconds = [0.0], []

    def slow(graph: Graph, budget: int, *arguments: Any) -> Schedule:
        seconds.append(arguments[2])
        now[0] += 4.0
        if len(seconds) == 2:
            raise InfeasibleBudget(budget, 1, budget)
        if len(seconds) == 4:
            raise KeyboardInterrupt
        return checkmate.solve(graph, budget)

    monkeypatch.setattr(other_budgets, "solve", slow)
    monkeypatch.setattr(other_budgets, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    page = tmp_path / "r.html"
    assert cli.main(["report", graph_file, "-o", str(page), "--curve", "15", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["others"]) == 2 and page.exists()
    first = 15 / len(even_budgets(Graph.load(graph_file), other_budgets.COUNT))
    assert seconds[0] == pytest.approx(first) and seconds[1:] == sorted(seconds[1:], reverse=True)
    seconds.clear()
    assert cli.main(["report", graph_file, "-o", str(page), "--curve", "7", "--json"]) == 0
    assert len(seconds) == 2


def test_report_of_bad_input(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    assert cli.main(["report", graph_file, "--schedule", str(wrong), "-o", str(tmp_path / "r.html")]) == 2
    assert "is not a schedule file" in error_line(capsys.readouterr().err)
    assert cli.main(["report", graph_file, "--schedule", str(wrong), "--budget", "1MB"]) == 2
    assert "not allowed with" in error_line(capsys.readouterr().err)
    assert cli.main(["report", graph_file, "-o", str(tmp_path / "none" / "r.html")]) == 2
    assert "there is no folder" in error_line(capsys.readouterr().err)


# --- compare and sweep ---


def test_compare(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every method is measured against the best bound that any of them proved."""
    arguments = ["compare", graph_file, "--budget", "60%", "--methods", "auto", "greedy", "keep-all", "milp-gurobi"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines()[3:]}
    assert list(lines) == ["auto", "greedy", "keep-all", "milp-gurobi"]
    assert lines["auto"].endswith("optimal") and lines["keep-all"].endswith("no schedule found")
    assert cli.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    auto, greedy, keep_all, _ = result["rows"]
    schedule = checkmate.solve(Graph.load(graph_file), "60%")
    assert (auto["cost"], auto["peak"], result["budget"]) == (schedule.cost, schedule.peak, 5400)
    assert result["lower_bound"] == auto["lower_bound"] > greedy["lower_bound"] == 16.0
    assert greedy["gap"] == pytest.approx(greedy["cost"] / result["lower_bound"] - 1)
    assert (keep_all["status"], keep_all["cost"], keep_all["gap"]) == ("infeasible", None, None)


def test_compare_takes_all_methods_that_need_nothing_more(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", graph_file, "--budget", "100%", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    names = [row["method"] for row in rows]
    assert {"auto", "milp", "lp-rounding", "chen-sqrt", "chen-greedy-linear", "griewank"} <= set(names)
    assert not {"milp-cbc", "milp-gurobi", "chen-sqrt-ap"} & set(names)
    assert all(row["status"] == "optimal" for row in rows if not row["method"].startswith(("chen", "keep-all-forward")))


def test_compare_says_what_is_missing(
    graph_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "cbcbox", None)
    assert cli.main(["compare", graph_file, "--budget", "60%", "--methods", "milp-cbc", "keep-all"]) == 1
    assert "needs the solver CBC" in capsys.readouterr().out


def test_sweep(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "sweep.png"
    assert cli.main(["sweep", graph_file, "--time-limit", "1", "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 2 + 9 + 1, "budgets from 9000 down to 3000 in steps of 750"
    assert f"wrote {picture}" in text and picture.read_bytes().startswith(b"\x89PNG")


def test_sweep_json(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", graph_file, "--budgets", "100%", "60%", "2999", "--method", "greedy", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["budget"] for row in rows] == [9000, 5400, 2999]
    assert rows[0]["overhead"] == 1.0 < rows[1]["overhead"]
    assert (rows[2]["status"], rows[2]["note"]) == ("infeasible", "below the proven minimum")


@pytest.mark.parametrize(
    "command",
    [
        ["report", "--budget", "60%", "--curve", "0", "-o", "/dev/null"],
        ["compare", "--budget", "60%", "--methods", "auto"],
        ["sweep", "--budgets", "60%"],
        ["solve", "--budget", "60%"],
    ],
    ids=lambda words: words[0],
)
def test_order_reaches_the_search(
    command: list[str], graph_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def solve(*arguments: Any, **named: Any) -> Any:
        seen.append(named.get("order", arguments[3] if len(arguments) > 3 else None))
        return checkmate.solve(arguments[0], arguments[1])

    for module in (search, inspect):
        monkeypatch.setattr(module, "solve", solve)
    assert cli.main([command[0], graph_file, *command[1:], "--order", "any", "--quiet"]) == 0
    assert seen == ["any"]


def test_a_bound_above_a_cost_is_an_error(
    graph_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(graph: Graph, budget: int, method: str, *_: object) -> Schedule:
        found = checkmate.solve(graph, budget)
        return replace(found, method=method, lower_bound=found.cost * (1.01 if method == "milp" else 1.0))

    monkeypatch.setattr(search, "solve", solve)
    assert cli.main(["compare", graph_file, "--budget", "60%", "--methods", "auto", "milp"]) == 1
    line = error_line(capsys.readouterr().err)
    assert "milp says that no schedule costs less than 20.2, but auto found one that costs 20.0: this is a defect" in line


def test_a_contradiction_within_a_search_is_no_row_of_a_table(
    graph_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def solve(*_: object) -> Schedule:
        raise checkmate.Contradiction("one thing, but another")

    monkeypatch.setattr(search, "solve", solve)
    for command in (["compare", "--methods", "auto", "milp", "--budget"], ["sweep", "--budgets"]):
        assert cli.main([command[0], graph_file, *command[1:], "60%"]) == 1
        assert "one thing, but another" in error_line(capsys.readouterr().err)


def test_sweep_and_compare_quiet(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", graph_file, "--budgets", "100%", "--quiet"]) == 0
    assert cli.main(["compare", graph_file, "--budget", "100%", "--methods", "keep-all", "--quiet"]) == 0
    assert cli.main(["sweep", graph_file, "--budgets", "2999", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


# --- failure: exit code 1 ---


def stand_in(error: BaseException) -> Callable[..., Any]:
    def solve(*_: object, **__: object) -> Any:
        raise error

    return solve


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InfeasibleBudget(500, 400, 600), 1, "was not met by any schedule found.*at least 600 B"),
        (InfeasibleBudget(399, 400, 600), 2, "below the proven minimum"),
        (checkmate.CheckmateError("two\nlines"), 1, "two lines"),
        (KeyboardInterrupt(), 1, "interrupted before there was a result"),
        (OSError(28, "No space left on device", "s.json"), 1, "s.json: No space left on device"),
    ],
)
def test_exit_codes_of_errors(
    error: BaseException,
    code: int,
    message: str,
    graph_file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "solve", stand_in(error))
    assert cli.main(["solve", graph_file, "--budget", "500"]) == code
    assert re.search(message, error_line(capsys.readouterr().err))


# --- demo ---


def fake_demo(monkeypatch: pytest.MonkeyPatch, run: Callable[..., list[dict[str, Any]]]) -> None:
    module = types.ModuleType("checkmate.demo")
    module.run_demo = run  # type: ignore[attr-defined]  # a module made by hand
    module.COLUMNS, module.NOTE = ["model"], "a note\nof two lines"  # type: ignore[attr-defined]
    module.cells = lambda rows: [[row["model"]] for row in rows]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "checkmate.demo", module)


def test_demo_passes_its_arguments_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(output: Path, progress: Callable[[str], None]) -> list[dict[str, Any]]:
        progress(f"to {output.name}")
        return [{"model": "net", "gap": float("inf")}]

    fake_demo(monkeypatch, run)
    assert cli.main(["demo", "-o", str(tmp_path / "pictures")]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("model\nnet\n\na note\nof two lines\n", "to pictures\n")
    assert cli.main(["demo", "--json", "--quiet", "-o", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == [{"model": "net", "gap": None}]
    assert captured.err == ""


def test_demo_failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_demo(monkeypatch, stand_in(checkmate.CheckmateError("a peak passed its budget")))
    assert cli.main(["demo"]) == 1
    assert error_line(capsys.readouterr().err) == "a peak passed its budget"


# --- as a program ---


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "checkmate", *arguments], capture_output=True, text=True, check=False)


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"checkmate {checkmate.__version__}\n")


@pytest.mark.parametrize(
    "command",
    ["", "info", "solve", "report", "compare", "sweep", "max-batch", "trace", "networks", "devices", "demo", "completion"],
)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*([command] if command else []), "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "exit codes:" in text
    searches = command in ("solve", "report", "compare", "sweep", "max-batch")
    assert ("Ctrl-C" in text) is searches
    assert ("--quiet" in text) is (command not in ("", "info", "networks", "devices", "completion"))
    assert ("given:" in text and "any:" in text) is (searches and command != "max-batch")


def test_error_of_the_program(graph_file: str) -> None:
    result = run("solve", graph_file, "--budget", "abc")
    assert (result.returncode, result.stdout) == (2, "")
    assert "cannot read 'abc'" in error_line(result.stderr)


def test_reader_that_leaves(graph_file: str) -> None:
    """As in `checkmate info g.json | true`: no traceback."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "checkmate", "info", graph_file], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (1, "")


def test_vgg19_like_graph_end_to_end(tmp_path: Path) -> None:
    vgg19_like().save(tmp_path / "vgg.json")
    result = run("solve", str(tmp_path / "vgg.json"), "--budget", "98%", "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["peak"] <= figures["budget"]
    assert 1 < figures["overhead"] < 1.1


# --- max-batch ---


def test_max_batch(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph.load(graph_file)
    room = graph.no_recompute_peak - graph.fixed_memory
    budget = str(graph.fixed_memory + 3 * room)
    assert cli.main(["max-batch", graph_file, "--budget", budget, "--max-overhead", "1", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["batch"] == out["upper_bound"] == 3 and out["schedule_at_batch_1"]["overhead"] == 1.0
    assert cli.main(["max-batch", graph_file, "--budget", budget, "--max-overhead", "1"]) == 0
    captured = capsys.readouterr()
    assert "batch 3 fits; no batch above 3" in captured.out
    assert "fits; largest so far 3, at most 3" in captured.err
    assert cli.main(["max-batch", graph_file, "--budget", budget, "--max-overhead", "1", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert cli.main(["max-batch", graph_file, "--budget", "1"]) == 2
    assert cli.main(["max-batch", graph_file, "--budget", budget, "--max-overhead", "0.5"]) == 2
