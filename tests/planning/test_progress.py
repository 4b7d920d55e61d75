"""What is said while a step is planned, and where."""

from __future__ import annotations

import io

import pytest
from tqdm import tqdm

from checkmate.planning.progress import PlanningProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def planned(stream: io.StringIO, shown: bool | None) -> str:
    with PlanningProgress("a\x1b[2J model", shown, stream) as progress:
        progress.say("tracing the step")
        progress.count("measuring ops", 1, 2)
        progress.count("measuring ops", 2, 2)
        progress.say("looking for a schedule")
        progress.say("looking for a schedule")
    progress.say("afterwards")
    return stream.getvalue()


def test_a_terminal_shows_what_is_done_from_the_first_second() -> None:
    shown = planned(Terminal(), None)
    for what in ("starting", "tracing the step", "looking for a schedule"):
        assert f"checkmate, a\\x1b[2J model: {what}" in shown
    assert "\x1b[2J" not in shown, "a name does nothing to the terminal"
    assert "afterwards" not in shown


def test_a_bar_that_the_user_shows_stays_whole() -> None:
    stream = Terminal()
    with tqdm(total=2, desc="epoch", file=stream, ncols=80, nrows=24) as bar:
        bar.update()
        before = stream.getvalue()
        planned(stream, None)
        during = stream.getvalue()[len(before) :]
    assert "looking for a schedule" in during
    assert all("\n" in part for part in during.split("\x1b[A")[:-1]), (
        "it is drawn one line further down, and the cursor goes back up"
    )


@pytest.mark.parametrize(("stream", "shown"), [(io.StringIO(), None), (Terminal(), False)])
def test_nothing_is_said_where_nobody_asked(stream: io.StringIO, shown: bool | None) -> None:
    assert planned(stream, shown) == ""


def test_a_line_for_each_thing_where_it_was_asked_for() -> None:
    said = planned(io.StringIO(), True).splitlines()
    done = ["tracing the step", "measuring ops: 2 of 2", "looking for a schedule"]
    assert [line.partition(": ")[2] for line in said] == done
    assert len({line.partition(": ")[0] for line in said}) == 1
