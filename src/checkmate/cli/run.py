"""From words to an exit code: which command runs, and what is said when it fails."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..errors import BudgetError, CheckmateError, GraphError, InfeasibleBudget, UnknownMethod
from ..text import printable
from .inspect import completion, demo, devices, info, networks, report, trace
from .interrupts import Interrupts
from .parser import BadUsage, parse
from .search import compare, max_batch, solve_one, sweep
from .user_code import FailedInUserCode

DONE, FAILED, USAGE = 0, 1, 2
_COMMANDS: dict[str, Callable[[argparse.Namespace, Interrupts], bool]] = {
    "networks": networks,
    "devices": devices,
    "info": info,
    "trace": trace,
    "solve": solve_one,
    "report": report,
    "compare": compare,
    "sweep": sweep,
    "max-batch": max_batch,
    "demo": demo,
    "completion": completion,
}
#: Characters of an error; somebody may have pasted a file into an option.
_LONGEST = 2000


def run(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    """Parse, run, and explain what went wrong in one line on standard error; returns the exit code.

    Raises:
        SystemExit: help or the version was asked for, and printed. KeyboardInterrupt: asked to stop before there was a result.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have letters that the terminal's encoding does not
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            options = parse(None if arguments is None else list(arguments))
            _check_standard_output(options)
            code = DONE if _COMMANDS[options.command](options, interrupts) else FAILED
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except InfeasibleBudget as error:
        return _fail(error, USAGE if error.budget < error.proven_minimum else FAILED)
    except (BadUsage, BudgetError, GraphError, UnknownMethod) as error:
        return _fail(error, USAGE)
    except FailedInUserCode as error:
        with suppress(OSError):
            print(*error.lines, sep="\n", file=sys.stderr)
        return _fail(error, FAILED)
    except CheckmateError as error:
        return _fail(error, FAILED)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has left, as in `checkmate info g.json | head -1`
            _close_standard_output()
            return FAILED
        name = "the system" if error.filename is None else printable(error.filename)
        if error.filename is None:
            _close_standard_output()  # it may be where there is no space left
        return _fail(f"{name}: {error.strerror or error}", FAILED)
    except MemoryError:
        return _fail("this machine does not have enough memory for that", FAILED)
    return code


def _check_standard_output(options: argparse.Namespace) -> None:
    """Better to refuse now than to lose the answer of a long search."""
    silent = getattr(options, "quiet", False) and not options.json and options.command != "demo"
    if sys.stdout is None and not silent:
        raise BadUsage("standard output is closed: send it to a file, or use --quiet without --json")


def _close_standard_output() -> None:
    """What is still in the buffer has nowhere to go; Python would complain about it once more at exit."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _fail(error: object, code: int) -> int:
    with suppress(OSError):  # nobody may be listening
        print("checkmate: error:", printable(" ".join(str(error).split()), _LONGEST), file=sys.stderr, flush=True)
    return code
