"""Schedules that may also reorder ops: dependencies are kept, and forward ops stay before backward ops.

First the order alone is searched for one that fits without recomputation. Then comes the best schedule in the given order, and
annealing over sequences from there and from the order of lowest peak, in rounds of growing length.

The bounds of the given order say nothing about other orders: what is proven comes from single moments (cut_bound.py) and, for small graphs,
from the exact search (best_first_search.py).
"""

from __future__ import annotations

from ...schedule import OPTIMAL_GAP
from ..bounds.cut_bound import Cut, CutBound
from ..exact.best_first_search import ALL, FIRST, exact
from ..heuristics.annealing import COLD, HOT, POLISH_HEAT, Anneal
from ..interface.running_search import Search
from ..interface.work_limits import annealing
from ..representation.decoding import Evaluation, evaluate
from ..representation.graph_arrays import problem_of
from .auto import auto
from .tuning import TUNING, Tuning


def any_order(search: Search, tuning: Tuning = TUNING) -> None:
    """See the module's description."""
    _AnyOrder(search, tuning).run()


class _AnyOrder:
    def __init__(self, search: Search, tuning: Tuning):
        self.search, self.tuning, self.numbers = search, tuning, tuning.any_order
        self.graph = search.graph
        self.anneal = Anneal(problem_of(search.graph), search.budget, "any", search.seed)

    def run(self) -> None:
        search, graph = self.search, self.graph
        self._consider(evaluate(graph, range(graph.num_ops)), "no recomputation")
        if search.done() or exact(search, FIRST):
            return
        self._cuts()
        moves = self._moves(self.numbers.order_moves)
        search.work.spend(annealing(moves, graph.num_ops))
        low = self.anneal.run(range(graph.num_ops), moves, shifts_only=True, stop=search.done)
        self._consider(low, "order without recomputation")
        if not self._over():
            moves = self._moves(self.numbers.round_moves)
            search.work.spend(annealing(moves, graph.num_ops))
            self._consider(self.anneal.run(low.sequence, moves, stop=self._over), "annealing")
        if not self._over():
            self._given_order()
        if not self._over():
            exact(search, ALL)
        self._rounds(low)

    def _cuts(self) -> None:
        """Bounds from the moments at which most is needed, by linear programs, and by an integer program where that was most."""
        search, graph, numbers = self.search, self.graph, self.numbers
        if graph.num_ops > numbers.cut_ops:
            return
        cuts, capacity = CutBound(problem_of(graph)), float(search.budget - graph.fixed_memory)
        best = (0.0, -1)
        for op in cuts.tightest(capacity, numbers.cuts):
            if search.done():
                return
            found = cuts.relax(capacity, op, search.time_left(), search.done)
            self._bounded(found)
            best = max(best, (found.bound, op))
        if best[1] >= 0 and not search.done():
            units = numbers.cut_share * search.time_limit
            self._bounded(cuts.solve(capacity, best[1], search.time_left(), search.gap / 10, search.seed, search.done, units))

    def _bounded(self, found: Cut) -> None:
        self.search.work.spend(found.work)
        self.search.raise_bound(found.bound, "bound from what is in memory at one moment", "any")

    def _moves(self, per_op: int) -> int:
        return max(self.numbers.least_moves, min(self.numbers.most_moves, per_op * self.graph.num_ops))

    def _consider(self, found: Evaluation, note: str) -> None:
        if found.peak <= self.search.budget:
            self.search.offer(found.sequence, found.cost, note)

    def _given_order(self) -> None:
        """The default method on a search of its own: its bound and its proofs hold for the given order only."""
        search, graph = self.search, self.graph
        work = search.work.part(self.numbers.given_share * search.time_limit)
        inner = Search(graph, search.budget, "given", search.time_left(), search.gap, search.seed, work=work)
        with inner.catching_interrupts():
            auto(inner, tuning=self.tuning)
        search.interrupted |= inner.interrupted
        if inner.best is not None:
            search.offer(inner.best, inner.best_cost, "given order")

    def _rounds(self, low: Evaluation) -> None:
        search = self.search
        moves, idle, number, rate = self._moves(self.numbers.round_moves), 0, 0, 0.0
        # What is within the gap is polished too, for one round.
        while not self._over() and idle < (1 if search.closed() else self.numbers.patience):
            before, began = search.best_cost, search.seconds()
            # A run that the time limit cuts short ends hot and in vain. This matters for what the clock ends anyway.
            if rate:
                moves = max(1000, min(moves, int(0.9 * rate * search.time_left())))
            polish = search.best is not None and number % 2 == 1
            start = search.best if search.best is not None and (polish or search.closed()) else low.sequence
            search.work.spend(annealing(moves, self.graph.num_ops))
            hot = HOT if number % 4 == 2 else POLISH_HEAT  # from the low order both heats: neither is always better
            self._consider(self.anneal.run(start, moves, hot, COLD, stop=self._over), "annealing")
            rate = moves / max(1e-6, search.seconds() - began)
            idle = 0 if search.best_cost < before - self.numbers.progress * self.graph.ideal_cost else idle + 1
            moves, number = int(self.numbers.growth * moves), number + 1

    def _over(self) -> bool:
        search = self.search
        return search.stopped() or search.current_gap() <= OPTIMAL_GAP
