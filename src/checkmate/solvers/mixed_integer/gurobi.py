"""Gurobi, for those who have it: needs the package `gurobipy` and, for programs that are not tiny, a licence."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import CheckmateError
from ..interface.running_search import Search
from .program import Answer, Model


def solve_with_gurobi(program: Model, seconds: float, gap: float, search: Search) -> Answer:
    """Minimise. Takes what `solve_with_highs` takes.

    Raises:
        CheckmateError: gurobipy is not installed, or Gurobi refuses (no licence, or one for smaller programs).
    """
    try:
        gurobi = import_module("gurobipy")
    except ImportError:
        raise CheckmateError(
            "method 'milp-gurobi' needs gurobipy and a licence: run pip install gurobipy, or use method 'milp' (HiGHS)"
        ) from None
    deadline = time.perf_counter() + seconds
    arrays = program.arrays()
    try:
        with gurobi.Env(params={"OutputFlag": 0}) as environment, gurobi.Model(env=environment) as model:
            kinds = np.where(arrays.integer, "I", "C")
            x = model.addMVar(program.num_variables, lb=arrays.lower, ub=1.0, obj=arrays.cost, vtype=kinds)
            variables, matrix = x.tolist(), arrays.matrix
            order = np.argsort(matrix.rows, kind="stable")
            begins = np.searchsorted(matrix.rows[order], np.arange(matrix.num_rows + 1)).tolist()
            for row, (lower, upper) in enumerate(zip(arrays.row_lower.tolist(), arrays.row_upper.tolist(), strict=True)):
                there = order[begins[row] : begins[row + 1]]
                entries = matrix.entries[there].tolist(), [variables[column] for column in matrix.columns[there].tolist()]
                for sense, side in ((">", lower), ("<", upper)):
                    if np.isfinite(side):
                        model.addLConstr(gurobi.LinExpr(*entries), sense, side)
            options = {
                "TimeLimit": max(0.01, deadline - time.perf_counter()),
                "MIPGap": 0.0,
                "MIPGapAbs": gap,
                "Seed": search.seed,
                "Threads": 1,
                "FeasibilityTol": 1e-9,
                "IntFeasTol": 1e-9,
            }
            for name, value in options.items():
                model.setParam(name, value)

            def on_event(running: Any, _: int) -> None:
                if search.interrupted:
                    running.terminate()

            model.optimize(on_event)
            bound = float(model.ObjBound) if np.isfinite(model.ObjBound) else -np.inf
            if model.Status in (gurobi.GRB.INFEASIBLE, gurobi.GRB.INF_OR_UNBD):
                return Answer(None, np.inf, np.inf, True, False)
            if model.SolCount == 0:
                return Answer(None, np.inf, bound, False, False)
            optimal = bool(model.Status == gurobi.GRB.OPTIMAL)
            return Answer(np.asarray(x.X, np.float64), float(model.ObjVal), bound, False, optimal)
    except gurobi.GurobiError as error:
        raise CheckmateError(f"Gurobi: {error}; use method 'milp' (HiGHS) where its licence does not reach") from None
