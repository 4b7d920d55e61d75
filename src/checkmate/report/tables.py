"""Tables as plain lines of text: what a file or a pipe gets where a terminal would get colours."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..text import printable

#: Characters of a line; nothing is wrapped or cut that somebody may want to read with a program.
_WIDTH = 1_000_000


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str] | None], left: Sequence[str] = ()) -> Table:
    """A table without lines; its first column and those named in `left` are text, the others are numbers. None: an empty line."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, head in enumerate(heads):
        is_text = number == 0 or head in left
        table.add_column(Text(head), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        table.add_row(*(() if row is None else [Text(printable(cell)) for cell in row]))
    return table


def as_text(part: RenderableType) -> str:
    """Lines without colours and without spaces at their ends."""
    file = io.StringIO()
    plain = Console(file=file, width=_WIDTH, force_terminal=False, force_jupyter=False, color_system=None, no_color=True)
    plain.print(Text(part) if isinstance(part, str) else part)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().removesuffix("\n").split("\n"))
