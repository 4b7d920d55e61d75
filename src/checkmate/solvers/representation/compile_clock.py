"""A clock for searches that stands still while kernels compile: that is spent once on an installation, for many seconds.

Kernels tell it when they are compiled, or read from disk, in whatever thread; numba does one at a time. So the clock is one for the
process: a search waits while another one compiles, as often as not for the same kernels.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: What is said, once per process, in the log; and in the progress of every search that meets it.
NOTE = "compiling kernels for the first search on this machine"

_log = logging.getLogger(__name__)


class CompileClock:
    """Seconds, but for those in which anything compiles.

    Args:
        seconds: the clock on the wall.
    """

    def __init__(self, seconds: Callable[[], float] = time.perf_counter):
        self._seconds = seconds
        self._lock = threading.Lock()
        self._running = 0  # compilations that have begun and not ended: a kernel that calls another one waits for it
        self._since = self._lost = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._said = False

    def __call__(self) -> float:
        """The time; only differences mean anything."""
        with self._lock:
            return (self._since if self._running else self._seconds()) - self._lost

    def stop(self) -> None:
        """The clock stands still until as many calls of `go_on` have followed, from whatever threads."""
        with self._lock:
            if not self._running:
                self._since = self._seconds()
            self._running += 1

    def go_on(self) -> None:
        """See `stop`."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._lost += self._seconds() - self._since

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still inside."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    @contextmanager
    def telling(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, at most once, when anything is compiled inside (not when it is read from disk)."""
        told = False

        def once() -> None:
            nonlocal told
            if not told:
                told = True
                listener()

        with self._lock:
            self._listeners.append(once)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(once)

    def tell(self) -> None:
        """A compilation begins."""
        if not self._said:
            self._said = True
            _log.info(NOTE)
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


#: That of all searches.
search_clock = CompileClock()
