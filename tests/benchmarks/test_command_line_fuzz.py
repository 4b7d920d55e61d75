"""The fuzzer of the command line: faults that are planted are found, and nothing else is."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("command_line_fuzz")


@pytest.mark.parametrize(
    ("code", "output", "error", "wrong"),
    [
        (0, "chain: 5 ops\n", "", set()),
        (2, "", "checkmate: error: no\n", set()),
        (2, "", "checkmate: error: no\nand more\n", {"not one line"}),
        (2, "", "", {"not one line"}),
        (1, "", "Traceback (most recent call last)\n", {"traceback"}),
        (0, "\x1b[31mred", "", {"control characters"}),
        (3, "", "", {"exit code"}),
        (-11, "", "", {"exit code"}),
        (None, "", "", {"hang"}),
    ],
)
def test_what_is_said(fuzz: Any, tmp_path: Path, code: int | None, output: str, error: str, wrong: set[str]) -> None:
    (tmp_path / "output").write_text(output)
    (tmp_path / "error").write_text(error)
    outcome = fuzz.Outcome(0, ["info"], code)
    fuzz.judge_streams(outcome, tmp_path / "output", tmp_path / "error", "files")
    assert set(outcome.wrong) == wrong


@pytest.mark.parametrize(
    ("code", "error", "wrong"),
    [
        (1, "checkmate: error: interrupted before there was a result\n", set()),
        (-signal.SIGINT, "Traceback ... in site.py\n", set()),
        (-signal.SIGINT, f"Traceback ... in {os.sep}checkmate{os.sep}graph.py\n", {"traceback"}),
        (1, "", {"not one line"}),
        (-signal.SIGSEGV, "", {"exit code"}),
        (None, "", {"hang"}),
    ],
)
def test_what_an_interrupt_does(fuzz: Any, tmp_path: Path, code: int | None, error: str, wrong: set[str]) -> None:
    (tmp_path / "error").write_text(error)
    outcome = fuzz.Outcome(0, ["solve"], code)
    fuzz.judge_interrupt(outcome, signal.SIGINT, tmp_path / "output", tmp_path / "error")
    assert set(outcome.wrong) == wrong


def test_damaged_files(fuzz: Any, tmp_path: Path) -> None:
    for name in ("same.json", "gone.json", "cut.json", "whole.json"):
        (tmp_path / name).write_text('{"a": 1}')
    before = fuzz.contents(tmp_path)
    (tmp_path / "gone.json").unlink()
    (tmp_path / "cut.json").write_text('{"a":')
    (tmp_path / "whole.json").write_text('{"a": 2}')
    (tmp_path / ".checkmate-12.tmp").write_text("")
    outcome = fuzz.Outcome(0, ["solve"], 0)
    fuzz.judge_files(outcome, tmp_path, before)
    assert outcome.wrong == {
        "file gone": "'gone.json'",
        "damaged file": "'cut.json'",
        "temporary files left": "'.checkmate-12.tmp'",
    }


def test_commands_are_those_of_their_seed(fuzz: Any, tmp_path: Path) -> None:
    material = importlib.import_module("command_line_material")
    material.materials(tmp_path / "a")
    material.materials(tmp_path / "b")
    for seed in range(50):
        one, other = (material.bad_command(random.Random(seed), tmp_path / name) for name in "ab")
        assert [word.replace(f"{tmp_path}/a", "") for word in one] == [word.replace(f"{tmp_path}/b", "") for word in other]


def test_a_few_commands(fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of their own, as this process must not be forked: libraries run threads in it."""
    output = tmp_path / "fuzz.json"
    monkeypatch.setattr(sys, "argv", ["fuzz", "--commands=3", "--interrupts=0", "--programs=1", f"--output={output}"])
    assert fuzz.main() == 0
    assert '"as programs": 3' in output.read_text()
