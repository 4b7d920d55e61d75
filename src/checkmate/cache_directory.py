"""Where this package may keep files from one process to the next: measured costs, plans, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_directory() -> Path | None:
    """`$CHECKMATE_CACHE_DIR`, else `checkmate` under `$XDG_CACHE_HOME` or where caches belong on this system.

    None where no place is known: a user without a home directory.
    """
    if chosen := os.environ.get("CHECKMATE_CACHE_DIR"):
        return Path(chosen)
    try:
        shared = os.environ.get("XDG_CACHE_HOME")
        place = Path(shared) / "checkmate" if shared else platformdirs.user_cache_path("checkmate", appauthor=False)
    except (OSError, RuntimeError, KeyError):  # no HOME, and the user is not in the list of users
        return None
    return place if place.is_absolute() else None
