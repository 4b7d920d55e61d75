"""HiGHS, in a process that may load it: see `solve` in the package for where that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import highspy
import numpy as np

from ..interface.work_limits import highs as highs_work
from ..interface.work_limits import highs_calls, interior_point
from ..representation.graph_arrays import Floats, Ints
from .program import Answer, ProgramArrays
from .proven_bounds import DUAL_TOLERANCE, ROW_TOLERANCE, dual_bound, mip_error

# HiGHS keeps one scheduler per process: its size must be the same for every solve.
THREADS = 1
#: Heuristics that solve smaller integer programs, during which HiGHS does not ask whether to go on, for up to many seconds; and the one
#: of them that is run once, at the root.
_UNCOUNTED, _UNCOUNTED_AT_ROOT = ("mip_heuristic_run_rins", "mip_heuristic_run_rens"), "mip_heuristic_run_root_reduced_cost"


def minimise(
    arrays: ProgramArrays,
    time_limit: float,
    absolute_gap: float,
    seed: int,
    stop: Callable[[float], bool],
    start: tuple[Ints, Floats] | None = None,
    tolerance: float | None = None,
    found: Callable[[Floats], None] | None = None,
    work: float = np.inf,
    thorough: bool = False,
) -> Answer:
    """Solve a program.

    Args:
        time_limit: seconds. absolute_gap: stop when objective - bound is at most this.
        stop: called now and then with the current bound; True ends the search.
        start: (variables, values) of a solution to begin with; the rest is completed by HiGHS.
        tolerance: how far rows and integers may be off; HiGHS's own choice (1e-6) if None.
        found: called with every better solution (if some variables are integer).
        work: units (see interface/work_limits.py) after which it ends, if some variables are integer: at the same point in every run.
        thorough: with such a limit, too, a good solution is sought at the root, by work that is not counted.
    """
    deadline = time.perf_counter() + time_limit
    lp = _lp(arrays)  # takes seconds for the largest programs
    options = {
        "time_limit": max(0.01, deadline - time.perf_counter()),
        "mip_abs_gap": absolute_gap,
        "mip_rel_gap": 0.0,
        "random_seed": seed,
        "dual_feasibility_tolerance": DUAL_TOLERANCE,
        "mip_feasibility_tolerance": ROW_TOLERANCE if tolerance is None else tolerance,
    }
    if tolerance is not None:
        options["primal_feasibility_tolerance"] = tolerance
    if work < np.inf:
        options |= {**dict.fromkeys(_UNCOUNTED, False), _UNCOUNTED_AT_ROOT: thorough}
    error = mip_error(arrays, options["mip_feasibility_tolerance"])
    highs = _solver(lp, options)
    if start is not None:
        highs.setSolution(len(start[0]), start[0].astype(np.int32), start[1])

    calls, most_calls = 0, highs_calls(arrays.matrix.num_entries, work)

    def on_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        nonlocal calls
        calls += 1
        if calls > most_calls or stop(event.data_out.mip_dual_bound - error):
            event.interrupt()

    if arrays.integer.any():
        highs.cbMipInterrupt += on_interrupt
        if found is not None:
            highs.cbMipImprovingSolution += lambda event: found(np.array(event.data_out.mip_solution))
    else:
        _stop_linear(highs, lambda: stop(-np.inf))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(None, np.inf, np.inf, True, False)
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if feasible else None
    objective = info.objective_function_value if feasible else np.inf
    optimal = status == highspy.HighsModelStatus.kOptimal
    if arrays.integer.any():
        bound = info.mip_dual_bound - error if np.isfinite(info.mip_dual_bound) else -np.inf
    else:
        solution = highs.getSolution()
        bound = dual_bound(arrays, np.array(solution.row_dual)) if solution.dual_valid else -np.inf
    return Answer(x, objective, bound, False, optimal, highs_work(arrays.matrix.num_entries, calls))


def relax(arrays: ProgramArrays, time_limit: float, stop: Callable[[], bool] = lambda: False) -> Answer:
    """The linear relaxation, by an interior point method without crossover: fast, and ties are shared evenly.

    The bound is that of weak duality, computed from the row duals, whatever state the solver stopped in.
    """
    deadline = time.perf_counter() + time_limit
    lp = _lp(arrays)
    lp.integrality_ = []
    highs = _solver(lp, {"time_limit": max(0.01, deadline - time.perf_counter()), "solver": "ipm", "run_crossover": "off"})
    _stop_linear(highs, stop)
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Answer(None, np.inf, np.inf, True, False)
    solution = highs.getSolution()
    bound = dual_bound(arrays, np.array(solution.row_dual)) if solution.dual_valid else -np.inf
    if not solution.value_valid:
        return Answer(None, np.inf, bound, False, False)
    x = np.clip(np.array(solution.col_value), arrays.lower, 1.0)
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    work = interior_point(arrays.matrix.num_entries, highs.getInfo().ipm_iteration_count)
    return Answer(x, float(arrays.cost @ x), bound, False, optimal, work)


def highest_point(slopes: Floats, heights: Floats, lower: Floats, upper: Floats) -> Answer:
    """The highest point under planes, in a box: maximise t with t <= heights[i] + slopes[i] . x.

    Args:
        slopes, heights: per plane, (planes, k) and (planes). lower, upper: of x, (k).

    Returns:
        x, then t, as `Answer.x`; None if there is none.
    """
    planes, count = slopes.shape
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = planes, count + 1
    lp.col_cost_ = np.append(np.zeros(count), -1.0)
    lp.col_lower_, lp.col_upper_ = np.append(lower, -np.inf), np.append(upper, np.inf)
    lp.row_lower_, lp.row_upper_ = np.full(planes, -np.inf), heights
    by_column = np.column_stack([-slopes, np.ones(planes)]).T
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.append(0, np.cumsum(np.count_nonzero(by_column, axis=1)))
    lp.a_matrix_.index_, lp.a_matrix_.value_ = np.nonzero(by_column)[1], by_column[by_column != 0.0]
    highs = _solver(lp, {})
    highs.run()
    optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    x = np.array(highs.getSolution().col_value) if optimal else None
    return Answer(x, -highs.getInfo().objective_function_value if optimal else np.inf, -np.inf, False, optimal)


def _stop_linear(highs: highspy.Highs, stop: Callable[[], bool]) -> None:
    """Ask `stop` now and then while a program without integers is solved."""

    def on_interrupt(event: highspy.highs.HighsCallbackEvent) -> None:
        if stop():
            event.interrupt()

    highs.cbSimplexInterrupt += on_interrupt
    highs.cbIpmInterrupt += on_interrupt


def _solver(lp: highspy.HighsLp, options: dict[str, Any]) -> highspy.Highs:
    """HiGHS, silent, with the program and these options."""
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": THREADS, **options}.items():
        highs.setOptionValue(name, value)
    highs.passModel(lp)
    return highs


def _lp(arrays: ProgramArrays) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = arrays.matrix.num_rows, arrays.matrix.num_columns
    lp.col_cost_ = arrays.cost
    lp.col_lower_, lp.col_upper_ = arrays.lower, np.ones(len(arrays.cost))
    lp.row_lower_, lp.row_upper_ = arrays.row_lower, arrays.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_ = arrays.matrix.pointers, arrays.matrix.rows
    lp.a_matrix_.value_ = arrays.matrix.entries
    if arrays.integer.any():
        kinds = {True: highspy.HighsVarType.kInteger, False: highspy.HighsVarType.kContinuous}
        lp.integrality_ = [kinds[x] for x in arrays.integer.tolist()]
    return lp
