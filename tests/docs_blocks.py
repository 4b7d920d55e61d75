"""Blocks of code in the README and in the pages of docs: the tests run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Options that keep searches short, for the commands that take them.
_LIMITED = {"solve", "compare", "sweep", "max-batch"}
_FENCE = re.compile(r"^```([\w{}-]*)(?: title=\"(.*?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        page: file, from the root of the repository. line: of its first line there. language: what stands behind the marks.
        title: what it needs, or the file that it is; "" for most.
    """

    page: str
    line: int
    language: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def run(self, names: dict[str, Any]) -> None:
        """Execute it, with line numbers of the page in tracebacks."""
        exec(compile("\n" * (self.line - 1) + self.code, self.page, "exec"), names)


def pages() -> list[str]:
    """All pages with blocks."""
    return ["README.md", "CONTRIBUTING.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


def blocks(page: str, language: str | None = None, title: str | None = None) -> list[Block]:
    """Of one page, in order; of one language, and with one title, where they are named."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start(3)) + 1, match[1], match[2] or "", match[3])
        for match in _FENCE.finditer(text)
    ]
    return [
        block
        for block in found
        if language in (None, block.language) and title in (None, block.title) and block.language[:1] != "{"
    ]


def commands(page: str) -> Iterator[list[str]]:
    """Lines of shell blocks, as words, without what stands behind a #."""
    for block in blocks(page, "sh"):
        for line in block.code.splitlines():
            yield shlex.split(line, comments=True)


def limited(words: list[str]) -> list[str]:
    """The command, for a second of search."""
    searches = words[1] in _LIMITED or (words[1] == "report" and "--budget" in words)
    return [*words, "--time-limit", "1"] if searches else words
