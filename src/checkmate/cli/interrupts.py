"""What Ctrl-C, SIGTERM and a lost terminal do to a command, from its first moment to its last."""

from __future__ import annotations

import os
import signal
import sys
import threading

TYPE_CHECKING = False  # as in `typing`: what is imported here is imported before anything answers Ctrl-C
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Self

_REQUESTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_STARTING, _WORKING, _FINISHING, _ENDING = range(4)
#: Seconds after which an interrupt that fell where Python cannot raise an exception comes again.
_AGAIN = 0.05


class Interrupts:
    """While inside, requests to stop are answered by where the command is.

    While it starts and when it has ended there is nothing to clean up, and the process leaves at once. While it works, the
    request is a KeyboardInterrupt; a search catches it, and returns the best schedule so far. While it writes down a result, the
    first request is only noted, and the next one a KeyboardInterrupt. SIGTERM and SIGHUP do what Ctrl-C does.

    Args:
        program: the process runs nothing but this command. Otherwise it is never left from here.
        farewell: what is written to standard error where it is left before the work began.
    """

    def __init__(self, program: bool, farewell: str = ""):
        self.code = 1
        self._program, self._farewell = program, farewell
        self._stage = _STARTING if program else _WORKING
        self._noted = self._came = False
        self._previous: dict[int, Any] = {}

    def working(self) -> None:
        """From now on there is something to clean up, and perhaps soon a result."""
        self._stage = _WORKING

    def finishing(self) -> None:
        """From now on there is a result, which should be written down."""
        self._stage = _FINISHING

    def ending(self) -> None:
        """From now on there is nothing left to do but to leave."""
        self._stage = _ENDING

    def came(self) -> bool:
        """Whether anything asked to stop since the beginning, also if a search caught it."""
        if self._previous:
            try:  # noqa: SIM105 - contextlib takes longer to import than this file
                self._came = self._came or any(number in _REQUESTS for number in os.read(self._read_end, 4096))
            except BlockingIOError:
                pass  # nothing new
        return self._came

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # the only one that may
            self._read_end, self._write_end = os.pipe()
            os.set_blocking(self._read_end, False)
            os.set_blocking(self._write_end, False)
            # Signals are written there whoever handles them: a search has a handler of its own.
            self._wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
            for number in _REQUESTS:
                handler = signal.getsignal(number)
                if handler not in (signal.SIG_IGN, None):  # `nohup` and shells that run something in the background ignore some
                    self._previous[number] = handler
                    signal.signal(number, self._interrupt if number == signal.SIGINT else self._as_interrupt)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.ending()
        if self._previous and not self._program:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wakeup)
            sys.unraisablehook = self._hook
            os.close(self._read_end)
            os.close(self._write_end)
            self._previous = {}

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._stage == _FINISHING and not self._noted:
            self._noted = True
        elif self._program and self._stage in (_STARTING, _ENDING):
            if self._stage == _STARTING:
                os.write(2, self._farewell.encode())
            os._exit(self.code)
        else:
            raise KeyboardInterrupt

    def _as_interrupt(self, number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else self._interrupt)(signal.SIGINT, frame)

    def _unraisable(self, unraisable: Any) -> None:
        """In a finalizer or a callback from C an exception is lost."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
            return
        again = threading.Timer(_AGAIN, self._once_more)
        again.daemon = True
        again.start()

    def _once_more(self) -> None:
        if self._stage != _ENDING:  # it may have been answered in the meantime
            os.kill(os.getpid(), signal.SIGINT)
