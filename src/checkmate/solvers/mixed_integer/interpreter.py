"""How a Python process of our own is started: nothing in it comes from the folder that the user happens to be in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import scipy

#: Of these the new process needs what this one has.
_PACKAGES = (Path(__file__).parents[2], Path(np.__file__).parent, Path(scipy.__file__).parent)


def command(*options: str) -> list[str]:
    """The start of the command line of a new interpreter."""
    return [sys.executable, "-P", *options]


def environment() -> dict[str, str]:
    """Its environment variables. PYTHONPATH may name the current folder, and with it whatever lies there."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


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
