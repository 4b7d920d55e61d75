"""Files that are kept between processes: found again when whole, never too many, and never a reason to stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from checkmate.cache_directory import cache_directory
from checkmate.planning import cache_files
from checkmate.planning.cache_files import file_of, load, store


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_an_entry_is_found_by_its_kind_and_key(directory: Path) -> None:
    content = {"numbers": [0.1, 1e-300, 3], "name": "\udc80 ü"}
    store("plan", "a", content)
    assert load("plan", "a") == content
    assert load("plan", "b") is None
    assert load("costs", "a") is None
    store("plan", "a", 2)
    assert load("plan", "a") == 2
    assert len(list(directory.iterdir())) == 1


def whole(directory: Path) -> tuple[Path, bytes]:
    store("plan", "a", {"bound": 1.5, "steps": [1, 2]})
    (path,) = directory.iterdir()
    return path, path.read_bytes()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'"text"', b"[" * 100_000, b"\x00\x01", bytes(range(256)), b"{}"])
def test_a_damaged_file_is_a_miss_and_is_replaced(directory: Path, damage: bytes) -> None:
    path, _ = whole(directory)
    path.write_bytes(damage)
    assert load("plan", "a") is None
    store("plan", "a", 3)
    assert load("plan", "a") == 3


def test_anything_that_differs_from_what_was_written_is_a_miss(directory: Path) -> None:
    path, good = whole(directory)
    for old, new in ((b"1.5", b"1.4"), (b"[1,2]", b"[2,1]"), (b'"version":3', b'"version":2'), (b'"content"', b'"contents"')):
        bad = good.replace(old, new)
        assert bad != good
        path.write_bytes(bad)
        assert load("plan", "a") is None
    path.write_bytes(good)
    assert load("plan", "a") is not None


def test_an_entry_of_another_key_in_its_place_is_a_miss(directory: Path) -> None:
    path, _ = whole(directory)
    other = file_of("plan", "b")
    assert other is not None
    path.rename(other)
    assert load("plan", "b") is None


def test_files_that_were_not_used_for_longest_go_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "x" * 1000
    (directory / "mine.json").write_text(content)  # of somebody else
    for age, key in ((4000, "a"), (3000, "b"), (2000, "c")):
        store("plan", key, content)
        path = file_of("plan", key)
        assert path is not None
        os.utime(path, (time.time() - age,) * 2)
    assert load("plan", "a") == content  # which makes b the oldest
    monkeypatch.setattr(cache_files, "LIMIT", 3500)
    store("plan", "d", content)
    assert [load("plan", key) is not None for key in "abcd"] == [True, False, True, True]
    monkeypatch.setattr(cache_files, "LIMIT", 500)
    store("plan", "e", content)
    assert [path.name for path in directory.iterdir()] == ["mine.json"]


def test_what_a_killed_process_left_half_written_goes(directory: Path) -> None:
    whole(directory)
    old, new = (directory / f".checkmate-{name}.tmp" for name in ("01ab", "02cd"))
    for file in (old, new):
        file.write_text("half")
    os.utime(old, (time.time() - 10_000,) * 2)
    store("plan", "b", 1)
    assert not old.exists()
    assert new.exists()


def test_an_interrupt_leaves_nothing_behind(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store("plan", "a", 1)
    assert not list(directory.iterdir())


def test_where_no_file_can_be_written_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "file" / "below"))
    store("plan", "a", 1)
    assert load("plan", "a") is None
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "full"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_files, "write_file", full)
    store("plan", "a", 1)
    assert load("plan", "a") is None


def test_the_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_directory() == tmp_path / "a"
    monkeypatch.delenv("CHECKMATE_CACHE_DIR")
    assert cache_directory() == tmp_path / "b" / "checkmate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    found = cache_directory()
    assert found is not None
    assert found.is_relative_to(tmp_path / "c")
    assert found.name == "checkmate"


@pytest.mark.parametrize("problem", [RuntimeError("no home"), KeyError("getpwuid(): uid not found: 4711"), None])
def test_a_user_without_a_home_has_no_cache(problem: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere(*_: Any, **__: Any) -> Path:
        if problem is not None:
            raise problem
        return Path("~/.cache/checkmate")  # a home that nobody could find out

    monkeypatch.delenv("CHECKMATE_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", nowhere)
    monkeypatch.chdir(tmp_path)
    assert cache_directory() is None
    store("plan", "a", 1)
    assert load("plan", "a") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_an_unknown_user_without_home(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = """
import os, sys, warnings
warnings.simplefilter("error")
from checkmate.planning.cache_files import load, store
os.setuid(4711)
os.environ.pop("HOME", None); os.environ.pop("XDG_CACHE_HOME", None); os.environ.pop("CHECKMATE_CACHE_DIR", None)
store("plan", "a", 1)
print(load("plan", "a"), os.listdir("."))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None []\n", "")


def test_an_entry_says_what_it_is(directory: Path) -> None:
    path, good = whole(directory)
    assert path.name.startswith("plan-")
    entry = json.loads(good)
    assert (entry["format"], entry["version"]) == (cache_files.FORMAT, cache_files.VERSION)
