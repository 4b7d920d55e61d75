"""How things are shown: names that come from files, and numbers of bytes."""

from __future__ import annotations

#: Characters of a name in a title or a table.
_LONGEST_NAME = 200


def printable(text: object, most: int | None = None) -> str:
    """The text with everything that is not a visible character or a space written as an escape, as `\\x1b` or `\\n`.

    Names of ops, of graphs and of files come from elsewhere: written raw, they could move the cursor of a terminal, change its
    colours and its title, turn the direction of writing, or look like a line of their own.

    Args:
        most: characters to keep; a longer text loses its middle.
    """
    raw = str(text)
    if most is not None and len(raw) > most:
        half = (most - 1) // 2
        raw = f"{raw[: most - 1 - half]}…{raw[len(raw) - half :]}"
    if raw.isprintable():
        return raw
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in raw)


def named(name: str) -> str:
    """The name of a graph, an op or a value for a title or a table: printable, and without its middle where it is very long."""
    return printable(name, _LONGEST_NAME)


def format_bytes(size: float) -> str:
    """Bytes for people: "1.25 GiB", "96.0 MiB", "812 B"."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            scaled = size / factor
            return f"{sign}{scaled:.{2 if scaled < 10 else 1}f} {unit}"
    return f"{sign}{size:.0f} B"
