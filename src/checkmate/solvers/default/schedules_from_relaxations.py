"""Schedules read off a relaxation, and repaired by greedy eviction where they break the budget."""

from __future__ import annotations

from ..bounds.snapshot_relaxation import Relaxed
from ..heuristics.greedy_eviction import REPAIR_SETTINGS
from ..representation.decoding import Evaluation, read_off
from ..representation.graph_arrays import Bools
from .common_state import State


class Reader:
    """Reads schedules for one search."""

    def __init__(self, state: State):
        self.state = state

    def read(self, stages: list[int], relaxed: Relaxed) -> list[Evaluation]:
        """Hand in what a relaxation with these snapshots leads to; returns the schedules that break the budget."""
        if relaxed.retained is None:
            return []
        found = read_off(self.state.graph, stages, relaxed.retained)
        violating = [one for one in found if not self.state.consider(one, "schedule from the relaxation")]
        if violating:
            self.repair(stages, relaxed.retained)
        return violating

    def repair(self, stages: list[int], retained: list[Bools]) -> None:
        """Greedy eviction that follows what is retained as far as it can."""
        search = self.state.search
        for setting in REPAIR_SETTINGS:
            if search.done():
                return
            found = self.state.evict(setting, stages, retained)
            if found is not None:
                self.state.consider(found, "repaired schedule")
