"""Annealing of what the other phases find: a polish of the best schedule, a competition of several, long hot runs, fresh starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..heuristics.annealing import HOT, POLISH_HEAT
from ..interface.work_limits import annealing, annealing_moves
from ..representation.decoding import Evaluation, evaluate
from .common_state import SIDE_BY_SIDE, State
from .eviction_and_climb import EvictionAndClimb


class AnnealingRuns:
    """The annealings of one search."""

    def __init__(self, state: State, eviction: EvictionAndClimb):
        self.state, self.eviction, self.numbers = state, eviction, state.tuning.annealing
        self._moves = self.numbers.moves
        self._most_moves = self.numbers.work / (state.graph.num_ops + 100)  # in one run
        self._begun = False
        self._long = self.numbers.long  # units of work of the next long run
        self._winners: list[Evaluation] = []  # the best of the schedules that have been annealed

    def begin(self) -> None:
        """Once, from a bad schedule, before relaxations that take their time: any annealing makes much of it."""
        if not self._begun and self.state.search.best is not None:
            self._begun = True
            self._anneal_long()

    def run(self, violating: list[Evaluation], rounds: int) -> None:
        """A polish of the best schedule; without one, a repair of what comes nearest to the budget."""
        state, search, wide = self.state, self.state.search, self.state.tuning.gaps.wide
        most = int(self._most_moves)
        moves = 3 * most // 4 if state.loose() or state.hard else min(self._moves, most)
        self._moves = min(self.numbers.growth * self._moves, most)
        if search.best is None:
            self._anneal_afresh(violating, moves)
        if search.best is None:
            return
        # What the relaxation retains may fit if the group recomputes in another order: decoding knows but one.
        near = min(violating, key=lambda found: (found.cost, found.peak), default=None)
        if near is not None and near.cost < search.best_cost and search.current_gap() <= wide:
            state.anneal_from(near.sequence, moves, POLISH_HEAT)
        if state.loose() or state.hard:
            self._anneal_long()
            self._compete(moves)
        else:
            self._polish(moves)
        if search.current_gap() > wide and (rounds or not self.eviction.evicts_well()):
            self._anneal_afresh(violating, moves)
            self._polish(moves)

    def _polish(self, moves: int, heat: float = POLISH_HEAT) -> None:
        search = self.state.search
        if not search.done():
            assert search.best is not None
            self._side_by_side([search.best] * SIDE_BY_SIDE, moves, heat)

    def _side_by_side(self, starts: Sequence[Sequence[int]], moves: int, heat: float) -> list[Evaluation]:
        """An annealing from each of them; returns those within the budget."""
        state = self.state
        state.search.work.spend(annealing(moves, state.graph.num_ops) * math.ceil(len(starts) / SIDE_BY_SIDE))

        def run(start: Sequence[int], seed: int) -> Evaluation:
            return state.anneal.run(start, moves, hot=heat, stop=state.search.done, rng=np.random.default_rng(seed))

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            found = list(pool.map(run, starts, state.rng.integers(2**31, size=len(starts)).tolist()))
        return [one for one in found if state.consider(one, "annealing")]

    def _anneal_afresh(self, violating: list[Evaluation], moves: int) -> None:
        """Where greedy eviction finds nothing, or nothing good, better starts are the plain order and what nearly fits."""
        state, search = self.state, self.state.search
        starts: list[Sequence[int]] = [range(state.graph.num_ops)]
        if violating:
            starts.append(min(violating, key=lambda found: found.peak).sequence)
        for start in starts:
            if search.best is None or search.current_gap() > state.tuning.gaps.wide:
                state.anneal_from(start, self.numbers.fresh * moves, HOT)

    def _anneal_long(self) -> None:
        """From the best schedule, the wider the gap the hotter: near the least memory the best ones are far from all that eviction finds."""
        state, search, numbers = self.state, self.state.search, self.numbers
        if not state.loose():
            return
        units = min(self._long, search.limits(numbers.long_share).work.left)
        self._long *= numbers.long_growth
        self._polish(int(annealing_moves(units, state.graph.num_ops)), min(numbers.heat * search.current_gap(), numbers.hottest))

    def _compete(self, moves: int) -> None:
        """Short runs from good schedules, of which the best few go on: how well a run ends shows early, and is a matter of luck.

        At first from greedy eviction as it is: what hill climbing has made of it leads to worse ends, more often.
        """
        state, search, numbers = self.state, self.state.search, self.numbers
        assert search.best is not None
        field = [one for one in self.eviction.found if one.cost <= (1 + state.tuning.gaps.wide) * search.best_cost]
        field = field or [evaluate(state.graph, search.best), *self._winners]
        self.eviction.found, before = [], np.inf
        while not search.done():
            starts = [field[number % len(field)].sequence for number in range(max(numbers.runs, len(field)))]
            annealed = self._side_by_side(starts, moves, numbers.mild)
            field = sorted(field + annealed, key=lambda one: one.cost)[: numbers.winners]
            excess = field[0].cost - search.lower_bound
            if excess > numbers.worth * before:
                break
            before = excess
        self._winners = field
