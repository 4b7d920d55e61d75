"""What is to be run on a GPU runs here, on the CPU and small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def test_all_of_it_on_the_cpu(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--scale", "tiny", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tests"] == 0
    assert "passed" in (tmp_path / "tests.log").read_text()
    rows = {row["way"]: row for row in found["peers"]["networks"]["gpt"]["rows"]}
    assert set(rows) == {"checkpoint 1", "60% of plain", "lowest"}
    for row in rows.values():
        assert row["ours"]["peak"] <= row["budget"]
        assert len(row["ours"]["seconds"]) == len(row["plain"]["seconds"]) == 5
    assert rows["lowest"]["ours"]["peak"] <= rows["checkpoint 1"]["peer"]["peak"] < rows["lowest"]["plain"]["peak"]
    both = found["largest"]["gpt"]
    assert both["ours"]["batch"] > both["plain"]["batch"] > 8
    assert "| gpt | checkpoint 1 |" in (tmp_path / "summary.md").read_text()
