"""Schedules that are found again in the cache on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import checkmate
from checkmate import plan_cache
from support import training_chain


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each search."""
    seen: list[object] = []

    def counting(*arguments: object, **options: object) -> checkmate.Schedule:
        seen.append(arguments)
        return checkmate.solve(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(plan_cache, "solve", counting)
    return seen


def test_a_schedule_is_found_again(directory: Path, calls: list[object]) -> None:
    first = plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0)
    assert len(calls) == 1
    again = plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0)
    assert (again.steps, again.cost, again.lower_bound) == (first.steps, first.cost, first.lower_bound)
    assert len(calls) == 1


def test_another_problem_is_solved(directory: Path, calls: list[object]) -> None:
    plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0)
    plan_cache.solve_cached(training_chain(12), 80, gap=0.0, time_limit=60.0)
    plan_cache.solve_cached(training_chain(13), 70, gap=0.0, time_limit=60.0)
    plan_cache.solve_cached(training_chain(12), 70, gap=0.01, time_limit=60.0)
    assert len(calls) == 4
    assert len(list(directory.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "of another graph"])
def test_a_damaged_file_is_a_miss(damage: str, directory: Path, calls: list[object]) -> None:
    first = plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0)
    (file,) = directory.iterdir()
    if damage == "cut":
        file.write_text(file.read_text()[:100])
    else:
        checkmate.solve(training_chain(5), "100%").save(str(file))
    assert plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0).cost == first.cost
    assert len(calls) == 2


def test_what_is_found_at_once_is_not_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 1000.0)
    plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0)
    assert not list(directory.iterdir())


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(blocked / "below"))
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    assert plan_cache.solve_cached(training_chain(12), 70, gap=0.0, time_limit=60.0).peak <= 70
