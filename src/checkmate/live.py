"""A line at the foot of a terminal that says what is being done, while it is done."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any, TextIO

from .text import printable

#: Seconds from one drawing of the line to the next: its clock goes on, and what changes more often is not drawn each time.
_TICK = 0.1


class LiveLine:
    """The line, with a clock that goes on by itself, from `__enter__` to `__exit__`; bars of tqdm that others show stay whole.

    Args:
        stream: the terminal. text: what is being done. total: how many things will be; with more than one a bar shows how many are done.
    """

    def __init__(self, stream: TextIO, text: str, total: int = 1):
        self._stream, self._text, self._total = stream, printable(text), total
        self._bar: Any = None
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="checkmate-live-line", daemon=True)

    def __enter__(self) -> LiveLine:
        from tqdm import tqdm

        several = self._total > 1
        # The bar of a single thing has nothing to show: it fills the line, and so tqdm cuts a text that is longer than the terminal is wide.
        shape = "{bar:20} {n_fmt}/{total_fmt}  {elapsed}  {desc}" if several else "{elapsed}  {desc}{bar}"
        size = {"dynamic_ncols": True} if _has_size(self._stream) else {"ncols": 80, "nrows": 24}
        total = self._total if several else None
        self._bar = tqdm(desc=self._text, total=total, file=self._stream, leave=False, bar_format=shape, **size)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._bar.close()

    def describe(self, text: str, at_once: bool = True) -> None:
        """What is being done from now on. at_once: draw it before this returns, not with the next tick of the clock."""
        self._bar.set_description_str(printable(text), refresh=at_once)

    def advance(self) -> None:
        """One more is done."""
        self._bar.update()

    def print(self, line: str) -> None:
        """A line that stays, above this one."""
        self._bar.write(printable(line), file=self._stream)

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            self._bar.refresh()


def _has_size(terminal: TextIO) -> bool:
    """Not those that a program made for another and gave none."""
    with suppress(OSError):
        return os.get_terminal_size(terminal.fileno()).columns > 0
    return False
