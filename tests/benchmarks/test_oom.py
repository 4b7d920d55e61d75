"""The memory-limit benchmark: a whole run, and that a limit below the budget is fatal to the planned script too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")]


def load() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "oom.py"
    spec = importlib.util.spec_from_file_location("oom", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["resnet", "unet", "transformer"])
def test_plain_dies_and_planned_trains(name: str) -> None:
    row = load().compare(name, 0.5)
    assert row["plain_died_of_the_limit"], row["plain_limited"]
    assert row["planned_completed"], row["planned_limited"]
    assert row["same_losses"]


def test_the_limit_is_close() -> None:
    """Under a limit of 80% of its budget the planned script dies as well: the limit has no hidden room."""
    oom = load()
    budget = 100 << 20
    died = oom.run("unet", budget=budget, limited_to=int(0.8 * budget))
    assert not died["completed"]
    assert died["refused_bytes"]
