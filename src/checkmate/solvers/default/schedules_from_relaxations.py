"""Schedules read off a relaxation, and repaired by greedy eviction where they break the budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ..bounds.snapshot_relaxation import Relaxed
from ..heuristics.greedy_eviction import REPAIR_SETTINGS
from ..representation.decoding import Evaluation, read_off
from ..representation.graph_arrays import Bools
from .common_state import State


def breaking(
    schedules: Sequence[Evaluation], budget: int, snapshots: Collection[int]
) -> tuple[dict[int, float], set[tuple[int, int]]]:
    """Where schedules break the budget most, once for each stretch of stages that do.

    Returns:
        The stages that are no snapshots, each with the bytes of the peak there; and, where only recomputations inside a stage between two
        snapshots do, (stage, op) pairs.
    """
    stages: dict[int, float] = {}
    within: set[tuple[int, int]] = set()
    for found in schedules:
        over = np.flatnonzero(found.stage_peaks > budget)
        for region in np.split(over, np.flatnonzero(np.diff(over) > 1) + 1):
            worst = int(region[np.argmax(found.own_peaks[region])])
            if found.own_peaks[worst] > budget and worst not in snapshots:
                stages[worst] = max(stages.get(worst, 0.0), float(found.own_peaks[worst]))
                continue
            worst = int(region[np.argmax(found.stage_peaks[region])])
            fresh = next((stage for stage in (worst, worst - 1) if stage > 0 and stage not in snapshots), None)
            if fresh is not None:
                stages[fresh] = max(stages.get(fresh, 0.0), float(found.stage_peaks[worst]))
            elif found.peak_ops[worst] != worst:  # inside a stage that is a group of its own
                within.add((worst, int(found.peak_ops[worst])))
    return stages, within


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
