"""Few snapshots, chosen one by one, whose relaxations are solved to the end: a bound where those of the rounds are given up.

Each further snapshot makes a relaxation a few times as hard, and what it proves comes at the end of its solution. So one is added at a
time: of those at which decoded schedules break the budget most, the one with which most is proven. What lies next to it often says
no more then, and is left out again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..bounds.snapshot_relaxation import Relaxed
from ..interface.work_limits import Limits
from .common_state import SIDE_BY_SIDE, State
from .schedules_from_relaxations import Reader, breaking

Snapshots = tuple[int, ...]


class SnapshotSelection:
    """The snapshots chosen in one search; it goes on where it stopped.

    Attributes:
        snapshots: chosen so far, ascending.
        bound: the best one proven.
        exhausted: no relaxation proves more in the work that it may take.
    """

    def __init__(self, state: State, reader: Reader):
        self.state, self.reader, self.numbers = state, reader, state.tuning.selection
        self.snapshots: Snapshots = (int(np.argmax(state.problem.profile)),)
        self.bound, self.exhausted = 0.0, False
        self._known: dict[Snapshots, Relaxed] = {}
        self._worth: dict[int, float] = {}  # of a stage when it was tried last: see `_step`
        self._broken: tuple[Snapshots, dict[int, float]] = ((), {})  # where schedules with these snapshots break the budget
        self._patience, self._share = 1.0, self.numbers.share

    @property
    def begun(self) -> bool:
        """It has run."""
        return bool(self._known)

    def run(self) -> None:
        """Choose more for a share of all that the search may do; for more of it once that is not enough for one relaxation."""
        limits = self.state.search.limits(self._share)
        while not self.exhausted and not limits.over():
            done = limits.work.done
            self._step(limits)
            if limits.work.done == done:
                self._share *= 2
                return

    def leads(self, relaxed: Relaxed) -> bool:
        """What is proven here is so much more than by a relaxation of the rounds that these have nothing to add."""
        left = self.state.search.best_cost - self.bound
        return not relaxed.exact and self.bound - relaxed.bound > self.numbers.lead * left

    def _step(self, limits: Limits) -> None:
        """Add the snapshot that proves most by the root of its work, as the next ones have to be solved with it; leave out what is beside it
        and says no more."""
        before = self._relax([self.snapshots], self.numbers.least, limits)[self.snapshots]
        candidates = self._candidates(before)
        if limits.over():
            return
        work = self._patience * max(self.numbers.least, self.numbers.growth * before.work)
        tried = {stage: tuple(sorted((*self.snapshots, stage))) for stage in candidates}
        found = self._relax(list(tried.values()), work, limits)
        gains = {stage: self._gain(before, found[tried[stage]]) for stage in candidates}
        self._worth |= {stage: gains[stage] / max(found[tried[stage]].work, self.numbers.quick) ** 0.5 for stage in candidates}
        new = max(candidates, key=lambda stage: self._worth[stage], default=None)
        if new is not None and gains[new] > 0.0:
            self.snapshots = self._without_superfluous(tried[new], new, gains[new], work, limits)
        elif all(one.exact for one in found.values()):
            self.exhausted = True
        else:
            self._patience *= 2

    @staticmethod
    def _gain(before: Relaxed, after: Relaxed) -> float:
        """What is proven beyond; nothing where it was not solved to the end, from where it is too hard to go on."""
        return max(after.bound - before.bound, 0.0) if after.exact else 0.0

    def _candidates(self, before: Relaxed) -> list[int]:
        if self._broken[0] != self.snapshots:
            violating = self.reader.read(list(self.snapshots), before)
            self._broken = self.snapshots, breaking(violating, self.state.search.budget, self.snapshots)[0]
        stages = self._broken[1]
        count = self.numbers.candidates if before.work <= self.numbers.quick else SIDE_BY_SIDE
        return sorted(stages, key=lambda stage: (-self._worth.get(stage, np.inf), -stages[stage]))[:count]

    def _without_superfluous(self, chosen: Snapshots, new: int, gain: float, work: float, limits: Limits) -> Snapshots:
        """`chosen` without one of the two next to the new one, if hardly less is proven then."""
        place = chosen.index(new)
        beside = [stage for stage in chosen[max(place - 1, 0) : place + 2] if stage != new]
        fewer = [tuple(stage for stage in chosen if stage != superfluous) for superfluous in beside]
        found = self._relax(fewer, work, limits)
        least = self._known[chosen].bound - self.numbers.loss * gain
        good = [one for one in fewer if found[one].exact and found[one].bound >= least]
        return max(good, key=lambda one: found[one].bound, default=chosen)

    def _relax(self, sets: list[Snapshots], work: float, limits: Limits) -> dict[Snapshots, Relaxed]:
        """Their relaxations, solved side by side; the bounds are handed in when all have ended."""
        work = min(work, limits.work.left)
        fresh = [
            one for one in sets if one not in self._known or (not self._known[one].exact and self._known[one].work < 0.9 * work)
        ]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            solved = dict(zip(fresh, pool.map(lambda one: self._solve(one, work), fresh), strict=True))
        for snapshots, relaxed in solved.items():
            self.bound = max(self.bound, relaxed.bound)
            self.state.search.raise_bound(relaxed.bound, f"bound from {len(snapshots)} chosen snapshots")
        limits.work.spend(sum(relaxed.work for relaxed in solved.values()) / SIDE_BY_SIDE)
        self._known |= solved
        return {one: self._known[one] for one in sets}

    def _solve(self, snapshots: Snapshots, work: float) -> Relaxed:
        state, search = self.state, self.state.search
        needed = search.best_cost / (1.0 + search.gap)
        return state.relaxation.solve(
            state.capacity,
            list(snapshots),
            search.time_left(),
            max(self.numbers.precision * search.gap, self.numbers.finest),
            seed=search.seed,
            stop=lambda bound: search.interrupted or bound > needed,
            start=state.start(snapshots),
            windows=False,
            work=work,
            thorough=True,
        )
