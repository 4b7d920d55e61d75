"""What the README says is true; tests/test_docs.py looks at its blocks, and at those of the other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import checkmate
from checkmate import Graph
from docs_blocks import ROOT, blocks


def test_planning_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in blocks("README.md", "python") if "Graph.load" in block.code]
    monkeypatch.chdir(tmp_path)
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    Graph.from_arrays([1, 1, 1, 1], [4, 1, 4, 1], edges).save("graph.json")
    names = {"checkmate": checkmate}
    exec(compile(block.code.replace("60%", "100%"), "README.md", "exec"), names)
    schedule = names["schedule"]
    assert isinstance(schedule, checkmate.Schedule)
    assert (schedule.peak, schedule.overhead, schedule.gap, schedule.status) == (9, 1.0, 0.0, "optimal")


def test_constraints_pin_every_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines)
    names = {line.split("==")[0].lower() for line in lines}
    assert {"numpy", "highspy", "cython", "torch", "matplotlib", "pytest", "hypothesis", "ruff", "mypy"} <= names
    assert {"sphinx", "furo", "myst-nb", "sphinx-copybutton"} <= names


def test_the_version_is_the_same_everywhere() -> None:
    version = checkmate.__version__
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
