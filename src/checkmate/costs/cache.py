"""Caches on disk, and the one for measured costs: one JSON file per environment (device, threads, framework version).

It is only ever a cache: a file or an entry that cannot be read is a miss, and a directory that cannot be written to
means that costs are measured again next time. Nothing here raises because of the file system.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FORMAT = "checkmate-costs"
VERSION = 2


def cache_directory() -> Path:
    """`$CHECKMATE_CACHE_DIR`, else `checkmate` under `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("CHECKMATE_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "checkmate"


def replace_file(path: Path, save: Callable[[str], Any]) -> None:
    """Have `save` write a file of the name that it is given, which then takes the place of `path`; nothing if that fails."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
        os.close(handle)
        save(temporary)
        os.replace(temporary, path)  # readers see the old file or the new one, never half of one
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


class CostCache:
    """Rows of numbers by key, kept in memory and in one file for one environment.

    Args:
        environment: everything that the numbers depend on besides the key (versions, device, threads). It is hashed
            into the file's name and stored in the file.
        width: numbers per row; all finite and >= 0, anything else in the file is a miss.
        directory: where the file goes; `cache_directory()` by default.
    """

    def __init__(self, environment: Mapping[str, Any], width: int, directory: Path | None = None):
        self.environment = json.loads(json.dumps(dict(environment), sort_keys=True, default=str))
        self.width = width
        text = json.dumps([FORMAT, VERSION, width, self.environment], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.path = (directory or cache_directory()) / f"costs-{digest}.json"
        self._rows = self._read()
        self._new: dict[str, list[float]] = {}

    def get(self, key: str) -> list[float] | None:
        """The row of a key, or None."""
        return self._rows.get(key)

    def put(self, key: str, row: list[float]) -> None:
        """Remember a row; `save` writes it."""
        if not self._valid(row):
            raise ValueError(f"a row must be {self.width} finite numbers >= 0, not {row!r}")
        self._rows[key] = self._new[key] = [float(number) for number in row]

    def save(self) -> None:
        """Add what is new to the file. Rows that other processes wrote meanwhile are kept."""
        if not self._new:
            return
        rows = {**self._read(), **self._new}
        data = {"format": FORMAT, "version": VERSION, "environment": self.environment, "rows": dict(sorted(rows.items()))}
        text = json.dumps(data, indent=0)
        replace_file(self.path, lambda name: Path(name).write_text(text, encoding="utf-8"))
        self._new = {}

    def _read(self) -> dict[str, list[float]]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if (data["format"], data["version"], data["environment"]) != (FORMAT, VERSION, self.environment):
                return {}
            return {str(key): [float(n) for n in row] for key, row in data["rows"].items() if self._valid(row)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _valid(self, row: Any) -> bool:
        return (
            isinstance(row, list)
            and len(row) == self.width
            and all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) and n >= 0 for n in row)
        )
