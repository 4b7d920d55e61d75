"""The one place that talks to HiGHS: build a mixed-integer program from arrays, solve it, read solution and bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
import scipy.sparse

from ..representation.graph_arrays import Bools, Floats, Ints

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


@dataclass(frozen=True, slots=True)
class Arrays:
    """A program as arrays, for any solver: minimise cost . x, row_lower <= matrix x <= row_upper, lower <= x <= 1.

    Attributes:
        cost, lower: per variable. integer: which variables are. matrix: (rows, variables), by columns.
        row_lower, row_upper: per row, infinite where there is no limit.
    """

    cost: Floats
    lower: Floats
    integer: Bools
    matrix: Any  # scipy.sparse.csc_matrix
    row_lower: Floats
    row_upper: Floats


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
        self.num_rows = 0

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
        self._bounds(np.full(rows, lower), np.full(rows, highspy.kHighsInf))

    def at_most(self, columns: Ints, coefficients: Floats, upper: float) -> None:
        """Add one row: coefficients . variables <= upper."""
        self._add(np.full(len(columns), self.num_rows), columns, coefficients)
        self._bounds(np.array([-highspy.kHighsInf]), np.array([upper]))

    def at_most_rows(self, rows: Ints, columns: Ints, coefficients: Floats, upper: Floats) -> None:
        """Add len(upper) rows: coefficients . variables <= upper. The first three are triplets, rows counted from 0."""
        self._add(self.num_rows + rows, columns, coefficients)
        self._bounds(np.full(len(upper), -highspy.kHighsInf), upper)

    def _add(self, rows: Ints, columns: Ints, coefficients: Floats) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._coefficients.append(coefficients)

    def _bounds(self, lower: Floats, upper: Floats) -> None:
        self._lower.append(lower)
        self._upper.append(upper)
        self.num_rows += len(lower)

    def arrays(self) -> Arrays:
        """Everything that was added."""

        def join(parts: list[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
            return np.concatenate(parts).astype(kind, copy=False) if parts else np.zeros(0, kind)

        triplets = (join(self._coefficients, np.float64), (join(self._rows, np.int32), join(self._columns, np.int32)))
        return Arrays(
            join(self._cost, np.float64),
            join(self._least, np.float64),
            join(self._integer, np.bool_),
            scipy.sparse.csc_matrix(triplets, shape=(self.num_rows, self.num_variables)),
            join(self._lower, np.float64),
            join(self._upper, np.float64),
        )

    def relax(self, time_limit: float, stop: Callable[[], bool] = lambda: False) -> Answer:
        """The linear relaxation, by an interior point method without crossover: fast, and ties are shared evenly.

        The bound is that of weak duality, computed here from the row duals, whatever state the solver stopped in.
        """
        arrays = self.arrays()
        lp = _lp(arrays)
        lp.integrality_ = []
        highs = _solver(lp, {"time_limit": max(0.01, time_limit), "solver": "ipm", "run_crossover": "off"})

        def on_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
            if stop():
                event.interrupt()

        highs.cbSimplexInterrupt += on_interrupt
        highs.cbIpmInterrupt += on_interrupt
        highs.run()
        if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return Answer(None, np.inf, np.inf, True, False)
        solution = highs.getSolution()
        bound = _dual_bound(arrays, np.array(solution.row_dual)) if solution.dual_valid else -np.inf
        if not solution.value_valid:
            return Answer(None, np.inf, bound, False, False)
        x = np.clip(np.array(solution.col_value), arrays.lower, 1.0)
        optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return Answer(x, float(arrays.cost @ x), bound, False, optimal)

    def solve(
        self,
        time_limit: float,
        absolute_gap: float,
        seed: int,
        stop: Callable[[float], bool],
        start: tuple[Ints, Floats] | None = None,
        tolerance: float | None = None,
    ) -> Answer:
        """Minimise: see `minimise`."""
        deadline = time.perf_counter() + time_limit
        arrays = self.arrays()
        return minimise(arrays, deadline - time.perf_counter(), absolute_gap, seed, stop, start, tolerance)


def minimise(
    arrays: Arrays,
    time_limit: float,
    absolute_gap: float,
    seed: int,
    stop: Callable[[float], bool],
    start: tuple[Ints, Floats] | None = None,
    tolerance: float | None = None,
    found: Callable[[Floats], None] | None = None,
) -> Answer:
    """Solve a program.

    Args:
        time_limit: seconds. absolute_gap: stop when objective - bound is at most this.
        stop: called now and then with the current bound; True ends the search.
        start: (variables, values) of a solution to begin with; the rest is completed by HiGHS.
        tolerance: how far rows and integers may be off; HiGHS's own choice (1e-6) if None.
        found: called with every better solution (if some variables are integer).
    """
    deadline = time.perf_counter() + time_limit
    lp = _lp(arrays)  # takes seconds for the largest programs
    options = {
        "time_limit": max(0.01, deadline - time.perf_counter()),
        "mip_abs_gap": absolute_gap,
        "mip_rel_gap": 0.0,
        "random_seed": seed,
    }
    if tolerance is not None:
        options |= {"primal_feasibility_tolerance": tolerance, "mip_feasibility_tolerance": tolerance}
    highs = _solver(lp, options)
    if start is not None:
        highs.setSolution(len(start[0]), start[0].astype(np.int32), start[1])

    def on_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        if stop(event.data_out.mip_dual_bound):
            event.interrupt()

    def on_lp_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        if stop(-np.inf):
            event.interrupt()

    if arrays.integer.any():
        highs.cbMipInterrupt += on_interrupt
        if found is not None:
            highs.cbMipImprovingSolution += lambda event: found(np.array(event.data_out.mip_solution))
    else:
        highs.cbSimplexInterrupt += on_lp_interrupt
        highs.cbIpmInterrupt += on_lp_interrupt
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(None, np.inf, np.inf, True, False)
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if feasible else None
    objective = info.objective_function_value if feasible else np.inf
    optimal = status == highspy.HighsModelStatus.kOptimal
    if arrays.integer.any():
        bound = info.mip_dual_bound if np.isfinite(info.mip_dual_bound) else -np.inf
    else:
        bound = objective if optimal else -np.inf
    return Answer(x, objective, bound, False, optimal)


def _solver(lp: highspy.HighsLp, options: dict[str, Any]) -> highspy.Highs:
    """HiGHS, silent, with the program and these options."""
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": THREADS, **options}.items():
        highs.setOptionValue(name, value)
    highs.passModel(lp)
    return highs


def _lp(arrays: Arrays) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = arrays.matrix.shape
    lp.col_cost_ = arrays.cost
    lp.col_lower_, lp.col_upper_ = arrays.lower, np.ones(len(arrays.cost))
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = arrays.matrix.indptr, arrays.matrix.indices
    lp.a_matrix_.value_ = arrays.matrix.data
    if arrays.integer.any():
        kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
        lp.integrality_ = [kinds[x] for x in arrays.integer.tolist()]
    return lp


def _dual_bound(arrays: Arrays, dual: Floats) -> float:
    """The bound on the objective that these row multipliers prove: the least of the Lagrangian over the box of the variables."""
    positive = np.where(np.isfinite(arrays.row_lower), np.maximum(dual, 0.0), 0.0)
    negative = np.where(np.isfinite(arrays.row_upper), np.minimum(dual, 0.0), 0.0)
    reduced = arrays.cost - arrays.matrix.T @ (positive + negative)
    rows = positive @ np.where(positive > 0, arrays.row_lower, 0.0) + negative @ np.where(negative < 0, arrays.row_upper, 0.0)
    return float(rows + np.minimum(reduced * arrays.lower, reduced).sum())
