"""From what is retained between stages to a schedule: the second phase of two-phase rounding, and of every baseline.

Given S (which values are live when each stage begins), the cheapest R (which ops are computed in each stage) follows: what
a stage uses, or hands on, and does not have is computed in it, in graph order (Jain et al., MLSys 2020, Section 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...graph import Graph
from ...schedule import Compute, Free, Step
from .graph_arrays import Bools


class Retention:
    """Which values are retained into which stages, as intervals; stage n stands for the end of the schedule.

    Kept values are retained to the end, and values of ops that must not be recomputed for as long as anything may read
    them, whatever is added.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        n = graph.num_ops
        self._begin: list[list[int]] = [[] for _ in range(n + 2)]  # per stage the values whose interval begins there
        self._end: list[list[int]] = [[] for _ in range(n + 2)]  # ... or ended just before
        for v, value in enumerate(graph.values):
            if value.keep:
                self.add(v, 0, n)
            elif not graph.ops[graph.producer[v]].recomputable:
                self.add(v, 0, n - 1)

    def add(self, value: int, first: int, last: int) -> None:
        """Retain the value into stages first to last, as far as it exists by then; intervals may overlap."""
        first, last = max(first, self.graph.producer[value] + 1), min(last, self.graph.num_ops)
        if first <= last:
            self._begin[first].append(value)
            self._end[last + 1].append(value)

    @classmethod
    def from_matrix(cls, graph: Graph, retained: Bools) -> Retention:
        """From S as an array of shape (stages, values): n stages, or n + 1 with the end."""
        result = cls(graph)
        padded = np.zeros((retained.shape[0] + 2, retained.shape[1]), np.int8)
        padded[1:-1] = retained
        change = np.diff(padded, axis=0)
        for value in range(retained.shape[1]):
            begins, ends = np.flatnonzero(change[:, value] > 0), np.flatnonzero(change[:, value] < 0)
            for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
                result.add(value, first, last - 1)
        return result

    def _stages(self) -> Iterator[tuple[set[int], list[int], list[int]]]:
        """Per stage: the values retained into it, those new in the next stage, and those not retained into the next."""
        count = [0] * self.graph.num_values
        current: set[int] = set()
        for stage in range(self.graph.num_ops):
            fresh: list[int] = []
            stale: list[int] = []
            for value in self._begin[stage + 1]:
                count[value] += 1
            for value in self._end[stage + 1]:
                count[value] -= 1
            for value in {*self._begin[stage + 1], *self._end[stage + 1]}:
                if count[value] and value not in current:
                    fresh.append(value)
                elif not count[value] and value in current:
                    stale.append(value)
            yield current, fresh, stale
            current.update(fresh)
            current.difference_update(stale)

    def sequence(self, stop: Callable[[], bool] = lambda: False) -> list[int] | None:
        """The op sequence; None if `stop` said so."""
        result: list[int] = []
        for stage, (current, fresh, _) in enumerate(self._stages()):
            if stage % 64 == 63 and stop():
                return None
            result.extend(self._computed(stage, current, fresh))
        return result

    def steps(self, stop: Callable[[], bool] = lambda: False) -> list[Step] | None:
        """The schedule that retains to the letter, used or not, and frees the rest after its last use in the stage.

        None if `stop` said so.
        """
        graph = self.graph
        result: list[Step] = []
        for stage, (current, fresh, stale) in enumerate(self._stages()):
            if stage % 64 == 63 and stop():
                return None
            ops = self._computed(stage, current, fresh)
            handed_on = set(fresh)
            gone = set(stale)
            last: dict[int, int] = {}
            for op in ops:
                for value in (*graph.ops[op].inputs, *graph.ops[op].outputs):
                    last[value] = op
            result.extend(Free(value) for value in stale if value not in last)
            for op in ops:
                result.append(Compute(op))
                result.extend(
                    Free(value)
                    for value in dict.fromkeys((*graph.ops[op].inputs, *graph.ops[op].outputs))
                    if last[value] == op and value not in handed_on and (value in gone or value not in current)
                )
        return result

    def _computed(self, stage: int, current: set[int], fresh: list[int]) -> list[int]:
        """The ops of one stage, ascending."""
        graph = self.graph
        ops = {stage}
        stack = [stage]
        for value in fresh:
            origin = graph.producer[value]
            if origin not in ops:
                ops.add(origin)
                stack.append(origin)
        while stack:
            for value in graph.ops[stack.pop()].inputs:
                origin = graph.producer[value]
                if value not in current and origin not in ops:
                    ops.add(origin)
                    stack.append(origin)
        return sorted(ops)
