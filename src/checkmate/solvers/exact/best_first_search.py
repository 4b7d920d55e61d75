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
from ..representation.kernels import kernel

#: Bits of a mask.
_BITS = 62
#: Work is counted in successors of states, about a million a second; this much is done between two looks at the clock.
_SLICE = 50_000
#: The work that a search may take before the other methods have had their turn, and after; of this share of the time limit at most.
FIRST, ALL, _SHARE = 300_000, 20_000_000, 0.25
#: No more states than that, at 130 bytes each; and no more successors of one state.
_MOST_STATES, _MOST_SUCCESSORS = 2_000_000, 500_000
#: Costs are whole numbers here, so that no error adds up. Those that are not are rounded down to multiples of a power of two that
#: is at least this fraction of the ideal cost: then no schedule costs less than is counted for it, and what is counted is less
#: than the truth by at most so much per recomputation.
_FINEST = 2.0**-44
#: More than any cost: some value that is needed is lost for good.
_NEVER = 1 << 60

#: Rows of a graph's table. Per op: masks of its inputs, its outputs, the ops that must have run before; bytes beyond its inputs;
#: cost; whether it may be recomputed; mask of the value it may write in, and its bytes. Per value: bytes. SHAPE: number of ops, of
#: values, mask of the kept values.
_READS, _WRITES, _BEFORE, _NEEDS, _COST, _AGAIN, _REUSES, _SAVES, _SIZE, _SHAPE = range(10)
#: Rows of the states: ops that have run, live values, cost of recomputations so far, state and op it came from.
_DONE, _LIVE, _SPENT, _PARENT, _OP = range(5)
#: Rows of the heap: cost of recomputations at least, minus the number of ops that have run, state, its cost when it was put there.
_LEAST, _LEFT, _STATE, _THEN = range(4)
#: Places among the counts: states, open entries, the state at the goal, the bound, successors.
_STATES, _OPEN, _GOAL, _BOUND, _WORK = range(5)
#: How a slice ended.
_MORE, _FOUND, _EXHAUSTED, _FULL, _WIDE = range(5)


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
        _start(self._table, self._states, self._heap, self._index, self._counts)

    @property
    def work(self) -> int:
        """Successors so far."""
        return int(self._counts[_WORK])

    @property
    def bound(self) -> float:
        """Proven so far on the cost of every schedule in this order."""
        return self.graph.ideal_cost + float(self._counts[_BOUND]) * self._unit

    def run(self, most: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Search until it is solved (True), or it takes more than `most` work, or too much memory, or `stop` says so (False)."""
        while self.sequence is None and not self.none:
            if self.work >= most or stop():
                return False
            arrays = (self._table, self._states, self._heap, self._index, self._counts)
            ended = _expand(*arrays, self.capacity, self._limit, min(most, self.work + _SLICE))
            if ended == _WIDE or (ended == _FULL and len(self._states) >= _MOST_STATES):
                return False
            if ended == _FULL:
                self._grow()
            elif ended == _EXHAUSTED:
                self.none = True
            elif ended == _FOUND:
                self.sequence = self._path()
        return True

    def _grow(self) -> None:
        self._states = np.concatenate([self._states, np.zeros_like(self._states)])
        self._heap = np.concatenate([self._heap, np.zeros_like(self._heap)])
        self._index = np.full(2 * len(self._index), -1, np.int64)
        _reindex(self._states, self._index, int(self._counts[_STATES]))

    def _path(self) -> list[int]:
        result, state = [], int(self._counts[_GOAL])
        while self._states[state, _PARENT] >= 0:
            result.append(int(self._states[state, _OP]))
            state = int(self._states[state, _PARENT])
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
        table[_READS, index] = _mask([number[v] for v in op.inputs])
        table[_WRITES, index] = _mask([number[v] for v in op.outputs])
        table[_BEFORE, index] = _mask(range(index)) if order == "given" else (first if codes[index] == 2 else 0)
        table[_NEEDS, index] = op.workspace + sum(graph.values[v].size for v in op.outputs)
        table[_AGAIN, index] = op.recomputable
        table[_REUSES, index] = 0 if op.reuses is None else 1 << number[op.reuses]
        table[_SAVES, index] = graph.reusable(index)
    table[_COST, :n] = costs
    table[_SIZE, :m] = [graph.values[v].size for v in by_size]
    table[_SHAPE, :3] = n, m, _mask([number[v] for v in range(m) if graph.values[v].keep])
    return table


@kernel()
def _useful(table: Ints, done: int) -> int:
    """The values that a computation to come may use."""
    result = table[_SHAPE, 2]
    for op in range(table[_SHAPE, 0] - 1, -1, -1):
        if (done >> op) & 1 == 0 or (table[_AGAIN, op] and table[_WRITES, op] & result):
            result |= table[_READS, op]
    return result


@kernel()
def _to_come(table: Ints, done: int, live: int) -> int:
    """The cost of the recomputations that no schedule from here can do without."""
    wanted, cost = table[_SHAPE, 2], 0
    for op in range(table[_SHAPE, 0] - 1, -1, -1):
        if (done >> op) & 1 == 0:
            wanted |= table[_READS, op]
        elif table[_WRITES, op] & wanted & ~live:
            if not table[_AGAIN, op]:
                return _NEVER
            cost += table[_COST, op]
            wanted |= table[_READS, op]
    return cost


@kernel()
def _slot(states: Ints, index: Ints, done: int, live: int) -> int:
    """Where in the hash table the state is, or would be."""
    size = len(index)
    mixed = (done * 0x2545F4914F6CDD1D) ^ (live * 0x1B873593CC9E2D51)
    slot = (mixed ^ (mixed >> 29)) & (size - 1)
    while index[slot] >= 0:
        state = index[slot]
        if states[state, _DONE] == done and states[state, _LIVE] == live:
            return slot
        slot = (slot + 1) & (size - 1)
    return slot


@kernel()
def _reindex(states: Ints, index: Ints, count: int) -> None:
    for state in range(count):
        index[_slot(states, index, states[state, _DONE], states[state, _LIVE])] = state


@kernel()
def _less(heap: Ints, a: int, b: int) -> bool:
    """Cheaper first, then further, then newer."""
    for row in range(3):
        if heap[a, row] != heap[b, row]:
            return heap[a, row] > heap[b, row] if row == _STATE else heap[a, row] < heap[b, row]
    return False


@kernel()
def _swap(heap: Ints, a: int, b: int) -> None:
    for row in range(4):
        heap[a, row], heap[b, row] = heap[b, row], heap[a, row]


@kernel()
def _push(heap: Ints, counts: Ints, least: int, left: int, state: int, then: int) -> None:
    place = counts[_OPEN]
    counts[_OPEN] += 1
    heap[place, _LEAST], heap[place, _LEFT], heap[place, _STATE], heap[place, _THEN] = least, left, state, then
    while place > 0 and _less(heap, place, (place - 1) // 2):
        _swap(heap, place, (place - 1) // 2)
        place = (place - 1) // 2


@kernel()
def _pop(heap: Ints, counts: Ints) -> None:
    """Take the first entry out; it is left behind the last one."""
    counts[_OPEN] -= 1
    last = counts[_OPEN]
    _swap(heap, 0, last)
    place = 0
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and _less(heap, child + 1, child):
            child += 1
        if not _less(heap, child, place):
            return
        _swap(heap, child, place)
        place = child


@kernel()
def _start(table: Ints, states: Ints, heap: Ints, index: Ints, counts: Ints) -> None:
    """Open the state in which nothing has run."""
    states[0, _PARENT] = -1
    index[_slot(states, index, 0, 0)] = 0
    counts[_STATES] = 1
    _push(heap, counts, 0, 0, 0, 0)


@kernel()
def _reach(
    table: Ints,
    states: Ints,
    heap: Ints,
    index: Ints,
    counts: Ints,
    limit: int,
    done: int,
    live: int,
    spent: int,
    parent: int,
    op: int,
) -> bool:
    """Open a state, or the same one at less cost, if it can end below the limit; False if the arrays are full."""
    slot = _slot(states, index, done, live)
    state = index[slot]
    if state >= 0 and states[state, _SPENT] <= spent:
        return True
    ahead = _to_come(table, done, live)
    if spent + ahead >= limit:
        return True
    if counts[_STATES] + 1 >= len(states) or counts[_OPEN] + 1 >= len(heap):
        return False
    if state < 0:
        state = counts[_STATES]
        counts[_STATES] += 1
        index[slot] = state
        states[state, _DONE], states[state, _LIVE] = done, live
    states[state, _SPENT], states[state, _PARENT], states[state, _OP] = spent, parent, op
    ran = 0
    for other in range(table[_SHAPE, 0]):
        ran += (done >> other) & 1
    _push(heap, counts, spent + ahead, -ran, state, spent)
    return True


@kernel()
def _expand(table: Ints, states: Ints, heap: Ints, index: Ints, counts: Ints, capacity: int, limit: int, most: int) -> int:
    """Take the best open states until `most` successors were looked at; those that cost `limit` or more are left out."""
    n, m, kept = table[_SHAPE, 0], table[_SHAPE, 1], table[_SHAPE, 2]
    everything = (1 << n) - 1
    choices, rest, chosen = np.zeros(m + 1, np.int64), np.zeros(m + 2, np.int64), np.zeros(m + 1, np.int64)
    while counts[_OPEN] > 0:
        if counts[_WORK] >= most:
            return _MORE
        state, least, left, spent = heap[0, _STATE], heap[0, _LEAST], heap[0, _LEFT], heap[0, _THEN]
        _pop(heap, counts)
        if states[state, _SPENT] < spent:
            continue
        counts[_BOUND] = max(counts[_BOUND], least)
        done, live = states[state, _DONE], states[state, _LIVE]
        if done == everything and live & kept == kept:
            counts[_GOAL] = state
            return _FOUND
        useful = _useful(table, done)
        successors = 0
        for op in range(n):
            again = (done >> op) & 1
            reads, writes = table[_READS, op], table[_WRITES, op]
            if table[_BEFORE, op] & ~done or reads & ~live:
                continue
            if again and (not table[_AGAIN, op] or writes & useful & ~live == 0):
                continue
            after = done | (1 << op)
            used = useful if again else _useful(table, after)
            # Old copies of its outputs are in the way, and so is what nobody will read.
            others = live & ~writes & (used | reads)
            load, count = table[_NEEDS, op], 0
            for value in range(m):
                if (others >> value) & 1:
                    load += table[_SIZE, value]
                    if (reads >> value) & 1 == 0 and table[_SIZE, value] > 0:
                        choices[count] = value
                        count += 1
            rest[count] = 0
            for x in range(count - 1, -1, -1):
                rest[x] = rest[x + 1] + table[_SIZE, choices[x]]
            cost = spent + (table[_COST, op] if again else 0)
            # What the op may write in goes if nobody else will use it; else both ways, if its room is needed.
            reused = table[_REUSES, op]
            for goes in range(1 if reused and reused & used == 0 else 0, 2 if reused else 1):
                excess = load - capacity - (table[_SAVES, op] if goes else 0)
                stays = used & ~reused if goes else used
                # All sets of values, largest first, that free enough only with their last one.
                depth, x, freed, dropped = 0, 0, 0, 0
                while True:
                    if freed >= excess:
                        successors += 1
                        counts[_WORK] += 1
                        fresh = ((others & ~dropped) | writes) & stays
                        if not _reach(table, states, heap, index, counts, limit, after, fresh, cost, state, op):
                            _push(heap, counts, least, left, state, spent)
                            return _FULL
                        if successors == _MOST_SUCCESSORS:
                            return _WIDE
                    elif x < count and freed + rest[x] >= excess:
                        chosen[depth] = x
                        depth += 1
                        freed += table[_SIZE, choices[x]]
                        dropped |= 1 << choices[x]
                        x += 1
                        continue
                    if depth == 0:
                        break
                    depth -= 1
                    x = chosen[depth]
                    freed -= table[_SIZE, choices[x]]
                    dropped ^= 1 << choices[x]
                    x += 1
                if excess <= 0:
                    break
    return _EXHAUSTED
