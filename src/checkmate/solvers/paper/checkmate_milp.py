"""Checkmate's integer program (Jain et al., MLSys 2020, eq. 1-9), for several values per op, workspace and kept values.

Stage t ends with the first computation of op t. Binary R[t, o]: op o is computed in stage t; binary S[t, v]: value v is
retained into stage t. Within a stage ops run at most once, in graph order; F[t, o, v]: value v is freed right after op o ran
in stage t; U[t, o]: bytes live while it runs. Kept values are read by an op without cost at the very end.

    R[t, o] <= R[t, producer of v] + S[t, v]  for every input v of o                                    (1b)
    S[t, v] <= R[t-1, producer of v] + S[t-1, v]                                                        (1c)
    R[t, t] = 1; R[t, o] = 0 for o > t                                                                  (frontier-advancing)
    F[t, o, v] <= R[t, o], 1 - S[t+1, v], 1 - R[t, j]  for every later user j of v                      (4-7)
    U[t, o] >= U[t, op before] - bytes freed after it + R[t, o] * bytes of outputs of o                 (2, 3)
    U[t, o] + workspace of o * R[t, o] <= budget                                                        (8)
    ... - bytes of v * F[t, o, v], if o may write its output in v                                       (not in the paper)
    S[t, v] + R[t, producer of v] <= 1                                                                  (not in the paper)

Each product in the paper's definition of FREE is stated factor by factor instead of as one sum, which has the same integer
solutions and a tighter relaxation, and lets F be continuous. Two things are left out that no optimal solution needs:
variables for values past any use, and the stages before memory first runs short, in which everything is retained.

The optimum is that of its own class only: recomputing an op twice within one stage, or out of graph order, can be cheaper
when memory is very short. What the solver proves is therefore no bound on every schedule in the given order, and is
not reported as one: the bound of these methods stays the cost of computing every op once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import CheckmateError
from ...schedule import OPTIMAL_GAP
from ..interface.running_search import Search
from ..mixed_integer.dispatch import solve_with_highs
from ..mixed_integer.program import Answer, Model
from ..representation.decoding import evaluate
from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from .staged_program import StagedProgram, with_sink

#: Objective units for the cost of computing everything once.
_SCALE = 1000.0
#: Rows may be off by this fraction of the budget: less than a byte for all but huge budgets.
_TOLERANCE = 1e-9
#: The program has about num_ops^2 variables of each kind: past this many ops it takes gigabytes, and no solver ends.
_MOST_OPS = 500
#: Most coefficients: HiGHS takes about 200 bytes for each, and its time for graphs with so many edges is hours as well.
_MOST_NONZEROS = 20_000_000

#: Solves a program: (program, seconds, absolute gap, search).
Backend = Callable[[Model, float, float, Search], Answer]


def milp(search: Search) -> None:
    """The integer program, solved by HiGHS."""
    _solve(search, _highs)


def milp_cbc(search: Search) -> None:
    """The integer program, solved by COIN-OR CBC, the solver of the original's free backend."""
    from ..mixed_integer.cbc import solve_with_cbc

    _solve(search, solve_with_cbc)


def milp_gurobi(search: Search) -> None:
    """The integer program, solved by Gurobi (commercial), the solver of the paper's evaluation."""
    from ..mixed_integer.gurobi import solve_with_gurobi

    _solve(search, solve_with_gurobi)


def _highs(program: Model, seconds: float, gap: float, search: Search) -> Answer:
    return solve_with_highs(program, seconds, gap, search, _TOLERANCE)


def _solve(search: Search, backend: Backend) -> None:
    graph = search.graph
    if graph.no_recompute_peak <= search.budget:
        search.offer(range(graph.num_ops), graph.ideal_cost, "no recomputation")
        return
    budget = search.budget - graph.fixed_memory
    for _ in range(3):
        formulation = Formulation(Problem(graph), budget)
        program = formulation.program
        gap = max(search.gap, OPTIMAL_GAP) * formulation.scale * graph.ideal_cost
        search.report(f"solving an integer program: {program.num_variables} variables, {program.num_nonzeros} coefficients")
        answer = backend(program, search.time_left(), gap, search)
        if answer.x is None:
            return
        found = evaluate(graph, formulation.sequence(answer.x))
        if found.peak <= search.budget:
            note = "optimum of the integer program" if answer.optimal else "solution of the integer program"
            search.offer(found.sequence, found.cost, note)
            return
        # Within the solver's tolerance, and yet some bytes too many: ask for that much less.
        budget -= found.peak - search.budget


class Formulation:
    """The program for one graph and budget.

    Args:
        problem: the graph.
        budget: bytes without fixed memory; below the no-recompute peak.
        integral: False for the linear relaxation.

    Attributes:
        program: to solve. scale: objective units per cost.
        begin: the first stage that has variables; everything is retained before.
        retain: index of S[begin + row, v], -1 where there is none; shape (stages, values).
        compute: index of R[begin + row, o]; shape (stages, ops).

    Raises:
        CheckmateError: the graph is too large for a program with a variable per pair of ops.
    """

    def __init__(self, problem: Problem, budget: int, integral: bool = True):
        graph = problem.graph
        if graph.num_ops > _MOST_OPS:
            raise CheckmateError(
                f"the integer program of the paper has about {graph.num_ops}^2 variables for {graph.num_ops} ops, too many beyond "
                f"{_MOST_OPS} ops: use method 'auto'"
            )
        self.problem = problem
        with_end = with_sink(problem)
        n = len(with_end.cost)
        self.scale = _SCALE / graph.ideal_cost if graph.ideal_cost else 1.0
        over = np.flatnonzero(problem.profile > budget)
        self.begin = int(over[0]) if len(over) else n - 1
        stages = np.arange(self.begin, n)

        until = problem.useful_until(problem.recomputable)
        self.retain = _numbered((problem.producer < stages[:, None]) & (until >= stages[:, None]), 0)

        op_until = np.full(n, -1)
        np.maximum.at(op_until, problem.producer, until)
        ops = np.arange(n)
        again = (ops < stages[:, None]) & (op_until >= stages[:, None]) & with_end.recomputable
        self.compute = _numbered(again | (ops == stages[:, None]), int(np.sum(self.retain >= 0)))

        cost = with_end.cost * self.scale
        self.program = StagedProgram(with_end, self.begin, self.retain, self.compute, cost, float(max(budget, 1)), integral)
        nonzeros = self.program.num_nonzeros
        if nonzeros > _MOST_NONZEROS:
            raise CheckmateError(
                f"the integer program of the paper has about {nonzeros // 10**6} million coefficients for this graph, too many beyond "
                f"{_MOST_NONZEROS // 10**6} million: use method 'auto'"
            )

    def sequence(self, x: Floats) -> list[int]:
        """The op sequence of a solution."""
        result = list(range(self.begin))
        for row in self.compute:
            chosen = np.flatnonzero(row >= 0)
            result.extend(chosen[x[row[chosen]] > 0.5].tolist())
        return [op for op in result if op < self.problem.graph.num_ops]

    def retained(self, x: Floats) -> Floats:
        """S of a solution (fractional for the relaxation), all stages; shape (num_ops + 1, values)."""
        graph = self.problem.graph
        whole = np.zeros((graph.num_ops + 1, graph.num_values))
        before = np.arange(self.begin)[:, None]
        whole[: self.begin] = (self.problem.producer < before) & (self.problem.last_use >= before)
        part = np.where(self.retain >= 0, x[self.retain], 0.0)
        whole[self.begin : self.begin + len(part)] = part
        return whole


def _numbered(present: Bools, first: int) -> Ints:
    """Numbers from `first` on where there is something, by rows, and -1 elsewhere."""
    numbers = np.full(present.shape, -1)
    numbers[present] = first + np.arange(int(present.sum()))
    return numbers
