"""What the phases of the default method share: the search, its graph in the forms they need, the tuning, and how wide the gap is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..bounds.snapshot_relaxation import SnapshotRelaxation
from ..heuristics.annealing import Anneal
from ..heuristics.greedy_eviction import Greedy, Weights
from ..interface.running_search import Search
from ..interface.work_limits import annealing, eviction
from ..representation.decoding import Evaluation, retained_by
from ..representation.graph_arrays import Bools, problem_of
from .tuning import Tuning

#: Threads for what runs side by side: kernels and HiGHS do not hold the interpreter's lock.
SIDE_BY_SIDE = 2

#: The default method itself, for the segments of nested checkpointing: takes a search, and the rounds that it may take.
DefaultMethod = Callable[[Search, int], None]


class State:
    """One for each search.

    Attributes:
        most_rounds: the search ends after that many; None: it goes on until the gap is reached.
        capacity: the budget in bytes, without fixed memory.
        hard: relaxations with many snapshots are too hard.
    """

    def __init__(self, search: Search, most_rounds: int | None, tuning: Tuning):
        self.search, self.most_rounds, self.tuning = search, most_rounds, tuning
        self.graph = search.graph
        self.problem = problem_of(search.graph)
        self.capacity = search.budget - search.graph.fixed_memory
        self.relaxation = SnapshotRelaxation(self.problem)
        self.greedy = Greedy(self.problem, search.stopped)
        self.anneal = Anneal(self.problem, search.budget, "given", search.seed)
        self.rng = np.random.default_rng(search.seed)
        self.hard = most_rounds is None and self.graph.num_ops > tuning.relaxations.hard_ops

    def consider(self, found: Evaluation, note: str) -> bool:
        """Hand in a schedule; False if it breaks the budget."""
        if found.peak > self.search.budget:
            return False
        self.search.offer(found.sequence, found.cost, note)
        return True

    def start(self, snapshots: Sequence[int]) -> list[Bools] | None:
        """What the best schedule retains there, for a relaxation to begin with; None without one."""
        best = self.search.best
        return None if best is None else retained_by(self.graph, best, snapshots)

    def evict(
        self, setting: Weights, stages: Sequence[int] = (), retained: Sequence[Bools] = (), longest: int = 30
    ) -> Evaluation | None:
        """A pass of greedy eviction; see `Greedy.run`."""
        self.search.work.spend(eviction(self.graph.num_ops))
        return self.greedy.run(self.search.budget, setting, stages, retained, longest=longest)

    def anneal_from(self, start: Sequence[int], moves: int, hot: float) -> None:
        """An annealing, whose schedule is handed in."""
        self.search.work.spend(annealing(moves, self.graph.num_ops))
        self.consider(self.anneal.run(start, moves, hot=hot, stop=self.search.done), "annealing")

    def wider_than(self, gap: float) -> bool:
        """Whether there is more to close than that; in a search of a few rounds nothing is closed anyway."""
        return self.most_rounds is None and self.search.current_gap() > gap

    def loose(self) -> bool:
        """Whether better schedules are worth more time than better bounds."""
        return self.wider_than(self.tuning.gaps.loose)
