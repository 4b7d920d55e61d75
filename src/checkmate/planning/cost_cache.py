"""Measured costs of ops, kept in memory and in one file per environment (processor or device, threads, library versions)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..cache_directory import cache_directory
from .cache_files import load, store

_KIND = "costs"

#: Rows of one file; beyond that those go first that were measured first.
_MOST_ROWS = 50_000


class CostCache:
    """Rows of numbers by key for one environment.

    Args:
        environment: everything that the numbers depend on besides the key. width: numbers per row; all finite and >= 0.
    """

    def __init__(self, environment: Mapping[str, Any], width: int):
        self.width = width
        self._name = json.dumps([width, dict(environment)], sort_keys=True, default=str)
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
        new, self._new = self._new, {}
        if new:
            rows = {**self._read(), **new}
            store(_KIND, self._name, dict(list(rows.items())[-_MOST_ROWS:]))

    def _read(self) -> dict[str, list[float]]:
        rows = load(_KIND, self._name)
        if not isinstance(rows, dict):
            return {}
        return {key: [float(number) for number in row] for key, row in rows.items() if self._valid(row)}

    def _valid(self, row: Any) -> bool:
        return (
            isinstance(row, list)
            and len(row) == self.width
            and all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) and n >= 0 for n in row)
        )


def open_cost_cache(environment: Mapping[str, Any]) -> CostCache:
    """The cache for an environment, in rows of two numbers; the file is read once in a process."""
    return _opened(cache_directory(), json.dumps(dict(environment), sort_keys=True, default=str))


@lru_cache(maxsize=16)
def _opened(directory: Path | None, environment: str) -> CostCache:
    return CostCache(json.loads(environment), 2)


def close_cost_caches() -> None:
    """Forget what was read: the next use reads the files again, as a new process would."""
    _opened.cache_clear()
