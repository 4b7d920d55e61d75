"""The inside of graph_arrays.py."""

from libc.stdint cimport int64_t, uint8_t

import numpy as np


def useful_until(
    const int64_t[::1] last_use,
    const uint8_t[::1] through,
    const int64_t[::1] in_pointers,
    const int64_t[::1] in_values,
    const int64_t[::1] out_pointers,
    const int64_t[::1] out_values,
):
    """See `Problem.useful_until`."""
    result = np.array(last_use)
    cdef int64_t[::1] until = result
    cdef int64_t op, x, latest
    for op in range(through.shape[0] - 1, -1, -1):
        if through[op]:
            latest = op
            for x in range(out_pointers[op], out_pointers[op + 1]):
                latest = max(latest, until[out_values[x]])
            for x in range(in_pointers[op], in_pointers[op + 1]):
                until[in_values[x]] = max(until[in_values[x]], latest)
    return result
