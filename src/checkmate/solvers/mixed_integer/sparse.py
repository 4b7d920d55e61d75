"""Sparse matrices: only what programs need of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..representation.graph_arrays import Floats, Ints


@dataclass(frozen=True)
class ByColumns:
    """A matrix by columns: the entries of column i are at pointers[i], ..., pointers[i + 1] - 1, by row.

    Attributes:
        num_rows: how many rows. pointers: (columns + 1). rows, entries: of each entry its row, and its number.
    """

    num_rows: int
    pointers: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    entries: Floats

    @classmethod
    def from_triplets(cls, entries: Floats, rows: Ints, columns: Ints, shape: tuple[int, int]) -> ByColumns:
        """The matrix of this shape with `entries` at (rows, columns); those at the same place are added up."""
        num_rows, num_columns = shape
        places = columns.astype(np.int64) * num_rows + rows
        order = np.argsort(places, kind="stable")
        places, entries = places[order], entries[order]
        first = np.flatnonzero(np.append(True, places[1:] != places[:-1])) if len(places) else np.zeros(0, np.int64)
        if len(first) < len(places):
            places, entries = places[first], np.add.reduceat(entries, first)
        pointers = np.zeros(num_columns + 1, np.int32)
        columns, rows = np.divmod(places, max(1, num_rows))
        np.cumsum(np.bincount(columns, minlength=num_columns), out=pointers[1:])
        return cls(num_rows, pointers, rows.astype(np.int32), entries)

    @property
    def num_columns(self) -> int:
        """How many columns."""
        return len(self.pointers) - 1

    @property
    def num_entries(self) -> int:
        """How many entries, zeros that were stated among them."""
        return len(self.entries)

    @cached_property
    def columns(self) -> Ints:
        """Of each entry its column."""
        return np.repeat(np.arange(self.num_columns), np.diff(self.pointers))

    def times(self, x: Floats) -> Floats:
        """The product with a column vector: per row."""
        return self.row_sums(self.entries * x[self.columns])

    def times_from_left(self, y: Floats) -> Floats:
        """The product of a row vector with it: per column. Entry after entry, so that what is known of rounding holds."""
        return self.column_sums(self.entries * y[self.rows])

    def column_sums(self, entries: Floats) -> Floats:
        """Sums over the columns if these were its entries."""
        return np.bincount(self.columns, entries, self.num_columns).astype(np.float64, copy=False)

    def row_sums(self, entries: Floats) -> Floats:
        """Sums over the rows if these were its entries."""
        return np.bincount(self.rows, entries, self.num_rows).astype(np.float64, copy=False)

    def dense(self) -> Floats:
        """All of it, (rows, columns)."""
        result = np.zeros((self.num_rows, self.num_columns))
        result[self.rows, self.columns] = self.entries
        return result
