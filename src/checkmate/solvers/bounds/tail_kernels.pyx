"""The inside of tail_bound.py: its dynamic program over small sets of items, and its search over all sets."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cimport cython

from .subsets cimport advance

import numpy as np

#: Cost of what is impossible; items at most.
cpdef enum:
    IMPOSSIBLE = 0x40000000
    MOST_ITEMS = 128

#: What costs more counts as this; members of the sets of a table at most.
cdef enum:
    _MOST = 0x3FFFFFFF
    _MOST_MEMBERS = 8

#: Words of the mask of a set of items. Columns of a state after them: phase, cost behind it, least cost before it.
cdef enum:
    _WORDS = 4
    _PHASE = 4
    _BEHIND
    _AHEAD

#: Columns of a state; of an entry of the heap.
cpdef enum:
    COLUMNS = 7
    ENTRY = 3

#: Columns of an entry of the heap: least cost in all, cost behind it when it was put there, state.
cdef enum:
    _LEAST, _THEN, _STATE

#: Places among the counts.
cpdef enum:
    STATES, OPEN, PROVEN


cdef struct Ops:
    # Per op: bytes that it needs, cost, numbers of the items that it reads and writes (ascending, -1 closes a row).
    const int64_t *need
    const int32_t *cost
    const int64_t *reads
    const int64_t *writes
    int64_t most_reads, most_writes
    # Per item: bytes, the op that recomputes it or -1, the phase from which on it exists.
    const int64_t *size
    const int64_t *again
    const int64_t *born
    int64_t first, capacity, members
    const int64_t *binomial


@cython.final
cdef class Layout:
    """Ops and items of a tail: what both the dynamic program and the search read."""

    cdef Ops _ops
    cdef object _arrays

    def __init__(
        self,
        const int64_t[::1] need,
        const int32_t[::1] cost,
        const int64_t[:, ::1] reads,
        const int64_t[:, ::1] writes,
        const int64_t[:, ::1] items,
        const int64_t[:, ::1] binomial,
        int64_t first,
        int64_t capacity,
    ):
        cdef Ops *a = &self._ops
        self._arrays = (need, cost, reads, writes, items, binomial)  # which the pointers are into
        a.need, a.cost, a.reads, a.writes = &need[0], &cost[0], &reads[0, 0], &writes[0, 0]
        a.most_reads, a.most_writes = reads.shape[1], writes.shape[1]
        a.size, a.again, a.born = &items[0, 0], &items[1, 0], &items[2, 0]
        a.binomial, a.members = &binomial[0, 0], binomial.shape[1] - 1
        a.first, a.capacity = first, capacity


cdef int64_t _before(const Ops *a, const int64_t *items, int64_t count, int64_t op, int64_t *before) noexcept nogil:
    """What must be resident just before `op` runs for `items` to be so just after: ascending, into `before`. -1: it does not fit."""
    cdef const int64_t *reads = a.reads + op * a.most_reads
    cdef const int64_t *writes = a.writes + op * a.most_writes
    cdef int64_t load = a.need[op], length = 0, x = 0, y = 0, z = 0, item
    while True:
        while z < a.most_writes and writes[z] >= 0 and x < count and writes[z] < items[x]:
            z += 1
        if y < a.most_reads and reads[y] >= 0 and (x == count or reads[y] <= items[x]):
            if x < count and items[x] == reads[y]:
                x += 1
            before[length] = reads[y]
            length += 1
            y += 1
        elif x < count:
            item = items[x]
            x += 1
            if z < a.most_writes and writes[z] == item:
                continue
            load += a.size[item]
            before[length] = item
            length += 1
        else:
            return length if load <= a.capacity else -1


cdef int32_t _least(const Ops *a, const int32_t *table, const int64_t *items, int64_t count, int32_t enough) noexcept nogil:
    """The largest cost of all sets of as many members as the table has sets of; of `items`, if there are fewer."""
    cdef int64_t k = a.members, number = 0, x
    cdef int64_t[_MOST_MEMBERS] chosen
    cdef int32_t result = 0
    if count <= k:
        for x in range(count):
            number += a.binomial[(items[x] + k) * (k + 1) + k - count + x + 1]
        return table[number]
    for x in range(k):
        chosen[x] = x
    while result < enough:
        number = 0
        for x in range(k):
            number += a.binomial[(items[chosen[x]] + k) * (k + 1) + x + 1]
        result = max(result, table[number])
        advance(chosen, k)
        if chosen[k - 1] == count:
            break
    return result


cdef int32_t _sum(int32_t one, int32_t other) noexcept nogil:
    if one >= IMPOSSIBLE or other >= IMPOSSIBLE:
        return IMPOSSIBLE
    return <int32_t>min(<int64_t>one + other, <int64_t>_MOST)


def fill(Layout layout, const int32_t[::1] previous, int32_t[::1] current, int64_t phase):
    """The least costs at which sets of items are resident in a phase, from those of the phase before."""
    cdef const Ops *a = &layout._ops
    cdef int64_t k = a.members, number, x, padding
    cdef int64_t[_MOST_MEMBERS] chosen, held
    cdef int64_t[::1] before = np.zeros(k + a.most_reads, np.int64)
    for x in range(k):
        chosen[x] = x
    with nogil:
        for number in range(current.shape[0]):
            padding = 0
            while padding < k and chosen[padding] < k:
                padding += 1
            # Smaller sets are filled up in one way only: with the first of the padding.
            if padding == 0 or chosen[padding - 1] == padding - 1:
                for x in range(padding, k):
                    held[x - padding] = chosen[x] - k
                current[number] = _resident(a, &previous[0], &current[0], held, k - padding, phase, &before[0])
            advance(chosen, k)


cdef int32_t _resident(
    const Ops *a,
    const int32_t *previous,
    const int32_t *current,
    const int64_t *held,
    int64_t count,
    int64_t phase,
    int64_t *before,
) noexcept nogil:
    """The least cost at which these items are resident in a phase: that of the last computation among them, and what was before."""
    cdef int32_t result = IMPOSSIBLE, found
    cdef int64_t x, op, length
    for x in range(count):
        if a.born[held[x]] > phase:
            return IMPOSSIBLE
    length = _before(a, held, count, a.first + phase, before)
    if length >= 0:
        if phase == 0:
            return 0
        result = _sum(_least(a, previous, before, length, IMPOSSIBLE), a.cost[a.first + phase])
    for x in range(count):
        op = a.again[held[x]]
        if op >= 0 and result > a.cost[op]:
            length = _before(a, held, count, op, before)
            if length >= 0:
                found = _sum(_least(a, current, before, length, result - a.cost[op]), a.cost[op])
                result = min(result, found)
    return result


cdef struct Open:
    # Rows of columns; how many there are, and may be; a hash table of the states.
    int32_t *states
    int64_t num_states, most_states
    int32_t *heap
    int64_t num_open, most_open
    int32_t *index
    int64_t slots


def search(
    Layout layout,
    const int32_t[:, ::1] tables,
    const int64_t[::1] kept,
    int32_t[:, ::1] states,
    int32_t[:, ::1] heap,
    int32_t[::1] index,
    int64_t[::1] counts,
    int64_t most,
):
    """The search for the least cost from phase 0 to the end, for so many states more; True if it has ended.

    Args:
        states, heap, index: room for as many states and open entries as there may be, and a table of -1, a power of two long.
        counts: of states, of open entries, and the cost that is proven; zeros at first.
    """
    cdef const Ops *a = &layout._ops
    cdef Open o
    o.states, o.num_states, o.most_states = &states[0, 0], counts[STATES], states.shape[0]
    o.heap, o.num_open, o.most_open = &heap[0, 0], counts[OPEN], heap.shape[0]
    o.index, o.slots = &index[0], index.shape[0]
    cdef int64_t[::1] held = np.zeros(MOST_ITEMS, np.int64), before = np.zeros(MOST_ITEMS + a.most_reads, np.int64)
    cdef int32_t least = <int32_t>counts[PROVEN]
    cdef int64_t x
    cdef bint ended
    for x in range(kept.shape[0]):
        held[x] = kept[x]
    with nogil:
        if o.num_states == 0:
            _reach(a, &o, &tables[0, 0], tables.shape[1], &held[0], kept.shape[0], tables.shape[0] - 1, 0, 0)
        ended = _expand(a, &o, &tables[0, 0], tables.shape[1], &held[0], &before[0], &least, most)
    counts[STATES], counts[OPEN], counts[PROVEN] = o.num_states, o.num_open, least
    return ended


cdef bint _expand(
    const Ops *a,
    Open *o,
    const int32_t *tables,
    int64_t sets,
    int64_t *held,
    int64_t *before,
    int32_t *proven,
    int64_t most,
) noexcept nogil:
    """Take the best open states, most of them once, until the cost that is proven is the least, or there is no room for more."""
    cdef int32_t *state
    cdef int32_t least, behind
    cdef int64_t x, count, length, op, phase
    while most > 0 and o.num_open > 0:
        most -= 1
        least, behind = o.heap[_LEAST], o.heap[_THEN]
        proven[0] = least
        state = o.states + COLUMNS * o.heap[_STATE]
        _pop(o)
        if state[_BEHIND] < behind:
            continue
        phase, count = state[_PHASE], 0
        for x in range(MOST_ITEMS):
            if (state[x >> 5] >> (x & 31)) & 1:
                held[count] = x
                count += 1
        length = _before(a, held, count, a.first + phase, before)
        if length >= 0:
            if phase == 0:
                return True
            op = a.first + phase
            if not _reach(a, o, tables, sets, before, length, phase - 1, behind + a.cost[op], least):
                return True
        for x in range(count):
            op = a.again[held[x]]
            if op < 0:
                continue
            length = _before(a, held, count, op, before)
            if length >= 0 and not _reach(a, o, tables, sets, before, length, phase, behind + a.cost[op], least):
                return True
    if o.num_open > 0:
        return False
    proven[0] = IMPOSSIBLE
    return True


cdef bint _reach(
    const Ops *a,
    Open *o,
    const int32_t *tables,
    int64_t sets,
    const int64_t *held,
    int64_t count,
    int64_t phase,
    int32_t behind,
    int32_t least,
) noexcept nogil:
    """Open a state, or the same one at less cost; False if the arrays are full."""
    cdef int32_t[_WORDS] mask
    cdef int32_t *columns
    cdef int64_t x, slot
    cdef int32_t state, ahead
    if behind >= _MOST // 2:
        return False
    for x in range(_WORDS):
        mask[x] = 0
    for x in range(count):
        mask[held[x] >> 5] |= <int32_t>(<uint64_t>1 << (held[x] & 31))
    slot = _slot(o, mask, <int32_t>phase)
    state = o.index[slot]
    if state >= 0:
        columns = o.states + COLUMNS * state
        if columns[_BEHIND] <= behind:
            return True
        ahead = columns[_AHEAD]
    else:
        ahead = _least(a, tables + phase * sets, held, count, IMPOSSIBLE)
    if ahead >= IMPOSSIBLE:
        return True
    if o.num_states == o.most_states or o.num_open == o.most_open:
        return False
    if state < 0:
        state = <int32_t>o.num_states
        o.num_states += 1
        o.index[slot] = state
        columns = o.states + COLUMNS * state
        for x in range(_WORDS):
            columns[x] = mask[x]
        columns[_PHASE], columns[_AHEAD] = <int32_t>phase, ahead
    columns[_BEHIND] = behind
    _push(o, max(least, _sum(behind, ahead)), behind, state)
    return True


cdef int64_t _slot(const Open *o, const int32_t *mask, int32_t phase) noexcept nogil:
    """Where in the hash table the state is, or would be."""
    cdef uint64_t mixed = <uint64_t>phase * <uint64_t>0x2545F4914F6CDD1D
    cdef int64_t x, slot
    cdef const int32_t *state
    cdef bint same
    for x in range(_WORDS):
        mixed = (mixed ^ <uint64_t><uint32_t>mask[x]) * <uint64_t>0x9E3779B97F4A7C15
        mixed ^= mixed >> 29
    slot = <int64_t>(mixed & <uint64_t>(o.slots - 1))
    while o.index[slot] >= 0:
        state = o.states + COLUMNS * o.index[slot]
        same = state[_PHASE] == phase
        for x in range(_WORDS):
            same = same and state[x] == mask[x]
        if same:
            return slot
        slot = (slot + 1) & (o.slots - 1)
    return slot


cdef bint _less(const int32_t *one, const int32_t *other) noexcept nogil:
    """Cheaper first; then what is nearer to the start."""
    return one[_LEAST] < other[_LEAST] or (one[_LEAST] == other[_LEAST] and one[_THEN] > other[_THEN])


cdef void _swap(int32_t *one, int32_t *other) noexcept nogil:
    cdef int64_t column
    for column in range(ENTRY):
        one[column], other[column] = other[column], one[column]


cdef void _push(Open *o, int32_t least, int32_t behind, int32_t state) noexcept nogil:
    cdef int64_t place = o.num_open, above
    cdef int32_t *entry = o.heap + ENTRY * place
    o.num_open += 1
    entry[_LEAST], entry[_THEN], entry[_STATE] = least, behind, state
    while place > 0:
        above = (place - 1) // 2
        if not _less(o.heap + ENTRY * place, o.heap + ENTRY * above):
            return
        _swap(o.heap + ENTRY * place, o.heap + ENTRY * above)
        place = above


cdef void _pop(Open *o) noexcept nogil:
    """Take the first entry out."""
    cdef int64_t last = o.num_open - 1, place = 0, child
    o.num_open = last
    _swap(o.heap, o.heap + ENTRY * last)
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and _less(o.heap + ENTRY * (child + 1), o.heap + ENTRY * child):
            child += 1
        if not _less(o.heap + ENTRY * child, o.heap + ENTRY * place):
            return
        _swap(o.heap + ENTRY * child, o.heap + ENTRY * place)
        place = child
