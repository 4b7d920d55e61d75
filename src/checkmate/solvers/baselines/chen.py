"""Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016, arXiv:1604.06174): equal and greedy segments.

Both are made for chains. On general graphs the candidates are the articulation points of the forward graph (`-ap`, and what
the plain names do), or all of its ops, as if it were a chain (`-linear`), as in Jain et al., MLSys 2020, Section 6.1.
They do not aim at a budget and prove no bound: what they make either fits or does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ...schedule import simulate
from ..interface.running_search import Search
from .checkpoints import Forward

#: Segment sizes that the greedy rule is tried with, as multiples of the peak of the equal segments: 0, 0.05, ..., 2.95.
_SWEEP = [0.05 * step for step in range(60)]


def chen_sqrt(search: Search) -> None:
    """Among k articulation points, every int(sqrt(k))-th is a checkpoint."""
    forward = Forward(search.graph)
    _offer(search, forward, _every_root(forward.articulation_points))


def chen_sqrt_linear(search: Search) -> None:
    """Every int(sqrt(n))-th of the n forward ops is a checkpoint."""
    forward = Forward(search.graph)
    _offer(search, forward, _every_root(range(forward.num_ops)))


def chen_greedy(search: Search) -> None:
    """Segments end at the first articulation point at which they pass a size; the cheapest size that fits."""
    _greedy(search, lambda forward: forward.articulation_points)


def chen_greedy_linear(search: Search) -> None:
    """Segments end at the first forward op at which they pass a size; the cheapest size that fits."""
    _greedy(search, lambda forward: range(forward.num_ops))


def _every_root(candidates: Iterable[int]) -> list[int]:
    points = list(candidates)
    length = max(1, math.isqrt(len(points)))
    return points[length - 1 :: length]


def _greedy(search: Search, candidates_of: Callable[[Forward], Iterable[int]]) -> None:
    forward = Forward(search.graph)
    candidates = set(candidates_of(forward))
    reference = _offer(search, forward, _every_root(range(forward.num_ops)), only_measure=True)
    seen: set[tuple[int, ...]] = set()
    for share in _SWEEP:
        if reference is None or search.done():
            return
        checkpoints: list[int] = []
        filled = 0
        for index in range(forward.num_ops):
            filled += sum(search.graph.values[value].size for value in search.graph.ops[index].outputs)
            if index in candidates and filled > share * reference:
                checkpoints.append(index)
                filled = 0
        if tuple(checkpoints) not in seen:
            seen.add(tuple(checkpoints))
            _offer(search, forward, checkpoints)


def _offer(search: Search, forward: Forward, checkpoints: list[int], only_measure: bool = False) -> int | None:
    """Hand in the schedule of these checkpoints if it fits; returns its peak without fixed memory."""
    steps = forward.checkpointed(checkpoints).steps(lambda: search.interrupted or search.time_left() <= 0)
    if steps is None:
        return None
    trace = simulate(search.graph, steps)
    if not only_measure and trace.peak <= search.budget:
        search.offer_steps(steps, trace.cost, f"{len(checkpoints)} checkpoints")
    return trace.peak - search.graph.fixed_memory
