"""Revolve: the least number of forward steps that reverse a chain with s checkpoints.

Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS, 2000): with s checkpoints, of which the input of the chain is one,
and at most r repeats of any step, chains of up to binomial(s + r, s) steps can be reversed. The steps are taken to cost, and
the states to take, the same: revolve knows neither the cost nor the memory of ops. It is computed here by its recurrence.

The chain is that of the articulation points of the forward graph (on a chain network: all of its ops); what lies between two
of them is one step, computed as a whole when the backward pass arrives at it, and kept until it leaves. The numbers of
checkpoints are tried in turn, and the cheapest schedule that fits is offered. It proves no bound.
"""

from __future__ import annotations

from functools import cache
from math import comb

from ..interface.running_search import Search
from ..representation.decoding import evaluate
from ..representation.retention import Retention
from .checkpoints import Forward

#: Numbers of checkpoints that are tried on long chains: all up to here, then in growing steps.
_EVERY = 32


def griewank(search: Search) -> None:
    """Revolve over the articulation points, for every sensible number of checkpoints."""
    chain = _Chain(Forward(search.graph))
    slots = 0
    while slots <= len(chain.points) and not search.done():
        retention = chain.retention(slots)
        sequence = retention.sequence(lambda: search.interrupted or search.time_left() <= 0)
        if sequence is not None:
            found = evaluate(search.graph, sequence)
            if found.peak <= search.budget:
                search.offer(found.sequence, found.cost, f"revolve with {slots} checkpoints")
        slots += 1 if slots < _EVERY else max(1, slots // 16)


def least_steps(length: int, slots: int) -> int:
    """Forward steps that it takes to be in front of every step of a chain once, from the last to the first.

    The state before the first step is given and stays; a slot holds one more. With `length` - 1 slots as many steps do.
    t(l, s) = min over m of m + t(l - m, s - 1) + t(m, s), t(l, 0) = l (l - 1) / 2, t(1, s) = 0. In closed form: with s' = s + 1 checkpoints, r l - binomial(s' + r, r - 1) for the least r with binomial(s' + r, s') >= l.
    """
    if length <= 1:
        return 0
    checkpoints, repeats = slots + 1, 0
    while comb(checkpoints + repeats, checkpoints) < length:
        repeats += 1
    return repeats * length - comb(checkpoints + repeats, repeats - 1)


@cache
def first_checkpoint(length: int, slots: int) -> int:
    """How far to advance before the first checkpoint is placed (`slots` >= 1, `length` >= 2); the least of the best."""
    return min(range(1, length), key=lambda m: (m + least_steps(length - m, slots - 1) + least_steps(m, slots), m))


class _Chain:
    """The forward pass as a chain of steps: step j starts at the j-th articulation point (step 0 at the input)."""

    def __init__(self, forward: Forward):
        self.graph, self.forward = forward.graph, forward
        self.points = forward.articulation_points
        self._segments = list(zip([0, *self.points], [*self.points, forward.backward_begin], strict=True))
        self._intervals = forward.backward_intervals(self._segments)

    def retention(self, slots: int) -> Retention:
        """What is retained with this many checkpoints beside the input of the step."""
        graph, begin = self.graph, self.forward.backward_begin
        retention = Retention(graph)
        for user, op in enumerate(graph.ops):
            for value in op.inputs:
                origin = graph.producer[value]
                retention.add(value, user if origin < begin <= user else origin + 1, user)
        last = len(self._segments) - 1
        for step, ((start, end), (arrives, leaves)) in enumerate(zip(self._segments, self._intervals, strict=True)):
            for index in range(start, end):
                for value in graph.ops[index].outputs:
                    retention.add(value, index + 1 if step == last else arrives, leaves)
            if step < last:  # the backward pass also reads what the step ends with
                for value in graph.ops[end].outputs:
                    reads = [user for user in range(arrives, leaves + 1) if value in graph.ops[user].inputs]
                    retention.add(value, arrives, max(reads, default=-1))
        for step, after in self._checkpoints(slots):
            point = self.points[step - 1]
            # Placed in the first sweep, or when the backward pass is done with all that comes after the stretch.
            placed = point + 1 if after > last else self._arrival(after - 1)
            for value in graph.ops[point].outputs:
                retention.add(value, placed, max(self._intervals[step][1], point + 1))
        return retention

    def _checkpoints(self, slots: int) -> list[tuple[int, int]]:
        """Every checkpoint: (the step that starts with it, the end of the stretch of steps that it was placed for)."""
        found = []
        stack = [(0, len(self._segments), slots)]
        while stack:
            start, end, free = stack.pop()
            if end - start < 2 or free == 0:
                continue
            middle = start + first_checkpoint(end - start, free)
            found.append((middle, end))
            stack += [(middle, end, free - 1), (start, middle, free)]
        return found

    def _arrival(self, step: int) -> int:
        """The stage in which the backward pass arrives at this step, or at the next one before that has a backward pass."""
        while step > 0 and self._intervals[step][1] == 0:
            step -= 1
        return self._intervals[step][0]
