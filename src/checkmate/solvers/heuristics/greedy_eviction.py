"""Offline greedy eviction: run the ops in order, and when memory is short evict what is cheap to have again, and not soon.

The eviction score is that of DTR (Kirisame et al., ICLR 2021) with the future known. What is missing for an op is
recomputed as a list in graph order, with only the inputs of the running op locked: this stays feasible essentially down to the
minimum working set, where a depth-first recursion fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..interface.running_search import Search
from ..representation.decoding import Evaluation, evaluate
from ..representation.graph_arrays import Bools, Floats, Problem, problem_of
from .eviction_kernels import (
    AGAIN,
    BY_UNTIL,
    CANDIDATE,
    COST,
    COUNTS,
    IN,
    OUT,
    POWER,
    PRODUCER,
    SIZE,
    SNAPSHOT,
    STUCK,
    UNFINISHED,
    UNTIL,
    USERS,
    WORKSPACE,
    WORTH,
    Pass,
    run_slice,
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Exponents of the eviction score: size^size * distance to next use^distance / recomputation cost^cost."""

    cost: float
    distance: float
    size: float


#: Links followed between two looks at the clock: about a tenth of a second.
_SLICE = 10_000_000
#: Settings that between them are near the best one on every graph tried.
SETTINGS = (
    Weights(1, 1, 1),
    Weights(1, 0.5, 0),
    Weights(1, 0, 1),
    Weights(0.5, 1, 1),
    Weights(2, 1, 1),
    Weights(1, 2, 1),
    Weights(1.5, 1, 0.5),
    Weights(0.3, 0, 0.25),
)
#: Enough of them to repair a plan, or to have any schedule at all.
REPAIR_SETTINGS = SETTINGS[:3]


def greedy(search: Search) -> None:
    """The best of a handful of settings; no bound beyond the cost of computing everything once."""
    planner = Greedy(problem_of(search.graph), search.stopped)
    for setting in SETTINGS:
        found = planner.run(search.budget, setting)
        if found is not None and found.peak <= search.budget:
            search.offer(found.sequence, found.cost, "greedy")
        if search.done():
            return


class Greedy:
    """Greedy eviction on one graph.

    Args:
        stop: asked now and then; once True, passes end and find nothing.
    """

    def __init__(self, problem: Problem, stop: Callable[[], bool] = lambda: False):
        self.problem, self.stop = problem, stop
        # Letting go of what only recomputed backward ops could use is right nearly always, and never final, except for
        # values that cannot be had again.
        needed_until = problem.useful_until(problem.recomputable)
        mostly_until = problem.useful_until(problem.recomputable & ~problem.backward)
        self._useful_until = np.where(problem.recomputable[problem.producer], mostly_until, needed_until)
        # What an op writes in goes with it: to hold on to it would take a second buffer.
        reused = problem.reuses[problem.reuses >= 0]
        self._useful_until[reused] = problem.last_use[reused]
        self._size_unit = max(problem.size.max(initial=1.0), 1.0)
        self._tables()

    def _tables(self) -> None:
        """The graph with one more op at the end that reads every kept value, so that they are all live when it runs."""
        problem = self.problem
        graph, kept = problem.graph, np.flatnonzero(problem.keep)
        n, m = graph.num_ops, graph.num_values
        (in_pointers, in_values), (out_pointers, out_values) = problem.inputs, problem.outputs
        user_pointers, user_ops = problem.users
        users = np.insert(user_ops, user_pointers[1:][kept], n)
        begins = np.cumsum([0, len(in_values) + len(kept), len(out_values)])
        self._links = np.concatenate([in_values, kept, out_values, users])
        self._table = table = np.zeros((10, max(n, m) + 3), np.int64)
        table[IN, : n + 2] = np.append(in_pointers, in_pointers[-1] + len(kept))
        table[OUT, : n + 2] = np.append(out_pointers, out_pointers[-1]) + begins[1]
        table[AGAIN, : n + 1] = np.append(problem.recomputable, True)
        table[USERS, : m + 1] = user_pointers + np.append(0, np.cumsum(problem.keep)) + begins[2]
        table[PRODUCER, :m] = problem.producer
        table[UNTIL, :m] = self._useful_until
        table[CANDIDATE, :m] = problem.recomputable[problem.producer] & (problem.size > 0)
        table[BY_UNTIL, :m] = np.argsort(self._useful_until, kind="stable")
        table[COUNTS, :2] = n + 1, m
        self._numbers = numbers = np.zeros((5, max(n, m) + 3))
        numbers[COST, :n] = problem.cost / ((graph.ideal_cost or 1.0) / max(1, n))
        numbers[WORKSPACE, :n] = problem.least_workspace
        numbers[SIZE, :m] = problem.size

    def run(
        self,
        budget: int,
        setting: Weights,
        snapshots: Sequence[int] = (),
        retained: Sequence[Bools] = (),
        weight: Floats | None = None,
        longest: int = 30,
        below: float = math.inf,
    ) -> Evaluation | None:
        """One pass.

        Args:
            budget: bytes, fixed memory included.
            snapshots, retained: a plan to repair: right after op snapshots[k] first ran, values not in retained[k] are
                dropped, and values in it are evicted before only if nothing else is left.
            weight: per value, multiplies its eviction score.
            longest: give up on sequences longer than this many times the number of ops.
            below: only sequences that cost less are of interest.

        Returns:
            The sequence found, simulated; None if the pass got stuck or cost too much.
        """
        problem, m = self.problem, self.problem.graph.num_values
        table, numbers = self._table, self._numbers
        worth = (problem.size / self._size_unit) ** setting.size
        worth[problem.backward[problem.producer]] *= 1e-12  # recomputing gradients drags the whole backward pass along
        numbers[WORTH, :m] = worth if weight is None else worth * weight
        numbers[POWER, :2] = setting.cost, setting.distance
        table[SNAPSHOT, : len(snapshots)] = snapshots
        kept = np.array(retained, np.bool_).reshape(len(snapshots), m)
        length = longest * problem.graph.num_ops + 100
        one = Pass(table, self._links, numbers, kept, length, float(budget - problem.graph.fixed_memory))
        ended = UNFINISHED
        while ended == UNFINISHED:
            ended = run_slice(one, one.followed + _SLICE)
            if ended == STUCK or (ended == UNFINISHED and self.stop()):
                return None
        found = one.found
        found = found[found < problem.graph.num_ops]
        return evaluate(problem.graph, found.tolist()) if problem.cost[found].sum() < below else None
