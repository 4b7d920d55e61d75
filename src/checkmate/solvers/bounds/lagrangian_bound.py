"""A lower bound from prices of memory: what is live at a snapshot pays rent, and what is left is solved exactly.

The limits of the snapshot relaxation (see snapshot.py) are moved into the objective, each with a price (Lagrange multiplier) for
its bytes. Of the values that an op reads, only those keep their claim on it whose last reader it is (in their phase), when it is
recomputed; so the claims form a forest, and leaves-to-roots dynamic programming over it is exact: for every set of groups in
which a value is wanted, the least cost of holding or recomputing it, and all below it, in those groups. Any prices give a bound
on the cost of every schedule under the budget whose first computations come in the graph's order.

The best prices are found by the boxstep method (Marsten, Hogan & Blankenship, Operations Research 23, 1975): the bound is concave
in the prices, and every answer of the program gives a plane that lies above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..representation.decoding import Evaluation
from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from ..representation.kernels import kernel

#: Most snapshots, and most entries of all tables together: 2 to the power of the snapshots that matter to it for each value.
_MOST_SNAPSHOTS, _MOST_ENTRIES = 12, 1 << 21
#: Added at a time.
_ADDITIONS = 4
#: Prices per snapshot that are no longer worth a place, as a share of the ideal cost.
_IDLE = 0.003
#: Answers asked for between two changes of the snapshots, and the gain, as a share of the ideal cost, at which it is enough.
_ANSWERS, _SMALL_GAIN = 40, 1e-4
#: First width of the box around the best prices, as a share of the ideal cost for all of the room.
_BOX = 0.03
#: So many changes in a row that gain nothing are the end.
_PATIENCE = 6
#: Rounding, relative.
_SAFETY = 1e-9


class ForestBound:
    """The bound for one graph and budget, raised step by step: each finds prices for its snapshots.

    Args:
        problem: the graph.
        room: bytes, without fixed memory.

    Attributes:
        bound: on the cost of every schedule; infinite if there is none.
        snapshots: ops, ascending.
        exhausted: more steps would bring nothing.
    """

    def __init__(self, problem: Problem, room: float):
        self.problem, self.room = problem, room
        self.bound = problem.graph.ideal_cost
        self.snapshots = [int(np.argmax(problem.profile))]
        self.exhausted = self.bound == 0.0
        self._prices: dict[int, float] = {}
        self._dropped: set[int] = set()
        self._idle_steps = 0
        self._by_schedules = False
        self._missed = np.zeros(0)

    @property
    def entries(self) -> int:
        """Of the tables that each answer fills."""
        return _Forest.entries(self.problem, self.snapshots)

    def step(self, stop: Callable[[], bool]) -> list[Bools]:
        """Find prices for the snapshots. Returns what an optimum of the priced program retains at each, per value (length m)."""
        forest = _Forest(self.problem, self.room, self.snapshots)
        start = np.array([self._prices.get(stage, 0.0) for stage in self.snapshots])
        found = _best_prices(forest, start, stop)
        self._prices.update(zip(self.snapshots, found.prices.tolist(), strict=True))
        ideal = self.problem.graph.ideal_cost
        self._idle_steps = self._idle_steps + 1 if found.bound < self.bound + _SMALL_GAIN * ideal else 0
        self.bound = max(self.bound, found.bound - _SAFETY * ideal)
        self.exhausted = self._idle_steps >= _PATIENCE or np.isinf(self.bound)
        retained = forest.retained(found.held)
        self._missed = forest.missed(retained)
        return retained

    def refine(self, violating: Iterable[Evaluation]) -> None:
        """Take snapshots for the next step where memory is missed, in place of those that cost nothing.

        Args:
            violating: schedules read off the last step that break the budget.
        """
        if self.exhausted:
            return
        if self._idle_steps:
            self._by_schedules = not self._by_schedules
        missed = self._missed_by_schedules(violating) if self._by_schedules else self._missed_within_groups()
        chosen = sorted(missed, key=lambda stage: -missed[stage])[:_ADDITIONS]
        snapshots, most = set(self.snapshots), self._most(self.snapshots + chosen)
        while chosen and len(snapshots) + len(chosen) > most:
            cheapest = min(snapshots, key=lambda stage: self._prices[stage])
            if self._prices[cheapest] > _IDLE * self.problem.graph.ideal_cost and len(chosen) > 1:
                chosen.pop()
                continue
            snapshots.discard(cheapest)
            self._dropped.add(cheapest)
        self.exhausted = not chosen and self._idle_steps > 0
        self._idle_steps += not chosen
        self.snapshots = sorted(snapshots.union(chosen))

    def _missed_within_groups(self) -> dict[int, float]:
        """In each group the stage that misses most, and how many bytes."""
        missed = self._missed.copy()
        missed[[*self.snapshots, *self._dropped]] = 0.0
        bounds = [0, *(stage + 1 for stage in self.snapshots), len(missed)]
        worst = [begin + int(np.argmax(missed[begin:end])) for begin, end in pairwise(bounds) if begin < end]
        return {stage: float(missed[stage]) for stage in worst if missed[stage] > 0}

    def _missed_by_schedules(self, violating: Iterable[Evaluation]) -> dict[int, float]:
        """In each stretch of stages where a schedule is above the budget the worst two, or one beside them, and their peaks."""
        worst: dict[int, float] = {}
        taken = self._dropped.union(self.snapshots)
        for found in violating:
            over = np.flatnonzero(found.stage_peaks > self.room + self.problem.graph.fixed_memory)
            for region in np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []:
                for peaks in (found.own_peaks, found.stage_peaks):
                    stage = int(region[np.argmax(peaks[region])])
                    free = next((near for near in (stage, stage - 1, stage + 1) if near not in taken), -1)
                    if 0 <= free < len(found.stage_peaks):
                        worst[free] = max(worst.get(free, 0.0), float(peaks[stage]))
        return worst

    def _most(self, snapshots: list[int]) -> int:
        """How many of these are within the limits."""
        most = min(len(snapshots), _MOST_SNAPSHOTS)
        while most > 1 and _Forest.entries(self.problem, sorted(snapshots)[-most:]) > _MOST_ENTRIES:
            most -= 1
        return most


@dataclass(frozen=True)
class _Answer:
    """For some prices: the bound, how many more bytes than the room are live at each snapshot, as a share of the room, and whether
    each value of the forest is (snapshots, values)."""

    prices: Floats
    bound: float
    excess: Floats
    held: Bools


class _Forest:
    """Values that live across a snapshot, each with the one op that may claim it, for fixed snapshots.

    Group k is what lies between the snapshots k and k + 1. A value is priced in the groups from `first` on, `width` of them.
    """

    def __init__(self, problem: Problem, room: float, snapshots: list[int]):
        self.problem, self.room, count, m = problem, room, len(snapshots), problem.graph.num_values
        self._snapshots = snapshots
        first, width = self._groups(problem, snapshots)
        main = problem.largest_output
        self._values = np.array([v for v in main if v >= 0 and width[v] > 0], np.int64)
        values = self._values
        place = np.full(m + 1, -1)  # entry -1: none
        place[values] = np.arange(len(values))
        self._first, self._width = first[values], width[values]
        producer = problem.producer[values]
        self._cost = np.where(problem.recomputable[producer], problem.cost[producer], np.inf)
        claiming = problem.claiming[values]
        self._parent = np.where(claiming >= 0, place[main[claiming]], -1)
        children: list[list[int]] = [[] for _ in values]
        for child, parent in enumerate(self._parent.tolist()):
            if parent >= 0:
                children[parent].append(child)
        self._pointers = np.cumsum([0, *map(len, children)])
        self._children = np.array([child for row in children for child in row], np.int64)
        self._offsets = np.cumsum([0, *(1 << self._width).tolist()])
        self._tables = np.empty((2, int(self._offsets[-1])))

        used = np.zeros((count + 1, m), np.bool_)
        source, user = problem.edges
        used[np.searchsorted(snapshots, user), source] = True
        used[-1] |= problem.keep
        touched = np.zeros((count, m), np.bool_)
        for k, stage in enumerate(snapshots):
            touched[k, [*problem.graph.ops[stage].inputs, *problem.graph.ops[stage].outputs]] = True
        left = room - problem.working_set[snapshots]
        self._used = used[1:, values]
        self._weight = np.where(touched, 0.0, problem.size / room)[:, values]
        self._never = ((problem.size > left[:, None]) & ~touched)[:, values]
        self._left = left / room

    @staticmethod
    def _groups(problem: Problem, snapshots: list[int]) -> tuple[Ints, Ints]:
        """Per value the first snapshot at which it can be live, and at how many."""
        until = problem.useful_until(problem.recomputable)
        first = np.searchsorted(snapshots, problem.producer)
        last = np.where(problem.keep, len(snapshots), np.searchsorted(snapshots, until))
        return first, last - first

    @staticmethod
    def entries(problem: Problem, snapshots: list[int]) -> int:
        """How large the tables are."""
        _, width = _Forest._groups(problem, snapshots)
        return int((2.0 ** np.maximum(width, 0)).sum())

    def solve(self, prices: Floats) -> _Answer:
        rent = np.where(self._never, np.inf, prices[:, None] * self._weight)
        total, held = _solve(
            self._first,
            self._width,
            self._cost,
            self._parent,
            self._pointers,
            self._children,
            self._offsets,
            rent,
            self._used,
            *self._tables,
        )
        bound = self.problem.graph.ideal_cost + total - float(prices @ self._left)
        return _Answer(prices, bound, (self._weight * held).sum(1) - self._left, held)

    def retained(self, held: Bools) -> list[Bools]:
        """Per snapshot the values (length m) that an answer holds."""
        retained = np.zeros((len(held), self.problem.graph.num_values), np.bool_)
        retained[:, self._values] = held
        return list(retained)

    def missed(self, retained: list[Bools]) -> Floats:
        """Per stage, bytes above the room if all that is live before or read by then, and again later, stays until then.

        That is no limit of the program, but where it is broken most another snapshot may find something.
        """
        problem, snapshots = self.problem, self._snapshots
        n, m = problem.graph.num_ops, problem.graph.num_values
        load = problem.working_set - self.room
        values, users = problem.edges
        groups = np.searchsorted(snapshots, users)
        for k in range(len(snapshots) + 1):
            end = snapshots[k] if k < len(snapshots) else n
            begin = snapshots[k - 1] if k else -1
            here = groups == k
            earliest, latest = np.full(m, n), np.full(m, -1)
            np.minimum.at(earliest, values[here], users[here])
            np.maximum.at(latest, values[here], users[here])
            earliest = np.minimum(earliest, np.where(problem.producer > begin, problem.producer, n))
            if k:
                earliest[retained[k - 1]] = begin
            if k < len(snapshots):
                latest[retained[k]] = end
            else:
                latest[problem.keep] = n
            spans = np.flatnonzero(earliest + 1 < latest)
            change = np.zeros(n + 1)
            np.add.at(change, np.maximum(earliest[spans] + 1, begin + 1), problem.size[spans])
            np.add.at(change, np.minimum(latest[spans], end), -problem.size[spans])
            load[begin + 1 : end] += np.cumsum(change)[begin + 1 : end]
        return load


@kernel()
def _solve(
    first: Ints,
    width: Ints,
    cost: Floats,
    parent: Ints,
    pointers: Ints,
    children: Ints,
    offsets: Ints,
    rent: Floats,
    used: Bools,
    made: Floats,
    wanted: Floats,
) -> tuple[float, Bools]:
    """Least cost of recomputations and rents; and which values are live then at each snapshot.

    Args:
        made, wanted: tables to fill: per value and set of groups (bits) the least cost if it is recomputed, or wanted, in those.
    """
    count = len(first)
    total = 0.0
    live = np.zeros(offsets[-1] - offsets[-2] if count else 0)
    for i in range(count):
        size, begin = 1 << width[i], offsets[i]
        for groups in range(size):
            sum_ = 0.0
            left = groups
            while left:
                sum_ += cost[i]
                left &= left - 1
            made[begin + groups] = sum_
        for x in range(pointers[i], pointers[i + 1]):
            child = children[x]
            shift, within = first[i] - first[child], (1 << width[child]) - 1
            for groups in range(size):
                made[begin + groups] += wanted[offsets[child] + ((groups << shift) & within)]
        if len(live) < size:
            live = np.zeros(size)
        # Group after group, what it recomputes is replaced by what is wanted of it; gone and live: at the snapshot before it.
        gone = wanted[begin : begin + size]
        for groups in range(size):
            gone[groups] = made[begin + groups]
            live[groups] = made[begin + groups] + rent[first[i], i]
        for k in range(width[i]):
            bit, group = 1 << k, first[i] + k
            later = rent[group + 1, i] if k + 1 < width[i] else np.inf
            for groups in range(size):
                if not groups & bit:
                    missing = gone[groups]
                    there = min(live[groups], gone[groups | bit], live[groups | bit])
                    gone[groups] = there if used[group, i] else min(there, missing)
                    gone[groups | bit] = there
                    live[groups] = live[groups | bit] = there + later
        if parent[i] < 0:
            total += gone[0]
    recomputed = np.zeros(count, np.int64)
    held = np.zeros(rent.shape, np.bool_)
    for i in range(count - 1, -1, -1):
        above = 0
        if parent[i] >= 0:
            above = recomputed[parent[i]] << (first[parent[i]] - first[i])
        least = np.inf
        for groups in range(1 << width[i]):
            sum_, needed = made[offsets[i] + groups], False
            for k in range(width[i] - 1, -1, -1):
                if sum_ >= least:
                    break
                needed = not (groups >> k & 1) and (needed or used[first[i] + k, i] or (above >> k & 1) == 1)
                if needed:
                    sum_ += rent[first[i] + k, i]
            if sum_ < least:
                least, recomputed[i] = sum_, groups
        needed = False
        for k in range(width[i] - 1, -1, -1):
            needed = not (recomputed[i] >> k & 1) and (needed or used[first[i] + k, i] or (above >> k & 1) == 1)
            held[first[i] + k, i] = needed
    return total, held


def _best_prices(forest: _Forest, start: Floats, stop: Callable[[], bool]) -> _Answer:
    """Prices near the best ones, found from these."""
    from scipy.optimize import linprog

    ideal = forest.problem.graph.ideal_cost
    best = forest.solve(start)
    answers, box = [best], _BOX * ideal
    while len(answers) < _ANSWERS and not stop() and np.isfinite(best.bound):
        slopes = np.array([one.excess for one in answers])
        heights = np.array([one.bound - one.excess @ one.prices for one in answers])
        limits = [(max(0.0, price - box), price + box) for price in best.prices]
        highest = linprog(
            np.append(np.zeros(len(start)), -1.0),
            A_ub=np.column_stack([-slopes, np.ones(len(answers))]),
            b_ub=heights,
            bounds=[*limits, (None, None)],
        )
        if highest.x is None:
            break
        promised = highest.x[-1] - best.bound
        if promised < _SMALL_GAIN * ideal:
            if box > ideal:
                break
            box *= 4  # the best of this box; is it of the next?
            continue
        answer = forest.solve(np.maximum(0.0, highest.x[:-1]))
        answers.append(answer)
        if answer.bound > best.bound + 0.5 * promised:
            box *= 1.5
        elif answer.bound < best.bound + 0.1 * promised:
            box *= 0.6
        if answer.bound > best.bound:
            best = answer
    return best
