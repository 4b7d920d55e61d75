"""A lower bound on the peak of every schedule: which few values can be resident together, and at what peak.

When some values are resident together, one of them was computed last. While it was, the others and all that its op reads were
resident, and just before it they were resident together. So the least peak at which a set of values can be resident together is
at least, for the best choice of the one computed last, the memory of that computation, and the same for what had to be resident
before: a smaller set in the order of the graph. A dynamic program over all sets of at most k values finds it (larger sets are
counted as the worst of their parts), and with it the least peak of each op. The argument is that of pebble games
(Sethi, 1975); it allows every recomputation and every order that the dependencies allow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np

from ..representation.graph_arrays import Floats, Ints, Problem
from .peak_kernels import fill, of_ops

#: Sizes of sets; and most sets, a few seconds. Inputs of an op that are looked at, largest first.
_FEWEST, _MOST, _MOST_SETS, _MOST_INPUTS = 3, 4, 8_000_000, 8
#: Sets between two looks at the clock.
_SETS = 200_000


def least_peak_bound(problem: Problem, peak: int, stop: Callable[[], bool] = lambda: False) -> int:
    """Bytes (fixed memory included) that every schedule needs at its peak, in any order of first computations.

    Args:
        peak: bytes of a known schedule, or a budget: nothing above is of interest. One byte more is returned if no schedule
            exists within it.
        stop: True gives up; then the bound is that of single ops.
    """
    graph = problem.graph
    if stop():
        return graph.min_working_set
    most, alone = peak - graph.fixed_memory, graph.min_working_set - graph.fixed_memory
    values = np.flatnonzero(problem.size > 0)
    # In the order in which they are computed first, so that what had to be there before comes before.
    values = values[np.argsort(problem.producer[values], kind="stable")]
    size = next((k for k in range(_MOST, _FEWEST, -1) if comb(len(values) + k, k) <= _MOST_SETS), _FEWEST)
    while comb(len(values) + size, size) > _MOST_SETS:  # of many, the largest
        values = values[np.sort(np.argsort(-problem.size[values], kind="stable")[: int(0.95 * len(values))])]
    # Members 0, ..., size - 1 fill up smaller sets.
    place = np.full(graph.num_values, -1)
    place[values] = np.arange(len(values)) + size
    producer = np.concatenate([np.full(size, -1), problem.producer[values]])
    read, ops = problem.edges
    read, ops = read[place[read] >= 0], ops[place[read] >= 0]
    touched = np.zeros((graph.num_ops, len(producer)), np.bool_)
    touched[ops, place[read]] = True
    touched[problem.producer[values], place[values]] = True
    # The end is one more op, which reads what is kept.
    kept = np.flatnonzero(problem.keep & (place >= 0))
    reads = _largest(
        place, problem.size, np.append(read, kept), np.append(ops, np.full(len(kept), graph.num_ops)), graph.num_ops + 1
    )

    need = np.append(problem.working_set, problem.size[problem.keep].sum())
    binomial = np.array([[comb(n, k) for k in range(size + 1)] for n in range(len(producer) + 1)])
    least = np.full(int(binomial[-1, size]), np.inf)
    current = np.arange(size)
    sizes = np.concatenate([np.zeros(size), problem.size[values]])
    for first in range(0, len(least), _SETS):
        if stop():
            return graph.min_working_set
        count = min(_SETS, len(least) - first)
        fill(least, first, count, current, binomial, sizes, producer, need, reads, touched, most)
    return graph.fixed_memory + int(min(most + 1, max(alone, of_ops(least, binomial, need, reads))))


def _largest(place: Ints, size: Floats, read: Ints, ops: Ints, count: int) -> Ints:
    """Per op the places of the largest values that it reads, ascending; -1 closes a row. The reads come by op."""
    order = np.lexsort((-size[read], ops))
    rank = np.arange(len(ops)) - np.searchsorted(ops, ops)
    chosen = order[rank < _MOST_INPUTS]
    reads = np.full((count, _MOST_INPUTS), -1)
    rows, found = ops[chosen], place[read[chosen]]
    order = np.lexsort((found, rows))
    reads[rows, rank[rank < _MOST_INPUTS]] = found[order]
    return reads
