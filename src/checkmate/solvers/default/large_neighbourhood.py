"""Large neighbourhood search: the relaxation again and again, with most of what the best schedule retains fixed.

Where the whole relaxation is too hard, some neighbourhoods (stretches of the forward phase) are free: few at first, more where that
is easy and fewer where it is hard. Two such programs are solved side by side.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..heuristics.annealing import POLISH_HEAT
from ..interface.work_limits import annealing
from ..representation.decoding import Evaluation, read_off, retained_by
from ..representation.graph_arrays import Bools
from .common_state import SIDE_BY_SIDE, State


class LargeNeighbourhood:
    """The search around the best schedule of one search."""

    def __init__(self, state: State):
        self.state, self.numbers = state, state.tuning.neighbourhoods
        self._neighbourhoods = np.array_split(np.flatnonzero(~state.problem.backward), self.numbers.count)
        self._rng = np.random.default_rng(state.search.seed)

    def run(self, stages: list[int], transients: Collection[tuple[int, int]]) -> None:
        """Improve the best schedule until that fails a few times, or the search is done.

        Args:
            stages, transients: where memory is limited; see `SnapshotRelaxation.solve`.
        """
        search, numbers, vain, size = self.state.search, self.numbers, 0, float(self.numbers.free)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            while search.best is not None and not search.done() and vain < numbers.vain:
                kept, before = retained_by(self.state.graph, search.best, stages), search.best_cost
                # Drawn before they begin, so that which of them ends first does not matter.
                tries = [(self._some(round(size)), np.random.default_rng(self._rng.integers(2**31))) for _ in range(SIDE_BY_SIDE)]
                running = [pool.submit(self._solve, stages, transients, kept, *one) for one in tries]
                # Handed in when all have ended: until then each sees the search as it was when they began.
                ended = [one.result() for one in running]
                search.work.spend(max(work for _, _, work in ended))
                for exact, found, _ in ended:
                    for schedule in found:
                        self.state.consider(schedule, "schedule from a neighbourhood")
                    size = min(size * numbers.growth, numbers.count) if exact else max(size / numbers.growth, 1.0)
                vain = 0 if search.best_cost < before else vain + SIDE_BY_SIDE

    def _some(self, count: int) -> Bools:
        """The values of so many neighbourhoods."""
        free = np.zeros(self.state.graph.num_ops, np.bool_)
        for chosen in self._rng.choice(self.numbers.count, count, replace=False):
            free[self._neighbourhoods[chosen]] = True
        return free[self.state.problem.producer]

    def _solve(
        self,
        stages: list[int],
        transients: Collection[tuple[int, int]],
        kept: list[Bools],
        free: Bools,
        rng: np.random.Generator,
    ) -> tuple[bool, list[Evaluation], float]:
        """Whether the program was solved to the end, the schedules that it led to, and the work."""
        state, search, numbers = self.state, self.state.search, self.numbers
        cost = search.best_cost
        relaxed = state.relaxation.solve(
            state.capacity,
            stages,
            search.time_left(),
            numbers.gap,
            seed=search.seed,
            stop=lambda bound: search.interrupted,
            start=kept,
            free=free,
            windows=False,
            transients=transients,
            work=min(numbers.limit, search.work.left),
        )
        if relaxed.retained is None:
            return relaxed.exact, [], relaxed.work
        work = relaxed.work
        found = read_off(state.graph, stages, relaxed.retained)
        for number, one in enumerate(found):
            if one.peak > search.budget and one.cost < cost:
                work += annealing(numbers.moves, state.graph.num_ops)
                found[number] = state.anneal.run(one.sequence, numbers.moves, hot=POLISH_HEAT, stop=search.done, rng=rng)
        return relaxed.exact, found, work
