"""Greedy eviction in all its settings, and a hill climb around the best of them."""

from __future__ import annotations

import numpy as np

from ...schedule import OPTIMAL_GAP
from ..heuristics.greedy_eviction import REPAIR_SETTINGS, SETTINGS
from ..heuristics.hill_climbing import Climb
from ..interface.work_limits import eviction
from ..representation.decoding import Evaluation
from .common_state import State


class EvictionAndClimb:
    """Both, for one search.

    Attributes:
        found: schedules of greedy eviction as it is, for others to begin with.
    """

    def __init__(self, state: State):
        self.state, self.numbers = state, state.tuning.climb
        self.found: list[Evaluation] = []
        self._climb: Climb | None = None
        self._moves, self._evicted = self.numbers.moves, np.inf

    def evict(self) -> Climb:
        """Greedy eviction, in all its settings, once; returns the climb that begins there."""
        state = self.state
        if self._climb is None:
            self._climb = Climb(state.greedy, state.search.budget, state.search.seed)
            self.found = self._climb.start(state.search.done)
            state.search.work.spend(len(SETTINGS) * eviction(state.graph.num_ops))
            for one in self.found:
                state.consider(one, "greedy eviction")
            self._evicted = min((one.cost for one in self.found), default=np.inf)
        return self._climb

    def evict_late(self) -> None:
        """Where time was over before any greedy eviction, as where there is none: a moment more brings a fair schedule."""
        search = self.state.search
        for setting in REPAIR_SETTINGS if self._climb is None and search.time_left() <= 0 else ():
            if not search.interrupted and not search.proven_infeasible and not search.closed():
                found = self.state.evict(setting, longest=8)
                if found is not None:
                    self.state.consider(found, "greedy eviction")

    def evict_again(self) -> None:
        """Where the gap was reached first: all settings take a moment, and what is within the gap may be dearer than theirs."""
        state, search = self.state, self.state.search
        if self._climb is not None or state.most_rounds is not None or search.target_cost is not None:
            return
        for setting in SETTINGS:
            if search.closed() and search.current_gap() > OPTIMAL_GAP and not search.stopped():
                found = state.evict(setting)
                if found is not None:
                    state.consider(found, "greedy eviction")

    def evicts_well(self) -> bool:
        """On some graphs eviction is far from what annealing finds, and slow as well."""
        return self._evicted <= (1 + self.state.tuning.gaps.wide) * self.state.search.best_cost

    def climb(self) -> None:
        """Some more moves of the hill climb."""
        climb, numbers, search = self.evict(), self.numbers, self.state.search
        if not self.evicts_well():
            return
        self._moves *= numbers.loose_growth if self.state.loose() else numbers.growth
        for _ in range(max(numbers.least, min(self._moves, int(numbers.work / self.state.graph.num_ops**2)))):
            if search.done():
                return
            search.work.spend(eviction(self.state.graph.num_ops))
            moved = climb.step()
            if moved is not None:
                self.state.consider(moved, "greedy eviction")
