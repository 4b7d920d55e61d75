"""What is shown of names from elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1 (3x3), ümläut 卷积", "conv1 (3x3), ümläut 卷积"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x9b31m \x07 \x7f \x00", "\\x9b31m \\x07 \\x7f \\x00"),
        ("\u202egnp.exe\u200b\u2028", "\\u202egnp.exe\\u200b\\u2028"),
        ("\ud800 \udcff", "\\ud800 \\udcff"),
        (3.5, "3.5"),
    ],
)
def test_printable(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_long_texts_lose_their_middle() -> None:
    assert printable("abcdefghij", 10) == "abcdefghij"
    assert printable("abcdefghijk", 10) == "abcde…hijk"


@given(st.text(st.characters()), st.integers(3, 50))
def test_any_text(text: str, most: int) -> None:
    assert printable(text).isprintable()
    assert printable(text).encode("utf-8").decode("utf-8") == printable(text)
    if text.isprintable():
        assert len(printable(text, most)) <= most
