"""The benchmarks of scale, of phases, and the fuzzing run and write what they print."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def run(script: str, folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Standard output, and the JSON file."""
    process = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments, "--output", "out.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout, json.loads((folder / "out.json").read_text())


def test_scale(tmp_path: Path) -> None:
    arguments = ["--families", "residual", "--ops", "100", "200", "--budgets", "70%", "1%", "--time-limit", "10"]
    out, data = run("solver_scale.py", tmp_path, *arguments, "--plot", "scale.png")
    assert data["environment"]["versions"]["highspy"]
    assert [(row["ops"], row["budget_text"]) for row in data["rows"]] == [(101, "70%"), (199, "70%")], "1% is below the minimum"
    assert all(row["gap"] <= 0.001 and row["peak"] <= row["budget"] and row["peak_rss"] > 2**20 for row in data["rows"])
    assert out.count("\n") == 1 + len(data["rows"])
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")


def test_profile(tmp_path: Path) -> None:
    _, data = run("solver_profile.py", tmp_path, "--layers", "12", "--budgets", "60%")
    (row,) = data["rows"]
    assert sum(row["seconds"].values()) == pytest.approx(row["total"])
    assert row["calls"]["HiGHS"] >= 1 and row["calls"]["simulate"] == 1


def test_fuzz(tmp_path: Path) -> None:
    arguments = ["--graphs", "20", "--steps", "1", "--workers", "1", "--large-share", "0.1", "--time-limit", "3"]
    out, data = run("fuzz.py", tmp_path, *arguments)
    assert data["done"] == 21 and data["counts"]["small graphs"] + data["counts"].get("large graphs", 0) == 20
    assert data["counts"]["steps"] == 1 and data["failures"] == [] and "0 failures" in out


def test_fuzz_notices_a_wrong_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a method, of a bound by itself, and of one run that another run contradicts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    fuzz = load("fuzz")
    true_force = fuzz.brute_force
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "brute_force", lambda *arguments: (true_force(*arguments) or 0.0) - 1.0)
        wrong = [fuzz.check(("graph", seed), 0.0, 5.0, in_place=False)[1] for seed in range(3)]
        assert any(text is not None and "above" in text for text in wrong)
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "bounds_alone", lambda *_: [(1e9, "bad proof")])
        patched.setattr(fuzz, "SETTINGS", [("greedy", "given", 0, 1.0)])
        wrong = [fuzz.check(("step", seed), 0.0, 2.0, in_place=False)[1] for seed in range(3)]
        assert any(text is not None and "bad proof" in text and "above the cost" in text for text in wrong)
    counts: Counter[str] = Counter()
    monkeypatch.setattr(fuzz, "GRACE", -5.0)
    with pytest.raises(fuzz.Failure, match="took"):
        fuzz.large(random.Random(0), 4.0, counts, False)


def load(name: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
