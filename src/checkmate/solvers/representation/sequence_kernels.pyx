"""The inside of execution_sequence.py: a sequence and its memory profile, changed in place and undone."""

from libc.stdint cimport int64_t

import numpy as np


cdef class SequenceState:
    """A sequence under change, sink included.

    Args:
        table, links: the graph; see execution_sequence.py.
        sequence: ops, which must be legal, followed by the sink.
        capacity: most computations it can hold. limit: bytes; what is above it is counted as excess.

    Attributes:
        rows: the state, (14, width); see sequence_kernels.pxd.
    """

    def __init__(
        self, const int64_t[:, ::1] table, const int64_t[::1] links, const int64_t[::1] sequence, int64_t capacity, int64_t limit
    ):
        self._table, self._links = table, links
        self.num_ops, self.num_values = table[SHAPE, 0], table[SHAPE, 1]
        self.width, self.limit = max(2 * capacity, self.num_ops + 1, 8), limit
        self.rows = np.full((14, self.width), -1, np.int64)
        self._rows = self.rows
        self.inputs, self.outputs, self.cost = &table[IN, 0], &table[OUT, 0], &table[COST, 0]
        self.workspace, self.recomputable, self.phase = &table[WORKSPACE, 0], &table[RECOMPUTABLE, 0], &table[PHASE, 0]
        self.users, self.producer, self.size = &table[USERS, 0], &table[PRODUCER, 0], &table[SIZE, 0]
        self.links = &links[0] if links.shape[0] else NULL
        self.order, self.live, self.op, self.position = self._row(ORDER), self._row(LIVE), self._row(OP), self._row(POSITION)
        self.before, self.after, self.first, self.last = self._row(BEFORE), self._row(AFTER), self._row(FIRST), self._row(LAST)
        self.unused, self.count = self._row(UNUSED), self._row(COUNT)
        self.kind, self.what, self.origin, self.target = self._row(KIND), self._row(WHAT), self._row(FROM), self._row(TO)
        self.count[CAPACITY] = capacity
        _fill(self, &sequence[0], sequence.shape[0])

    cdef int64_t *_row(self, int row):
        return &self._rows[row, 0]


cdef void _fill(SequenceState s, const int64_t *sequence, int64_t length) noexcept nogil:
    """Start with `sequence`, sink included."""
    cdef int64_t p, op, x, value, gone, live, i, capacity = s.count[CAPACITY]
    for i in range(s.width):
        s.first[i] = s.last[i] = -1
        s.live[i] = 0
    s.count[TOTAL] = 0
    for p in range(length):
        op = sequence[p]
        s.order[p] = p
        s.op[p] = op
        s.position[p] = p
        s.before[p] = s.last[op]
        s.after[p] = -1
        if s.last[op] >= 0:
            s.after[s.last[op]] = p
        else:
            s.first[op] = p
        s.last[op] = p
        s.count[TOTAL] += s.cost[op]
    for p in range(length):
        op = s.op[p]
        for x in range(s.outputs[op], s.outputs[op + 1]):
            # What comes and what goes, at first.
            value = s.links[x]
            s.live[p] += s.size[value]
            gone = end(s, p, value) + 1
            if gone < length:
                s.live[gone] -= s.size[value]
    live = 0
    s.count[EXCESS] = 0
    for p in range(length):
        live += s.live[p]
        s.live[p] = live + s.workspace[s.op[p]]
        s.count[EXCESS] += max(s.live[p] - s.limit, 0)
    s.count[LENGTH] = length
    s.count[WORK] = 0
    s.count[FREE] = capacity - length
    s.count[CHANGES] = 0
    for i in range(capacity - length):
        s.unused[i] = capacity - 1 - i


cdef int64_t end(SequenceState s, int64_t slot, int64_t value) noexcept nogil:
    """The last position at which `value`, as computed in `slot`, is live."""
    cdef int64_t following = s.after[slot], result = s.position[slot], x, reader
    cdef int64_t limit = s.position[following] if following >= 0 else s.width
    s.count[WORK] += s.users[value + 1] - s.users[value]
    for x in range(s.users[value], s.users[value + 1]):
        reader = s.last[s.links[x]]
        while reader >= 0 and s.position[reader] > limit:
            reader = s.before[reader]
        if reader >= 0 and s.position[reader] > result:
            result = s.position[reader]
    return result


cdef int64_t next_reader(SequenceState s, int64_t slot, int64_t value, int64_t after) noexcept nogil:
    """The first position past `after` that reads `value` as computed in `slot`; -1 if there is none."""
    cdef int64_t following = s.after[slot], x, reader
    cdef int64_t limit = s.position[following] if following >= 0 else s.width
    s.count[WORK] += s.users[value + 1] - s.users[value]
    for x in range(s.users[value], s.users[value + 1]):
        reader = s.last[s.links[x]]
        while reader >= 0 and s.position[reader] > after:
            limit = min(limit, s.position[reader])
            reader = s.before[reader]
    if limit == s.width or (following >= 0 and limit == s.position[following]):
        return -1
    return limit


cdef int64_t slot_before(SequenceState s, int64_t op, int64_t position) noexcept nogil:
    """The last slot of `op` before `position`; -1 if there is none."""
    cdef int64_t slot = s.last[op]
    while slot >= 0 and s.position[slot] >= position:
        slot = s.before[slot]
    return slot


cdef void _add(SequenceState s, int64_t begin, int64_t stop, int64_t size) noexcept nogil:
    """`size` more bytes live at positions begin, ..., stop - 1."""
    cdef int64_t *live = s.live
    cdef int64_t limit = s.limit, excess = 0, p, old
    s.count[WORK] += max(0, stop - begin)
    for p in range(begin, stop):
        old = live[p]
        live[p] = old + size
        excess += max(old + size - limit, 0) - max(old - limit, 0)
    s.count[EXCESS] += excess


cdef int64_t _through(SequenceState s, int64_t position) noexcept nogil:
    """Bytes that live on from before `position` past it."""
    cdef int64_t op = s.op[s.order[position]], x
    cdef int64_t through = s.live[position] - s.workspace[op]
    for x in range(s.outputs[op], s.outputs[op + 1]):
        through -= s.size[s.links[x]]
    return through


cdef void _detach(SequenceState s, int64_t slot) noexcept nogil:
    """Take the computation in `slot` out of the profile and of its op's list; its position stays, as a hole."""
    cdef int64_t op = s.op[slot], hole = s.position[slot], earlier = s.before[slot], later = s.after[slot]
    cdef int64_t x, value, stop, source
    for x in range(s.outputs[op], s.outputs[op + 1]):
        value = s.links[x]
        stop = end(s, slot, value)
        if earlier < 0:
            _add(s, hole, stop + 1, -s.size[value])
        elif stop == hole:
            _add(s, hole, hole + 1, -s.size[value])
        else:  # its readers fall back on the computation before
            _add(s, end(s, earlier, value) + 1, hole, s.size[value])
    _add(s, hole, hole + 1, -s.workspace[op])
    if earlier >= 0:
        s.after[earlier] = later
    else:
        s.first[op] = later
    if later >= 0:
        s.before[later] = earlier
    else:
        s.last[op] = earlier
    for x in range(s.inputs[op], s.inputs[op + 1]):
        value = s.links[x]
        source = slot_before(s, s.producer[value], hole)
        stop = end(s, source, value)
        if stop < hole:
            _add(s, stop + 1, hole + 1, -s.size[value])


cdef void _attach(SequenceState s, int64_t slot) noexcept nogil:
    """The inverse of `_detach`: the position of `slot` is a hole."""
    cdef int64_t op = s.op[slot], hole = s.position[slot], earlier, later, x, value, stop, source
    for x in range(s.inputs[op], s.inputs[op + 1]):
        value = s.links[x]
        source = slot_before(s, s.producer[value], hole)
        stop = end(s, source, value)
        if stop < hole:
            _add(s, stop + 1, hole + 1, s.size[value])
    earlier = slot_before(s, op, hole)
    later = s.after[earlier] if earlier >= 0 else s.first[op]
    s.before[slot] = earlier
    s.after[slot] = later
    if earlier >= 0:
        s.after[earlier] = slot
    else:
        s.first[op] = slot
    if later >= 0:
        s.before[later] = slot
    else:
        s.last[op] = slot
    _add(s, hole, hole + 1, s.workspace[op])
    for x in range(s.outputs[op], s.outputs[op + 1]):
        value = s.links[x]
        stop = end(s, slot, value)
        if earlier < 0:
            _add(s, hole, stop + 1, s.size[value])
        elif stop == hole:
            _add(s, hole, hole + 1, s.size[value])
        else:
            _add(s, end(s, earlier, value) + 1, hole, -s.size[value])


cdef int64_t _insert(SequenceState s, int64_t op, int64_t position) noexcept nogil:
    cdef int64_t slot, through, p
    s.count[FREE] -= 1
    slot = s.unused[s.count[FREE]]
    through = _through(s, position)
    for p in range(s.count[LENGTH], position, -1):
        s.order[p] = s.order[p - 1]
        s.live[p] = s.live[p - 1]
        s.position[s.order[p]] = p
    s.count[LENGTH] += 1
    s.order[position] = slot
    s.live[position] = through
    s.count[EXCESS] += max(through - s.limit, 0)
    s.position[slot] = position
    s.op[slot] = op
    s.count[TOTAL] += s.cost[op]
    _attach(s, slot)
    return slot


cdef void _remove(SequenceState s, int64_t slot) noexcept nogil:
    cdef int64_t hole, p
    _detach(s, slot)
    hole = s.position[slot]
    s.count[EXCESS] -= max(s.live[hole] - s.limit, 0)
    s.count[LENGTH] -= 1
    for p in range(hole, s.count[LENGTH]):
        s.order[p] = s.order[p + 1]
        s.live[p] = s.live[p + 1]
        s.position[s.order[p]] = p
    s.count[TOTAL] -= s.cost[s.op[slot]]
    s.unused[s.count[FREE]] = slot
    s.count[FREE] += 1


cdef void _move(SequenceState s, int64_t slot, int64_t position) noexcept nogil:
    cdef int64_t hole, p, direction
    _detach(s, slot)
    hole = s.position[slot]
    s.count[EXCESS] -= max(s.live[hole] - s.limit, 0)
    direction = 1 if position > hole else -1
    p = hole
    while p != position:
        s.order[p] = s.order[p + direction]
        s.live[p] = s.live[p + direction]
        s.position[s.order[p]] = p
        p += direction
    s.order[position] = slot
    s.position[slot] = position
    s.live[position] = _through(s, position + 1)
    s.count[EXCESS] += max(s.live[position] - s.limit, 0)
    _attach(s, slot)


cdef void _log(SequenceState s, int64_t kind, int64_t op, int64_t position, int64_t target) noexcept nogil:
    cdef int64_t row = s.count[CHANGES]
    s.kind[row], s.what[row], s.origin[row], s.target[row] = kind, op, position, target
    s.count[CHANGES] += 1


cdef enum:
    _INSERTED, _REMOVED, _MOVED


cpdef int64_t insert(SequenceState s, int64_t op, int64_t position) noexcept nogil:
    """Compute `op` just before what is at `position`; its inputs must be there. Returns the slot."""
    _log(s, _INSERTED, op, position, position)
    return _insert(s, op, position)


cpdef void remove(SequenceState s, int64_t slot) noexcept nogil:
    """Drop a computation; its readers, if any, must have an earlier one."""
    _log(s, _REMOVED, s.op[slot], s.position[slot], -1)
    _remove(s, slot)


cpdef void move(SequenceState s, int64_t slot, int64_t position) noexcept nogil:
    """Put a computation elsewhere; see `may_move`."""
    _log(s, _MOVED, s.op[slot], s.position[slot], position)
    _move(s, slot, position)


cpdef void undo(SequenceState s) noexcept nogil:
    """Take back all changes since the log was last empty."""
    cdef int64_t row
    while s.count[CHANGES] > 0:
        s.count[CHANGES] -= 1
        row = s.count[CHANGES]
        if s.kind[row] == _INSERTED:
            _remove(s, s.order[s.origin[row]])
        elif s.kind[row] == _REMOVED:
            _insert(s, s.what[row], s.origin[row])
        else:
            _move(s, s.order[s.target[row]], s.origin[row])


cdef bint _phases_allow(SequenceState s, int64_t op, int64_t begin, int64_t stop) noexcept nogil:
    """The first computation of `op` may move across positions begin, ..., stop - 1."""
    cdef int64_t phase = s.phase[op], p, slot
    if phase == 0:
        return True
    for p in range(begin, stop):
        slot = s.order[p]
        if s.before[slot] < 0 and s.phase[s.op[slot]] == 3 - phase:
            return False
    return True


cpdef bint may_move(SequenceState s, int64_t slot, int64_t position, bint reorder) noexcept nogil:
    """Whether the sequence is still legal with `slot` at `position`; `reorder`: first computations may change places."""
    cdef int64_t op = s.op[slot], start = s.position[slot], opening = s.first[s.op[slot]], following, x
    if position == start or position < 0 or max(start, position) >= s.count[LENGTH] - 1:  # the sink stays
        return False
    if position < start:
        for x in range(s.inputs[op], s.inputs[op + 1]):
            if s.position[s.first[s.producer[s.links[x]]]] >= position:
                return False
        if position > s.position[opening]:
            return True
        return reorder and _phases_allow(s, op, position, s.position[opening])
    if slot != opening:
        return True
    if not reorder:
        return False
    following = s.after[slot]
    if following >= 0 and s.position[following] <= position:
        position = s.position[following]
    return _first_reader(s, op) > position and _phases_allow(s, op, start + 1, position + 1)


cdef int64_t _first_reader(SequenceState s, int64_t op) noexcept nogil:
    """The first position that reads anything `op` makes; the end of the sequence if nothing does."""
    cdef int64_t earliest = s.count[LENGTH], x, y, value
    for x in range(s.outputs[op], s.outputs[op + 1]):
        value = s.links[x]
        for y in range(s.users[value], s.users[value + 1]):
            earliest = min(earliest, s.position[s.first[s.links[y]]])
    return earliest


cpdef bint superfluous(SequenceState s, int64_t slot, bint reorder) noexcept nogil:
    """Nobody reads what `slot` computes, and it need not be there otherwise."""
    cdef int64_t op = s.op[slot], following = s.after[slot], x
    if s.before[slot] < 0 and (not reorder or following < 0):
        return False
    for x in range(s.outputs[op], s.outputs[op + 1]):
        if end(s, slot, s.links[x]) > s.position[slot]:
            return False
    if s.before[slot] < 0:
        return _phases_allow(s, op, s.position[slot] + 1, s.position[following])
    return True
