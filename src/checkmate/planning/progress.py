"""For those who wait while a step is planned: what is being done, in a line at the foot of the terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TextIO

from ..live import LiveLine
from ..text import printable


class PlanningProgress:
    """Says what is being done from `__enter__` to `__exit__`, and nothing before and after.

    Args:
        name: of what is planned. shown: None: if the stream is a terminal; True: elsewhere too, in a line for each thing that is done.
        stream: standard error if it is not said.
    """

    def __init__(self, name: str, shown: bool | None = None, stream: TextIO | None = None):
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        terminal = self._stream is not None and self._stream.isatty()
        self._live = terminal and shown is not False
        self._plain = bool(shown) and self._stream is not None and not terminal
        self._open = ExitStack()
        self._line: LiveLine | None = None
        self._said = ""

    def __enter__(self) -> PlanningProgress:
        if self._live and self._stream is not None:
            self._line = self._open.enter_context(LiveLine(self._stream, self._named("starting")))
        return self

    def __exit__(self, *_: object) -> None:
        self._line, self._plain = None, False
        self._open.close()

    def say(self, what: str) -> None:
        """Something else is done from now on."""
        self._show(what, at_once=True)

    def count(self, what: str, done: int, total: int) -> None:
        """So many of the parts of something are done."""
        if self._line is not None or done == total:
            self._show(f"{what}: {done} of {total}", at_once=False)

    def _show(self, what: str, at_once: bool) -> None:
        if self._line is not None:
            self._line.describe(self._named(what), at_once)
        elif self._plain and what != self._said:
            print(printable(self._named(what)), file=self._stream, flush=True)
        self._said = what

    def _named(self, what: str) -> str:
        return f"checkmate, {self._name}: {what}"
