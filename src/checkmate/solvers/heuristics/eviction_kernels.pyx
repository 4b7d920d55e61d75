"""The inside of greedy eviction: a pass, which stops after so much work and goes on from there."""

from libc.math cimport pow
from libc.stdint cimport int64_t, uint8_t

import numpy as np

from ..representation.sorting cimport sort

#: A pass that goes in circles is given up after this much work per op; passes that succeed take a small part of it.
cdef enum:
    _WORK_PER_OP = 20_000

#: Rows of `table`. Per op: where its inputs, its outputs begin in `links` (they end where the next op's begin), whether it may be
#: recomputed. Per value: where its readers begin, its producer, the last stage at which it is of use, whether it is a candidate for
#: eviction at all, all values by that last stage. Per snapshot: its op. COUNTS: numbers of ops, of values.
cpdef enum:
    IN, OUT, AGAIN, USERS, PRODUCER, UNTIL, CANDIDATE, BY_UNTIL, SNAPSHOT, COUNTS

#: Rows of `numbers`. Per op: cost, workspace. Per value: bytes, the part of its score that does not change. Powers of cost and
#: distance in the score.
cpdef enum:
    COST, WORKSPACE, SIZE, WORTH, POWER

#: How a slice of a pass ended.
cpdef enum:
    UNFINISHED, FOUND, STUCK

#: Missing ancestors of a value that are counted at most; ops that a recomputation may have made cheaper that are looked at.
cdef enum:
    _ANCESTORS = 1000
    _DESCENDANTS = 300

#: An entry of the heap takes as long as following so many links.
cdef enum:
    _ENTRY = 20

#: Score of values of no further use.
cdef double _USELESS = 1e300


cdef class Pass:
    """One pass: the graph, the setting and the plan, and all that changes.

    Args:
        table, links, numbers: see the rows above. retained: (snapshots, values).
        longest: most computations.
        budget: bytes, without fixed memory.
    """

    cdef object _owners, _sequence  # of the memory that the pointers below are into
    cdef int64_t num_ops, num_values, num_snapshots
    # Rows of the table, and of the numbers.
    cdef const int64_t *links
    cdef const int64_t *inputs
    cdef const int64_t *outputs
    cdef const int64_t *again
    cdef const int64_t *users
    cdef const int64_t *producer
    cdef const int64_t *useful_until
    cdef const int64_t *candidate
    cdef const int64_t *by_until
    cdef const int64_t *snapshot
    cdef const double *cost
    cdef const double *workspace
    cdef const double *size
    cdef const double *worth
    cdef double cost_power, distance_power, budget
    cdef const uint8_t[:, ::1] retained
    # Per value: whether it is resident, the position at which it was read last, its version.
    cdef int64_t *resident
    cdef int64_t *locked
    cdef int64_t *version
    # Per op: the plan that it is in while it has not run in it, the last search that met it.
    cdef int64_t *in_plan
    cdef int64_t *visited
    # Entries of the heap of candidates, best first; one counts for as long as its version is that of the value.
    cdef double *heap_score
    cdef int64_t *heap_value
    cdef int64_t *heap_version
    cdef int64_t entries, most_entries
    # Candidates that are held aside while an eviction is chosen: how many, and the best one.
    cdef int64_t *held
    cdef double *held_score
    cdef int64_t num_held, chosen
    cdef double best
    cdef int64_t *stack  # work space
    cdef int64_t *plan
    cdef int64_t *sequence
    cdef int64_t most_length
    cdef double live  # bytes resident
    # Searches, work done, snapshots passed, plans made, length of the sequence, links followed.
    cdef int64_t visit, work, group, plans, length
    cdef readonly int64_t followed
    # Where a slice goes on: the stage, the steps that it has taken (-1: not begun), how many values (by last stage) were let go before
    # it, and will be after it; the next op of its plan (-1: there is none yet), whether that must be made anew after it.
    cdef int64_t stage, steps, ended, to_end, next, replan

    def __init__(
        self,
        const int64_t[:, ::1] table,
        const int64_t[::1] links,
        const double[:, ::1] numbers,
        const uint8_t[:, ::1] retained,
        int64_t longest,
        double budget,
    ):
        cdef int64_t n = table[COUNTS, 0], m = table[COUNTS, 1], width = 4 * m + n + 16
        cdef int64_t[:, ::1] ints = np.zeros((9, width), np.int64)
        cdef double[:, ::1] scores = np.zeros((2, width))
        cdef int64_t[::1] plan = np.zeros(n + 1, np.int64), sequence = np.zeros(longest, np.int64)
        self._owners, self._sequence = (table, links, numbers, ints, scores, plan), sequence.base
        self.num_ops, self.num_values, self.num_snapshots = n, m, retained.shape[0]
        self.links = &links[0] if links.shape[0] else NULL
        self.inputs, self.outputs, self.again = &table[IN, 0], &table[OUT, 0], &table[AGAIN, 0]
        self.users, self.producer, self.useful_until = &table[USERS, 0], &table[PRODUCER, 0], &table[UNTIL, 0]
        self.candidate, self.by_until, self.snapshot = &table[CANDIDATE, 0], &table[BY_UNTIL, 0], &table[SNAPSHOT, 0]
        self.cost, self.workspace = &numbers[COST, 0], &numbers[WORKSPACE, 0]
        self.size, self.worth = &numbers[SIZE, 0], &numbers[WORTH, 0]
        self.cost_power, self.distance_power, self.budget = numbers[POWER, 0], numbers[POWER, 1], budget
        self.retained = retained
        self.resident, self.locked, self.version = &ints[0, 0], &ints[1, 0], &ints[2, 0]
        self.in_plan, self.visited, self.stack = &ints[3, 0], &ints[4, 0], &ints[5, 0]
        self.heap_value, self.heap_version, self.held = &ints[6, 0], &ints[7, 0], &ints[8, 0]
        self.heap_score, self.held_score = &scores[0, 0], &scores[1, 0]
        self.most_entries = width
        self.plan, self.sequence, self.most_length = &plan[0], &sequence[0], longest
        ints[1, :] = -1
        ints[3, :] = -1
        ints[4, :] = -1
        self.steps = self.next = self.chosen = -1
        self.best = -1.0

    @property
    def found(self):
        """The ops computed so far, (length)."""
        return self._sequence[: self.length]


cdef void _push(Pass p, double score, int64_t value) noexcept nogil:
    """Enter a value; its older entries no longer count. There must be room."""
    cdef int64_t i = p.entries, above
    p.version[value] += 1
    p.entries += 1
    while i > 0:
        above = (i - 1) // 2
        if p.heap_score[above] > score or (p.heap_score[above] == score and p.heap_value[above] < value):
            break
        p.heap_score[i] = p.heap_score[above]
        p.heap_value[i] = p.heap_value[above]
        p.heap_version[i] = p.heap_version[above]
        i = above
    p.heap_score[i], p.heap_value[i], p.heap_version[i] = score, value, p.version[value]


cdef void _pop(Pass p) noexcept nogil:
    """Drop the first entry."""
    cdef double *scores = p.heap_score
    cdef int64_t *values = p.heap_value
    p.entries -= 1
    cdef int64_t count = p.entries, i = 0, below, other
    cdef double score = scores[count]
    cdef int64_t value = values[count], version = p.heap_version[count]
    while 2 * i + 1 < count:
        below = 2 * i + 1
        other = below + 1
        if other < count and (
            scores[other] > scores[below] or (scores[other] == scores[below] and values[other] < values[below])
        ):
            below = other
        if score > scores[below] or (score == scores[below] and value < values[below]):
            break
        scores[i], values[i], p.heap_version[i] = scores[below], values[below], p.heap_version[below]
        i = below
    scores[i], values[i], p.heap_version[i] = score, value, version


cdef double _score(Pass p, int64_t value, int64_t stage, double total) noexcept nogil:
    """Of evicting a value that costs `total` to have again; what the plan of this stage needs it for is not considered."""
    cdef int64_t low = p.users[value], high = p.users[value + 1], behind = p.users[value + 1], middle, next_use
    while low < high:  # the first reader past the stage
        middle = (low + high) // 2
        if p.links[middle] < stage + 1:
            low = middle + 1
        else:
            high = middle
    next_use = p.links[low] if low < behind else p.num_ops
    # Where the cost is of no account, and the total is nothing, the score is infinite.
    cdef double score = (
        p.worth[value] / pow(total + 1e-9, p.cost_power) * pow(<double>(next_use - stage) + 1.0, p.distance_power)
    )
    if p.group < p.num_snapshots and p.retained[p.group, value]:
        score *= 1e-3
    return score


cdef void _enter_anyhow(Pass p, int64_t value, int64_t stage) noexcept nogil:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one. There must be room."""
    cdef double score = _USELESS
    if p.resident[value] == 0 or p.candidate[value] == 0:
        return
    p.followed += _ENTRY
    if p.useful_until[value] > stage:
        score = _score(p, value, stage, p.cost[p.producer[value]])
    _push(p, score, value)


cdef void _start_over(Pass p, int64_t stage) noexcept nogil:
    """A heap of all that is resident."""
    cdef int64_t value
    p.entries = 0
    for value in range(p.num_values):
        _enter_anyhow(p, value, stage)


cdef void _enter(Pass p, int64_t value, int64_t stage) noexcept nogil:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one."""
    if p.entries == p.most_entries:
        _start_over(p, stage)
    _enter_anyhow(p, value, stage)


cdef double _recompute_cost(Pass p, int64_t origin) noexcept nogil:
    """Of an op and all that is missing for it."""
    p.visit += 1
    cdef int64_t visit = p.visit, top = 1, seen = 1, followed = 0, above, x, value, source
    cdef int64_t *stack = p.stack
    cdef int64_t *visited = p.visited
    cdef double total = p.cost[origin]
    stack[0] = origin
    visited[origin] = visit
    while top > 0 and seen < _ANCESTORS:
        top -= 1
        above = stack[top]
        followed += p.inputs[above + 1] - p.inputs[above]
        for x in range(p.inputs[above], p.inputs[above + 1]):
            value = p.links[x]
            source = p.producer[value]
            if not p.resident[value] and visited[source] != visit:
                visited[source] = visit
                total += p.cost[source]
                stack[top] = source
                top += 1
                seen += 1
    p.work += seen
    p.followed += followed
    return total


cdef void _cheaper(Pass p, int64_t op, int64_t stage) noexcept nogil:
    """Op was recomputed: what could not be had again without it costs less now."""
    p.visit += 1
    cdef int64_t visit = p.visit, top = 1, seen = 1, below, x, y, made, user
    cdef int64_t *stack = p.stack
    cdef int64_t *visited = p.visited
    stack[0] = op
    visited[op] = visit
    while top > 0 and seen < _DESCENDANTS:
        top -= 1
        below = stack[top]
        for x in range(p.outputs[below], p.outputs[below + 1]):
            made = p.links[x]
            if below != op and p.resident[made]:
                _enter(p, made, stage)
                continue
            p.followed += p.users[made + 1] - p.users[made]
            for y in range(p.users[made], p.users[made + 1]):
                user = p.links[y]
                if user < stage and visited[user] != visit:
                    visited[user] = visit
                    stack[top] = user
                    top += 1
                    seen += 1
    p.work += seen


cdef int64_t _planned_use(Pass p, int64_t value, int64_t op, int64_t stage) noexcept nogil:
    """The first op of the running plan, other than `op`, that reads the value; -1 if there is none."""
    cdef int64_t x, user
    for x in range(p.users[value], p.users[value + 1]):
        user = p.links[x]
        p.followed += 1
        if user > stage:
            break
        if user != op and p.in_plan[user] == p.plans:
            return user
    return -1


cdef int64_t _choose(Pass p, int64_t op, int64_t stage, int64_t until) noexcept nogil:
    """The value to evict while `op` is about to run, taken off the heap; -1 if there is none, -2 if it is not known yet."""
    cdef double best = p.best, score, true_score
    cdef int64_t chosen = p.chosen, held = p.num_held, value, planned, i
    cdef bint current
    while p.entries > 0:
        if p.followed >= until:
            p.best, p.chosen, p.num_held = best, chosen, held
            return -2
        score, value = p.heap_score[0], p.heap_value[0]
        if score < best or (score == best and value > chosen):
            break
        current = p.heap_version[0] == p.version[value] and p.resident[value]
        _pop(p)
        p.work += 1
        p.followed += _ENTRY
        if not current:
            continue
        if p.locked[value] != p.length:
            planned = _planned_use(p, value, op, stage)
            true_score = score
            if planned >= 0 or score < _USELESS:
                true_score = _score(p, value, stage, _recompute_cost(p, p.producer[value]))
            if score < _USELESS:
                score = true_score
            if planned >= 0:  # needed again within this stage: only if nothing else is left
                true_score *= 1e-6 * (1.0 + planned - op)
            if true_score > best or (true_score == best and value < chosen):
                best, chosen = true_score, value
        p.held[held], p.held_score[held] = value, score
        held += 1
    for i in range(held):
        if p.held[i] != chosen:
            _push(p, p.held_score[i], p.held[i])
    p.best, p.chosen, p.num_held = -1.0, -1, 0
    return chosen


cdef int64_t _make_plan(Pass p, int64_t stage) noexcept nogil:
    """Fill the plan with all that is missing for this stage, in graph order; how many ops, -1 if one must not be recomputed."""
    p.plans += 1
    cdef int64_t stamp = p.plans, count = 0, top = 1, op, x, source
    p.stack[0] = stage
    p.in_plan[stage] = stamp
    while top > 0:
        top -= 1
        op = p.stack[top]
        if op != stage and not p.again[op]:
            return -1  # its value is gone for good
        p.plan[count] = op
        count += 1
        p.followed += p.inputs[op + 1] - p.inputs[op]
        for x in range(p.inputs[op], p.inputs[op + 1]):
            source = p.producer[p.links[x]]
            if not p.resident[p.links[x]] and p.in_plan[source] != stamp:
                p.in_plan[source] = stamp
                p.stack[top] = source
                top += 1
    sort(p.plan, count)
    return count


cdef double _free_useless(Pass p, int64_t op, int64_t stage) noexcept nogil:
    """After `op` ran, free what nothing can use any more: what it read or made is all that can have become useless. Bytes."""
    cdef double freed = 0.0
    cdef const int64_t *begins
    cdef int64_t side, x, y, value, user
    cdef bint wanted
    for side in range(2):
        begins = p.inputs if side == 0 else p.outputs
        for x in range(begins[op], begins[op + 1]):
            value = p.links[x]
            # A value that cannot come back stays to the end of the stage: a new plan may need it.
            if p.resident[value] and p.useful_until[value] <= stage and p.again[p.producer[value]]:
                wanted = False
                for y in range(p.users[value], p.users[value + 1]):
                    user = p.links[y]
                    p.followed += 1
                    if user > stage or p.in_plan[user] == p.plans:
                        wanted = True
                        break
                if not wanted:
                    p.resident[value] = 0
                    freed += p.size[value]
    return freed


cdef void _begin_stage(Pass p) noexcept nogil:
    """Put values on the heap whose score changes with the stage."""
    cdef int64_t stage = p.stage, last = p.ended, x
    while last < p.num_values and p.useful_until[p.by_until[last]] <= stage:
        if p.resident[p.by_until[last]]:
            _enter(p, p.by_until[last], stage)
        last += 1
    p.to_end, p.steps, p.next = last, 0, -1
    for x in range(p.inputs[stage], p.inputs[stage + 1]):
        _enter(p, p.links[x], stage)  # its next use is another one now


cdef int64_t _make_room(Pass p, int64_t op, int64_t until) noexcept nogil:
    """Evict what is in the way of `op`."""
    cdef double need = p.workspace[op]
    cdef int64_t x, value, chosen
    for x in range(p.outputs[op], p.outputs[op + 1]):
        value = p.links[x]
        need += p.size[value]
        if p.resident[value]:  # an old copy: nothing reads it before the new one is there
            p.resident[value] = 0
            p.live -= p.size[value]
    for x in range(p.inputs[op], p.inputs[op + 1]):
        p.locked[p.links[x]] = p.length
    while p.live + need > p.budget:
        chosen = _choose(p, op, p.stage, until)
        if chosen == -2:
            return UNFINISHED
        if chosen < 0 or p.work > _WORK_PER_OP * p.num_ops:
            return STUCK
        p.resident[chosen] = 0
        p.live -= p.size[chosen]
        if _planned_use(p, chosen, op, p.stage) >= 0:
            p.replan = 1
    return FOUND


cdef int64_t _run_stage(Pass p, int64_t until) noexcept nogil:
    """Compute what is missing for the op of the stage, and the op."""
    cdef int64_t n = p.num_ops, stage = p.stage, op = -1, made, x
    while op != stage:
        if p.next < 0:
            if _make_plan(p, stage) < 0:
                return STUCK
            p.next, p.replan = 0, 0
        op = p.plan[p.next]
        if p.steps >= 40 * n + 1000 or p.length == p.most_length or p.work > _WORK_PER_OP * n:
            return STUCK
        made = FOUND if p.followed < until else UNFINISHED
        if made == FOUND:
            made = _make_room(p, op, until)
        if made != FOUND:
            return made
        p.steps += 1
        p.next += 1
        p.sequence[p.length] = op
        p.length += 1
        p.in_plan[op] = -1
        for x in range(p.outputs[op], p.outputs[op + 1]):
            p.resident[p.links[x]] = 1
            p.live += p.size[p.links[x]]
            _enter(p, p.links[x], stage)
        if op != stage:
            _cheaper(p, op, stage)
        p.live -= _free_useless(p, op, stage)
        if p.replan:
            p.next = -1
    return FOUND


cdef void _end_stage(Pass p) noexcept nogil:
    """Free what cannot be of use, or is not to be retained."""
    cdef int64_t x, value
    for x in range(p.ended, p.to_end):
        value = p.by_until[x]
        if p.resident[value] and not p.again[p.producer[value]]:
            p.resident[value] = 0
            p.live -= p.size[value]
    p.ended = p.to_end
    if p.group < p.num_snapshots and p.snapshot[p.group] == p.stage:
        for value in range(p.num_values):
            if p.resident[value] and not p.retained[p.group, value] and p.again[p.producer[value]]:
                p.resident[value] = 0
                p.live -= p.size[value]
        p.group += 1
        _start_over(p, p.stage + 1)


def run_slice(Pass p not None, int64_t until):
    """Go on with the pass until it ends, or so many links have been followed."""
    cdef int64_t made
    while p.stage < p.num_ops:
        if p.steps < 0:
            _begin_stage(p)
        made = _run_stage(p, until)
        if made != FOUND:
            return made
        _end_stage(p)
        p.stage += 1
        p.steps = -1
    return FOUND
