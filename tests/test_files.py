"""Output files are written whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkmate import CheckmateError, Schedule, solve
from checkmate.files import replace_file, write_file
from checkmate.report import plot_curves
from support import training_chain


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As on a disk that becomes full: a write is cut short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return solve(training_chain(40, size=1000), "50%", method="greedy")


def draw_curve(path: Path) -> None:
    plot_curves([("a", [1.0, 2.0], [1.0, 2.0])], path, "title", "x", "y")


@pytest.mark.parametrize(
    "write", ["Graph.save", "Schedule.save", "Schedule.report", "Schedule.plot", "plot_curves", "replace_file"]
)
def test_a_full_disk_leaves_the_old_file(write: str, schedule: Schedule, tmp_path: Path) -> None:
    writers: dict[str, Callable[[Path], object]] = {
        "Graph.save": schedule.graph.save,
        "Schedule.save": schedule.save,
        "Schedule.report": schedule.report,
        "Schedule.plot": schedule.plot,
        "plot_curves": draw_curve,
        "replace_file": lambda path: replace_file(path, lambda name: Path(name).write_text("x" * 1000)),
    }
    path = tmp_path / "old.png"
    path.write_text("as it was")
    with no_file_above(500), pytest.raises((OSError, CheckmateError)) as caught:
        writers[write](path)
    assert "old.png" in str(caught.value), "the user knows no other name"
    assert path.read_text() == "as it was"
    assert [one.name for one in tmp_path.iterdir()] == ["old.png"]
    writers[write](path)
    assert path.read_bytes() != b"as it was"
    assert [one.name for one in tmp_path.iterdir()] == ["old.png"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    def half(name: str) -> None:
        Path(name).write_text("half")
        raise KeyboardInterrupt

    write_file(tmp_path / "f", "as it was")
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "f", half)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("f", "as it was")]


def test_permissions_are_those_of_the_old_file_or_of_any_new_one(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_file(tmp_path / "new", "text")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new").chmod(0o640)
    write_file(tmp_path / "new", "other text")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_protected_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing would only need a folder that may be written to."""
    (tmp_path / "f").write_text("as it was")
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write to everything
    with pytest.raises(PermissionError):
        write_file(tmp_path / "f", "text")
    assert (tmp_path / "f").read_text() == "as it was"


def test_links_and_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/target")
    write_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "target").read_text() == "text"
    write_file("/dev/null", "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left"):
        write_file("/dev/full", "text")
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError, match="none/f'$"):
        write_file(tmp_path / "none" / "f", "text")
