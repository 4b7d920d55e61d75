"""Bounds from prices of memory: the Lagrangian bound at many snapshots, and that from nested snapshots."""

from __future__ import annotations

import numpy as np

from ..bounds.lagrangian_bound import LagrangianBound
from ..bounds.nested_snapshot_bound import MULTIPLIERS, nested_bound, repeats
from ..interface.work_limits import lagrangian as lagrangian_work
from ..representation.decoding import read_off
from .common_state import State


class BoundPhases:
    """Both, once for each search; the first of them begins before the long searches for schedules."""

    def __init__(self, state: State):
        self.state, self.numbers = state, state.tuning.prices
        self.begun = self.tried = False
        self._prices: LagrangianBound | None = None

    def begin(self) -> None:
        """What does not take long."""
        self.begun = True
        self._lagrangian(self.numbers.first_share)

    def run(self) -> None:
        """What relaxations with few snapshots cannot see."""
        self.tried = True
        self._lagrangian(self.numbers.share)
        self._nested_snapshots()

    def _lagrangian(self, share: float) -> None:
        """What small programs with few snapshots cannot see, at many snapshots."""
        state, search = self.state, self.state.search
        limits = search.limits(share)
        self._prices = lagrangian = self._prices or LagrangianBound(state.problem, state.capacity)

        def stop() -> bool:
            limits.work.spend(lagrangian_work(lagrangian.entries))
            return limits.over()

        while state.loose() and not lagrangian.exhausted and not limits.over():
            stages, retained = lagrangian.snapshots, lagrangian.step(stop)
            search.raise_bound(lagrangian.bound, f"Lagrangian bound from {len(stages)} snapshots")
            if np.isinf(lagrangian.bound):
                return
            found = read_off(state.graph, stages, retained)
            violating = [one for one in found if not state.consider(one, "schedule from prices")]
            lagrangian.refine(violating)

    def _nested_snapshots(self) -> None:
        """What snapshots that follow one another cannot see: near the least memory much is recomputed more than once."""
        state, search, compared = self.state, self.state.search, self.numbers.compared
        limits = search.limits(self.numbers.nested_share)

        def bound(cut: tuple[int, int], multipliers: int = MULTIPLIERS) -> float:
            found = nested_bound(state.problem, state.capacity, *cut, limits.over, multipliers, limits.work)
            search.raise_bound(found, "bound from nested snapshots")
            return found

        cuts = [cut for cut in self.numbers.nested_cuts if state.loose() and repeats(state.problem, *cut)]
        found = {cut: bound(cut) for cut in cuts[:compared] if state.loose()}
        if found and state.loose():
            bound(max(found, key=lambda cut: found[cut]), self.numbers.more_multipliers)
        for cut in cuts[compared:]:
            if state.loose():
                bound(cut)
