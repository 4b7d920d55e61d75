"""How a Python process of our own is started: nothing in it comes from the folder that the user happens to be in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckmateError

#: Of these the new process needs what this one has.
_PACKAGES = (Path(__file__).parents[2], Path(np.__file__).parent)


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """A new interpreter with these arguments, in a session of its own: Ctrl-C in the terminal comes through the search that asks.

    PYTHONPATH is not handed on: it may name the current folder, and with it whatever lies there.

    Raises:
        CheckmateError: it cannot be started.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        return subprocess.Popen([sys.executable, "-P", *arguments], env=environment, start_new_session=True, **options)
    except (OSError, TypeError) as error:  # an interpreter inside another program knows no executable: None
        raise CheckmateError(f"cannot start another Python process ({sys.executable}): {error}") from None


def leave(process: subprocess.Popen[bytes]) -> None:
    """Wait in the background for a process that ends: where it held gigabytes that takes a second or more, and nobody needs it."""
    threading.Thread(target=process.wait, daemon=True).start()


def search_path() -> list[str]:
    """What `sys.path` is to be in it: that of this process without the current folder.

    Unless packages that this process has loaded came from there, as after `pip install --target .`: it then comes last.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # the folder has been removed
        here = ""
    absolute = [path for path in sys.path if os.path.isabs(path)]
    homes = [str(package.parent) for package in _PACKAGES]
    return list(dict.fromkeys([*(path for path in absolute if os.path.realpath(path) != here), *homes]))
