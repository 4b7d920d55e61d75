"""The inside of nested_checkpointing.py: its dynamic program."""

from libc.math cimport INFINITY, floor
from libc.stdint cimport int16_t, int64_t


cpdef int64_t below(int64_t level, double size, double unit) noexcept nogil:
    """The level that is left when `size` bytes are taken."""
    return <int64_t>floor(level - size / unit + 1e-9)


def solve_width(
    const double[:, :, ::1] options,
    const double[::1] enters,
    const double[::1] before,
    const double[::1] after,
    const double[:, ::1] advance,
    float[:, :, ::1] cost,
    int16_t[:, :, ::1] choice,
    int64_t width,
    double lowest,
    double unit,
):
    """Per first segment, for the last one `width` behind it, and level of memory the cost, and the choice: an option, or minus the
    segment to split at. Smaller widths come first."""
    cdef int64_t count = options.shape[0], most = options.shape[1], levels = cost.shape[2] - 1
    cdef int64_t first, last, level, option, chosen, left, split
    cdef double base, memory, best, value, forward_peak, run
    cdef const double *figures
    for first in range(count - width):
        last = first + width
        base = before[last]
        for level in range(levels + 1):
            memory = lowest + level * unit
            best, chosen = INFINITY, 0
            for option in range(most):
                # Held, forward peak, backward peak, cost, cost again, peak and cost alone: see `SegmentOption`.
                figures = &options[first, option, 0]
                forward_peak, value = figures[1], figures[3]
                if value == INFINITY:
                    break
                if last < count - 1:  # it has all run before
                    value = figures[4] if width else figures[6]
                    forward_peak = forward_peak if width else figures[5]
                if forward_peak + base > memory or figures[2] + after[first] > memory:
                    continue
                if width > 0:
                    left = below(level, figures[0], unit)
                    if left < 0:
                        continue
                    value += cost[first + 1, last, left]
                if value < best:
                    best, chosen = value, option
            left = below(level, enters[first], unit)
            if width > 0 and left >= 0 and advance[first, 1] + base <= memory:
                run = 0.0
                for split in range(first + 1, last + 1):
                    run += advance[split - 1, 2 if last == count - 1 else 3]
                    if split > first + 1 and advance[split - 1, 0] + enters[first] + base > memory:
                        break
                    value = run + cost[split, last, left] + cost[first, split - 1, level]
                    if value < best:
                        best, chosen = value, -split
            cost[first, last, level] = <float>best
            choice[first, last, level] = <int16_t>chosen
