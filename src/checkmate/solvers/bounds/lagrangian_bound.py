"""The Lagrangian bound: the memory limits of the snapshot relaxation are priced, and what is left is solved by dynamic programming.

In the snapshot relaxation (snapshot_relaxation.py) a value that is needed in a group must be held at the snapshot before it or
recomputed in it, an op that is recomputed needs its inputs, and the values held at a snapshot must fit the memory. Here each of the
memory limits is dropped, and a multiplier on its excess bytes is added to the objective: holding a value at a snapshot costs its
bytes times the multiplier. By Lagrangian duality the optimum is a bound for every choice of multipliers >= 0.

To solve it exactly, one kind of constraint is left out, which keeps it a bound: a recomputed op needs only those of its inputs of
which it is the last reader (within the phase, forward or backward). Then each value is needed by at most one recomputed op, and the
values form a forest. Dynamic programming from the leaves to the roots finds, for every value and every set of groups in which it is
needed, the least cost of holding or recomputing it, and all below it. This bounds the cost of every schedule under the budget whose
first computations come in the graph's order.

Good multipliers are found by the boxstep method (Marsten, Hogan & Blankenship, Operations Research 23, 1975): the bound is concave in
the multipliers, and every solution gives a plane that lies above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...float_rounding import UNIT, summation_error
from ..mixed_integer.dispatch import highest_point
from ..representation.decoding import Evaluation
from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from .lagrangian_kernels import solve

#: Most snapshots, and most entries of all tables together: 2 to the power of the snapshots that matter to it for each value.
_MOST_SNAPSHOTS, _MOST_ENTRIES = 12, 1 << 21
#: Snapshots added at a time.
_ADDITIONS = 4
#: A snapshot whose multiplier is at most this share of the ideal cost is no longer worth its place.
_IDLE = 0.003
#: Solutions asked for between two changes of the snapshots, and the gain, as a share of the ideal cost, at which it is enough.
_SOLUTIONS, _SMALL_GAIN = 40, 1e-4
#: First width of the box around the best multipliers, as a share of the ideal cost for a whole capacity of excess.
_BOX = 0.03
#: So many changes of the snapshots in a row that gain nothing are the end.
_PATIENCE = 6


class LagrangianBound:
    """The bound for one graph and capacity, raised step by step: each finds multipliers for its snapshots.

    Args:
        problem: the graph.
        capacity: bytes, without fixed memory.

    Attributes:
        bound: on the cost of every schedule; infinite if there is none.
        snapshots: ops, ascending.
        exhausted: more steps would bring nothing.
    """

    def __init__(self, problem: Problem, capacity: float):
        self.problem, self.capacity = problem, capacity
        self.bound = problem.graph.ideal_cost
        self.snapshots = [int(np.argmax(problem.profile))]
        self.exhausted = self.bound == 0.0
        self._multipliers: dict[int, float] = {}
        self._dropped: set[int] = set()
        self._idle_steps = 0
        self._by_schedules = False
        self._excess = np.zeros(0)

    @property
    def entries(self) -> int:
        """Of the tables that each answer fills."""
        return LagrangianRelaxation.entries(self.problem, self.snapshots)

    def step(self, stop: Callable[[], bool]) -> list[Bools]:
        """Find multipliers for the snapshots. Returns what a solution holds at each, per value (length m)."""
        relaxation = LagrangianRelaxation(self.problem, self.capacity, self.snapshots)
        start = np.array([self._multipliers.get(stage, 0.0) for stage in self.snapshots])
        found = _best_multipliers(relaxation, start, stop)
        self._multipliers.update(zip(self.snapshots, found.multipliers.tolist(), strict=True))
        ideal = self.problem.graph.ideal_cost
        self._idle_steps = self._idle_steps + 1 if found.value < self.bound + _SMALL_GAIN * ideal else 0
        self.bound = max(self.bound, found.bound)
        self.exhausted = self._idle_steps >= _PATIENCE or np.isinf(self.bound)
        retained = relaxation.retained(found.held)
        self._excess = relaxation.excess_between(retained)
        return retained

    def refine(self, violating: Iterable[Evaluation]) -> None:
        """Add snapshots for the next step where memory is exceeded, in place of those whose multipliers are small.

        Args:
            violating: schedules read off the last step that break the budget.
        """
        if self.exhausted:
            return
        if self._idle_steps:
            self._by_schedules = not self._by_schedules
        excess = self._excess_of_schedules(violating) if self._by_schedules else self._excess_of_groups()
        chosen = sorted(excess, key=lambda stage: -excess[stage])[:_ADDITIONS]
        snapshots, most = set(self.snapshots), self._most(self.snapshots + chosen)
        while chosen and len(snapshots) + len(chosen) > most:
            smallest = min(snapshots, key=lambda stage: self._multipliers[stage])
            if self._multipliers[smallest] > _IDLE * self.problem.graph.ideal_cost and len(chosen) > 1:
                chosen.pop()
                continue
            snapshots.discard(smallest)
            self._dropped.add(smallest)
        self.exhausted = not chosen and self._idle_steps > 0
        self._idle_steps += not chosen
        self.snapshots = sorted(snapshots.union(chosen))

    def _excess_of_groups(self) -> dict[int, float]:
        """In each group the stage with the most bytes above the capacity, and how many."""
        excess = self._excess.copy()
        excess[[*self.snapshots, *self._dropped]] = 0.0
        bounds = [0, *(stage + 1 for stage in self.snapshots), len(excess)]
        worst = [begin + int(np.argmax(excess[begin:end])) for begin, end in pairwise(bounds) if begin < end]
        return {stage: float(excess[stage]) for stage in worst if excess[stage] > 0}

    def _excess_of_schedules(self, violating: Iterable[Evaluation]) -> dict[int, float]:
        """In each stretch of stages where a schedule is above the budget the worst two, or one beside them, and their peaks."""
        worst: dict[int, float] = {}
        taken = self._dropped.union(self.snapshots)
        for found in violating:
            over = np.flatnonzero(found.stage_peaks > self.capacity + self.problem.graph.fixed_memory)
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
        while most > 1 and LagrangianRelaxation.entries(self.problem, sorted(snapshots)[-most:]) > _MOST_ENTRIES:
            most -= 1
        return most


@dataclass(frozen=True)
class Solution:
    """An optimum of the Lagrangian relaxation.

    Attributes:
        multipliers: per snapshot, cost for a whole capacity of excess.
        value: of the relaxation, as computed. bound: what it proves, rounding taken off.
        excess: per snapshot the bytes held above the capacity, as a share of it: the gradient of the value.
        held: whether each value of the forest is held, (snapshots, values).
    """

    multipliers: Floats
    value: float
    bound: float
    excess: Floats
    held: Bools


class LagrangianRelaxation:
    """Values that live across a snapshot, each with the one recomputed op that may need it, for fixed snapshots.

    Group k is what lies between the snapshots k and k + 1. A value can be held or recomputed in the groups from `first` on, `width` of
    them.
    """

    def __init__(self, problem: Problem, capacity: float, snapshots: list[int]):
        self.problem, count, m = problem, len(snapshots), problem.graph.num_values
        self._capacity, self._snapshots = capacity, snapshots
        first, width = self._groups(problem, snapshots)
        main = problem.largest_output
        self._values = np.array([v for v in main if v >= 0 and width[v] > 0], np.int64)
        values = self._values
        place = np.full(m + 1, -1)  # entry -1: none
        place[values] = np.arange(len(values))
        self._first, self._width = first[values], width[values]
        producer = problem.producer[values]
        self._cost = np.where(problem.recomputable[producer], problem.cost[producer], np.inf)
        reader = problem.last_reader_in_phase[values]
        self._parent = np.where(reader >= 0, place[main[reader]], -1)
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
        left = capacity - problem.working_set[snapshots]
        self._used = np.ascontiguousarray(used[1:, values])
        self._weight = np.where(touched, 0.0, problem.size / capacity)[:, values]
        self._never = ((problem.size > left[:, None]) & ~touched)[:, values]
        self._left = left / capacity

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
        _, width = LagrangianRelaxation._groups(problem, snapshots)
        return int((2.0 ** np.maximum(width, 0)).sum())

    def solve(self, multipliers: Floats) -> Solution:
        """The least cost of recomputing and of holding values, for multipliers >= 0."""
        holding = np.where(self._never, np.inf, multipliers[:, None] * self._weight)
        total, held = solve(
            self._first,
            self._width,
            self._cost,
            self._parent,
            self._pointers,
            self._children,
            self._offsets,
            np.ascontiguousarray(holding),
            self._used,
            *self._tables,
        )
        capacities = multipliers * self._left
        ideal = self.problem.graph.ideal_cost
        value = ideal + total - float(multipliers @ self._left)
        error = self._rounding(ideal + total, float(np.abs(capacities).sum())) if np.isfinite(total) else 0.0
        return Solution(multipliers, value, value - error, (self._weight * held).sum(1) - self._left, held)

    def _rounding(self, total: float, capacities: float) -> float:
        """The most by which the value can be above the true one.

        The total is a sum of non-negative costs, and taking the least of several sums makes no error. In the tables of one value a
        cost passes through at most 2 width + 1 additions and one for each of the values below, so on its way to the total through at
        most as many as all values have together; the holding costs are a product of two rounded numbers. The capacities are a sum of
        products of rounded quotients, one for each snapshot.
        """
        additions = int((2 * self._width + 2).sum()) + 4
        error = summation_error(additions, total * (1 + additions * UNIT)) + summation_error(len(self._left) + 4, capacities)
        return error + 2 * UNIT * (total + capacities)

    def retained(self, held: Bools) -> list[Bools]:
        """Per snapshot the values (length m) that a solution holds."""
        retained = np.zeros((len(held), self.problem.graph.num_values), np.bool_)
        retained[:, self._values] = held
        return list(retained)

    def excess_between(self, retained: list[Bools]) -> Floats:
        """Per stage, bytes above the capacity if all that is live before or read by then, and again later, stays until then.

        That is no limit of the relaxation, but where it is exceeded most another snapshot may find something.
        """
        problem, snapshots = self.problem, self._snapshots
        n, m = problem.graph.num_ops, problem.graph.num_values
        load = problem.working_set - self._capacity
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


def _best_multipliers(relaxation: LagrangianRelaxation, start: Floats, stop: Callable[[], bool]) -> Solution:
    """Multipliers near the best ones, found from these."""
    ideal = relaxation.problem.graph.ideal_cost
    best = relaxation.solve(start)
    solutions, box = [best], _BOX * ideal
    while len(solutions) < _SOLUTIONS and not stop() and np.isfinite(best.value):
        slopes = np.array([one.excess for one in solutions])
        heights = np.array([one.value - one.excess @ one.multipliers for one in solutions])
        highest = highest_point(slopes, heights, np.maximum(0.0, best.multipliers - box), best.multipliers + box)
        if highest.x is None:
            break
        promised = highest.x[-1] - best.value
        if promised < _SMALL_GAIN * ideal:
            if box > ideal:
                break
            box *= 4  # the best of this box; is it of the next?
            continue
        solution = relaxation.solve(np.maximum(0.0, highest.x[:-1]))
        solutions.append(solution)
        if solution.value > best.value + 0.5 * promised:
            box *= 1.5
        elif solution.value < best.value + 0.1 * promised:
            box *= 0.6
        if solution.value > best.value:
            best = solution
    return best
