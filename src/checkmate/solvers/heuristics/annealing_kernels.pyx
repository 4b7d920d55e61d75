"""The inside of annealing.py: the moves, and what becomes of them."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport exp, pow
from libc.stdint cimport int64_t, uint32_t, uint64_t

import numpy as np

from ..representation.sequence_kernels cimport (
    CHANGES,
    EXCESS,
    FREE,
    IDEAL_BITS,
    LENGTH,
    SequenceState,
    TOTAL,
    WORK,
    end,
    insert,
    may_move,
    move,
    next_reader,
    remove,
    slot_before,
    superfluous,
    undo,
)
from ..representation.sorting cimport sort

#: Most ops recomputed together in one move, and most ops moved together.
cpdef enum:
    TOGETHER = 64

cdef enum:
    _BLOCK = 14

#: Moves between two adjustments of the weight (and as many as there are ops).
cdef enum:
    _ADJUST_EVERY = 100

#: Weight of one budget's worth of excess bytes at one position, in units of the ideal cost, to start with; its limits; and the factor
#: by which it is adjusted.
cdef double _PENALTY = 0.1, _LEAST_PENALTY = 1e-3, _MOST_PENALTY = 1e3, _ADJUST_BY = 1.1


cdef extern from *:
    """
    #include <stdint.h>
    /* As NumPy documents it for extensions: numpy/random/bitgen.h. */
    typedef struct {
        void *state;
        uint64_t (*next_uint64)(void *state);
        uint32_t (*next_uint32)(void *state);
        double (*next_double)(void *state);
        uint64_t (*next_raw)(void *state);
    } checkmate_bitgen;
    """
    ctypedef struct checkmate_bitgen:
        void *state
        uint32_t (*next_uint32)(void *state) noexcept nogil
        double (*next_double)(void *state) noexcept nogil


cdef class Run:
    """What a run keeps between chunks: the sequence, the best one, and how far it has come.

    Args:
        reorder: first computations may change places. shifts_only: no recomputation is added or dropped.
    """

    cdef SequenceState sequence
    cdef bint reorder, shifts_only
    cdef object _random, _best, _stack, _marks
    cdef checkmate_bitgen *random
    cdef int64_t *best
    cdef int64_t *stack  # work space
    cdef int64_t *marks
    # Of the best sequence: length, bytes above the limit, cost.
    cdef int64_t length
    cdef double excess, cost
    # Of the run; and where a slice goes on: the temperature, the value of the sequence, moves since the weight was adjusted, and those
    # of them within the budget.
    cdef double weight, temperature, current, since, within

    def __init__(self, SequenceState sequence not None, bint reorder, bint shifts_only):
        cdef int64_t[::1] best = np.zeros(sequence.width, np.int64)
        cdef int64_t[::1] stack = np.zeros(2 * sequence.width, np.int64)
        cdef int64_t[::1] marks = np.zeros(sequence.num_ops + 1, np.int64)
        self.sequence, self.reorder, self.shifts_only = sequence, reorder, shifts_only
        self._best, self._stack, self._marks = best.base, stack, marks
        self.best, self.stack, self.marks = &best[0], &stack[0], &marks[0]
        self.excess = self.cost = np.inf
        self.weight = _PENALTY
        self._random = np.random.MT19937()
        self.random = <checkmate_bitgen *>PyCapsule_GetPointer(self._random.capsule, "BitGenerator")
        _remember(self, sequence)

    def seed(self, seed):
        """For the numbers that are drawn next."""
        self._random.state = np.random.RandomState(seed).get_state(legacy=False)

    @property
    def work(self):
        """So far: readers asked, and positions changed."""
        return self.sequence.count[WORK]

    @property
    def found(self):
        """The ops of the best sequence."""
        return self._best[: self.length].tolist()


cdef double _uniform(Run run) noexcept nogil:
    """In [0, 1)."""
    return run.random.next_double(run.random.state)


cdef int64_t _below(Run run, int64_t count) noexcept nogil:
    """A whole number in [0, count), count <= 2^32: as many bits as it may have, drawn again while they are too large."""
    cdef uint32_t mask = <uint32_t>(count - 1), drawn
    if count <= 1:
        return 0
    mask |= mask >> 1
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    while True:
        drawn = run.random.next_uint32(run.random.state) & mask
        if drawn < <uint64_t>count:
            return drawn


cdef double _value(Run run, SequenceState s, double weight, double unit) noexcept nogil:
    """What is to become small: the cost, in units of the ideal cost, and the penalty."""
    return <double>s.count[TOTAL] / <double>(<int64_t>1 << IDEAL_BITS) + weight * unit * <double>s.count[EXCESS]


cdef void _remember(Run run, SequenceState s) noexcept nogil:
    """Keep the sequence if it is the best so far."""
    cdef double excess = s.count[EXCESS], cost = s.count[TOTAL]
    cdef int64_t p
    if excess < run.excess or (excess == run.excess and cost < run.cost):
        run.excess, run.cost = excess, cost
        run.length = s.count[LENGTH] - 1
        for p in range(run.length):
            run.best[p] = s.op[s.order[p]]


def run_chunk(Run run not None, double hot, double cold, int64_t made, int64_t moves, int64_t until):
    """`moves` moves while the temperature falls from `hot` to `cold`, of which some are `made`; returns how many are, at latest when
    the work is `until`."""
    cdef double cooling = pow(cold / hot, 1.0 / moves)
    with nogil:
        made = _chunk(run, run.sequence, hot, cooling, made, moves, until)
    return made


cdef int64_t _chunk(Run run, SequenceState s, double hot, double cooling, int64_t made, int64_t moves, int64_t until) noexcept nogil:
    cdef bint reorder = run.reorder
    cdef double unit = 1.0 / max(s.limit, 1), choice, value
    cdef double weight = run.weight, period = _ADJUST_EVERY + s.num_ops
    cdef double temperature, current, since, within
    if made == 0:
        run.temperature, run.since, run.within = hot, 0.0, 0.0
        run.current = _value(run, s, weight, unit)
    temperature, current, since, within = run.temperature, run.current, run.since, run.within
    while made < moves and s.count[WORK] < until:
        temperature *= cooling
        choice = _uniform(run)
        if run.shifts_only:
            _shift(run, s, False)
        elif choice < 0.3:
            if _drop_one(run, s) and choice < 0.12:
                _recompute(run, s, made)
        elif choice < (0.7 if reorder else 0.8):
            _recompute(run, s, made)
        else:
            _shift(run, s, not reorder)
        made += 1
        if s.count[CHANGES] > 0:
            value = _value(run, s, weight, unit)
            if value <= current or _uniform(run) < exp((current - value) / temperature):
                current = value
                s.count[CHANGES] = 0
                _remember(run, s)
            else:
                undo(s)
        within += s.count[EXCESS] == 0
        since += 1
        if since == period and not run.shifts_only:
            if within == 0:
                weight = min(weight * _ADJUST_BY, _MOST_PENALTY)
            elif within == period:
                weight = max(weight / _ADJUST_BY, _LEAST_PENALTY)
            within = since = 0.0
            current = _value(run, s, weight, unit)
    run.weight, run.temperature, run.current, run.since, run.within = weight, temperature, current, since, within
    return made


cdef void _tidy(Run run, SequenceState s, int64_t top) noexcept nogil:
    """Remove those of the slots stack[:top] that are superfluous, and what that leaves without a reader."""
    cdef int64_t slot
    while top > 0:
        top -= 1
        slot = run.stack[top]
        if slot < 0 or s.order[s.position[slot]] != slot or not superfluous(s, slot, run.reorder):
            continue
        top = _push_sources(run, s, slot, top)
        remove(s, slot)


cdef int64_t _push_sources(Run run, SequenceState s, int64_t slot, int64_t top) noexcept nogil:
    """Add the slots that `slot` reads from to the stack."""
    cdef int64_t op = s.op[slot], x
    for x in range(s.inputs[op], s.inputs[op + 1]):
        run.stack[top] = slot_before(s, s.producer[s.links[x]], s.position[slot])
        top += 1
    return top


cdef int64_t _some_repeat(Run run, SequenceState s) noexcept nogil:
    """The slot of a recomputation; -1 if there is none."""
    cdef int64_t length = s.count[LENGTH], p = _below(run, s.count[LENGTH]), i, slot
    for i in range(length):
        slot = s.order[p]
        if s.before[slot] >= 0:
            return slot
        p = p + 1 if p + 1 < length else 0
    return -1


cdef int64_t _some_excess(Run run, SequenceState s) noexcept nogil:
    """A position above the limit; a random one if there is none."""
    cdef int64_t length = s.count[LENGTH], start = _below(run, s.count[LENGTH]), p = start, i
    for i in range(length):
        if s.live[p] > s.limit:
            return p
        p = p + 1 if p + 1 < length else 0
    return start


cdef bint _drop_one(Run run, SequenceState s) noexcept nogil:
    """Remove one recomputation."""
    cdef int64_t slot = _some_repeat(run, s), top
    if slot < 0:
        return False
    top = _push_sources(run, s, slot, 0)
    remove(s, slot)
    _tidy(run, s, top)
    return True


cdef void _recompute(Run run, SequenceState s, int64_t stamp) noexcept nogil:
    """Let go of a value that is live somewhere (above the limit, if anywhere) and recompute it before its next use."""
    cdef int64_t *stack = run.stack
    cdef int64_t here, position = -1, op = 0, i, value, slot, count, scanned, reader, x, source
    cdef double choice, share
    if s.count[FREE] <= TOGETHER or s.num_values == 0:
        return
    if s.count[EXCESS] > 0 and _uniform(run) < 0.8:
        here = _some_excess(run, s)
    else:
        here = _below(run, s.count[LENGTH])
    for i in range(40):
        value = _below(run, s.num_values)
        op = s.producer[value]
        if not s.recomputable[op]:
            continue
        slot = slot_before(s, op, here)
        if slot >= 0 and end(s, slot, value) > here:
            position = next_reader(s, slot, value, here - 1)
            if position > here:
                break
            position = -1  # it is read right here
    if position < 0:
        return
    if _uniform(run) < 0.25:
        position = here + 1 + _below(run, position - here)
    choice = _uniform(run)
    share = 0.0 if choice < 0.4 else (1.0 if choice < 0.75 else 0.5)
    # What to compute: `op`, and missing inputs of it and of one another.
    stamp = -1 - stamp
    stack[0] = op
    run.marks[op] = stamp
    count, scanned = 1, 0
    while scanned < count and share > 0.0:
        reader = stack[scanned]
        scanned += 1
        for x in range(s.inputs[reader], s.inputs[reader + 1]):
            value = s.links[x]
            source = s.producer[value]
            if run.marks[source] == stamp or not s.recomputable[source] or count == TOGETHER:
                continue
            if share < 1.0 and _uniform(run) > share:
                continue
            if end(s, slot_before(s, source, position), value) < position:
                run.marks[source] = stamp
                stack[count] = source
                count += 1
    sort(stack, count)  # op numbers are a topological order
    for i in range(count):
        stack[i] = insert(s, stack[i], position + i)
    for i in range(count):
        stack[count + i] = s.before[stack[i]]
    _tidy(run, s, 2 * count)


cdef void _shift(Run run, SequenceState s, bint repeats_only) noexcept nogil:
    """Put one computation, or a block of neighbours, elsewhere."""
    cdef int64_t length = s.count[LENGTH], slot, position, block, target, width, i, offset
    cdef double choice
    if repeats_only:
        slot = _some_repeat(run, s)
        if slot < 0:
            return
        position = s.position[slot]
    elif s.count[EXCESS] > 0 and _uniform(run) < 0.3:
        position = _some_excess(run, s)
    else:
        position = _below(run, length)
    block = 1
    if not repeats_only and _uniform(run) < 0.3:
        block = min(2 + _below(run, _BLOCK - 1), length - position)
    choice = _uniform(run)
    if choice < 0.35:
        target = position - 8 + _below(run, 17)
    elif choice < 0.7 and block == 1:
        target = _within_reach(run, s, s.order[position])
    else:
        width = 5 + <int64_t>(0.3 * length * _uniform(run))
        target = position - width + _below(run, 2 * width + 1)
    target = max(0, min(target, length - 1 - block))
    for i in range(block):
        # Neighbours move one by one, the foremost in the direction of the move first.
        offset = i if target < position else block - 1 - i
        if not _move_one(run, s, s.order[position + offset], target + offset):
            undo(s)
            return
        if s.count[LENGTH] != length:
            return  # something became superfluous: positions are no longer what they were


cdef int64_t _within_reach(Run run, SequenceState s, int64_t slot) noexcept nogil:
    """A position between what a computation reads and its first reader: as late as possible, as early, or between."""
    cdef int64_t op = s.op[slot], position = s.position[slot], following = s.after[slot]
    cdef int64_t low = 0, high = s.position[following] if following >= 0 else s.count[LENGTH] - 1, x, reader
    cdef double choice
    for x in range(s.inputs[op], s.inputs[op + 1]):
        low = max(low, s.position[slot_before(s, s.producer[s.links[x]], position)] + 1)
    for x in range(s.outputs[op], s.outputs[op + 1]):
        reader = next_reader(s, slot, s.links[x], position)
        if reader >= 0:
            high = min(high, reader)
    choice = _uniform(run)
    if choice < 0.4:
        return high - 1
    return low if choice < 0.6 or high <= low else low + _below(run, high - low)


cdef bint _move_one(Run run, SequenceState s, int64_t slot, int64_t position) noexcept nogil:
    cdef int64_t *stack = run.stack
    cdef int64_t top
    if not may_move(s, slot, position, run.reorder):
        return False
    top = _push_sources(run, s, slot, 0)
    stack[top], stack[top + 1] = s.before[slot], s.after[slot]
    move(s, slot, position)
    stack[top + 2], stack[top + 3], stack[top + 4] = s.before[slot], s.after[slot], slot
    _tidy(run, s, top + 5)
    return True
