"""The inside of lagrangian_bound.py: dynamic programming over a forest of values."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t

import numpy as np


def solve(
    const int64_t[::1] first,
    const int64_t[::1] width,
    const double[::1] cost,
    const int64_t[::1] parent,
    const int64_t[::1] pointers,
    const int64_t[::1] children,
    const int64_t[::1] offsets,
    const double[:, ::1] holding,
    const uint8_t[:, ::1] used,
    double[::1] recomputed,
    double[::1] needed,
):
    """Least cost of recomputing and holding; and which values are held then at each snapshot.

    Args:
        holding: cost of holding each value at each snapshot. used: per group and value, whether an op that first runs there reads it.
        recomputed, needed: tables to fill: per value and set of groups (bits) the least cost if it is recomputed, or needed, in those.
    """
    cdef double total = _fill_tables(first, width, cost, parent, pointers, children, offsets, holding, used, recomputed, needed)
    return total, _read_off(first, width, parent, offsets, holding, used, recomputed)


cdef double _fill_tables(
    const int64_t[::1] first,
    const int64_t[::1] width,
    const double[::1] cost,
    const int64_t[::1] parent,
    const int64_t[::1] pointers,
    const int64_t[::1] children,
    const int64_t[::1] offsets,
    const double[:, ::1] holding,
    const uint8_t[:, ::1] used,
    double[::1] recomputed,
    double[::1] needed,
) except? -1.0:
    """From the leaves to the roots; returns the least cost of all roots together. The arguments are those of `solve`."""
    cdef int64_t count = first.shape[0], i, k, x, size, groups, left, child, shift, within, bit, group
    cdef double total = 0.0, sum_, there, later, missing
    cdef double *own
    cdef double *absent
    cdef double *present
    cdef const double *below
    cdef int64_t widest = 0
    for i in range(count):
        widest = max(widest, width[i])
    cdef double[::1] space = np.zeros(<int64_t>1 << widest)
    present = &space[0]
    for i in range(count):
        size = <int64_t>1 << width[i]
        own, absent = &recomputed[offsets[i]], &needed[offsets[i]]
        for groups in range(size):
            sum_ = 0.0
            left = groups
            while left:
                sum_ += cost[i]
                left &= left - 1
            own[groups] = sum_
        for x in range(pointers[i], pointers[i + 1]):
            child = children[x]
            shift, within = first[i] - first[child], (<int64_t>1 << width[child]) - 1
            below = &needed[offsets[child]]
            for groups in range(size):
                own[groups] += below[(groups << shift) & within]
        # Group after group, the bit for what it recomputes becomes the bit for whether the value is needed in it. Absent and
        # present: whether the value is held at the snapshot before the group.
        for groups in range(size):
            absent[groups] = own[groups]
            present[groups] = own[groups] + holding[first[i], i]
        for k in range(width[i]):
            bit, group = <int64_t>1 << k, first[i] + k
            later = holding[group + 1, i] if k + 1 < width[i] else INFINITY
            for groups in range(size):
                if not groups & bit:
                    missing = absent[groups]
                    there = min(present[groups], absent[groups | bit], present[groups | bit])
                    absent[groups] = there if used[group, i] else min(there, missing)
                    absent[groups | bit] = there
                    present[groups] = present[groups | bit] = there + later
        if parent[i] < 0:
            total += absent[0]
    return total


cdef object _read_off(
    const int64_t[::1] first,
    const int64_t[::1] width,
    const int64_t[::1] parent,
    const int64_t[::1] offsets,
    const double[:, ::1] holding,
    const uint8_t[:, ::1] used,
    const double[::1] recomputed,
):
    """From the roots to the leaves: what is held at each snapshot at the least cost. The arguments are those of `solve`."""
    cdef int64_t count = first.shape[0], i, k, above, groups
    cdef int64_t[::1] chosen = np.zeros(count, np.int64)
    cdef double least, sum_
    cdef bint needed
    result = np.zeros((holding.shape[0], holding.shape[1]), np.bool_)
    cdef uint8_t[:, ::1] held = result
    for i in range(count - 1, -1, -1):
        above = 0
        if parent[i] >= 0:
            above = chosen[parent[i]] << (first[parent[i]] - first[i])
        least = INFINITY
        for groups in range(<int64_t>1 << width[i]):
            sum_, needed = recomputed[offsets[i] + groups], False
            for k in range(width[i] - 1, -1, -1):
                if sum_ >= least:
                    break
                needed = not (groups >> k & 1) and (needed or used[first[i] + k, i] or (above >> k & 1) == 1)
                if needed:
                    sum_ += holding[first[i] + k, i]
            if sum_ < least:
                least, chosen[i] = sum_, groups
        needed = False
        for k in range(width[i] - 1, -1, -1):
            needed = not (chosen[i] >> k & 1) and (needed or used[first[i] + k, i] or (above >> k & 1) == 1)
            held[first[i] + k, i] = needed
    return result
