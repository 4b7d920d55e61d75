"""The default method: snapshot relaxation, decoding and repair, until the schedule is proven near-optimal.

Every round solves the relaxation for the current snapshots, which raises the bound (relaxation_rounds.py); reads a schedule off it
and repairs that by greedy eviction where it breaks the budget (schedules_from_relaxations.py); and limits memory at the stages (or
recomputations) that broke it. Where relaxations are given up with a narrow gap, fewer snapshots are chosen with more care
(snapshot_selection.py). Once they take their time and the gap is wide, other bounds (bound_phases.py, tail_phase.py) and other searches join in:
eviction_and_climb.py, annealing_runs.py, nested_tries.py, large_neighbourhood.py. The numbers of all of them are in tuning.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...schedule import OPTIMAL_GAP
from ..bounds.peak_bound import least_peak_bound
from ..bounds.snapshot_relaxation import Relaxed
from ..exact.best_first_search import ALL, FIRST, exact
from ..interface.running_search import Search
from ..representation.decoding import Evaluation, evaluate
from .annealing_runs import AnnealingRuns
from .bound_phases import BoundPhases
from .common_state import State
from .eviction_and_climb import EvictionAndClimb
from .large_graphs import large
from .large_neighbourhood import LargeNeighbourhood
from .nested_tries import NestedCheckpointing
from .relaxation_rounds import RelaxationRounds
from .schedules_from_relaxations import Reader
from .snapshot_selection import SnapshotSelection
from .tail_phase import TailPhase
from .tuning import TUNING, Tuning

#: Rounds with searches that come before the long exact search.
_BEFORE_EXACT = 2


def auto(search: Search, rounds: int | None = None, tuning: Tuning = TUNING) -> None:
    """Proven near-optimal schedules; see the module's description. `rounds`: stop after that many, whatever the gap."""
    if not exact(search, FIRST if rounds is None else FIRST // 10):
        relaxations(search, rounds, tuning)


def relaxations(search: Search, rounds: int | None = None, tuning: Tuning = TUNING) -> None:
    """All but the exact search of small graphs."""
    if search.graph.num_ops > tuning.large.many_ops:
        large(search, tuning.large)
    if search.graph.num_ops <= tuning.large.too_many_ops and not search.closed():
        _Engine(search, rounds, tuning).run()


class _Engine:
    """Decides which phase comes next."""

    def __init__(self, search: Search, most_rounds: int | None, tuning: Tuning):
        self.search, self.tuning = search, tuning
        self.state = state = State(search, most_rounds, tuning)
        self.reader = Reader(state)
        self.relaxations = RelaxationRounds(state, self.reader)
        self.eviction = EvictionAndClimb(state)
        self.annealing = AnnealingRuns(state, self.eviction)
        self.nested = NestedCheckpointing(state, lambda segment, rounds: auto(segment, rounds, tuning))
        self.bounds = BoundPhases(state)
        self.tail = TailPhase(state, self._solve_before)
        self.selection = SnapshotSelection(state, self.reader)
        self.neighbourhoods = LargeNeighbourhood(state)
        # Rounds in all; those that were not quick; those that improved a schedule within the gap.
        self.rounds = self.slow_rounds = self.polished = 0
        self.vain = 0  # searches in a row that brought no better schedule
        self.next_search = 0  # the round in which better schedules are searched for again
        self.began = search.work.done
        self.outdone = False  # relaxations have nothing more to say
        self.looked = False  # whether anything is possible at all

    def run(self) -> None:
        """Round after round, until the search is done."""
        if not self.search.done():
            self.state.consider(evaluate(self.state.graph, range(self.state.graph.num_ops)), "no recomputation")
        if not self.search.done():
            while not self._finished() and self._round():
                pass
        self.eviction.evict_late()
        self.eviction.evict_again()

    def _finished(self) -> bool:
        """The search is done, and a schedule within the gap has been improved for some rounds."""
        search, numbers = self.search, self.tuning.relaxations
        if search.closed() and not search.stopped() and search.target_cost is None:
            return self.polished >= numbers.polish_rounds or search.current_gap() <= max(0.02 * search.gap, OPTIMAL_GAP)
        return search.done()

    def _round(self) -> bool:
        """One round; False if it was the last."""
        search, state, gaps = self.search, self.state, self.tuning.gaps
        if search.closed():
            self.polished += 1
            self.relaxations.for_polish(search.work.done - self.began)
        elif self.outdone:
            self._search_schedules([])
            self.rounds += 1
            self.slow_rounds += 1
            return not self._solved_exactly()
        relaxed = self.relaxations.solve()
        if np.isinf(relaxed.bound):
            return False
        behind = relaxed.bound < (1 - gaps.loose) * search.lower_bound
        self.outdone = behind and not relaxed.exact and self.rounds > 0 and state.loose()
        violating = self.reader.read(self.relaxations.stages, relaxed)
        if not relaxed.exact and state.most_rounds is None and not state.wider_than(gaps.far):
            self.neighbourhoods.run(self.relaxations.stages, self.relaxations.transients)
        soon = self._soon_solved(relaxed, violating)
        if soon:  # in case soon is not soon enough
            if self.rounds or search.best is None:
                self._evict()
            if state.wider_than(gaps.wide):
                self.annealing.begin()
        else:
            self._search_schedules_in_turn(violating)
            if not search.done() and not self.bounds.tried and state.wider_than(gaps.loose if self.rounds else gaps.far):
                self.bounds.run()
                self.tail.run()
            self._choose_snapshots(relaxed)
            self.slow_rounds += 1
        self.rounds += 1
        if self._finished() or self.rounds == state.most_rounds or (not soon and self._solved_exactly()):
            return False
        if self.relaxations.prepare_next(relaxed, violating, self.vain > 0, self.selection.leads(relaxed), self.polished):
            return True
        self.outdone = self.slow_rounds < _BEFORE_EXACT  # searches, and the exact one, may still find what relaxations cannot
        return self.outdone

    def _choose_snapshots(self, relaxed: Relaxed) -> None:
        """Where relaxations are given up round after round with a narrow gap: a bound from fewer snapshots, for as long as it is better."""
        state, selection = self.state, self.selection
        if relaxed.exact or state.hard or state.loose() or not state.wider_than(self.search.gap):
            return
        if selection.leads(relaxed) if selection.begun else self.slow_rounds >= selection.numbers.rounds:
            selection.run()

    def _soon_solved(self, relaxed: Relaxed, violating: list[Evaluation]) -> bool:
        """While relaxations are solved in no time, the next ones may prove all that there is to prove, before anything else."""
        if self.state.most_rounds is not None or self.search.closed() or not (relaxed.exact and violating):
            return False
        return self.search.work.done - self.began <= self.tuning.relaxations.quick

    def _search_schedules_in_turn(self, violating: list[Evaluation]) -> None:
        """What brought nothing has less and less time to try again."""
        if self.rounds < self.next_search:
            return
        cost = self.search.best_cost
        self._search_schedules(violating)
        self.vain = 0 if self.search.best_cost < cost else self.vain + 1
        self.next_search = self.rounds + 2**self.vain

    def _search_schedules(self, violating: list[Evaluation]) -> None:
        """Search for better schedules around those that are known."""
        search, state, gaps = self.search, self.state, self.tuning.gaps
        # Most searches end within two rounds, without annealing and the seconds that compiling it takes the first time.
        if not search.done() and (self.rounds or state.hard or state.loose() or search.current_gap() > gaps.wide):
            self._evict()
            if not search.done() and not self.bounds.begun and state.wider_than(gaps.loose if self.rounds else gaps.far):
                self.bounds.begin()
            if not search.done():
                self.annealing.run(violating, self.slow_rounds)
        annealed = search.best_cost
        if not search.done():
            self.eviction.climb()
        if not search.done() and state.loose() and search.best_cost < annealed:
            self.annealing.run(violating, self.slow_rounds)
        for _ in range(2 if self.slow_rounds else 1):
            self.nested.run(gaps.loose if self.slow_rounds else gaps.far)

    def _solve_before(self, inner: Search) -> None:
        auto(inner, tuning=replace(self.tuning, tails=replace(self.tuning.tails, share=0.0)))

    def _solved_exactly(self) -> bool:
        """What the first search of small graphs left open is worth a longer one after some rounds with searches."""
        return self.slow_rounds == _BEFORE_EXACT and exact(self.search, ALL)

    def _evict(self) -> None:
        """Greedy eviction takes a moment, and so, where it finds nothing, does the bound that says whether there is anything."""
        search = self.search
        self.eviction.evict()
        if self.looked or search.best is not None or self.state.most_rounds is not None or search.done():
            return
        self.looked = True
        least = least_peak_bound(self.state.problem, search.budget, search.done)
        if least > search.budget:
            search.prove_infeasible(f"a few values together need {least} bytes", "any")
