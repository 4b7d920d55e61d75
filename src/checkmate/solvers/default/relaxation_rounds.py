"""Rounds of snapshot relaxations: each raises the bound, and says where the next one has to limit memory as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bounds.snapshot_relaxation import Relaxed
from ..representation.decoding import Evaluation, read_off
from .common_state import State
from .schedules_from_relaxations import Reader, breaking


class RelaxationRounds:
    """The relaxations of one search.

    Attributes:
        snapshots, transients: where memory is limited; see `SnapshotRelaxation.solve`.
    """

    def __init__(self, state: State, reader: Reader):
        numbers = state.tuning.relaxations
        self.state, self.reader, self.numbers = state, reader, numbers
        # In a few rounds nothing is proven anyway.
        self._least_gap = 0.0 if state.most_rounds is None else 0.5 * state.search.gap
        self.snapshots = {int(np.argmax(state.problem.profile))}
        self.transients: set[tuple[int, int]] = set()
        self._windows = False
        self._limit = numbers.limit * (numbers.hard_share if state.hard else 1.0)
        self._additions, self._rough = numbers.additions, numbers.rough
        self._bound_before = 0.0

    @property
    def stages(self) -> list[int]:
        """The snapshots, ascending."""
        return sorted(self.snapshots)

    def for_polish(self, spent: float) -> None:
        """From now on schedules within the gap are improved: as close as can be, and not for longer than it took to find them."""
        self._limit, self._rough = min(self.numbers.polish_limit, spent), 0.0

    def solve(self) -> Relaxed:
        """One relaxation, whose bound is handed in."""
        search, stages = self.state.search, self.stages
        self._bound_before = search.lower_bound
        relaxed = self._relax(search.budget, stages, self._limit, self._rough)
        search.raise_bound(relaxed.bound, f"bound from {len(stages)} snapshots")
        # Without window cuts most relaxations are solved sooner; those that are not solved have the better bound with them.
        self._windows ^= not relaxed.exact
        return relaxed

    def _relax(self, budget: int, stages: list[int], limit: float, rough: float) -> Relaxed:
        state, search = self.state, self.state.search
        gap = min(max(1e-7, 0.2 * rough * search.gap, rough * search.current_gap()), 0.01)
        relaxed = state.relaxation.solve(
            budget - state.graph.fixed_memory,
            stages,
            search.time_left(),
            gap=max(self._least_gap, gap),
            seed=search.seed,
            stop=lambda bound: search.interrupted,
            start=state.start(stages),
            transients=self.transients,
            windows=self._windows,
            work=min(limit, search.work.left),
        )
        search.work.spend(relaxed.work)
        return relaxed

    def prepare_next(self, relaxed: Relaxed, violating: Sequence[Evaluation], vain: bool, led: bool, polished: int) -> bool:
        """Limit memory where decoded schedules broke the budget; False if the relaxation is as fine as it gets.

        Args:
            relaxed: this round's relaxation. violating: schedules read off it that break the budget.
            vain: the last search for better schedules brought none.
            led: few snapshots chosen with care prove much more.
            polished: rounds that improved a schedule within the gap.
        """
        search = self.state.search
        if violating and not search.closed():
            self._lower_budget(max(found.peak for found in violating))
        if search.lower_bound - self._bound_before < self.numbers.stalled * search.gap * self._bound_before:
            self._additions = min(2 * self._additions, self.numbers.most_additions)
        if led:  # what is left for the rounds is to lead to schedules
            self._limit = self.numbers.lower_limit
            self._refine(violating)
        elif vain and not relaxed.exact and relaxed.bound < search.lower_bound:
            self._limit *= 2  # with more snapshots the bound would only be worse
        elif not self._refine(violating) and not (search.closed() and polished == 0):
            if not (relaxed.exact and relaxed.retained is not None):
                self._limit *= 2
            elif self._rough == 0.0:
                return False
            else:
                self._rough = 0.0
        return True

    def _lower_budget(self, peak: int) -> None:
        """Relaxations at lower budgets often decode to schedules that fit: cheap upper bounds."""
        state, search = self.state, self.state.search
        graph, stages = state.graph, self.stages
        excess = (peak - graph.fixed_memory) / state.capacity
        for margin in self.numbers.margins:
            lower = graph.fixed_memory + int(state.capacity / min(excess, 2.0) ** margin)
            if lower < graph.min_working_set or search.done():
                return
            relaxed = self._relax(lower, stages, self.numbers.lower_limit, self.numbers.rough)
            if relaxed.retained is None or relaxed.cost >= search.best_cost:
                return
            found = read_off(graph, stages, relaxed.retained)
            better = [state.consider(one, "schedule from a lower budget") for one in found]
            if any(better):
                return
            self.reader.repair(stages, relaxed.retained)

    def _refine(self, violating: Sequence[Evaluation]) -> bool:
        """Limit memory where decoded schedules broke the budget: at stages, or at recomputations inside stages."""
        candidates, within = breaking(violating, self.state.search.budget, self.snapshots)
        chosen = sorted(candidates, key=lambda stage: -candidates[stage])[: self._additions]
        self.snapshots.update(chosen)
        within -= self.transients
        self.transients |= within
        return bool(chosen or within)
