"""The command line: `checkmate info`, `solve`, `report`, `compare`, `sweep`, `max-batch` and `demo`."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_INTERRUPTED = "checkmate: error: interrupted before there was a result"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 infeasible or failed, 2 bad usage or bad input.

    Args:
        arguments: words of the command line; by default those of this process, which then belongs to the command: its signals are
            answered from here, and closed standard streams are replaced.
    """
    # Everything is imported in here, so that from the first moment on an interrupt is answered with one line.
    code = 1
    try:
        if arguments is None:
            _open_standard_streams()
        from .interrupts import Interrupts

        with Interrupts(program=arguments is None, farewell=f"{_INTERRUPTED}\n") as interrupts:
            from .run import run

            code = interrupts.code = run(arguments, interrupts)
    except KeyboardInterrupt:
        # Where the interrupt fell within an `exec` of a library, Python would end the process with the signal, although it is
        # answered here; only another `exec` makes it forget that.
        exec("")
        print(_INTERRUPTED, file=sys.stderr)
    return code


def _open_standard_streams() -> None:
    """A file that is opened later must not become standard output or error by taking the number of a closed one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
