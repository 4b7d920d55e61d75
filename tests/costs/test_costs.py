"""Roofline arithmetic and the cache on disk."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from checkmate.costs import CostCache, Rates, cache_directory, roofline_seconds
from checkmate.errors import CheckmateError


def test_roofline_takes_the_slower_side() -> None:
    rates = Rates(flops_per_second=100.0, bytes_per_second=10.0, latency=0.5)
    assert roofline_seconds(1000, 10, rates) == 10.5
    assert roofline_seconds(10, 1000, rates) == 100.5
    assert roofline_seconds(0, 0, rates) == 0.5


@pytest.mark.parametrize("bad", [(0, 1), (1, -1), (float("nan"), 1), (1, float("inf")), (1, 1, -1), (1, 1, float("nan"))])
def test_impossible_rates_are_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(CheckmateError, match="must be"):
        Rates(*bad)


def test_rows_survive_and_environments_do_not_mix(tmp_path: Path) -> None:
    cache = CostCache({"device": "a"}, 2, tmp_path)
    assert cache.get("x") is None
    cache.put("x", [1.5, 2])
    cache.save()
    assert CostCache({"device": "a"}, 2, tmp_path).get("x") == [1.5, 2.0]
    assert CostCache({"device": "b"}, 2, tmp_path).get("x") is None
    assert CostCache({"device": "a"}, 1, tmp_path).get("x") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        '{"format": "checkmate-costs"}',
        "[" * 100_000,
        "\x00\x01",
    ],
)
def test_a_damaged_file_is_a_miss_and_is_replaced(tmp_path: Path, content: str) -> None:
    cache = CostCache({}, 1, tmp_path)
    cache.path.write_text(content)
    cache = CostCache({}, 1, tmp_path)
    assert cache.get("x") is None
    cache.put("x", [3])
    cache.save()
    assert CostCache({}, 1, tmp_path).get("x") == [3.0]


def test_not_text_at_all(tmp_path: Path) -> None:
    path = CostCache({}, 1, tmp_path).path
    path.write_bytes(bytes(range(256)))
    assert CostCache({}, 1, tmp_path).get("x") is None


@pytest.mark.parametrize("row", [None, 1, "12", [1], [1, 2, 3], [1, "2"], [1, None], [1, -1], [1, True]])
def test_a_damaged_entry_is_a_miss_and_others_stay(tmp_path: Path, row: Any) -> None:
    cache = CostCache({}, 2, tmp_path)
    cache.put("good", [1, 2])
    cache.put("bad", [1, 2])
    cache.save()
    data = json.loads(cache.path.read_text())
    data["rows"]["bad"] = row
    cache.path.write_text(json.dumps(data))
    cache = CostCache({}, 2, tmp_path)
    assert cache.get("bad") is None
    assert cache.get("good") == [1, 2]


def test_a_file_of_another_environment_under_this_name_is_a_miss(tmp_path: Path) -> None:
    cache = CostCache({"device": "a"}, 1, tmp_path)
    cache.put("x", [1])
    cache.save()
    other = CostCache({"device": "b"}, 1, tmp_path)
    other.path.write_text(cache.path.read_text())
    assert CostCache({"device": "b"}, 1, tmp_path).get("x") is None


def test_bad_rows_are_refused_when_put(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 finite numbers"):
        CostCache({}, 2, tmp_path).put("x", [1, float("nan")])


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CostCache({}, 1, tmp_path / "file" / "below")
    cache.put("x", [1])
    cache.save()
    assert cache.get("x") == [1]


def _add(directory: str, key: str) -> None:
    cache = CostCache({}, 1, Path(directory))
    cache.put(key, [1])
    cache.save()


def test_rows_of_another_writer_are_kept(tmp_path: Path) -> None:
    mine = CostCache({}, 1, tmp_path)
    mine.put("mine", [1])
    process = multiprocessing.get_context("spawn").Process(target=_add, args=(str(tmp_path), "theirs"))
    process.start()
    process.join()
    assert process.exitcode == 0
    mine.save()
    both = CostCache({}, 1, tmp_path)
    assert both.get("mine") == both.get("theirs") == [1]
    assert not list(tmp_path.glob("*.tmp"))


def test_directory_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "a"))
    assert cache_directory() == tmp_path / "a"
    monkeypatch.delenv("CHECKMATE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_directory() == tmp_path / "b" / "checkmate"
