"""What the README and the help say is true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import checkmate
from checkmate import Graph
from checkmate.cli.parser import parse

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for kind, text in found if kind == language]


def test_the_two_commands_are_targets_of_make() -> None:
    assert [block.strip() for block in blocks("")][:2] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_commands_are_understood() -> None:
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("checkmate ")]
    assert len(lines) == 9
    for line in lines:
        assert parse(shlex.split(line)[1:]).command in line


def test_the_short_form_of_a_graph_is_read() -> None:
    (text,) = blocks("json")
    graph = Graph.from_dict(json.loads(text))
    assert (graph.num_ops, graph.ideal_cost, graph.no_recompute_peak) == (2, 5.0, 1600)


def test_planning_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks("python") if "Graph.load" in block]
    monkeypatch.chdir(tmp_path)
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    Graph.from_arrays([1, 1, 1, 1], [4, 1, 4, 1], edges).save("graph.json")
    exec(compile(code.replace("60%", "100%"), "README.md", "exec"), {"checkmate": checkmate})
    assert capsys.readouterr().out == "9 1.0 0.0 optimal\n"


def test_constraints_pin_every_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines)
    names = {line.split("==")[0].lower() for line in lines}
    assert {"numpy", "scipy", "highspy", "numba", "torch", "matplotlib", "pytest", "hypothesis", "ruff", "mypy"} <= names


def test_the_version_is_the_same_everywhere() -> None:
    version = checkmate.__version__
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
