"""Tables as lines of text."""

from __future__ import annotations

from tqdm.utils import disp_len

from checkmate.cli.tables import fold, table_lines

HEADS = ("name", "bytes", "title")
ROWS = [("first", "1", "a title of several words"), None, ("second", "23456", "x" * 30)]


def test_as_wide_as_it_is() -> None:
    head, body = table_lines(HEADS, ROWS, left=("title",))
    assert head == ["name    bytes  title"]
    assert body == ["first       1  a title of several words", "", "second  23456  " + "x" * 30]


def test_text_is_folded_and_numbers_are_not() -> None:
    head, body = table_lines(HEADS, ROWS, left=("title",), width=25)
    assert head == ["name    bytes  title"]
    assert body == [
        "first       1  a title of",
        "               several",
        "               words",
        "",
        "second  23456  " + "x" * 10,
        "               " + "x" * 10,
        "               " + "x" * 10,
    ]


def test_letters_that_take_two_columns() -> None:
    _, body = table_lines(("", ""), [("卷积", "1"), ("conv", "2")])
    assert body == ["卷积  1", "conv  2"]
    for width in (1, 2, 7, 40):
        lines = fold("卷积" * 9, width)
        assert "".join(lines) == "卷积" * 9 and max(map(disp_len, lines)) <= max(width, 2)


def test_no_room_at_all() -> None:
    """Numbers stay whole; every text has one column left."""
    _, body = table_lines(HEADS, ROWS, left=("title",), width=1)
    assert {line[3:8] for line in body if line.strip()} >= {"    1", "23456"}
