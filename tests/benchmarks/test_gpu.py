"""What is to be run on a GPU runs here, on the CPU and small."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def test_all_of_it_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--scale", "tiny", "--minutes", "20", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tests"] == 0
    assert not found["over"] and not found["broken"] and not found["skipped"]
    assert "passed" in (tmp_path / "tests.log").read_text()
    known = found["networks"]["gpt"]
    plain, peer, ours = known["plain"], known["peers"]["checkpoint 1"], known["ours"]
    assert set(ours) == {"100%", "60%", "5%", "lowest", "checkpoint 1"}
    assert ours["5%"]["error"].startswith("InfeasibleBudget")
    for name in set(ours) - {"5%"}:
        assert ours[name]["peak"] <= ours[name]["budget"]
        assert [len(seconds) for seconds in ours[name]["rounds"]] == [3, 3, 3] == [len(seconds) for seconds in plain["rounds"]]
    assert ours["lowest"]["peak"] <= peer["peak"] < plain["peak"]
    assert all("peak" in said and said["rounds"] for said in found["full"]["ways"].values())
    both = found["largest"]["gpt"]
    assert both["ours"]["batch"] > both["plain"]["batch"] > 8
    assert "| gpt | checkpoint 1 |" in (tmp_path / "summary.md").read_text()


def test_without_time_the_summary_says_what_is_left_out(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--scale", "tiny", "--minutes", "0.1", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "- left out: gpt: no time left" in (tmp_path / "summary.md").read_text()


def test_a_step_over_its_budget_is_said(load: Any) -> None:
    known = {"plain": {}, "peers": {}, "ours": {"60%": {"budget": 100, "first_peak": 101, "peak": 100, "later_peak": None}}}
    found = {"networks": {"gpt": known}, "full": {}}
    assert load("gpu_summary").over(found) == ["gpt, 60%: first_peak is 1 bytes over"]


def test_planned_overhead_is_compared_with_that_of_the_run_that_computes_least_again(load: Any) -> None:
    def said(overhead: float, *seconds: float) -> dict[str, Any]:
        return {"way": "checkmate", "overhead": overhead, "rounds": [[one, one] for one in seconds]}

    ours = {"100%": said(1.0, 2.0, 4.0), "60%": said(1.25, 2.4, 4.8), "40%": {"error": "no"}}
    assert load("gpu_summary").differences({"ours": ours}) == [pytest.approx(5.0)]


def test_a_worker_that_does_not_answer_is_killed(load: Any, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import subprocess, sys\nfor line in sys.stdin:\n    subprocess.run(['sleep', '600'])\n")
    began = time.monotonic()
    worker = load("worker").Worker(str(script))
    with pytest.raises(subprocess.CalledProcessError):
        worker.ask({}, 1.0)
    worker.close()
    assert time.monotonic() - began < 60
