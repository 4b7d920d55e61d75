"""What a user can say, and what it comes to in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from checkmate.errors import BudgetError, UnknownMethod
from checkmate.planning import Options


def test_amounts_in_bytes() -> None:
    def total(budget: Any) -> int:
        return Options.read({"budget": budget}).total(1000, lambda: 77)

    assert [total("50%"), total("1KiB"), total(3), total("auto")] == [500, 1024, 3, 77]
    assert Options().reserved_bytes() == 0
    assert Options().reserved_bytes(unsaid=5) == 5
    assert Options.read({"reserved": 0}).reserved_bytes(unsaid=5) == 0
    assert Options.read({"reserved": "2KB"}).reserved_bytes(unsaid=5) == 2000


def test_what_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(UnknownMethod, match=r"'bugdet'.*budget, reserved, method"):
        Options.read({"bugdet": 3})
    with pytest.raises(UnknownMethod, match="'guess': choose one of profile"):
        Options.read({"cost_model": "guess"})
    for bad in ({"budget": "abc"}, {"budget": -1}, {"reserved": "10%"}, {"reserved": "x"}):
        with pytest.raises(BudgetError):
            Options.read(bad)


@pytest.mark.parametrize(("budget", "relative"), [("50%", True), (" 50 % ", True), ("auto", False), (5, False), ("5GiB", False)])
def test_percentages(budget: Any, relative: bool) -> None:
    assert Options.read({"budget": budget}).is_relative == relative


def test_what_the_search_gets() -> None:
    assert Options(gap=0.5).search() == {"method": "auto", "order": "given", "time_limit": 30.0, "gap": 0.5, "seed": 0}
