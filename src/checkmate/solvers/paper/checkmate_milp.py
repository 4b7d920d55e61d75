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
from dataclasses import dataclass

import numpy as np

from ...errors import CheckmateError
from ...schedule import OPTIMAL_GAP
from ..interface.running_search import Search
from ..mixed_integer.dispatch import solve_with_highs
from ..mixed_integer.program import Answer, Program
from ..representation.decoding import evaluate
from ..representation.graph_arrays import Bools, Floats, Ints, Problem

#: Objective units for the cost of computing everything once.
_SCALE = 1000.0
#: Rows may be off by this fraction of the budget: less than a byte for all but huge budgets.
_TOLERANCE = 1e-9
#: The program has about num_ops^2 variables of each kind: past this many ops it takes gigabytes, and no solver ends.
_MOST_OPS = 500

#: Solves a program: (program, seconds, absolute gap, search).
Backend = Callable[[Program, float, float, Search], Answer]


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


def _highs(program: Program, seconds: float, gap: float, search: Search) -> Answer:
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
        search.report(f"solving an integer program: {program.num_variables} variables, {program.num_rows} rows")
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


@dataclass(frozen=True)
class _GraphWithSink:
    """The graph with an op at the end that reads the kept values, if there are any."""

    cost: Floats
    workspace: Floats
    recomputable: Bools
    values: Ints  # of all (value, op that reads it) pairs, by op
    readers: Ints


def _with_sink(problem: Problem) -> _GraphWithSink:
    values, readers = problem.edges
    kept = np.flatnonzero(problem.keep)
    if not len(kept):
        return _GraphWithSink(problem.cost, problem.workspace, problem.recomputable, values, readers)
    return _GraphWithSink(
        np.append(problem.cost, 0.0),
        np.append(problem.workspace, 0.0),
        np.append(problem.recomputable, True),
        np.append(values, kept),
        np.append(readers, np.full(len(kept), problem.graph.num_ops)),
    )


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
        self.problem, self._graph = problem, _with_sink(problem)
        arrays = self._graph
        n = len(arrays.cost)
        self._unit = float(max(budget, 1))
        self.scale = _SCALE / graph.ideal_cost if graph.ideal_cost else 1.0
        over = np.flatnonzero(problem.profile > budget)
        self.begin = int(over[0]) if len(over) else n - 1
        stages = np.arange(self.begin, n)
        self.program = program = Program()

        until = problem.useful_until(problem.recomputable)
        exists = (problem.producer < stages[:, None]) & (until >= stages[:, None])
        self.retain = np.full(exists.shape, -1)
        self.retain[exists] = program.variables(np.zeros(int(exists.sum())), integral)

        op_until = np.full(n, -1)
        np.maximum.at(op_until, problem.producer, until)
        ops = np.arange(n)
        again = (ops < stages[:, None]) & (op_until >= stages[:, None]) & arrays.recomputable
        frontier = ops == stages[:, None]
        present = again | frontier
        self.compute = np.full(present.shape, -1)
        cost = np.where(frontier, 0.0, arrays.cost * self.scale)
        self.compute[present] = program.variables(cost[present], integral, frontier[present].astype(np.float64))

        self._dependencies()
        self._memory(*self._frees())

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

    def _dependencies(self) -> None:
        """Rows (1b) and (1c)."""
        producer = self.problem.producer
        values, readers = self._graph.values, self._graph.readers
        stage, edge = np.nonzero(self.compute[:, readers] >= 0)
        v, o = values[edge], readers[edge]
        self.program.at_least(
            0.0,
            [(self.compute[stage, producer[v]], 1.0), (self.retain[stage, v], 1.0), (self.compute[stage, o], -1.0)],
        )
        # What was first computed in the stage before is there.
        row, v = np.nonzero(
            (self.retain[1:] >= 0) & (producer < np.arange(self.begin, self.begin + len(self.retain) - 1)[:, None])
        )
        self.program.at_least(
            0.0, [(self.retain[row, v], 1.0), (self.compute[row, producer[v]], 1.0), (self.retain[row + 1, v], -1.0)]
        )
        # Nobody reads a value before its op's turn: a value that is computed in the stage need not be there at its begin.
        row, v = np.nonzero(self.retain >= 0)
        again = self.compute[row, producer[v]]
        both = again >= 0
        self.program.at_least(-1.0, [(self.retain[row[both], v[both]], -1.0), (again[both], -1.0)])

    def _frees(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Variables F and their rows; returns (rows of stages, ops, values, indices of the variables)."""
        problem, program = self.problem, self.program
        m = len(problem.size)
        # Every (op, value) such that the op reads or makes the value.
        touching_ops = np.concatenate([self._graph.readers, problem.producer])
        touched = np.concatenate([self._graph.values, np.arange(m)])
        counted = problem.size[touched] > 0
        touching_ops, touched = touching_ops[counted], touched[counted]
        by_value = np.lexsort((touching_ops, touched))
        touching_ops, touched = touching_ops[by_value], touched[by_value]
        row, pair = np.nonzero(self.compute[:, touching_ops] >= 0)
        op, value = touching_ops[pair], touched[pair]
        # The op that ends the stage runs for certain: if it reads the value, no op before can free it.
        reads_frontier = np.zeros((len(self.retain), m), np.bool_)
        late = self._graph.readers >= self.begin
        reads_frontier[self._graph.readers[late] - self.begin, self._graph.values[late]] = True
        possible = (op == row + self.begin) | ~reads_frontier[row, value]
        row, pair, op, value = row[possible], pair[possible], op[possible], value[possible]
        free = program.variables(np.zeros(len(op)), integer=False)
        program.at_least(0.0, [(self.compute[row, op], 1.0), (free, -1.0)])
        following = np.full(len(op), -1)
        inner = row + 1 < len(self.retain)
        following[inner] = self.retain[row[inner] + 1, value[inner]]
        held = following >= 0
        program.at_least(-1.0, [(free[held], -1.0), (following[held], -1.0)])
        # Later users of the same value are the entries after it, up to where the next value begins.
        last = np.searchsorted(touched, touched, side="right")
        for step in range(1, int(np.max(last - np.arange(len(touched)), initial=1))):
            later = np.minimum(pair + step, len(touched) - 1)
            user = np.where(pair + step < last[pair], self.compute[row, touching_ops[later]], -1)
            clash = user >= 0
            program.at_least(-1.0, [(free[clash], -1.0), (user[clash], -1.0)])
        return row, op, value, free

    def _memory(self, row: Ints, op: Ints, value: Ints, free: Ints) -> None:
        """Variables U, in units of the budget, and their rows (2), (3) and (8)."""
        problem, program = self.problem, self.program
        size = problem.size / self._unit
        made = np.zeros(len(self._graph.cost))
        np.add.at(made, problem.producer, size)
        stage, ops = np.nonzero(self.compute >= 0)
        live = np.full(self.compute.shape, -1)
        live[stage, ops] = program.variables(np.zeros(len(ops)), integer=False)
        number = np.full(self.compute.shape, -1)  # of the row for (stage, op); the row of the next op uses what op frees
        number[stage, ops] = np.arange(len(ops))
        first = np.append(True, stage[1:] != stage[:-1])
        here = np.arange(len(ops))
        s_row, s_value = np.nonzero(self.retain >= 0)
        follows = number[row, op] + 1
        inside = follows < len(ops)
        inside[inside] &= ~first[follows[inside]]
        program.at_most_rows(
            np.concatenate([here, here, here[~first], number[s_row, ops[first][s_row]], follows[inside]]),
            np.concatenate(
                [
                    live[stage, ops],
                    self.compute[stage, ops],
                    live[stage, ops][here[~first] - 1],
                    self.retain[s_row, s_value],
                    free[inside],
                ]
            ),
            np.concatenate(
                [np.full(len(ops), -1.0), made[ops], np.ones(int((~first).sum())), size[s_value], -size[value[inside]]]
            ),
            np.zeros(len(ops)),
        )
        works = np.flatnonzero(self._graph.workspace[ops] > 0)
        program.at_most_rows(
            np.tile(np.arange(len(works)), 2),
            np.concatenate([live[stage[works], ops[works]], self.compute[stage[works], ops[works]]]),
            np.concatenate([np.ones(len(works)), self._graph.workspace[ops[works]] / self._unit]),
            np.ones(len(works)),
        )
