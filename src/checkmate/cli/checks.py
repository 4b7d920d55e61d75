"""What can be refused before a long search, and not after it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import CheckmateError, UnknownMethod
from ..solvers import methods
from ..text import printable
from .parser import BadUsage


def check_output(path: Path | None, *inputs: str | Path | None) -> None:
    """Can this file be written, and is it none of those that are read?

    Raises:
        BadUsage: no.
    """
    if path is None:
        return
    name = printable(path)
    try:
        folder = path.absolute().parent
        if path.is_dir():
            raise BadUsage(f"cannot write {name}: it is a folder")
        if not folder.is_dir():
            raise BadUsage(f"cannot write {name}: there is no folder {printable(path.parent)}")
        if not path.exists() and not os.access(folder, os.W_OK):
            raise BadUsage(f"cannot write {name}: nothing may be written to the folder {printable(path.parent)}")
        for one in inputs:
            if one is not None and path.exists() and os.path.exists(one) and os.path.samefile(path, one):
                raise BadUsage(f"cannot write {name}: it is also read, and would be lost")
    except (OSError, ValueError) as error:  # a name that is too long, a folder that is gone
        raise BadUsage(f"cannot write {name}: {getattr(error, 'strerror', None) or error}") from None


def check_picture(path: str | Path | None) -> None:
    """Can a picture be drawn to a file of this name?

    Raises:
        BadUsage: no.
    """
    if path is not None:
        # matplotlib says at length that it could not keep its list of fonts, which nobody asked for.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from ..report.plots import check_can_plot

        try:
            check_can_plot(path)
        except CheckmateError as error:
            raise BadUsage(str(error)) from None


def check_methods(names: Sequence[str]) -> None:
    """Are these names of methods?

    Raises:
        UnknownMethod: no.
    """
    for name in names:
        if name not in methods():
            raise UnknownMethod(f"unknown method {name!r}: choose one of {', '.join(methods())}")
