"""The memory-limit benchmark: a whole run, and that a limit below the budget is fatal to the planned script too."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")]


@pytest.mark.parametrize("name", ["resnet", "unet", "transformer"])
def test_plain_dies_and_planned_trains(load: Any, name: str) -> None:
    row = load("oom").BENCHMARK.compare(name, 0.5)
    assert row["plain_died_of_the_limit"], row["plain_limited"]
    assert row["planned_completed"], row["planned_limited"]
    assert row["same_losses"]


def test_the_limit_is_close(load: Any) -> None:
    """Under a limit of 80% of its budget the planned script dies as well: the limit has no hidden room."""
    budget = 100 << 20
    died = load("oom").BENCHMARK.run("unet", budget=budget, limited_to=int(0.8 * budget))
    assert not died["completed"]
    assert died["refused"]
