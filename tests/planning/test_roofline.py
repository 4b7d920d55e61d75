"""Roofline arithmetic."""

from __future__ import annotations

import pytest

from checkmate.errors import CheckmateError
from checkmate.planning.roofline import Rates, roofline_seconds


def test_the_slower_side_counts() -> None:
    rates = Rates(flops_per_second=100.0, bytes_per_second=10.0, latency=0.5)
    assert roofline_seconds(1000, 10, rates) == 10.5
    assert roofline_seconds(10, 1000, rates) == 100.5
    assert roofline_seconds(0, 0, rates) == 0.5


@pytest.mark.parametrize("bad", [(0, 1), (1, -1), (float("nan"), 1), (1, float("inf")), (1, 1, -1), (1, 1, float("nan"))])
def test_impossible_rates_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(CheckmateError, match="must be"):
        Rates(*bad)
