"""The tail bound in a search: where the tail begins, and what the time before it costs at least."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...float_rounding import summation_error
from ...graph import Graph
from ..bounds.tail_bound import Tail
from ..interface.running_search import Progress, Search
from .common_state import State

_SOURCE = "bound of the tail"


class TailPhase:
    """Once for each search.

    Args:
        solve_before: the default method without this phase, for the graph that ends where the tail begins.
    """

    def __init__(self, state: State, solve_before: Callable[[Search], None]):
        self.state, self.solve_before, self.numbers = state, solve_before, state.tuning.tails

    def run(self) -> None:
        """The bound of a tail, and what comes before it counted once; if that is better than all else, the bound of what comes before."""
        state, search = self.state, self.state.search
        if not self.numbers.share or not state.wider_than(state.tuning.gaps.far) or search.done():
            return
        tail = self._chosen()
        if tail is None or search.done():
            return
        cost = tail.bound(search.work, search.done)
        if cost == math.inf:
            search.prove_infeasible(_SOURCE)
            return

        def bounded(before: float) -> None:
            total = before + cost
            search.raise_bound(total - summation_error(state.graph.num_ops, total), _SOURCE)

        bounded(float(state.problem.cost[: tail.after + 1].sum()))
        if search.bound_source == _SOURCE and not search.done():
            self._bound_before(tail.before(), bounded)

    def _bound_before(self, graph: Graph, bounded: Callable[[float], None]) -> None:
        search = self.state.search

        def progress(found: Progress) -> None:
            bounded(found.lower_bound)
            if search.done():
                inner.time_limit = 0.0

        work = search.limits(self.numbers.share).work
        inner = Search(graph, search.budget, "given", search.time_left(), search.gap, search.seed, progress, work=work)
        with inner.catching_interrupts():
            self.solve_before(inner)
        search.interrupted |= inner.interrupted
        if inner.proven_infeasible:
            search.prove_infeasible("what comes before the tail")

    def _chosen(self) -> Tail | None:
        """The shortest tail in which nearly as much is computed again as in any."""
        state, numbers = self.state, self.numbers
        first, last = state.graph.num_ops // 2, state.graph.num_ops - 1

        def again(after: int) -> float:
            tail = Tail(state.problem, state.capacity, after)
            return tail.glance(state.search.work) - tail.ideal_cost

        begins = sorted({first + (last - first) * part // numbers.begins for part in range(numbers.begins)})
        found = {after: again(after) for after in begins if not state.search.done()}
        most = max(found.values(), default=0.0)
        if most < numbers.least * state.graph.ideal_cost:
            return None
        low = max(after for after in found if found[after] >= numbers.near * most)
        high = min((after for after in begins if after > low), default=last)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if again(middle) >= numbers.near * most else (low, middle)
        return Tail(state.problem, state.capacity, low)
