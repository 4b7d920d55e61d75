"""The benchmark of what a step takes beside recomputation runs here, small."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the benchmark, as Python does for a script in its folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("torch_overhead")


def test_both_tables_with_few_rounds(tmp_path: Path) -> None:
    output = tmp_path / "overhead.json"
    script = str(FOLDER / "torch_overhead.py")
    command = [sys.executable, script, "--scale", "tiny", "--networks", "gpt", "--budgets", "80%", "1%"]
    command += ["--rounds", "3", "--time-limit", "2", "--before", str(FOLDER.parent / "src"), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # seconds decide which
    found = json.loads(output.read_text())
    (plain,) = found["plain"]
    assert set(plain["ways"]) == {"eager", "aot_eager", "ours", "before"}
    assert plain["equal"]
    assert plain["ways"]["ours"]["overhead"] == plain["ways"]["before"]["overhead"] == 1
    assert all(first <= middle <= third for first, middle, third in plain["ratios"].values())
    (less,) = found["recomputing"]
    assert less["equal"]
    ours = less["ways"]["80%"]
    assert less["planned"] == {"80%": ours["overhead"]}
    assert ours["overhead"] > less["ways"]["110%"]["overhead"] == 1
    assert ours["measured_peak"] <= ours["budget"]
    assert set(less["ratios"]) == {"80% / 110%"}
    assert "InfeasibleBudget" in less["ways"]["1%"]["error"]
    assert "InfeasibleBudget" in done.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"ours / aot_eager": [0.9, 1.01, 1.1]}, ["gpt2 takes 1.010 of aot_eager"]),
        ({"ours / eager": [0.9, 1.04, 1.1]}, ["gpt2 takes 1.040 of eager"]),
        ({"equal": False}, ["gpt2 comes to other losses"]),
        ({"measured": 1.17}, ["planned and measured ratios are 6.0 points apart at the median"]),
        ({"measured": 1.05}, ["planned and measured ratios are 6.0 points apart at the median"]),
        ({"measured": 1.15}, []),
    ],
)
def test_verdict(overhead: Any, changed: dict[str, Any], said: list[str]) -> None:
    ratios = {"ours / eager": [0.9, 1.02, 1.1], "ours / aot_eager": [0.9, 0.99, 1.1]}
    ratios = {name: changed.get(name, quartiles) for name, quartiles in ratios.items()}
    far = {name: [9.0, 9.0, 9.0] for name in ratios}
    plain = [{"network": "gpt2", "ratios": ratios, "cpu_ratios": far, "equal": changed.get("equal", True)}]
    shares = {"80%": changed.get("measured", 1.11), "60%": changed.get("measured", 1.11), "50%": 2.0}
    row = {
        "network": "gpt",
        "equal": True,
        "planned": dict.fromkeys(shares, 1.11),
        "ratios": {f"{budget} / 110%": [1.0, measured, 3.0] for budget, measured in shares.items()},
    }
    data = {"plain": plain, "recomputing": [row], "settings": {"by": "clock"}}
    assert overhead.verdict(data) == said
    for one in (*plain, row):
        one["ratios"], one["cpu_ratios"] = far, one["ratios"]
    assert overhead.verdict({**data, "settings": {"by": "cpu"}}) == said
