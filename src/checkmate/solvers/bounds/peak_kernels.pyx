"""The inside of peak_bound.py: its dynamic program."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t

from .subsets cimport advance

import numpy as np


def fill(
    double[::1] least,
    int64_t first,
    int64_t count,
    int64_t[::1] current,
    const int64_t[:, ::1] binomial,
    const double[::1] size,
    const int64_t[::1] producer,
    const double[::1] need,
    const int64_t[:, ::1] reads,
    const uint8_t[:, ::1] touched,
    double most,
):
    """The least peaks of `count` sets from the one numbered `first` on, `current`; inf if above `most`."""
    cdef int64_t k = current.shape[0], inputs = reads.shape[1], number, padding, x, y, op, length
    cdef double total, best, peak
    cdef int64_t[::1] before = np.zeros(k + inputs, np.int64), chosen = np.zeros(k, np.int64)
    cdef int64_t *members = &current[0]
    for number in range(first, first + count):
        padding, total = 0, 0.0
        while padding < k and members[padding] < k:
            padding += 1
        for x in range(padding, k):
            total += size[members[x]]
        # Smaller sets are filled up in one way only: with the first of the padding.
        if total <= most and (padding == 0 or members[padding - 1] == padding - 1):
            best = INFINITY if padding < k else 0.0
            for x in range(k - 1, padding - 1, -1):
                op = producer[members[x]]
                peak = need[op]
                for y in range(padding, k):
                    if producer[members[y]] != op and not touched[op, members[y]]:
                        peak += size[members[y]]
                if peak <= most and peak < best:
                    length = _before(members, k, padding, &producer[0], &reads[op, 0], inputs, op, &before[0])
                    best = min(best, _worst(&least[0], binomial, &before[0], length, &chosen[0], k, peak, best))
            least[number] = best
        advance(members, k)


def of_ops(const double[::1] least, const int64_t[:, ::1] binomial, const double[::1] need, const int64_t[:, ::1] reads):
    """The peak of the op that needs most."""
    cdef int64_t k = binomial.shape[1] - 1, op, length
    cdef int64_t[::1] chosen = np.zeros(k, np.int64)
    cdef double peak = 0.0
    for op in range(need.shape[0]):
        length = 0
        while length < reads.shape[1] and reads[op, length] >= 0:
            length += 1
        peak = max(peak, _worst(&least[0], binomial, &reads[op, 0], length, &chosen[0], k, need[op], INFINITY))
    return peak


cdef int64_t _before(
    const int64_t *current,
    int64_t k,
    int64_t padding,
    const int64_t *producer,
    const int64_t *reads,
    int64_t inputs,
    int64_t op,
    int64_t *before,
) noexcept nogil:
    """What of `current` was resident just before `op` ran, and what it read: ascending, into `before`. Returns the number."""
    cdef int64_t length = 0, x = padding, y, read
    for y in range(inputs + 1):
        read = reads[y] if y < inputs else -1
        while x < k and (read < 0 or current[x] <= read):
            if producer[current[x]] != op and current[x] != read:
                before[length] = current[x]
                length += 1
            x += 1
        if read < 0:
            break
        before[length] = read
        length += 1
    return length


cdef double _worst(
    const double *least,
    const int64_t[:, ::1] binomial,
    const int64_t *members,
    int64_t length,
    int64_t *chosen,
    int64_t k,
    double peak,
    double enough,
) noexcept nogil:
    """The larger of `peak` and the least peaks of all sets of k of the first `length` members; of all, if there are fewer."""
    cdef int64_t number = 0, x
    if length <= k:
        for x in range(length):
            number += binomial[members[x], k - length + x + 1]
        return max(peak, least[number])
    for x in range(k):
        chosen[x] = x
    while peak < enough:
        number = 0
        for x in range(k):
            number += binomial[members[chosen[x]], x + 1]
        peak = max(peak, least[number])
        advance(chosen, k)
        if chosen[k - 1] == length:
            break
    return peak
