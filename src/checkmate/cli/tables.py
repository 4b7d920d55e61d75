"""Tables as lines of text: as wide as they are, or folded into the width of a terminal."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from ..text import printable

_GAP = "  "


def table_lines(
    heads: Sequence[str], rows: Iterable[Sequence[str] | None], left: Sequence[str] = (), width: int | None = None
) -> tuple[list[str], list[str]]:
    """The lines of a table's head, and of its rows.

    Args:
        rows: cells, as many as there are heads; None is an empty line.
        left: columns that are text, as the first is; the others are numbers, which are not folded.
        width: columns of the terminal; None folds nothing.
    """
    table = [[printable(cell) for cell in row or [""] * len(heads)] for row in (heads, *rows)]
    is_text = [not number or head in left for number, head in enumerate(heads)]
    widths = [max(map(_columns, column)) for column in zip(*table, strict=True)]
    if width is not None:
        _narrow(widths, is_text, width - len(_GAP) * (len(widths) - 1))
    lines = [_row_lines(row, widths, is_text) for row in table]
    return lines[0], [line for row in lines[1:] for line in row]


def fold(text: str, width: int) -> list[str]:
    """The text in lines of at most so many columns, broken between words where that is possible."""
    if _columns(text) <= width:
        return [text]
    # Characters that take two columns each are rare enough for lines that are shorter than they could be.
    most = width if _columns(text) == len(text) else width // 2
    return textwrap.wrap(text, max(1, most), break_on_hyphens=False) or [""]


def _columns(text: str) -> int:
    """How many columns of a terminal it takes."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _narrow(widths: list[int], is_text: Sequence[bool], room: int) -> None:
    """Take what is too much from columns of text, the widest first."""
    for _ in range(sum(widths) - room):
        widest = max((number for number, yes in enumerate(is_text) if yes), key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] - 1)


def _row_lines(row: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> list[str]:
    """A row; as many lines as the cell that takes most."""
    folded = [fold(cell, width) if yes else [cell] for cell, width, yes in zip(row, widths, is_text, strict=True)]
    lines = []
    for number in range(max(map(len, folded))):
        parts = [cell[number] if number < len(cell) else "" for cell in folded]
        spaces = [" " * (width - _columns(part)) for part, width in zip(parts, widths, strict=True)]
        padded = [part + space if yes else space + part for part, space, yes in zip(parts, spaces, is_text, strict=True)]
        lines.append(_GAP.join(padded).rstrip())
    return lines
