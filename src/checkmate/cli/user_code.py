"""Exceptions of the user's own code: shown as such, without the frames that are not theirs."""

from __future__ import annotations

import site
import sysconfig
import traceback
from pathlib import Path

from ..errors import CheckmateError
from ..text import printable

#: Characters of a line, and lines of an exception's text.
_LINE, _LINES = 500, 40
#: Frames of files below these folders are not the user's.
_OTHERS = tuple(
    str(Path(folder).resolve())
    for folder in (
        *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        str(Path(__file__).parents[1]),
    )
)


class FailedInUserCode(CheckmateError):
    """Something of the user's raised an exception.

    Attributes:
        summary: type and first line of the exception.
        is_own: it is not one of the compiler's, or of tensors without data.
        lines: the user's frames and the exception, for the terminal.
    """

    def __init__(self, word: str, error: Exception):
        self.summary = _summary(error)
        self.is_own = not type(error).__module__.startswith("torch.")
        self.lines = _lines(error)
        super().__init__(f"{word} failed with {self.summary}")


def _summary(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().split("\n\n")[0].splitlines()]
    text = " ".join(line for line in lines if line)
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, _LINE)


def _lines(error: Exception) -> list[str]:
    shown = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in shown.stack if _is_users(frame.filename)]
    kept = traceback.StackSummary.from_list(frames).format() if frames else []
    text = [*kept, *shown.format_exception_only()]
    lines = [printable(line, _LINE) for line in "".join(text).splitlines() if line.strip()]
    return lines[:_LINES] + (["..."] if len(lines) > _LINES else [])


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    return not any(path.startswith(f"{folder}/") for folder in _OTHERS)
