"""The cache of measured costs."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from checkmate.planning import cost_cache
from checkmate.planning.cache_files import store
from checkmate.planning.cost_cache import CostCache, close_cost_caches, open_cost_cache


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_rows_survive_and_environments_do_not_mix() -> None:
    cache = CostCache({"device": "a"}, 2)
    assert cache.get("x") is None
    cache.put("x", [1.5, 2])
    cache.save()
    assert CostCache({"device": "a"}, 2).get("x") == [1.5, 2.0]
    assert CostCache({"device": "b"}, 2).get("x") is None
    assert CostCache({"device": "a"}, 1).get("x") is None


@pytest.mark.parametrize("row", [None, 1, "12", [1], [1, 2, 3], [1, "2"], [1, None], [1, -1], [1, True]])
def test_a_row_that_is_none_is_a_miss_and_others_stay(row: Any) -> None:
    cache = CostCache({}, 2)
    store("costs", cache._name, {"good": [1, 2], "bad": row})
    cache = CostCache({}, 2)
    assert cache.get("bad") is None
    assert cache.get("good") == [1, 2]


@pytest.mark.parametrize("rows", [None, 3, [], "rows"])
def test_what_is_no_table_is_a_miss(rows: Any) -> None:
    store("costs", CostCache({}, 1)._name, rows)
    assert CostCache({}, 1).get("x") is None


def test_bad_rows_are_refused_when_put() -> None:
    with pytest.raises(ValueError, match="2 finite numbers"):
        CostCache({}, 2).put("x", [1, float("nan")])


def test_the_file_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_cache, "_MOST_ROWS", 3)
    cache = CostCache({}, 1)
    for number in range(5):
        cache.put(f"{number}", [number])
        cache.save()
    kept = CostCache({}, 1)
    assert [kept.get(f"{number}") for number in range(5)] == [None, None, [2.0], [3.0], [4.0]]


def test_a_directory_that_cannot_be_written_is_no_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "file").write_text("in the way")
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(directory / "file" / "below"))
    cache = CostCache({}, 1)
    cache.put("x", [1])
    cache.save()
    assert cache.get("x") == [1]


def _add(directory: str, key: str) -> None:
    os.environ["CHECKMATE_CACHE_DIR"] = directory
    cache = CostCache({}, 1)
    cache.put(key, [1])
    cache.save()


def test_rows_of_another_writer_are_kept(directory: Path) -> None:
    mine = CostCache({}, 1)
    mine.put("mine", [1])
    process = multiprocessing.get_context("spawn").Process(target=_add, args=(str(directory), "theirs"))
    process.start()
    process.join()
    assert process.exitcode == 0
    mine.save()
    both = CostCache({}, 1)
    assert both.get("mine") == both.get("theirs") == [1]
    assert not list(directory.glob("*.tmp"))


def test_an_open_cache_is_read_once_for_each_place(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cost_cache({"device": "a"})
    assert open_cost_cache({"device": "a"}) is cache
    assert open_cost_cache({"device": "b"}) is not cache
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(directory / "elsewhere"))
    assert open_cost_cache({"device": "a"}) is not cache
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(directory))
    close_cost_caches()
    assert open_cost_cache({"device": "a"}) is not cache
