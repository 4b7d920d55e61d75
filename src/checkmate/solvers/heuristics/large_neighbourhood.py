"""Large neighbourhood search: the relaxation again and again, with most of what the best schedule retains fixed.

Where the whole relaxation is too hard, parts of the forward pass are free: some at first, more where that is easy and fewer where it
is hard. Two such programs are solved side by side: HiGHS and the annealing do not hold the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..bounds.snapshot_relaxation import SnapshotRelaxation
from ..interface.running_search import Search
from ..representation.decoding import Evaluation, read_off, retained_by
from ..representation.graph_arrays import Bools, Problem
from .annealing import POLISH_HEAT, Anneal

#: So many parts are free at first, out of so many; and by how much this grows and shrinks.
_FREE, _PARTS, _GROWTH = 6, 48, 1.5
#: Seconds for one program; after so many in a row that bring nothing the search ends.
_SECONDS, _VAIN = 1.0, 8
#: Moves of the annealing of a schedule that breaks the budget.
_MOVES = 10_000
#: How close to the optimum each program is solved, as a part of the ideal cost.
_GAP = 2e-5
#: Threads.
SIDE_BY_SIDE = 2


class Parts:
    """The search for one graph and budget, whose best schedule it improves.

    Args:
        anneal: for this budget.
    """

    def __init__(self, problem: Problem, relaxation: SnapshotRelaxation, anneal: Anneal, search: Search):
        self.problem, self.relaxation, self.anneal, self.search = problem, relaxation, anneal, search
        self._parts = np.array_split(np.flatnonzero(~problem.backward), _PARTS)
        self._rng = np.random.default_rng(search.seed)

    def run(self, stages: list[int], transients: Collection[tuple[int, int]]) -> None:
        """Improve the best schedule until that fails a few times, or the search is done.

        Args:
            stages, transients: where memory is limited; see `SnapshotRelaxation.solve`.
        """
        search, vain, size = self.search, 0, float(_FREE)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            while search.best is not None and not search.done() and vain < _VAIN:
                kept, before = retained_by(self.problem.graph, search.best, stages), search.best_cost
                # Drawn before they begin, so that which of them ends first does not matter.
                tries = [(self._some(round(size)), np.random.default_rng(self._rng.integers(2**31))) for _ in range(SIDE_BY_SIDE)]
                running = [pool.submit(self._solve, stages, transients, kept, *one) for one in tries]
                for one in running:
                    exact, found = one.result()
                    for schedule in found:
                        if schedule.peak <= search.budget:
                            search.offer(schedule.sequence, schedule.cost, "schedule from part of the relaxation")
                    size = min(size * _GROWTH, _PARTS) if exact else max(size / _GROWTH, 1.0)
                vain = 0 if search.best_cost < before else vain + SIDE_BY_SIDE

    def _some(self, count: int) -> Bools:
        """So many parts, by value."""
        free = np.zeros(self.problem.graph.num_ops, np.bool_)
        for part in self._rng.choice(_PARTS, count, replace=False):
            free[self._parts[part]] = True
        return free[self.problem.producer]

    def _solve(
        self,
        stages: list[int],
        transients: Collection[tuple[int, int]],
        kept: list[Bools],
        free: Bools,
        rng: np.random.Generator,
    ) -> tuple[bool, list[Evaluation]]:
        """Whether the program was solved to the end, and the schedules that it led to."""
        search, graph = self.search, self.problem.graph
        cost = search.best_cost
        relaxed = self.relaxation.solve(
            search.budget - graph.fixed_memory,
            stages,
            min(_SECONDS, search.time_left()),
            _GAP,
            seed=search.seed,
            stop=lambda bound: search.interrupted,
            start=kept,
            free=free,
            windows=False,
            transients=transients,
        )
        if relaxed.retained is None:
            return relaxed.exact, []
        found = read_off(graph, stages, relaxed.retained)
        for number, one in enumerate(found):
            if one.peak > search.budget and one.cost < cost:
                found[number] = self.anneal.run(one.sequence, _MOVES, hot=POLISH_HEAT, stop=search.done, rng=rng)
        return relaxed.exact, found
