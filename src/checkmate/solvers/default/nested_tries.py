"""Nested checkpointing, once for each of several ways to cut the graph: near the least memory it is far ahead of other searches."""

from __future__ import annotations

from ..heuristics.nested_checkpointing import Nested, SegmentOptions
from .common_state import DefaultMethod, State


class NestedCheckpointing:
    """What is left to try in one search.

    Args:
        solve_segment: the default method, for graphs of a few dozen ops.
    """

    def __init__(self, state: State, solve_segment: DefaultMethod):
        self.state, self.solve_segment, self.numbers = state, solve_segment, state.tuning.nested
        self._cuts = list(self.numbers.cuts)
        self._known: dict[object, SegmentOptions] = {}

    def run(self, gap: float) -> None:
        """The next try, while the gap is wider than that."""
        state, search, numbers = self.state, self.state.search, self.numbers
        if not self._cuts or not state.wider_than(gap) or search.done():
            return
        size, early, tail = self._cuts.pop(0)
        segments = min(state.graph.num_ops // size, numbers.most)
        if segments < numbers.fewest:
            return
        limit = state.capacity
        nested = Nested(
            state.problem,
            self.solve_segment,
            segments,
            limit,
            search.seed,
            search.limits(numbers.share),
            early,
            tail * limit,
            self._known,
            numbers.numbers,
        )
        found = None if search.done() else nested.run(search.budget)
        if found is not None:
            state.consider(found, "nested checkpointing")
