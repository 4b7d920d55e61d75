"""The snapshot relaxation: a small mixed-integer program whose optimum bounds the cost of every schedule from below.

Checkmate's program (Jain et al., MLSys 2020, eq. 1-8) limits memory in every stage. Here it is limited only at a few
snapshots s_1 < ... < s_G: the moments at which op s_k is computed for the first time. The stages between two snapshots form
one group, in which an op is either recomputed (at least once) or not. Relaxing the other limits keeps it a lower bound for
every schedule whose first computations come in the graph's order, whatever the order and number of recomputations.

What is proven is less than what the solver says by its tolerances and by rounding (mixed_integer/proven_bounds.py); the memory limits
are rounded up.

Variables, for snapshot k: S[k, v] (binary), value v is live just after op s_k first ran and is not computed again before its
next use; R[k, o] in [0, 1], op o is recomputed in the group that follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...float_rounding import UNIT
from ...graph import Graph
from ..mixed_integer import dispatch
from ..mixed_integer.program import Answer, Program
from ..representation.graph_arrays import Bools, Floats, Ints, Problem

#: Objective units for the cost of computing everything once; keeps the numbers in HiGHS's comfortable range.
_SCALE = 1000.0
#: Values that together have at most this share of all bytes are taken to be free.
_TINY = 1e-4
#: A bound on the objective becomes one on costs by way of two products, of which each rounds by at most 2^-53.
_PRODUCTS = 1.0 - 4 * UNIT
#: Quotients of bytes are rounded by at most 2^-53 each: what fits exactly fits after that if this share is added to the limit.
QUOTIENTS = 4 * UNIT
#: A value that may be retained or not.
_OPEN = -1
#: Suffix windows times ops in one program.
_WINDOW_ROWS = 3000


@dataclass(frozen=True)
class Relaxed:
    """The outcome of one relaxation.

    Attributes:
        bound: proven bound on the cost of every schedule under the budget; infinite if there is none.
        retained: per snapshot, which values the relaxation keeps (length m); None without a solution.
        cost: of the relaxation's own solution.
        exact: solved within the gap asked for.
        work: units; see interface/work_limits.py.
    """

    bound: float
    retained: list[Bools] | None
    cost: float
    exact: bool
    work: float = 0.0


def scale_of(graph: Graph) -> float:
    """What costs are multiplied by to be an objective."""
    return _SCALE / graph.ideal_cost if graph.ideal_cost else 1.0


def cost_of(graph: Graph, objective: float) -> float:
    """The bound on the cost of schedules that one on the objective, the scaled cost of recomputations, proves."""
    return graph.ideal_cost + max(0.0, objective / scale_of(graph) * _PRODUCTS)


def without_tiny(size: Floats) -> Bools:
    """Values whose size matters: the smallest ones, up to a ten-thousandth of all bytes together, are taken to be free.

    That keeps the bound valid and spares the program most of its decisions (statistics of norms, seeds, losses).
    """
    order = np.argsort(size, kind="stable")
    counted = np.zeros(len(size), np.bool_)
    counted[order] = np.cumsum(size[order]) > _TINY * size.sum()
    return counted


@dataclass(frozen=True)
class Fractional:
    """The outcome of a linear relaxation.

    Attributes:
        bound: proven bound on the cost of every schedule under the budget; infinite if there is none.
        recomputed: per snapshot and op (length n), how much of it is recomputed in the group that follows; None without a
            solution.
        work: units.
    """

    bound: float
    recomputed: list[Floats] | None
    work: float = 0.0


class SnapshotRelaxation:
    """The relaxation for one graph; solve it again and again with other capacities and snapshots.

    Args:
        problem: the graph.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self._useful_until = problem.useful_until(problem.recomputable)
        self._counted = without_tiny(problem.size)
        self._scale = scale_of(problem.graph)

    def solve(
        self,
        capacity: float,
        snapshots: Sequence[int],
        time_limit: float,
        gap: float,
        seed: int = 0,
        stop: Callable[[float], bool] = lambda bound: False,
        start: list[Bools] | None = None,
        free: Bools | None = None,
        windows: bool = True,
        transients: Collection[tuple[int, int]] = (),
        work: float = np.inf,
        thorough: bool = False,
    ) -> Relaxed:
        """Solve it.

        Args:
            capacity: bytes without fixed memory.
            snapshots: ops, ascending, at whose first computation memory is limited.
            gap: stop when within this fraction of the ideal cost.
            stop: called now and then with the bound proven so far; True ends the search.
            start: per snapshot the values that a known schedule retains.
            free: per value; those that are not are retained as in `start`, and the bound says nothing.
            transients: (stage, op) pairs: also limit memory while `op` is recomputed in the group that ends with `stage`,
                a snapshot. What is retained through the whole group is live then, in whatever order the group recomputes.
            windows: add cuts over suffixes of the groups, which make up for what splitting stages loses in the LP.
            work: units after which it ends, at the same point in every run. thorough: see `highs.minimise`.
        """
        deadline = time.perf_counter() + time_limit
        fixed = None if start is None or free is None else [np.where(free, _OPEN, kept) for kept in start]
        program, retain, recompute = self._build(capacity, snapshots, windows, transients, fixed)
        hint = None
        if start is not None:
            columns = [index[index >= 0] for index in retain]
            chosen = [kept[index >= 0] for kept, index in zip(start, retain, strict=True)]
            hint = (np.concatenate(columns), np.concatenate(chosen).astype(np.float64))
        ideal = self.problem.graph.ideal_cost
        answer = dispatch.minimise(
            program,
            deadline - time.perf_counter(),
            absolute_gap=gap * ideal * self._scale,
            seed=seed,
            stop=lambda bound: stop(self._bound(bound)),
            start=hint,
            work=work,
            thorough=thorough,
        )
        return self._read(answer, retain, recompute)

    def relax(
        self, capacity: float, snapshots: Sequence[int], time_limit: float, stop: Callable[[], bool] = lambda: False
    ) -> Fractional:
        """The linear relaxation: the bound of graphs so large that a decision more or less does not matter."""
        deadline = time.perf_counter() + time_limit
        program, _, recompute = self._build(capacity, snapshots, True, ())
        answer = dispatch.relax(program, deadline - time.perf_counter(), stop)
        if answer.infeasible:
            return Fractional(np.inf, None)
        if answer.x is None:
            return Fractional(self._bound(answer.bound), None, answer.work)
        x = answer.x
        return Fractional(self._bound(answer.bound), [np.where(index >= 0, x[index], 0.0) for index in recompute], answer.work)

    def _bound(self, objective: float) -> float:
        return cost_of(self.problem.graph, objective)

    def _read(self, answer: Answer, retain: list[Ints], recompute: list[Ints]) -> Relaxed:
        if answer.infeasible:
            return Relaxed(np.inf, None, np.inf, True)
        bound = self._bound(answer.bound)
        if answer.x is None:
            return Relaxed(bound, None, np.inf, False, answer.work)
        x = answer.x
        retained = []
        for index, again in zip(retain, recompute, strict=True):
            origin = again[self.problem.producer]
            # What is recomputed in the group anyway need not be retained into it.
            retained.append((index >= 0) & (x[index] > 0.5) & ~((origin >= 0) & (x[origin] > 0.5)))
        cost = self.problem.graph.ideal_cost + answer.objective / self._scale
        return Relaxed(bound, retained, cost, answer.optimal, answer.work)

    def _build(
        self,
        capacity: float,
        snapshots: Sequence[int],
        windows: bool,
        transients: Collection[tuple[int, int]],
        fixed: list[Ints] | None = None,
    ) -> tuple[Program, list[Ints], list[Ints]]:
        problem = self.problem
        n, m = problem.graph.num_ops, problem.graph.num_values
        producer, edges = problem.producer, problem.edges
        program = Program()
        retain: list[Ints] = []
        recompute: list[Ints] = []
        limited = {stage for stage, _ in transients}
        for k, stage in enumerate(snapshots):
            useful = (producer <= stage) & (self._useful_until > stage)
            index = np.full(m, -1)
            chosen = useful if fixed is None else useful & (fixed[k] != 0)
            least = None if fixed is None else (fixed[k][chosen] == 1).astype(np.float64)
            index[chosen] = program.variables(np.zeros(int(chosen.sum())), integer=True, least=least)
            retain.append(index)
            again = np.zeros(n, np.bool_)
            again[producer[useful]] = True
            again &= problem.recomputable
            index = np.full(n, -1)
            index[again] = program.variables(
                problem.cost[again] * self._scale, integer=k + 1 < len(snapshots) and snapshots[k + 1] in limited
            )
            recompute.append(index)
        for k, stage in enumerate(snapshots):
            end = snapshots[k + 1] if k + 1 < len(snapshots) else n
            following = retain[k + 1] if k + 1 < len(snapshots) else None
            self._group(program, retain[k], recompute[k], stage, end, following)
            self._limit(program, capacity, stage, retain[k])
        for k in range(1, len(snapshots)):
            limited_ops = [op for stage, op in transients if stage == snapshots[k] and recompute[k - 1][op] >= 0]
            if limited_ops:
                self._limit_recomputations(
                    program, capacity, (snapshots[k - 1], snapshots[k]), retain[k - 1 : k + 1], recompute[k - 1], limited_ops
                )
        if windows:
            # Each cuts off much and costs rows: as many, evenly spread, as the size of the graph lets the solver digest.
            most = max(3, _WINDOW_ROWS // n)
            for k in range(0, len(snapshots) - 1, -(-(len(snapshots) - 1) // most) or 1):
                self._window(program, retain[k], recompute[k:], snapshots[k], edges)
        return program, retain, recompute

    def _group(self, program: Program, retain: Ints, again: Ints, stage: int, end: int, following: Ints | None) -> None:
        """What the ops first computed in (stage, end] need, and what the next snapshot retains, must come from somewhere."""
        values, ops = self.problem.edges
        producer = self.problem.producer
        needed = np.zeros(self.problem.graph.num_values, np.bool_)
        needed[values[(ops > stage) & (ops <= end)]] = True
        if end == self.problem.graph.num_ops:
            needed |= self.problem.keep
        need = np.flatnonzero(needed & (producer <= stage))
        program.at_least(1.0, [(retain[need], 1.0), (again[producer[need]], 1.0)])
        chained = again[ops] >= 0
        source, user = values[chained], ops[chained]
        program.at_least(0.0, [(retain[source], 1.0), (again[producer[source]], 1.0), (again[user], -1.0)])
        if following is not None:
            carried = np.flatnonzero((following >= 0) & (producer <= stage) & ~needed)
            program.at_least(0.0, [(retain[carried], 1.0), (again[producer[carried]], 1.0), (following[carried], -1.0)])

    def _limit(self, program: Program, capacity: float, stage: int, retain: Ints) -> None:
        """While op `stage` runs, its working set and everything retained is live."""
        problem = self.problem
        pointers, values = problem.inputs
        touched = np.zeros(problem.graph.num_values, np.bool_)
        touched[values[pointers[stage] : pointers[stage + 1]]] = True
        touched[problem.producer == stage] = True
        others = np.flatnonzero((retain >= 0) & ~touched & self._counted)
        unit = max(capacity, 1.0)
        left = (capacity - problem.working_set[stage]) / unit
        program.at_most(retain[others], problem.size[others] / unit, left + QUOTIENTS * abs(left))

    def _limit_recomputations(
        self, program: Program, capacity: float, group: tuple[int, int], retain: list[Ints], again: Ints, ops: list[int]
    ) -> None:
        """While one of `ops` is recomputed in the group, its working set is live, and T[v]: all that stays through the group."""
        problem = self.problem
        begin, end = group
        before, after = retain
        read = np.zeros(problem.graph.num_values, np.bool_)
        if end == begin + 1:  # the group is one stage: what its op reads is live until its end
            read[list(problem.graph.ops[end].inputs)] = True
        stays = np.flatnonzero((before >= 0) & ((after >= 0) | read))
        through = np.full(problem.graph.num_values, -1)
        through[stays] = program.variables(np.zeros(len(stays)), integer=False)
        optional = stays[~read[stays]]
        origin = again[problem.producer]
        program.at_least(
            -1.0, [(through[optional], 1.0), (before[optional], -1.0), (after[optional], -1.0), (origin[optional], 1.0)]
        )
        certain = stays[read[stays]]
        program.at_least(0.0, [(through[certain], 1.0), (before[certain], -1.0), (origin[certain], 1.0)])
        unit = max(capacity, 1.0)
        for op in ops:
            touched = {*problem.graph.ops[op].inputs, *problem.graph.ops[op].outputs}
            others = np.array([v for v in stays.tolist() if v not in touched], np.int64)
            columns = np.append(through[others], again[op])
            program.at_most(
                columns, np.append(problem.size[others], problem.working_set[op]) / unit, capacity / unit * (1 + QUOTIENTS)
            )

    def _window(self, program: Program, retain: Ints, groups: list[Ints], stage: int, edges: tuple[Ints, Ints]) -> None:
        """Cuts over all groups after `stage` together: W[o] = op o is recomputed in at least one of them."""
        values, ops = edges
        producer = self.problem.producer
        candidates = np.flatnonzero(groups[0] >= 0)
        anywhere = np.full(self.problem.graph.num_ops, -1)
        anywhere[candidates] = program.variables(np.zeros(len(candidates)), integer=False)
        ever = anywhere[candidates]
        program.at_least(0.0, [*[(group[candidates], 1.0) for group in groups], (ever, -1.0)])
        for group in groups:
            here = candidates[group[candidates] >= 0]
            program.at_least(0.0, [(anywhere[here], 1.0), (group[here], -1.0)])
        needed = self.problem.keep.copy()
        needed[values[ops > stage]] = True
        need = np.flatnonzero(needed & (producer <= stage))
        program.at_least(1.0, [(retain[need], 1.0), (anywhere[producer[need]], 1.0)])
        chained = anywhere[ops] >= 0
        source, user = values[chained], ops[chained]
        program.at_least(0.0, [(retain[source], 1.0), (anywhere[producer[source]], 1.0), (anywhere[user], -1.0)])
