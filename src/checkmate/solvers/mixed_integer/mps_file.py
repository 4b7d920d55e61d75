"""Programs as files, in the form that every solver reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..representation.graph_arrays import Bools
from .program import ProgramArrays


def write_mps(arrays: ProgramArrays, path: Path) -> None:
    """Write the program in free MPS form: columns x0, x1, ... and rows r0, r1, ...; every row has one finite side.

    Every number is written so that reading it gives it back. HiGHS's own writer (highspy 1.15, `Highs.writeModel`) writes 15
    digits and not the 17 that this takes: of 1000 random numbers in [0, 1), 917 came back as others, which changes the program.
    """
    lower = np.isfinite(arrays.row_lower)
    if np.any(lower & np.isfinite(arrays.row_upper)):
        raise ValueError("rows with both sides are not supported: state them as two rows")
    with path.open("w", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in _lines(arrays, lower))


def _lines(arrays: ProgramArrays, lower: Bools) -> Iterator[str]:
    """One by one: all of a large program together would take gigabytes. `lower` says which rows have a lower side."""
    yield from ("NAME checkmate FREE", "ROWS", " N cost")
    yield from (f" {'G' if below else 'L'} r{row}" for row, below in enumerate(lower.tolist()))
    yield "COLUMNS"
    pointers, matrix = arrays.matrix.pointers.tolist(), arrays.matrix
    inside = False
    for column, (integer, cost) in enumerate(zip(arrays.integer.tolist(), arrays.cost.tolist(), strict=True)):
        if integer != inside:
            yield f" MARKER 'MARKER' '{'INTORG' if integer else 'INTEND'}'"
            inside = integer
        yield f" x{column} cost {cost!r}"
        entries = slice(pointers[column], pointers[column + 1])
        for row, number in zip(matrix.rows[entries].tolist(), matrix.entries[entries].tolist(), strict=True):
            yield f" x{column} r{row} {number!r}"
    if inside:
        yield " MARKER 'MARKER' 'INTEND'"
    yield "RHS"
    sides = np.where(lower, arrays.row_lower, arrays.row_upper)
    yield from (f" RHS r{row} {float(sides[row])!r}" for row in np.flatnonzero(sides).tolist())
    yield "BOUNDS"
    for column, least in enumerate(arrays.lower.tolist()):
        if least:
            yield f" LO BND x{column} {least!r}"
        yield f" UP BND x{column} 1"
    yield "ENDATA"
