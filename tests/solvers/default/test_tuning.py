"""The numbers of the default method: each is explained, and none can be set to what makes no sense."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, FrozenInstanceError, fields, replace
from typing import Any

import pytest

import checkmate
from checkmate.errors import TuningError
from checkmate.solvers.default.auto import relaxations
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.heuristics.hill_climbing import Climb
from checkmate.solvers.interface.numbers import Numbers
from checkmate.solvers.interface.running_search import Search
from support import training_chain


def all_fields(numbers: Numbers) -> Iterator[tuple[Numbers, Field[Any]]]:
    for one in fields(numbers):
        value = getattr(numbers, one.name)
        if isinstance(value, Numbers):
            yield from all_fields(value)
        else:
            yield numbers, one


def test_every_number_says_its_unit_its_reason_and_what_shows_it() -> None:
    found = list(all_fields(TUNING))
    assert len(found) > 40
    for _, one in found:
        assert one.metadata["unit"] and one.metadata["why"] and one.metadata["shown_by"].startswith("python benchmarks/"), (
            one.name
        )


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("relaxations", {"additions": 0}, "RelaxationNumbers.additions must be between 1 and inf, not 0"),
        ("relaxations", {"additions": 2.5}, "additions must be a whole number, not 2.5"),
        ("relaxations", {"additions": True}, "additions must be a whole number, not True"),
        ("relaxations", {"stalled": float("nan")}, "stalled must be between 0 and inf, not nan"),
        ("relaxations", {"margins": ()}, "margins must be a tuple with at least one entry"),
        ("relaxations", {"margins": (0.5, "1")}, "margins must be a number, not '1'"),
        ("gaps", {"loose": -0.1}, "GapNumbers.loose must be between 0 and inf, not -0.1"),
        ("nested", {"cuts": ((25, 0, 1.0),)}, "cuts must be True or False, not 0"),
        ("nested", {"cuts": ((25, False),)}, "cuts must have entries like"),
        ("nested", {"numbers": 3}, "numbers must be a NestedNumbers, not 3"),
    ],
)
def test_wrong_values_are_refused(part: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TuningError, match=message.replace("(", r"\(")) as caught:
        replace(getattr(TUNING, part), **change)
    assert isinstance(caught.value, checkmate.CheckmateError) and "\n" not in str(caught.value)


def test_numbers_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        TUNING.gaps.loose = 0.5  # type: ignore[misc]


@pytest.mark.parametrize("moves", [1, 30])
def test_another_tuning_is_used(moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    monkeypatch.setattr(Climb, "step", lambda self: asked.append(None))
    graph = training_chain(40)
    search = Search(graph, graph.min_working_set + (graph.no_recompute_peak - graph.min_working_set) // 8, gap=0.0)
    relaxations(search, 1, replace(TUNING, climb=replace(TUNING.climb, moves=moves, growth=1, least=1)))
    assert len(asked) == moves
