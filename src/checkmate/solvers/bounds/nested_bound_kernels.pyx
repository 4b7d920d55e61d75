"""The inside of nested_snapshot_bound.py: runs of blocks."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t

import numpy as np

#: What a block may hold of its big values: none, a single one that is not large or that is, or more.
cpdef enum:
    NONE, SMALL, LARGE, MORE


def runs(
    int64_t begin,
    int64_t end,
    int64_t limit,
    const int64_t[:, ::1] shares,
    const double[:, ::1] cost,
    const double[::1] forced,
    const int64_t[::1] lowest,
    const int64_t[::1] deadline,
    const uint8_t[::1] single,
    const double[:, :, ::1] nested,
    const double[:, ::1] holding,
):
    """Least cost of blocks begin + 1, ..., end - 1: which are not empty, with at most `limit` shares of big values held in all.

    Args:
        shares: of the big values held, per kind (from SMALL on) and block. holding: cost of their bytes.
        cost: of each block by itself, per kind (from NONE on).
        forced: cumulative cost of the chains. lowest: per block, the lowest one that its output takes with it.
        deadline, single: see `_Layout`. nested: see `_Nesting`.
    """
    cdef double[::1] plain = np.zeros(end)
    cdef int64_t block, low, high, top, last, held, kind, more
    cdef double least = INFINITY, run, nest, value, total = 0.0
    for block in range(begin + 1, end):
        plain[block] = cost[0, block]
    for block in range(end):
        total += plain[block]
        plain[block] = total
    # best[b, u]: of blocks up to b, which is not empty, or is `begin`, with u shares held.
    cdef double[:, ::1] best = np.full((end, limit + 1), np.inf)
    best[begin, 0] = 0.0
    for low in range(begin, end):
        for high in range(low + 1, end + 1):
            # Blocks low + 1, ..., high - 1 are empty.
            top = high - 1
            run = plain[top] - plain[low]
            if top > low and deadline[top] >= 0:
                last = max(low, lowest[top - 1] - 1) if top - 1 > low else low
                nest = forced[top - 1] - forced[last] + nested[0, last, top] + plain[last] - plain[low]
                run = max(run, nest)
            if high == end:
                for held in range(limit + 1):
                    least = min(least, best[low, held] + run)
                continue
            for kind in range(SMALL, MORE + 1):
                value = run + cost[kind, high]
                if kind < MORE and single[high] and deadline[high] >= 0:
                    last = max(low, lowest[top] - 1) if top > low else low
                    nest = forced[top] - forced[last] + nested[kind, last, high] + plain[last] - plain[low]
                    value = max(value, nest + holding[kind - 1, high])
                more = shares[kind - 1, high]
                for held in range(limit + 1 - more):
                    best[high, held + more] = min(best[high, held + more], best[low, held] + value)
    return least
