"""The margin of the next plan after one that passed its budget."""

from __future__ import annotations

import random

from checkmate.planning import Margins


def test_the_shortfall_is_left_free() -> None:
    margins = Margins(1000)
    margins.passed(0, predicted=990, peak=1100)
    assert margins.margin == 110
    assert margins.failures == 1


def test_margins_grow_by_whole_units() -> None:
    margins = Margins(1000, unit=8)
    margins.passed(0, 990, 1003)
    assert margins.margin == 16
    margins.passed(16, 980, 1001)
    assert margins.margin == 24
    other = Margins(1000, unit=8)
    other.passed(0, 991, 1002)  # the next process measured a little less
    assert other.margin == 16


def test_a_margin_that_is_not_enough_always_grows_and_at_last_doubles() -> None:
    margins, seen = Margins(10_000, unit=10), []
    for _ in range(7):
        margins.passed(margins.margin, 9_000, 10_001 - margins.margin)  # always a little too much
        seen.append(margins.margin)
    assert seen == sorted(set(seen))
    assert seen[0] == 1010
    assert seen[-1] > 2 * seen[-2]


def test_any_excess_up_to_a_third_is_found_in_a_few_plans() -> None:
    """As if a plan that leaves m bytes took what is predicted and some more, which differs from plan to plan."""
    for seed in range(200):
        rng = random.Random(seed)
        budget = 10**6
        margins = Margins(budget, unit=budget // 200 + 1)
        peak = budget + 1
        while peak > budget:
            predicted = budget - margins.margin
            peak = int(predicted * rng.uniform(1.2, 1.3))
            if peak > budget:
                margins.passed(margins.margin, predicted, peak)
        assert 1 <= margins.failures <= 4


def test_where_there_is_no_room_margins_that_were_not_tried_are() -> None:
    margins = Margins(1000, margin=400, failures=2, tried=[30, 200])
    assert margins.no_room(smallest_found=1100)  # so 300 can be left free at most
    assert margins.margin == 300
    margins.tried.append(300)
    assert margins.no_room(1000)
    assert margins.margin == 115  # the middle of the widest gap
    assert not margins.no_room(1000 + 115 - 35)  # no more than 35, and 30 was tried


def test_no_margin_is_tried_twice_and_the_search_for_one_ends() -> None:
    margins = Margins(1000, margin=500, failures=1, tried=[30])
    seen = []
    while margins.no_room(smallest_found=1000 + max(0, margins.margin - 200)):  # no more than 200
        assert all(abs(margins.margin - other) >= 10 for other in margins.tried)
        seen.append(margins.margin)
        margins.tried.append(margins.margin)
    assert len(seen) >= 3
    assert all(30 <= margin <= 200 for margin in seen)


def test_nothing_was_tried() -> None:
    margins = Margins(1000, margin=50)
    assert not margins.no_room(1100)
    assert margins.margin == 50


def test_less_room_than_one_that_fits() -> None:
    margins = Margins(1000, tried=[100, 400, 900])
    assert margins.less(800) == 600
    assert margins.less(405) is None
    assert margins.less(50) is None
