"""A bound for schedules in any order: from what is in memory at the moment at which one op runs for the first time.

Whatever the order, the ops that it depends on have run by then, and those that depend on it have not; around the loss all of the forward
pass has run, and nothing of the backward pass. So a value made before and read after is in memory at that moment, or computed again later,
and so on for what that computation reads. The cheapest way to do so within the budget is a knapsack problem with precedences: snapshot
relaxation (snapshot_relaxation.py) with one snapshot, in which orders play no part.

Limits: memory counts at one moment only. Where it is tight at many, or where an order leaves open what has run, the bound is weak: on random
layered graphs without phases it is the cost of computing everything once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..mixed_integer import dispatch
from ..mixed_integer.program import Program
from ..representation.execution_sequence import phase_codes
from ..representation.graph_arrays import Bools, Floats, Problem
from .snapshot_relaxation import QUOTIENTS, cost_of, scale_of, without_tiny


@dataclass(frozen=True)
class Cut:
    """What one moment proves.

    Attributes:
        bound: on the cost of every schedule under the budget, in any order; infinite if there is none.
        work: units; see interface/work_limits.py.
    """

    bound: float
    work: float


class CutBound:
    """The bounds from all ops of a graph.

    Args:
        problem: the graph. A byte is taken for every pair of ops.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._before = surely_before(problem)
        self._counted = without_tiny(problem.size)
        self._demand = self._demands()

    def tightest(self, capacity: float, most: int) -> list[int]:
        """The ops at whose first computation most is needed, if that is more than the capacity (bytes without fixed memory)."""
        ops = np.argsort(-self._demand, kind="stable")[:most]
        return [int(op) for op in ops if self._demand[op] > capacity]

    def relax(self, capacity: float, op: int, time_limit: float, stop: Callable[[], bool] = lambda: False) -> Cut:
        """The bound of the linear relaxation."""
        deadline = time.perf_counter() + time_limit
        answer = dispatch.relax(self._program(capacity, op, integer=False), deadline - time.perf_counter(), stop)
        return Cut(np.inf if answer.infeasible else cost_of(self._problem.graph, answer.bound), answer.work)

    def solve(
        self, capacity: float, op: int, time_limit: float, gap: float, seed: int, stop: Callable[[], bool], work: float
    ) -> Cut:
        """The bound with values that are kept whole or not at all.

        Args:
            gap: stop when within this fraction of the ideal cost. work: units after which it ends.
        """
        deadline = time.perf_counter() + time_limit
        program = self._program(capacity, op, integer=True)
        graph = self._problem.graph
        answer = dispatch.minimise(
            program,
            deadline - time.perf_counter(),
            absolute_gap=gap * graph.ideal_cost * scale_of(graph),
            seed=seed,
            stop=lambda _: stop(),
            work=work,
        )
        return Cut(np.inf if answer.infeasible else cost_of(graph, answer.bound), answer.work)

    def _demands(self) -> Floats:
        """Per op the bytes that are needed at its first computation if nothing is computed again."""
        problem, before = self._problem, self._before
        after = np.ascontiguousarray(before.T)
        pointers, users = problem.users
        demand = problem.working_set.copy()
        for value in np.flatnonzero(self._counted):
            readers = users[pointers[value] : pointers[value + 1]]
            held = after[problem.producer[value]].copy()
            if not problem.keep[value]:
                held &= before[readers].any(axis=0)
            held[readers] = False  # it is in their working sets
            demand[held] += problem.size[value]
        return demand

    def _program(self, capacity: float, op: int, integer: bool) -> Program:
        problem = self._problem
        n, m, producer = problem.graph.num_ops, problem.graph.num_values, problem.producer
        values, readers = problem.edges
        computed = self._before[op]
        program = Program()
        retain, again = np.full(m, -1), np.full(n, -1)
        made = computed[producer]
        retain[made] = program.variables(np.zeros(int(made.sum())), integer=integer)
        ops = computed & problem.recomputable
        again[ops] = program.variables(problem.cost[ops] * scale_of(problem.graph), integer=False)
        needed = problem.keep.copy()
        needed[values[self._before[readers, op]]] = True
        need = np.flatnonzero(needed & made)
        program.at_least(1.0, [(retain[need], 1.0), (again[producer[need]], 1.0)])
        chained = again[readers] >= 0
        source, user = values[chained], readers[chained]
        program.at_least(0.0, [(retain[source], 1.0), (again[producer[source]], 1.0), (again[user], -1.0)])
        touched = np.zeros(m, np.bool_)
        touched[list(problem.graph.ops[op].inputs)] = True
        others = np.flatnonzero(made & ~touched & self._counted)
        unit = max(capacity, 1.0)
        left = (capacity - problem.working_set[op]) / unit
        program.at_most(retain[others], problem.size[others] / unit, left + QUOTIENTS * abs(left))
        return program


def surely_before(problem: Problem) -> Bools:
    """Entry (v, u): whatever the order, u runs for the first time before v does."""
    n, producer = problem.graph.num_ops, problem.producer
    before = np.zeros((n, n), np.bool_)
    for op, made_of in enumerate(problem.graph.ops):
        for source in {int(producer[value]) for value in made_of.inputs}:
            before[op] |= before[source]
            before[op, source] = True
    codes = phase_codes(problem)
    backward = codes == 2
    if backward.any():
        forward = codes == 1
        late = backward | before[:, backward].any(axis=1)
        before[late] |= forward | before[forward].any(axis=0)
    return before
