"""The default method: snapshot relaxation, decoding and repair, until the schedule is proven near-optimal.

Every round solves the relaxation for the current snapshots, which raises the bound; reads a schedule off it; repairs that
schedule by greedy eviction where it breaks the budget; and limits memory at the stages (or recomputations) that broke it.
While the gap stays wide, other bounds (forest_bound.py, nested_bound.py) and other searches (anneal.py, nested.py) join in.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...schedule import OPTIMAL_GAP
from ..bounds.lagrangian_bound import LagrangianBound
from ..bounds.nested_snapshot_bound import MULTIPLIERS, nested_bound, repeats
from ..bounds.peak_bound import least_peak_bound
from ..bounds.snapshot_relaxation import Relaxed, SnapshotRelaxation
from ..exact.best_first_search import ALL, FIRST, exact
from ..heuristics.annealing import HOT, POLISH_HEAT, Anneal
from ..heuristics.greedy_eviction import SETTINGS, Greedy
from ..heuristics.hill_climbing import Climb
from ..heuristics.large_neighbourhood import SIDE_BY_SIDE, Parts
from ..heuristics.nested_checkpointing import Menu, Nested
from ..interface.running_search import Search
from ..representation.decoding import Evaluation, evaluate, read_off, retained_by
from ..representation.graph_arrays import Bools, problem_of
from .large_graphs import MANY_OPS, TOO_MANY_OPS, large

#: Moves of the annealing in the first round, growth from round to round, and most moves times ops in one: some seconds.
_ANNEAL_MOVES, _ANNEAL_GROWTH, _ANNEAL_WORK = 10_000, 3, 1e8
#: So many times more of them for a run from a start that is far from any good schedule.
_FRESH = 4
#: While the gap is loose, so many annealings begin at the best schedules (and at each that has not been annealed), mild ones; so many
#: of these schedules go on, as long as that brings their gap below this part of what it was.
_RUNS, _WINNERS, _MILD, _WORTH = 8, 2, 1e-4, 0.9
#: A gap so wide that the best schedule is no good start for a polish.
_WIDE = 0.1
#: Moves of the hill climb in the first round, doubled in every later one; and most moves in one round, times the square of
#: the number of ops: about three seconds.
_CLIMB_MOVES, _CLIMB_WORK = 50, 2e8
#: Seconds for one relaxation; doubled when it was not enough to find anything.
_ROUND_SECONDS = 6.0
#: While the gap is wide, a rough answer (this fraction of the gap) and the next round bring more than an exact one.
_ROUGH = 0.1
#: A gap at which better schedules are worth more time than better bounds; and one that the next relaxations will hardly close.
_LOOSE, _FAR = 0.01, 0.03
#: Nested checkpointing is tried while the gap is loose: once for each of these numbers of ops per segment (and kinds of cuts, see
#: segments.py, the tail as a share of the room), with so many segments at least and at most, for this share of the time limit.
_NESTS = ((25, False, 1.0), (25, False, 1.5), (50, False, 0.0), (340, False, 0.0), (25, True, 0.0), (25, False, 0.0))
_FEWEST_SEGMENTS, _MOST_SEGMENTS, _NEST_SHARE = 4, 100, 0.25
#: Share of the time limit for the bound from prices.
_FOREST_SHARE = 0.3
#: The nested bound is tried for these cuts, the better ones first: every so many of the places to cut at, the first few left out.
_CUTS = ((2, 1), (1, 0), (2, 0), (4, 1))
#: The better of the first two is tried again with so many prices; and the share of the time limit for all.
_MORE_PRICES, _NEST_BOUND_SHARE = 108, 0.4
#: With more ops, relaxations with many snapshots are too hard, however narrow the gap is.
_HARD_OPS = 2000
#: Rounds spent on improving a schedule that is within the gap already, each of at most this many seconds.
_POLISH_ROUNDS, _POLISH_SECONDS = 2, 1.0
#: Fractions of the violation by which the budget is lowered to read feasible schedules off the relaxation.
_MARGINS = (0.35, 0.7, 1.0, 1.3)


def auto(search: Search, rounds: int | None = None) -> None:
    """Proven near-optimal schedules; see the module's description. `rounds`: stop after that many, whatever the gap."""
    if not exact(search, FIRST if rounds is None else FIRST // 10):
        relaxations(search, rounds)


def relaxations(search: Search, rounds: int | None = None) -> None:
    """All but the exact search of small graphs."""
    if search.graph.num_ops > MANY_OPS:
        large(search)
    if search.graph.num_ops <= TOO_MANY_OPS and not search.closed():
        engine = _Auto(search, rounds)
        if not search.done():
            engine.run()
        engine.evict_late()


class _Auto:
    def __init__(self, search: Search, most_rounds: int | None):
        self.search, self.most_rounds = search, most_rounds
        # In a few rounds nothing is proven anyway.
        self.least_gap = 0.0 if most_rounds is None else 0.5 * search.gap
        self.graph = search.graph
        self.problem = problem_of(search.graph)
        self.relaxation = SnapshotRelaxation(self.problem)
        self.greedy = Greedy(self.problem, search.stopped)
        self.climb: Climb | None = None
        self.starts: list[Evaluation] = []  # schedules that have not been annealed yet
        self.winners: list[Evaluation] = []  # the best of those that have been
        self.moves, self.evicted = _CLIMB_MOVES, np.inf
        self.anneal = Anneal(self.problem, search.budget, "given", search.seed)
        self.anneal_moves = _ANNEAL_MOVES
        self.rng = np.random.default_rng(search.seed)
        self.parts = Parts(self.problem, self.relaxation, self.anneal, search)
        self.nests = list(_NESTS)
        self.menus: dict[object, Menu] = {}
        self.snapshots: set[int] = set()
        self.transients: set[tuple[int, int]] = set()
        self.windows = False
        self.hard = most_rounds is None and self.graph.num_ops > _HARD_OPS
        self.priced = False  # the bounds from prices are known
        self.outdone = False  # by them: relaxations have nothing more to say

    def run(self) -> None:
        self._consider(evaluate(self.graph, range(self.graph.num_ops)), "no recomputation")
        if self.search.done():
            return
        self.snapshots = {int(np.argmax(self.problem.profile))}
        seconds = _ROUND_SECONDS / 3 if self.hard else _ROUND_SECONDS
        additions, rounds, polish, rough = 4, 0, 0, _ROUGH
        failures = next_polish = 0
        while not self._finished(polish):
            if self.search.closed():
                polish, seconds, rough = polish + 1, _POLISH_SECONDS, 0.0
            if self.outdone and not self.search.closed():
                self._improve([], rounds)
                rounds += 1
                if rounds == 2 and exact(self.search, ALL):
                    return
                continue
            before = self.search.lower_bound
            stages = sorted(self.snapshots)
            relaxed = self._relax(self.search.budget, stages, seconds, rough)
            self.search.raise_bound(relaxed.bound, f"bound from {len(stages)} snapshots")
            if np.isinf(relaxed.bound):
                return
            behind = relaxed.bound < (1 - _LOOSE) * self.search.lower_bound
            self.outdone = behind and not relaxed.exact and rounds > 0 and self._loose()
            # Without window cuts most relaxations are solved sooner; those that are not solved have the better bound with them.
            self.windows ^= not relaxed.exact
            violating = self._decode(stages, relaxed)
            if not relaxed.exact and self.most_rounds is None and not self._loose(_FAR):
                self.parts.run(stages, self.transients)
            if rounds >= next_polish:
                cost = self.search.best_cost
                self._improve(violating, rounds)
                failures = 0 if self.search.best_cost < cost else failures + 1
                next_polish = rounds + 2**failures  # what brought nothing has less and less time to try again
            if rounds == 0 and self._impossible():
                return
            if not self.search.done() and not self.priced and self._loose(_LOOSE if rounds else _FAR):
                self.priced = True
                self._forest_bound()
                self._nest_bound()
            rounds += 1
            if self._finished(polish) or rounds == self.most_rounds or (rounds == 2 and exact(self.search, ALL)):
                return
            if violating and not self.search.closed():
                self._lower_budget(stages, max(found.peak for found in violating))
            if self.search.lower_bound - before < 0.5 * self.search.gap * before:
                additions = min(2 * additions, 32)
            if failures and not relaxed.exact and relaxed.bound < self.search.lower_bound:
                seconds *= 2  # with more snapshots the bound would only be worse
                continue
            if not self._refine(violating, additions) and not (self.search.closed() and polish == 0):
                if relaxed.exact and relaxed.retained is not None:
                    if rough == 0.0:
                        return  # the relaxation is as fine as it gets
                    rough = 0.0
                else:
                    seconds *= 2

    def _improve(self, violating: list[Evaluation], rounds: int) -> None:
        """Search for better schedules around those that are known."""
        # Most searches end within two rounds, without annealing and the seconds that compiling it takes the first time.
        if not self.search.done() and (rounds or self.hard or self._loose() or self.search.current_gap() > _WIDE):
            self._evict()
            self._anneal(violating, rounds)
        annealed = self.search.best_cost
        if not self.search.done():
            self._climb()
        if not self.search.done() and self._loose() and self.search.best_cost < annealed:
            self._anneal(violating, rounds)
        for _ in range(2 if rounds else 1):
            self._nest(_LOOSE if rounds else _FAR)

    def _finished(self, polish: int) -> bool:
        search = self.search
        if search.closed() and not search.interrupted and search.time_left() > 0 and search.target_cost is None:
            return polish >= _POLISH_ROUNDS or search.current_gap() <= max(0.02 * search.gap, OPTIMAL_GAP)
        return search.done()

    def _loose(self, gap: float = _LOOSE) -> bool:
        return self.most_rounds is None and self.search.current_gap() > gap

    def _consider(self, found: Evaluation, note: str) -> bool:
        if found.peak > self.search.budget:
            return False
        self.search.offer(found.sequence, found.cost, note)
        return True

    def _evict(self) -> None:
        """Greedy eviction, in all its settings."""
        if self.climb is not None:
            return
        self.climb = Climb(self.greedy, self.search.budget, self.search.seed)
        self.starts = self.climb.start(self.search.done)
        for one in self.starts:
            self._consider(one, "greedy eviction")
        self.evicted = min((one.cost for one in self.starts), default=np.inf)

    def evict_late(self) -> None:
        """Where time was over before any greedy eviction, as where there is none: a moment more brings a fair schedule."""
        search = self.search
        for setting in SETTINGS[:3] if self.climb is None and search.time_left() <= 0 else ():
            if not search.interrupted and not search.proven_infeasible and not search.closed():
                found = self.greedy.run(search.budget, setting, longest=8)
                if found is not None:
                    self._consider(found, "greedy eviction")

    def _evicts_well(self) -> bool:
        """On some graphs eviction is far from what annealing finds, and slow as well."""
        return self.evicted <= (1 + _WIDE) * self.search.best_cost

    def _climb(self) -> None:
        """Greedy eviction, and some more moves of the hill climb around it."""
        self._evict()
        assert self.climb is not None
        if not self._evicts_well():
            return
        # A number of moves and not of seconds, so that the same search takes the same turns.
        self.moves *= 8 if self._loose() else 2
        for _ in range(max(20, min(self.moves, int(_CLIMB_WORK / self.graph.num_ops**2)))):
            if self.search.done():
                return
            moved = self.climb.step()
            if moved is not None:
                self._consider(moved, "greedy eviction")

    def _anneal(self, violating: list[Evaluation], rounds: int) -> None:
        """A polish of the best schedule; without one, a repair of what comes nearest to the budget."""
        search = self.search
        most = int(_ANNEAL_WORK / (self.graph.num_ops + 100))
        moves = 3 * most // 4 if self._loose() or self.hard else min(self.anneal_moves, most)
        self.anneal_moves = min(_ANNEAL_GROWTH * self.anneal_moves, most)
        if search.best is None:
            self._anneal_afresh(violating, moves)
        if search.best is None:
            return
        # What the relaxation retains may fit if the group recomputes in another order: decoding knows but one.
        near = min(violating, key=lambda found: (found.cost, found.peak), default=None)
        if near is not None and near.cost < search.best_cost and search.current_gap() <= _WIDE:
            self._consider(self.anneal.run(near.sequence, moves, hot=POLISH_HEAT, stop=search.done), "annealing")
        if self._loose() or self.hard:
            self._compete(moves)
        else:
            self._polish(moves)
        if search.current_gap() > _WIDE and (rounds or not self._evicts_well()):
            self._anneal_afresh(violating, moves)
            self._polish(moves)

    def _polish(self, moves: int) -> None:
        if not self.search.done():
            assert self.search.best is not None
            self._anneal_all([self.search.best] * SIDE_BY_SIDE, moves, POLISH_HEAT)

    def _anneal_all(self, starts: Sequence[Sequence[int]], moves: int, heat: float) -> list[Evaluation]:
        """An annealing from each of them, side by side."""
        search = self.search

        def run(start: Sequence[int], seed: int) -> Evaluation:
            return self.anneal.run(start, moves, hot=heat, stop=search.done, rng=np.random.default_rng(seed))

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            found = list(pool.map(run, starts, self.rng.integers(2**31, size=len(starts)).tolist()))
        return [one for one in found if self._consider(one, "annealing")]

    def _anneal_afresh(self, violating: list[Evaluation], moves: int) -> None:
        """Where greedy eviction finds nothing, or nothing good, better starts are the plain order and what nearly fits."""
        starts: list[Sequence[int]] = [range(self.graph.num_ops)]
        if violating:
            starts.append(min(violating, key=lambda found: found.peak).sequence)
        for start in starts:
            if self.search.best is None or self.search.current_gap() > _WIDE:
                self._consider(self.anneal.run(start, _FRESH * moves, hot=HOT, stop=self.search.done), "annealing")

    def _compete(self, moves: int) -> None:
        """Short runs from good schedules, of which the best few go on: how well a run ends shows early, and is a matter of luck.

        At first from greedy eviction as it is: what hill climbing has made of it leads to worse ends, more often.
        """
        search = self.search
        assert search.best is not None
        field = [one for one in self.starts if one.cost <= (1 + _WIDE) * search.best_cost]
        field = field or [evaluate(self.graph, search.best), *self.winners]
        self.starts, before = [], np.inf
        while not search.done():
            starts = [field[number % len(field)].sequence for number in range(max(_RUNS, len(field)))]
            field = sorted(field + self._anneal_all(starts, moves, _MILD), key=lambda one: one.cost)[:_WINNERS]
            excess = field[0].cost - search.lower_bound
            if excess > _WORTH * before:
                break
            before = excess
        self.winners = field

    def _nest(self, gap: float) -> None:
        """Nested checkpointing: near the least memory it is far ahead of what eviction and annealing find."""
        if not self.nests or not self._loose(gap) or self.search.done():
            return
        search, (size, early, tail) = self.search, self.nests.pop(0)
        latest = search.seconds() + _NEST_SHARE * search.time_limit
        segments = min(self.graph.num_ops // size, _MOST_SEGMENTS)
        if segments < _FEWEST_SEGMENTS:
            return
        room = search.budget - self.graph.fixed_memory

        def late() -> bool:
            return search.done() or search.seconds() > latest

        nested = Nested(self.problem, auto, segments, room, search.seed, late, early, tail * room, self.menus)
        found = None if search.done() else nested.run(search.budget)
        if found is not None:
            self._consider(found, "nested checkpointing")

    def _impossible(self) -> bool:
        """Nothing found in a round: is there anything?"""
        search = self.search
        if search.best is not None or self.most_rounds is not None or search.done():
            return False
        least = least_peak_bound(self.problem, search.budget, search.done)
        if least > search.budget:
            search.prove_infeasible(f"a few values together need {least} bytes", "any")
        return search.proven_infeasible

    def _nest_bound(self) -> None:
        """What snapshots that follow one another cannot see: near the least memory much is recomputed more than once."""
        latest = self.search.seconds() + _NEST_BOUND_SHARE * self.search.time_limit
        cuts = [cut for cut in _CUTS if self._loose() and repeats(self.problem, *cut)]
        found = {cut: self._nested(cut, latest) for cut in cuts[:2] if self._loose()}
        if found and self._loose():
            self._nested(max(found, key=lambda cut: found[cut]), latest, _MORE_PRICES)
        for cut in cuts[2:]:
            if self._loose():
                self._nested(cut, latest)

    def _nested(self, cut: tuple[int, int], latest: float, multipliers: int = MULTIPLIERS) -> float:
        search, room = self.search, self.search.budget - self.graph.fixed_memory
        found = nested_bound(self.problem, room, *cut, lambda: search.done() or search.seconds() > latest, multipliers)
        search.raise_bound(found, "bound from nested snapshots")
        return found

    def _forest_bound(self) -> None:
        """What small programs with few snapshots cannot see, at many snapshots."""
        search, latest = self.search, self.search.seconds() + _FOREST_SHARE * self.search.time_limit
        lagrangian = LagrangianBound(self.problem, search.budget - self.graph.fixed_memory)
        while self._loose() and not lagrangian.exhausted and not search.done() and search.seconds() < latest:
            stages, retained = lagrangian.snapshots, lagrangian.step(search.done)
            search.raise_bound(lagrangian.bound, f"Lagrangian bound from {len(stages)} snapshots")
            if np.isinf(lagrangian.bound):
                return
            found = read_off(self.graph, stages, retained)
            violating = [one for one in found if not self._consider(one, "schedule from prices")]
            lagrangian.refine(violating)

    def _relax(self, budget: int, stages: list[int], seconds: float, rough: float) -> Relaxed:
        search = self.search
        start = None
        if search.best is not None:
            start = retained_by(self.graph, search.best, stages)
        return self.relaxation.solve(
            budget - self.graph.fixed_memory,
            stages,
            min(seconds, search.time_left()),
            gap=max(self.least_gap, min(max(1e-7, 0.2 * rough * search.gap, rough * search.current_gap()), 0.01)),
            seed=search.seed,
            stop=lambda bound: search.interrupted,
            start=start,
            transients=self.transients,
            windows=self.windows,
        )

    def _decode(self, stages: list[int], relaxed: Relaxed) -> list[Evaluation]:
        """Schedules read off a relaxation; those that break the budget are returned, and repaired."""
        if relaxed.retained is None:
            return []
        found = read_off(self.graph, stages, relaxed.retained)
        violating = [one for one in found if not self._consider(one, "schedule from the relaxation")]
        if violating:
            self._repair(stages, relaxed.retained)
        return violating

    def _repair(self, stages: list[int], retained: list[Bools]) -> None:
        for setting in SETTINGS[:3]:
            if self.search.done():
                return
            found = self.greedy.run(self.search.budget, setting, stages, retained)
            if found is not None:
                self._consider(found, "repaired schedule")

    def _lower_budget(self, stages: list[int], peak: int) -> None:
        """Relaxations at lower budgets often decode to schedules that fit: cheap upper bounds."""
        search = self.search
        excess = (peak - self.graph.fixed_memory) / (search.budget - self.graph.fixed_memory)
        for margin in _MARGINS:
            lower = self.graph.fixed_memory + int((search.budget - self.graph.fixed_memory) / min(excess, 2.0) ** margin)
            if lower < self.graph.min_working_set or search.done():
                return
            relaxed = self._relax(lower, stages, min(1.0, search.time_left() / 4), _ROUGH)
            if relaxed.retained is None or relaxed.cost >= search.best_cost:
                return
            found = read_off(self.graph, stages, relaxed.retained)
            better = [self._consider(one, "schedule from a lower budget") for one in found]
            if any(better):
                return
            self._repair(stages, relaxed.retained)

    def _refine(self, violating: list[Evaluation], additions: int) -> bool:
        """Limit memory where decoded schedules broke the budget: at stages, or at recomputations inside stages."""
        candidates: dict[int, float] = {}
        within: set[tuple[int, int]] = set()
        for found in violating:
            over = np.flatnonzero(found.stage_peaks > self.search.budget)
            for region in np.split(over, np.flatnonzero(np.diff(over) > 1) + 1):
                worst = int(region[np.argmax(found.own_peaks[region])])
                if found.own_peaks[worst] > self.search.budget and worst not in self.snapshots:
                    candidates[worst] = max(candidates.get(worst, 0.0), float(found.own_peaks[worst]))
                    continue
                worst = int(region[np.argmax(found.stage_peaks[region])])
                fresh = next((stage for stage in (worst, worst - 1) if stage > 0 and stage not in self.snapshots), None)
                if fresh is not None:
                    candidates[fresh] = max(candidates.get(fresh, 0.0), float(found.stage_peaks[worst]))
                elif found.peak_ops[worst] != worst:  # inside a stage that is a group of its own
                    within.add((worst, int(found.peak_ops[worst])))
        chosen = sorted(candidates, key=lambda stage: -candidates[stage])[:additions]
        self.snapshots.update(chosen)
        within -= self.transients
        self.transients |= within
        return bool(chosen or within)
