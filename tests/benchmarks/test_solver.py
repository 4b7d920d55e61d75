"""The benchmark of the methods runs, writes what it prints, and would notice a wrong bound."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import checkmate
from support import training_chain

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "solver.py"


def test_files_and_networks(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    training_chain(8).save(tmp_path / "graphs" / "chain.json")
    arguments = ["graphs", "--networks", "vgg16", "--methods", "auto", "keep-all", "--budgets", "90%", "20%", "1.02x"]
    arguments += ["--orders", "given", "any"]
    process = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--time-limit", "5", "--plot", "gap.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    data = json.loads((tmp_path / "solver.json").read_text())
    assert data["environment"]["versions"]["highspy"] and data["seed"] == 0
    rows = data["rows"]
    assert {(row["graph"], row["budget_text"]) for row in rows} == {
        ("VGG16", "90%"),
        ("VGG16", "1.02x"),
        ("chain8", "90%"),
        ("chain8", "1.02x"),
    }, "what is below the minimum is left out"
    assert all((row["cost"] is None) == (row["method"] == "keep-all") for row in rows)
    for order in ("given", "any"):
        found = [row["overhead"] for row in rows if row["graph"] == "VGG16" and row["cost"] and row["order"] == order]
        assert found == pytest.approx([1.00186819] * 2)
    assert process.stdout.count("\n") == 1 + len(rows)
    assert (tmp_path / "gap.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_bound_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark()
    row = {
        "order": "given",
        "status": "optimal",
        "overhead": 1.5,
        "cost": 24.0,
        "peak": 80,
        "seconds": 0.1,
        "contradicted": False,
    }
    found = [{**row, "method": "one", "proven": 24.0}, {**row, "method": "two", "cost": 23.0, "proven": 20.0}]
    monkeypatch.setattr(module, "search", lambda *_: found.pop(0))
    rows = module.compare(training_chain(8), "90%", 80, Namespace(methods=["one", "two"], orders=["given"]))
    assert [row["sound"] for row in rows] == [True, False]
    assert capsys.readouterr().out.splitlines()[1].endswith("WRONG")


def test_a_contradiction_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that `solve` noticed itself, and so returned nothing."""
    module = benchmark()

    def solve(*_: object, progress: Callable[[checkmate.solvers.Progress], None], **__: object) -> None:
        progress(checkmate.solvers.Progress(0.1, 16.0, 17.0, 0.0, "bad proof"))
        raise checkmate.Contradiction("one thing, but another")

    monkeypatch.setattr(checkmate, "solve", solve)
    options = Namespace(methods=["auto"], orders=["given"], time_limit=1.0, gap=0.0, seed=0)
    (row,) = module.compare(training_chain(8), "90%", 80, options)
    assert not row["sound"] and row["proven"] == 17.0 and capsys.readouterr().out.endswith("WRONG\n")


def benchmark() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_solver", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
