"""The inside of best_first_search.py."""

from libc.stdint cimport int64_t, uint64_t

import numpy as np

#: Rows of a graph's table. Per op: masks of its inputs, its outputs, the ops that must have run before; bytes beyond its inputs;
#: cost; whether it may be recomputed; mask of the value it may write in, and its bytes. Per value: bytes. SHAPE: number of ops, of
#: values, mask of the kept values.
cpdef enum:
    READS, WRITES, BEFORE, NEEDS, COST, AGAIN, REUSES, SAVES, SIZE, SHAPE

#: Columns of the states: ops that have run, live values, cost of recomputations so far, state and op it came from.
cpdef enum:
    DONE, LIVE, SPENT, PARENT, OP

#: Columns of the heap: cost of recomputations at least, minus the number of ops that have run, state, its cost when it was put there.
cdef enum:
    _LEAST, _LEFT, _STATE, _THEN

#: Places among the counts: states, open entries, the state at the goal, the bound, successors.
cpdef enum:
    STATES, OPEN, GOAL, BOUND, WORK

#: How a slice ended.
cpdef enum:
    MORE, FOUND, EXHAUSTED, FULL, WIDE

#: No more successors of one state.
cdef enum:
    _MOST_SUCCESSORS = 500_000

#: The power of two that is more than any cost: some value that is needed is lost for good.
cpdef enum:
    NEVER_BITS = 60

cdef int64_t _NEVER = <int64_t>1 << NEVER_BITS


cdef struct Arrays:
    # Rows of the table.
    const int64_t *reads
    const int64_t *writes
    const int64_t *before
    const int64_t *needs
    const int64_t *cost
    const int64_t *again
    const int64_t *reuses
    const int64_t *saves
    const int64_t *size
    int64_t num_ops, num_values, kept
    # Five columns of each state, four of each entry of the heap.
    int64_t *states
    int64_t most_states
    int64_t *heap
    int64_t most_open
    int64_t *index
    int64_t slots
    int64_t *counts


cdef Arrays _arrays(
    const int64_t[:, ::1] table, int64_t[:, ::1] states, int64_t[:, ::1] heap, int64_t[::1] index, int64_t[::1] counts
) noexcept:
    cdef Arrays a
    a.reads, a.writes, a.before, a.needs = &table[READS, 0], &table[WRITES, 0], &table[BEFORE, 0], &table[NEEDS, 0]
    a.cost, a.again, a.reuses, a.saves = &table[COST, 0], &table[AGAIN, 0], &table[REUSES, 0], &table[SAVES, 0]
    a.size = &table[SIZE, 0]
    a.num_ops, a.num_values, a.kept = table[SHAPE, 0], table[SHAPE, 1], table[SHAPE, 2]
    a.states, a.most_states = &states[0, 0], states.shape[0]
    a.heap, a.most_open = &heap[0, 0], heap.shape[0]
    a.index, a.slots = &index[0], index.shape[0]
    a.counts = &counts[0]
    return a


cdef int64_t _useful(const Arrays *a, int64_t done) noexcept nogil:
    """The values that a computation to come may use."""
    cdef int64_t result = a.kept, op
    for op in range(a.num_ops - 1, -1, -1):
        if (done >> op) & 1 == 0 or (a.again[op] and a.writes[op] & result):
            result |= a.reads[op]
    return result


cdef int64_t _to_come(const Arrays *a, int64_t done, int64_t live) noexcept nogil:
    """The cost of the recomputations that no schedule from here can do without."""
    cdef int64_t wanted = a.kept, cost = 0, op
    for op in range(a.num_ops - 1, -1, -1):
        if (done >> op) & 1 == 0:
            wanted |= a.reads[op]
        elif a.writes[op] & wanted & ~live:
            if not a.again[op]:
                return _NEVER
            cost += a.cost[op]
            wanted |= a.reads[op]
    return cost


cdef int64_t _slot(const Arrays *a, int64_t done, int64_t live) noexcept nogil:
    """Where in the hash table the state is, or would be."""
    cdef int64_t mixed = <int64_t>((<uint64_t>done * <uint64_t>0x2545F4914F6CDD1D) ^ (<uint64_t>live * <uint64_t>0x1B873593CC9E2D51))
    cdef int64_t mask = a.slots - 1
    cdef int64_t slot = (mixed ^ (mixed >> 29)) & mask
    cdef const int64_t *state
    while a.index[slot] >= 0:
        state = a.states + 5 * a.index[slot]
        if state[DONE] == done and state[LIVE] == live:
            return slot
        slot = (slot + 1) & mask
    return slot


cdef bint _less(const int64_t *one, const int64_t *other) noexcept nogil:
    """Cheaper first, then further, then newer."""
    if one[_LEAST] != other[_LEAST]:
        return one[_LEAST] < other[_LEAST]
    if one[_LEFT] != other[_LEFT]:
        return one[_LEFT] < other[_LEFT]
    return one[_STATE] > other[_STATE]


cdef void _swap(int64_t *one, int64_t *other) noexcept nogil:
    cdef int64_t column
    for column in range(4):
        one[column], other[column] = other[column], one[column]


cdef void _push(Arrays *a, int64_t least, int64_t left, int64_t state, int64_t then) noexcept nogil:
    cdef int64_t place = a.counts[OPEN], above
    cdef int64_t *entry = a.heap + 4 * place
    a.counts[OPEN] += 1
    entry[_LEAST], entry[_LEFT], entry[_STATE], entry[_THEN] = least, left, state, then
    while place > 0:
        above = (place - 1) // 2
        if not _less(a.heap + 4 * place, a.heap + 4 * above):
            return
        _swap(a.heap + 4 * place, a.heap + 4 * above)
        place = above


cdef void _pop(Arrays *a) noexcept nogil:
    """Take the first entry out; it is left behind the last one."""
    a.counts[OPEN] -= 1
    cdef int64_t last = a.counts[OPEN], place = 0, child
    _swap(a.heap, a.heap + 4 * last)
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and _less(a.heap + 4 * (child + 1), a.heap + 4 * child):
            child += 1
        if not _less(a.heap + 4 * child, a.heap + 4 * place):
            return
        _swap(a.heap + 4 * child, a.heap + 4 * place)
        place = child


cdef bint _reach(
    Arrays *a, int64_t limit, int64_t done, int64_t live, int64_t spent, int64_t parent, int64_t op
) noexcept nogil:
    """Open a state, or the same one at less cost, if it can end below the limit; False if the arrays are full."""
    cdef int64_t slot = _slot(a, done, live)
    cdef int64_t state = a.index[slot], ahead, ran = 0, other
    cdef int64_t *columns
    if state >= 0 and a.states[5 * state + SPENT] <= spent:
        return True
    ahead = _to_come(a, done, live)
    if spent + ahead >= limit:
        return True
    if a.counts[STATES] + 1 >= a.most_states or a.counts[OPEN] + 1 >= a.most_open:
        return False
    if state < 0:
        state = a.counts[STATES]
        a.counts[STATES] += 1
        a.index[slot] = state
        a.states[5 * state + DONE], a.states[5 * state + LIVE] = done, live
    columns = a.states + 5 * state
    columns[SPENT], columns[PARENT], columns[OP] = spent, parent, op
    for other in range(a.num_ops):
        ran += (done >> other) & 1
    _push(a, spent + ahead, -ran, state, spent)
    return True


def start(const int64_t[:, ::1] table, int64_t[:, ::1] states, int64_t[:, ::1] heap, int64_t[::1] index, int64_t[::1] counts):
    """Open the state in which nothing has run."""
    cdef Arrays a = _arrays(table, states, heap, index, counts)
    states[0, PARENT] = -1
    index[_slot(&a, 0, 0)] = 0
    counts[STATES] = 1
    _push(&a, 0, 0, 0, 0)


def reindex(const int64_t[:, ::1] table, int64_t[:, ::1] states, int64_t[:, ::1] heap, int64_t[::1] index, int64_t[::1] counts):
    """Enter all states in a hash table that is empty."""
    cdef Arrays a = _arrays(table, states, heap, index, counts)
    cdef int64_t state
    for state in range(counts[STATES]):
        index[_slot(&a, states[state, DONE], states[state, LIVE])] = state


def expand(
    const int64_t[:, ::1] table,
    int64_t[:, ::1] states,
    int64_t[:, ::1] heap,
    int64_t[::1] index,
    int64_t[::1] counts,
    int64_t capacity,
    int64_t limit,
    int64_t most,
):
    """Take the best open states until `most` successors were looked at; those that cost `limit` or more are left out."""
    cdef Arrays a = _arrays(table, states, heap, index, counts)
    cdef int64_t[:, ::1] space = np.zeros((3, a.num_values + 2), np.int64)
    return _expand(&a, capacity, limit, most, &space[0, 0], &space[1, 0], &space[2, 0])


cdef int64_t _expand(
    Arrays *a, int64_t capacity, int64_t limit, int64_t most, int64_t *choices, int64_t *rest, int64_t *chosen
) noexcept nogil:
    cdef int64_t n = a.num_ops, m = a.num_values, one = 1
    cdef int64_t everything = (one << n) - 1
    cdef int64_t state, least, left, spent, done, live, useful, successors, op, again, reads, writes, after, used, others
    cdef int64_t load, count, value, x, cost, reused, goes, excess, stays, depth, freed, dropped, fresh
    while a.counts[OPEN] > 0:
        if a.counts[WORK] >= most:
            return MORE
        state, least, left, spent = a.heap[_STATE], a.heap[_LEAST], a.heap[_LEFT], a.heap[_THEN]
        _pop(a)
        if a.states[5 * state + SPENT] < spent:
            continue
        a.counts[BOUND] = max(a.counts[BOUND], least)
        done, live = a.states[5 * state + DONE], a.states[5 * state + LIVE]
        if done == everything and live & a.kept == a.kept:
            a.counts[GOAL] = state
            return FOUND
        useful = _useful(a, done)
        successors = 0
        for op in range(n):
            again = (done >> op) & 1
            reads, writes = a.reads[op], a.writes[op]
            if a.before[op] & ~done or reads & ~live:
                continue
            if again and (not a.again[op] or writes & useful & ~live == 0):
                continue
            after = done | (one << op)
            used = useful if again else _useful(a, after)
            # Old copies of its outputs are in the way, and so is what nobody will read.
            others = live & ~writes & (used | reads)
            load, count = a.needs[op], 0
            for value in range(m):
                if (others >> value) & 1:
                    load += a.size[value]
                    if (reads >> value) & 1 == 0 and a.size[value] > 0:
                        choices[count] = value
                        count += 1
            rest[count] = 0
            for x in range(count - 1, -1, -1):
                rest[x] = rest[x + 1] + a.size[choices[x]]
            cost = spent + (a.cost[op] if again else 0)
            # What the op may write in goes if nobody else will use it; else both ways, if its room is needed.
            reused = a.reuses[op]
            for goes in range(1 if reused and reused & used == 0 else 0, 2 if reused else 1):
                excess = load - capacity - (a.saves[op] if goes else 0)
                stays = used & ~reused if goes else used
                # All sets of values, largest first, that free enough only with their last one.
                depth, x, freed, dropped = 0, 0, 0, 0
                while True:
                    if freed >= excess:
                        successors += 1
                        a.counts[WORK] += 1
                        fresh = ((others & ~dropped) | writes) & stays
                        if not _reach(a, limit, after, fresh, cost, state, op):
                            _push(a, least, left, state, spent)
                            return FULL
                        if successors == _MOST_SUCCESSORS:
                            return WIDE
                    elif x < count and freed + rest[x] >= excess:
                        chosen[depth] = x
                        depth += 1
                        freed += a.size[choices[x]]
                        dropped |= one << choices[x]
                        x += 1
                        continue
                    if depth == 0:
                        break
                    depth -= 1
                    x = chosen[depth]
                    freed -= a.size[choices[x]]
                    dropped ^= one << choices[x]
                    x += 1
                if excess <= 0:
                    break
    return EXHAUSTED
