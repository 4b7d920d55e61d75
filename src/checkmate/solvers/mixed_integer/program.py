"""Mixed-integer programs as arrays, for any solver: built block by block, and what a solver answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..representation.graph_arrays import Bools, Floats, Ints
from .sparse import ByColumns


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver found.

    Attributes:
        x: values of the variables; None without a feasible solution.
        objective: of x.
        bound: proven lower bound on the objective; with HiGHS, tolerances and rounding taken off.
        infeasible: proven to have no solution. optimal: solved within the gaps asked for.
        work: units, from those solvers that count it; see interface/work_limits.py.
    """

    x: Floats | None
    objective: float
    bound: float
    infeasible: bool
    optimal: bool
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramArrays:
    """A program as arrays: minimise cost . x, row_lower <= matrix x <= row_upper, lower <= x <= 1.

    Attributes:
        cost, lower: per variable. integer: which variables are. matrix: (rows, variables).
        row_lower, row_upper: per row, infinite where there is no limit.
    """

    cost: Floats
    lower: Floats
    integer: Bools
    matrix: ByColumns
    row_lower: Floats
    row_upper: Floats


class Model(Protocol):
    """What becomes a program where it is asked for: here, or in another process. Pickled it is small, or as large as the program.

    Attributes:
        num_variables: of the program. num_nonzeros: of its matrix, at least.
    """

    @property
    def num_variables(self) -> int: ...

    @property
    def num_nonzeros(self) -> int: ...

    def arrays(self) -> ProgramArrays:
        """The program."""


class Program:
    """A minimisation over variables in [0, 1], built row block by row block."""

    def __init__(self) -> None:
        self._cost: list[Floats] = []
        self._least: list[Floats] = []
        self._integer: list[Bools] = []
        self.num_variables = 0
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._coefficients: list[Floats] = []
        self._lower: list[Floats] = []
        self._upper: list[Floats] = []
        self.num_rows = self.num_nonzeros = 0

    def variables(self, cost: Floats, integer: bool, least: Floats | None = None) -> Ints:
        """Add len(cost) variables, at least 0 (or `least`) and at most 1; returns their indices."""
        self._cost.append(np.asarray(cost, np.float64))
        self._least.append(np.zeros(len(cost)) if least is None else least)
        self._integer.append(np.full(len(cost), integer))
        start = self.num_variables
        self.num_variables += len(cost)
        return np.arange(start, self.num_variables)

    def at_least(self, lower: float, terms: list[tuple[Ints, float]]) -> None:
        """Add rows: sum of coefficient * variable >= lower. Each term has one variable per row; -1 means absent."""
        rows = len(terms[0][0])
        for columns, coefficient in terms:
            present = np.flatnonzero(columns >= 0)
            self._add(self.num_rows + present, columns[present], np.full(len(present), coefficient))
        self._bounds(np.full(rows, lower), np.full(rows, np.inf))

    def at_most(self, columns: Ints, coefficients: Floats, upper: float) -> None:
        """Add one row: coefficients . variables <= upper."""
        self._add(np.full(len(columns), self.num_rows), columns, coefficients)
        self._bounds(np.array([-np.inf]), np.array([upper]))

    def at_most_rows(self, rows: Ints, columns: Ints, coefficients: Floats, upper: Floats) -> None:
        """Add len(upper) rows: coefficients . variables <= upper. The first three are triplets, rows counted from 0."""
        self._add(self.num_rows + rows, columns, coefficients)
        self._bounds(np.full(len(upper), -np.inf), upper)

    def _add(self, rows: Ints, columns: Ints, coefficients: Floats) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._coefficients.append(coefficients)
        self.num_nonzeros += len(columns)

    def _bounds(self, lower: Floats, upper: Floats) -> None:
        self._lower.append(lower)
        self._upper.append(upper)
        self.num_rows += len(lower)

    def arrays(self) -> ProgramArrays:
        """Everything that was added."""

        def join(parts: list[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
            return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, kind)

        triplets = join(self._coefficients, np.float64), join(self._rows, np.int32), join(self._columns, np.int32)
        return ProgramArrays(
            join(self._cost, np.float64),
            join(self._least, np.float64),
            join(self._integer, np.bool_),
            ByColumns.from_triplets(*triplets, (self.num_rows, self.num_variables)),
            join(self._lower, np.float64),
            join(self._upper, np.float64),
        )
