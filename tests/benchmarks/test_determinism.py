"""The comparison of two processes: what differs is told, and what the clock ended is not held against anybody."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from support import random_graph

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def determinism(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("determinism")


@pytest.mark.parametrize(
    ("second", "by_clock", "code", "answer"),
    [("a", False, 0, "same"), ("b", False, 1, "DIFFERENT"), ("b", True, 0, "ended by the clock")],
)
def test_outcomes(
    determinism: Any,
    second: str,
    by_clock: bool,
    code: int,
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(hash_seed: int, busy: bool) -> list[dict[str, Any]]:
        steps = second if busy else "a"
        return [{"name": "one", "result": {"steps": steps}, "seconds": 1.0, "by_clock": by_clock and busy}]

    monkeypatch.setattr(determinism, "run", run)
    monkeypatch.setattr("sys.argv", ["determinism.py", "--output", str(tmp_path / "out.json")])
    assert determinism.main() == code
    assert answer in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["different"] == code


def test_two_real_processes(determinism: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_graph(random.Random(46), max_ops=90, min_ops=12).save(tmp_path / "graph.json")
    few = ["--networks", "--layers", "0", "--random", "0", "--tuning", "0", "--time-limit", "600"]
    arguments = [str(tmp_path / "graph.json"), *few, "--output", str(tmp_path / "out.json")]
    monkeypatch.setattr("sys.argv", [str(FOLDER / "determinism.py"), *arguments])
    monkeypatch.setenv("PYTHONPATH", str(Path(determinism.checkmate.__file__).parent.parent))
    assert determinism.main() == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["rows"]) == 4 and not any(row["by_clock"] for row in found["rows"])
