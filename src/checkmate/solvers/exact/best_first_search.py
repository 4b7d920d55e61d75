"""The exact optimum of small graphs: best-first search over what has run and what is live.

A state is (ops that have run, values that are live). From a state one op is computed: the next one, or one that ran before and
whose outputs are missing. Values are dropped only when an op would not fit, and no more of them than it takes: what is live can
still be dropped later, at no cost. Values that no computation to come can use are no part of a state. A* orders the states
by the cost so far and the cost of all ops that must run (again) for certain: what is yet to run, whatever of its inputs and of
the kept values has run and is missing, and what is missing for that in turn. The least such sum over open states is a bound on
every schedule; when no state is open, none exists.

Limits: the number of states grows exponentially with the values that can be dropped; every search has a most. Masks of 62 bits
hold the ops and the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...float_rounding import summation_error
from ...graph import Graph
from ..interface.running_search import Search
from ..interface.work_limits import exact_search, successors
from ..representation.decoding import Evaluation, evaluate
from ..representation.execution_sequence import phase_codes
from ..representation.graph_arrays import Ints, problem_of
from .search_kernels import (
    AGAIN,
    BEFORE,
    BOUND,
    COST,
    EXHAUSTED,
    FOUND,
    FULL,
    GOAL,
    NEEDS,
    NEVER_BITS,
    OP,
    PARENT,
    READS,
    REUSES,
    SAVES,
    SHAPE,
    SIZE,
    WIDE,
    WORK,
    WRITES,
    expand,
    reindex,
    start,
)

#: Bits of a mask.
_BITS = 62
#: Work is counted in successors of states, about a million a second; this much is done between two looks at the clock.
_SLICE = 50_000
#: The work that a search may take before the other methods have had their turn, and after; of this share of the time limit at most.
FIRST, ALL, _SHARE = 300_000, 20_000_000, 0.25
#: No more states than that, at 130 bytes each.
_MOST_STATES = 2_000_000
#: Costs are whole numbers here, so that no error adds up. Those that are not are rounded down to multiples of a power of two that
#: is at least this fraction of the ideal cost: then no schedule costs less than is counted for it, and what is counted is less
#: than the truth by at most so much per recomputation.
_FINEST = 2.0**-44
#: More than any cost: some value that is needed is lost for good.
_NEVER = 1 << NEVER_BITS


class Exact:
    """The search on one graph and budget.

    Args:
        capacity: bytes without fixed memory. order: as in `solve`. free: recomputation costs nothing (any schedule will do).
        below: only schedules that cost less are of interest.

    Attributes:
        sequence: the optimal op sequence; None as long as it is not known.
        none: proven: no schedule exists, or none that is cheaper than `below`.
    """

    def __init__(self, graph: Graph, capacity: int, order: str = "given", free: bool = False, below: float = math.inf):
        self.graph, self.capacity = graph, capacity
        self.sequence: list[int] | None = None
        self.none = False
        costs = np.array([0.0 if free else op.cost for op in graph.ops])
        self._unit = 1.0
        if not (np.all(costs == np.rint(costs)) and costs.sum() * _FINEST < 1.0):
            self._unit = 2.0 ** math.ceil(math.log2(graph.ideal_cost * _FINEST))
        # Division by a power of two is exact.
        self._table = _table(graph, order, np.floor(costs / self._unit).astype(np.int64))
        self._states = np.zeros((1024, 5), np.int64)
        self._heap = np.zeros((2048, 4), np.int64)
        self._index = np.full(4096, -1, np.int64)
        self._counts = np.zeros(5, np.int64)
        # A schedule that costs less is counted as less, whatever the rounding of the difference.
        extra = (below - graph.ideal_cost + (0.0 if self._unit == 1.0 else summation_error(2, below))) / self._unit
        self._limit = math.ceil(extra) if extra < _NEVER else _NEVER
        start(self._table, self._states, self._heap, self._index, self._counts)

    @property
    def work(self) -> int:
        """Successors so far."""
        return int(self._counts[WORK])

    @property
    def bound(self) -> float:
        """Proven so far on the cost of every schedule in this order."""
        return self.graph.ideal_cost + float(self._counts[BOUND]) * self._unit

    def run(self, most: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Search until it is solved (True), or it takes more than `most` work, or too much memory, or `stop` says so (False)."""
        while self.sequence is None and not self.none:
            if self.work >= most or stop():
                return False
            arrays = (self._table, self._states, self._heap, self._index, self._counts)
            ended = expand(*arrays, self.capacity, self._limit, min(most, self.work + _SLICE))
            if ended == WIDE or (ended == FULL and len(self._states) >= _MOST_STATES):
                return False
            if ended == FULL:
                self._grow()
            elif ended == EXHAUSTED:
                self.none = True
            elif ended == FOUND:
                self.sequence = self._path()
        return True

    def _grow(self) -> None:
        self._states = np.concatenate([self._states, np.zeros_like(self._states)])
        self._heap = np.concatenate([self._heap, np.zeros_like(self._heap)])
        self._index = np.full(2 * len(self._index), -1, np.int64)
        reindex(self._table, self._states, self._heap, self._index, self._counts)

    def _path(self) -> list[int]:
        result, state = [], int(self._counts[GOAL])
        while self._states[state, PARENT] >= 0:
            result.append(int(self._states[state, OP]))
            state = int(self._states[state, PARENT])
        return result[::-1]


def exact(search: Search, most: int) -> bool:
    """Solve a small graph to the end; True if that is done, False if it takes more work or time, or the graph is large.

    Either way the search has the best bound that was proven.
    """
    graph = search.graph
    if max(graph.num_ops, graph.num_values) > _BITS or search.done():
        return False
    below = search.best_cost
    solver = Exact(graph, search.budget - graph.fixed_memory, search.order, below=below)
    limits = search.limits(_SHARE)

    def stop() -> bool:
        search.raise_bound(solver.bound, "bound of the exact search", search.order)
        return search.done()

    solved = solver.run(int(min(most, successors(limits.work.left))), stop)
    search.work.spend(exact_search(solver.work))
    if not solved:
        return search.closed()
    if solver.sequence is not None:
        found = evaluate(graph, solver.sequence)
        search.offer(found.sequence, found.cost, "exact optimum")
        search.raise_bound(solver.bound, "optimum of the exact search", search.order)
    elif search.best is None:
        search.prove_infeasible("exact search", search.order)
    else:
        search.raise_bound(below, "exact search: none is cheaper", search.order)
    return True


def least_peak(
    graph: Graph, known: Evaluation, low: int, order: str, most: int, stop: Callable[[], bool] = lambda: False
) -> tuple[Evaluation, int]:
    """The schedule of least peak of a small graph, and the budget below which none exists, fixed memory included.

    The two agree unless it takes more than `most` work to tell, or `stop` says so, or the graph is large: then they are what is
    known. Costs do not matter.

    Args:
        known: any schedule. low: no schedule exists below this budget.
    """
    best = known
    if max(graph.num_ops, graph.num_values) > _BITS:
        return best, low
    probe, halve = low, False  # often the least of all will do
    while low < best.peak:
        solver = Exact(graph, probe - graph.fixed_memory, order, free=True)
        if not solver.run(most, stop):
            break
        most -= solver.work
        if solver.sequence is None:
            low = probe + 1
        else:
            best = evaluate(graph, solver.sequence)
        # Halves find a low peak soon; that no lower one exists takes one proof and not one for every binary digit of the bytes.
        halve = not halve
        probe = (low + best.peak) // 2 if halve else best.peak - 1
    return best, low


def _mask(numbers: tuple[int, ...] | range | list[int]) -> int:
    return sum(1 << number for number in numbers)


def _table(graph: Graph, order: str, costs: Ints) -> Ints:
    """The graph for the kernels, its values numbered by falling size: see the rows above."""
    n, m = graph.num_ops, graph.num_values
    by_size = sorted(range(m), key=lambda v: -graph.values[v].size)
    number = {value: place for place, value in enumerate(by_size)}
    table = np.zeros((10, max(n, m, 3)), np.int64)
    codes = phase_codes(problem_of(graph))
    first = _mask([op for op in range(n) if codes[op] == 1])
    for index, op in enumerate(graph.ops):
        table[READS, index] = _mask([number[v] for v in op.inputs])
        table[WRITES, index] = _mask([number[v] for v in op.outputs])
        table[BEFORE, index] = _mask(range(index)) if order == "given" else (first if codes[index] == 2 else 0)
        table[NEEDS, index] = op.workspace + sum(graph.values[v].size for v in op.outputs)
        table[AGAIN, index] = op.recomputable
        table[REUSES, index] = 0 if op.reuses is None else 1 << number[op.reuses]
        table[SAVES, index] = graph.reusable(index)
    table[COST, :n] = costs
    table[SIZE, :m] = [graph.values[v].size for v in by_size]
    table[SHAPE, :3] = n, m, _mask([number[v] for v in range(m) if graph.values[v].keep])
    return table
