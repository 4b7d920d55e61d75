"""The one place that talks to HiGHS: build a mixed-integer program from arrays, solve it, read solution and bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
import scipy.sparse

from .problem import Bools, Floats, Ints

# HiGHS keeps one scheduler per process: its size must be the same for every solve.
THREADS = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What HiGHS found.

    Attributes:
        x: values of the variables; None without a feasible solution.
        objective: of x.
        bound: proven lower bound on the objective.
        infeasible: proven to have no solution. optimal: solved within the gaps asked for.
    """

    x: Floats | None
    objective: float
    bound: float
    infeasible: bool
    optimal: bool


class Program:
    """A minimisation over variables in [0, 1], built row block by row block."""

    def __init__(self) -> None:
        self._cost: list[Floats] = []
        self._integer: list[Bools] = []
        self.num_variables = 0
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._coefficients: list[Floats] = []
        self._lower: list[Floats] = []
        self._upper: list[Floats] = []
        self.num_rows = 0

    def variables(self, cost: Floats, integer: bool) -> Ints:
        """Add len(cost) variables; returns their indices."""
        self._cost.append(np.asarray(cost, np.float64))
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
        self._bounds(np.full(rows, lower), np.full(rows, highspy.kHighsInf))

    def at_most(self, columns: Ints, coefficients: Floats, upper: float) -> None:
        """Add one row: coefficients . variables <= upper."""
        self._add(np.full(len(columns), self.num_rows), columns, coefficients)
        self._bounds(np.array([-highspy.kHighsInf]), np.array([upper]))

    def _add(self, rows: Ints, columns: Ints, coefficients: Floats) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._coefficients.append(coefficients)

    def _bounds(self, lower: Floats, upper: Floats) -> None:
        self._lower.append(lower)
        self._upper.append(upper)
        self.num_rows += len(lower)

    def _lp(self) -> highspy.HighsLp:
        def join(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return np.concatenate(parts) if parts else np.zeros(0)

        triplets = (join(self._coefficients), (join(self._rows).astype(np.int32), join(self._columns).astype(np.int32)))
        matrix = scipy.sparse.csc_matrix(triplets, shape=(self.num_rows, self.num_variables))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.num_variables, self.num_rows
        lp.col_cost_ = join(self._cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(self.num_variables), np.ones(self.num_variables)
        lp.row_lower_, lp.row_upper_ = join(self._lower), join(self._upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
        lp.integrality_ = [kinds[bool(x)] for x in join(self._integer)]
        return lp

    def solve(
        self,
        time_limit: float,
        absolute_gap: float,
        seed: int,
        stop: Callable[[float], bool],
        start: tuple[Ints, Floats] | None = None,
    ) -> Answer:
        """Minimise.

        Args:
            time_limit: seconds. absolute_gap: stop when objective - bound is at most this.
            stop: called now and then with the current bound; True ends the search.
            start: (variables, values) of a solution to begin with; the rest is completed by HiGHS.
        """
        highs = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": THREADS,
            "time_limit": max(0.01, time_limit),
            "mip_abs_gap": absolute_gap,
            "mip_rel_gap": 0.0,
            "random_seed": seed,
        }
        for name, value in options.items():
            highs.setOptionValue(name, value)
        highs.passModel(self._lp())
        if start is not None:
            highs.setSolution(len(start[0]), start[0].astype(np.int32), start[1])

        def on_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            if stop(event.data_out.mip_dual_bound):
                event.interrupt()

        highs.cbMipInterrupt += on_interrupt
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Answer(None, np.inf, np.inf, True, False)
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        x = np.array(highs.getSolution().col_value) if found else None
        objective = info.objective_function_value if found else np.inf
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else -np.inf
        return Answer(x, objective, bound, False, status == highspy.HighsModelStatus.kOptimal)
