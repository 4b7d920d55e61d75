"""The inside of decoding.py."""

from libc.stdint cimport int64_t, uint8_t

import numpy as np

from .sorting cimport sort


def used(
    const int64_t[::1] sequence,
    int64_t n,
    const int64_t[::1] in_pointers,
    const int64_t[::1] in_values,
    const int64_t[::1] producer,
    const uint8_t[::1] keep,
    const uint8_t[::1] recomputable,
):
    """Whether a sequence is valid, and what it is without recomputations that nobody reads, nor keeps at the end."""
    cdef int64_t[::1] latest = np.full(n, -1, np.int64)
    cdef uint8_t[::1] wanted = np.zeros(sequence.shape[0], np.uint8)
    cdef int64_t reads = 0, position, op, x, value, count = 0, degree
    for position in range(sequence.shape[0]):
        reads += in_pointers[sequence[position] + 1] - in_pointers[sequence[position]]
    cdef int64_t[::1] sources = np.zeros(reads, np.int64)
    reads = 0
    for position in range(sequence.shape[0]):
        op = sequence[position]
        wanted[position] = latest[op] < 0
        for x in range(in_pointers[op], in_pointers[op + 1]):
            sources[reads] = latest[producer[in_values[x]]]
            if sources[reads] < 0:
                return False, np.array(sequence)
            reads += 1
        latest[op] = position
    for value in range(keep.shape[0]):
        if keep[value] and latest[producer[value]] >= 0:
            wanted[latest[producer[value]]] = True
    for position in range(sequence.shape[0] - 1, -1, -1):
        op = sequence[position]
        degree = in_pointers[op + 1] - in_pointers[op]
        reads -= degree
        if wanted[position]:
            count += 1
            for x in range(reads, reads + degree):
                wanted[sources[x]] = True
    found = np.zeros(count, np.int64)
    cdef int64_t[::1] result = found
    cdef int64_t[::1] runs = np.zeros(n, np.int64)
    count = 0
    for position in range(sequence.shape[0]):
        if wanted[position]:
            result[count] = sequence[position]
            runs[sequence[position]] += 1
            count += 1
    for op in range(n):
        if runs[op] == 0 or (runs[op] > 1 and not recomputable[op]):
            return False, found
    return True, found


def memory_profile(
    const int64_t[::1] sequence,
    int64_t n,
    const int64_t[::1] in_pointers,
    const int64_t[::1] in_values,
    const int64_t[::1] out_pointers,
    const int64_t[::1] out_values,
    const int64_t[::1] producer,
    const int64_t[::1] place,
    const uint8_t[::1] keep,
    const int64_t[::1] sizes,
    const int64_t[::1] workspaces,
    const int64_t[::1] reuses,
    int64_t fixed,
):
    """The peak; per stage the peak, the bytes live during the first computation, and the op that runs at the peak."""
    cdef int64_t length = sequence.shape[0], position, op, x, value, copy, start, high, current
    cdef int64_t[::1] copies = np.zeros(length + 1, np.int64)  # of values: what a position computes starts here
    for position in range(length):
        op = sequence[position]
        copies[position + 1] = copies[position] + out_pointers[op + 1] - out_pointers[op]
    cdef int64_t[::1] last = np.zeros(copies[length], np.int64)  # the position that reads the copy last
    cdef int64_t[::1] latest = np.full(n, -1, np.int64)
    cdef int64_t[::1] reused = np.full(length, -1, np.int64)  # the copy that the op of a position may write in
    for position in range(length):
        op = sequence[position]
        if reuses[op] >= 0:
            reused[position] = copies[latest[producer[reuses[op]]]] + place[reuses[op]]
        for x in range(in_pointers[op], in_pointers[op + 1]):
            last[copies[latest[producer[in_values[x]]]] + place[in_values[x]]] = position
        latest[op] = position
        for copy in range(copies[position], copies[position + 1]):
            last[copy] = position
    for value in range(keep.shape[0]):
        if keep[value]:
            last[copies[latest[producer[value]]] + place[value]] = length
    cdef int64_t[::1] dying = np.zeros(length + 1, np.int64)
    for position in range(length):
        start = out_pointers[sequence[position]]
        for copy in range(copies[position], copies[position + 1]):
            dying[last[copy]] += sizes[out_values[start + copy - copies[position]]]
    every = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    cdef double[::1] stage_peaks = every[0], own_peaks = every[1]
    cdef int64_t[::1] peak_ops = every[2]
    cdef int64_t stage = 0, live = fixed, peak = fixed
    for position in range(length):
        op = sequence[position]
        for x in range(out_pointers[op], out_pointers[op + 1]):
            live += sizes[out_values[x]]
        high = live + workspaces[op]
        if reused[position] >= 0 and last[reused[position]] == position:
            high -= sizes[reuses[op]]
        peak = max(peak, high)
        current = min(stage, n - 1)  # what is computed again for the end counts to the last stage
        if high > stage_peaks[current]:
            stage_peaks[current], peak_ops[current] = high, op
        if op == stage:
            own_peaks[stage] = high
            stage += 1
        live -= dying[position]
    return peak, *every


def decode(
    const int64_t[::1] stages,
    const uint8_t[:, ::1] kept,
    bint eager,
    int64_t n,
    const int64_t[::1] in_pointers,
    const int64_t[::1] in_values,
    const int64_t[::1] out_pointers,
    const int64_t[::1] out_values,
    const int64_t[::1] producer,
    const uint8_t[::1] keep,
):
    """See `decoding.decode`; `kept` (snapshots, values) has what cannot be recomputed, too."""
    cdef uint8_t[::1] present = np.zeros(producer.shape[0], np.uint8)
    cdef int64_t[::1] sequence = np.zeros(4 * n + 4, np.int64)
    cdef int64_t[::1] missing = np.full(n, -1, np.int64)
    cdef int64_t[::1] stack = np.zeros(n + 1, np.int64)
    cdef int64_t[::1] plan = np.zeros(n + 1, np.int64)
    cdef int64_t length = 0, group = 0, stage, turn, count, top, value, stamp, op, x, i, origin
    cdef bint here, wanted
    for stage in range(n + 1):
        here = stage < n and group < stages.shape[0] and stages[group] == stage
        for turn in range(2):
            # First what the op of the stage (at the end: the caller) reads, then what the snapshot retains.
            count, top = 0, 0
            if turn == 0 and stage < n:
                missing[stage] = stage
                stack[0] = stage
                top = 1
            elif turn == 0 or (eager and here):
                for value in range(producer.shape[0]):
                    wanted = keep[value] if stage == n else kept[group, value] and producer[value] < stage
                    if wanted and not present[value] and missing[producer[value]] != n + 1 + stage:
                        missing[producer[value]] = n + 1 + stage
                        stack[top] = producer[value]
                        top += 1
            stamp = stage if turn == 0 and stage < n else n + 1 + stage
            while top > 0:
                top -= 1
                op = stack[top]
                if op != stage:
                    plan[count] = op
                    count += 1
                for x in range(in_pointers[op], in_pointers[op + 1]):
                    origin = producer[in_values[x]]
                    if not present[in_values[x]] and missing[origin] != stamp:
                        missing[origin] = stamp
                        stack[top] = origin
                        top += 1
            while length + count + 1 > sequence.shape[0]:
                sequence = np.append(sequence, np.zeros(sequence.shape[0], np.int64))
            sort(&plan[0], count)
            for i in range(count):
                op = plan[i]
                sequence[length] = op
                length += 1
                for x in range(out_pointers[op], out_pointers[op + 1]):
                    present[out_values[x]] = True
        if stage < n:
            sequence[length] = stage
            length += 1
            for x in range(out_pointers[stage], out_pointers[stage + 1]):
                present[out_values[x]] = True
        if here:
            for value in range(producer.shape[0]):
                present[value] &= kept[group, value]
            group += 1
    return np.array(sequence[:length])
