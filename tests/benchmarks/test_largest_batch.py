"""The benchmark of the largest batch runs, and finds what is published for VGG19."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "largest_batch.py"


def test_vgg19(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--networks", "vgg19", "--time-limit", "30"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "VGG19" in process.stdout
    (row,) = json.loads((tmp_path / "largest_batch.json").read_text())["rows"]
    assert row["batch"] == row["upper_bound"] == 289
    assert row["without_recomputation"] < 289 and row["peak"] <= 16 * 10**9
