"""An execution sequence and its memory profile, changed in place and undone: compiled kernels for local search.

A sequence is a list of computations, each in a numbered slot. The slots of one op are linked in time. A value lives from a
computation of its op to the last reader before the next one, so where it ends is found by asking its readers: nothing else
is stored, and inserting, removing or moving one computation touches only the values that its op reads or makes.

The kept values are read by one more op, the sink, which stays at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .graph_arrays import Ints, Problem
from .kernels import kernel

#: Rows of `SequenceArrays.table`. Per op: where its inputs, its outputs begin in `SequenceArrays.links` (they end where the next
#: op's begin), cost, workspace, whether it may be recomputed, phase code. Per value: where its readers begin, producer, bytes.
#: SHAPE: number of ops (the sink's number), number of values.
IN, OUT, COST, WORKSPACE, RECOMPUTABLE, PHASE, USERS, PRODUCER, SIZE, SHAPE = range(10)
#: Rows of a state. Per position: the slot there, live bytes (workspace included). Per slot: op, position, the slots of the
#: same op before and after (-1: none). Per op: its first and its last slot (-1: none). UNUSED: stack of free slots.
#: COUNT: see below. KIND, WHAT, FROM, TO: the changes since the log was last empty.
ORDER, LIVE, OP, POSITION, BEFORE, AFTER, FIRST, LAST, UNUSED, COUNT, KIND, WHAT, FROM, TO = range(14)
#: Places in the row COUNT: length, sum of the bytes above the limit, free slots, logged changes, total cost, capacity, work done
#: (readers asked, positions changed).
LENGTH, EXCESS, FREE, CHANGES, TOTAL, CAPACITY, WORK = range(7)
#: The ideal cost in units of COST and TOTAL: whole numbers, so that no error adds up.
IDEAL = 1 << 44
_INSERTED, _REMOVED, _MOVED = range(3)


class SequenceArrays(NamedTuple):
    """A graph for the kernels: few arrays, since every call passes them on. See the rows above."""

    table: Ints
    links: Ints


def phase_codes(problem: Problem) -> Ints:
    """Per op 2: backward; 1: forward or loss, and before every backward op in the given order; 0: anything else.

    Every first computation of an op with code 1 comes before the first computation of any op with code 2.
    """
    phases = [op.phase for op in problem.graph.ops]
    codes = np.zeros(len(phases), np.int64)
    if "backward" in phases:
        start = phases.index("backward")
        codes[:start] = [phase in ("forward", "loss") for phase in phases[:start]]
        codes[problem.backward] = 2
    return codes


def arrays_of(problem: Problem) -> SequenceArrays:
    """The graph with the sink."""
    graph = problem.graph
    n, m = graph.num_ops, graph.num_values
    kept = np.flatnonzero(problem.keep)
    (in_pointers, in_values), (out_pointers, out_values) = problem.inputs, problem.outputs
    in_pointers, in_values = np.append(in_pointers, len(in_values) + len(kept)), np.append(in_values, kept)
    user_pointers, user_ops = problem.users
    user_ops = np.insert(user_ops, user_pointers[1:][kept], n)
    user_pointers = user_pointers + np.append(0, np.cumsum(problem.keep))
    table = np.zeros((10, max(n, m) + 2), np.int64)
    table[IN, : n + 2] = in_pointers
    table[OUT, : n + 2] = np.append(out_pointers, out_pointers[-1]) + len(in_values)
    table[USERS, : m + 1] = user_pointers + len(in_values) + len(out_values)
    table[COST, :n] = np.rint(problem.cost / (graph.ideal_cost or 1.0) * IDEAL)
    table[WORKSPACE, :n] = problem.least_workspace
    table[RECOMPUTABLE, :n] = problem.recomputable
    table[PHASE, :n] = phase_codes(problem)
    table[PRODUCER, :m] = problem.producer
    table[SIZE, :m] = problem.size
    table[SHAPE, :2] = n, m
    return SequenceArrays(table, np.concatenate([in_values, out_values, user_ops]))


def new_state(arrays: SequenceArrays, sequence: Sequence[int], capacity: int, limit: int) -> Ints:
    """A state for `sequence`, which must be legal, followed by the sink.

    Args:
        capacity: most computations it can hold. limit: bytes; what is above it is counted as excess.
    """
    sink = int(arrays.table[SHAPE, 0])
    state = np.full((14, max(2 * capacity, sink + 1, 8)), -1, np.int64)
    state[COUNT, CAPACITY] = capacity
    fill(arrays, state, np.array([*sequence, sink], np.int64), limit)
    return state


@kernel()
def fill(arrays: SequenceArrays, state: Ints, sequence: Ints, limit: int) -> None:
    """Start over with `sequence`, sink included."""
    capacity, length = state[COUNT, CAPACITY], len(sequence)
    state[FIRST] = -1
    state[LAST] = -1
    state[LIVE] = 0
    state[COUNT, TOTAL] = 0
    for p in range(length):
        op = sequence[p]
        state[ORDER, p] = p
        state[OP, p] = op
        state[POSITION, p] = p
        state[BEFORE, p] = state[LAST, op]
        state[AFTER, p] = -1
        if state[LAST, op] >= 0:
            state[AFTER, state[LAST, op]] = p
        else:
            state[FIRST, op] = p
        state[LAST, op] = p
        state[COUNT, TOTAL] += arrays.table[COST, op]
    for p in range(length):
        op = state[OP, p]
        for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
            # What comes and what goes, at first.
            value = arrays.links[x]
            state[LIVE, p] += arrays.table[SIZE, value]
            gone = end(arrays, state, p, value) + 1
            if gone < length:
                state[LIVE, gone] -= arrays.table[SIZE, value]
    live = 0
    for p in range(length):
        live += state[LIVE, p]
        state[LIVE, p] = live + arrays.table[WORKSPACE, state[OP, p]]
    state[COUNT, LENGTH] = length
    state[COUNT, WORK] = 0
    state[COUNT, EXCESS] = np.maximum(state[LIVE, :length] - limit, 0).sum()
    state[COUNT, FREE] = capacity - length
    state[COUNT, CHANGES] = 0
    for i in range(capacity - length):
        state[UNUSED, i] = capacity - 1 - i


@kernel()
def end(arrays: SequenceArrays, state: Ints, slot: int, value: int) -> int:
    """The last position at which `value`, as computed in `slot`, is live."""
    begin, following = state[POSITION, slot], state[AFTER, slot]
    limit = state[POSITION, following] if following >= 0 else state.shape[1]
    result = begin
    state[COUNT, WORK] += arrays.table[USERS, value + 1] - arrays.table[USERS, value]
    for x in range(arrays.table[USERS, value], arrays.table[USERS, value + 1]):
        reader = state[LAST, arrays.links[x]]
        while reader >= 0 and state[POSITION, reader] > limit:
            reader = state[BEFORE, reader]
        if reader >= 0 and state[POSITION, reader] > result:
            result = state[POSITION, reader]
    return result


@kernel()
def next_reader(arrays: SequenceArrays, state: Ints, slot: int, value: int, after: int) -> int:
    """The first position past `after` that reads `value` as computed in `slot`; -1 if there is none."""
    following = state[AFTER, slot]
    limit = state[POSITION, following] if following >= 0 else state.shape[1]
    state[COUNT, WORK] += arrays.table[USERS, value + 1] - arrays.table[USERS, value]
    for x in range(arrays.table[USERS, value], arrays.table[USERS, value + 1]):
        reader = state[LAST, arrays.links[x]]
        while reader >= 0 and state[POSITION, reader] > after:
            limit = min(limit, state[POSITION, reader])
            reader = state[BEFORE, reader]
    if limit == state.shape[1] or (following >= 0 and limit == state[POSITION, following]):
        return -1
    return limit


@kernel()
def slot_before(state: Ints, op: int, position: int) -> int:
    """The last slot of `op` before `position`; -1 if there is none."""
    slot = state[LAST, op]
    while slot >= 0 and state[POSITION, slot] >= position:
        slot = state[BEFORE, slot]
    return slot


@kernel()
def _add(state: Ints, begin: int, stop: int, size: int, limit: int) -> None:
    """`size` more bytes live at positions begin, ..., stop - 1."""
    live = state[LIVE]
    excess = 0
    state[COUNT, WORK] += max(0, stop - begin)
    for p in range(begin, stop):
        old = live[p]
        live[p] = old + size
        excess += max(old + size - limit, 0) - max(old - limit, 0)
    state[COUNT, EXCESS] += excess


@kernel()
def _through(arrays: SequenceArrays, state: Ints, position: int) -> int:
    """Bytes that live on from before `position` past it."""
    op = state[OP, state[ORDER, position]]
    through = state[LIVE, position] - arrays.table[WORKSPACE, op]
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        through -= arrays.table[SIZE, arrays.links[x]]
    return through


@kernel()
def _detach(arrays: SequenceArrays, state: Ints, slot: int, limit: int) -> None:
    """Take the computation in `slot` out of the profile and of its op's list; its position stays, as a hole."""
    op, hole = state[OP, slot], state[POSITION, slot]
    earlier, later = state[BEFORE, slot], state[AFTER, slot]
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        value = arrays.links[x]
        stop = end(arrays, state, slot, value)
        if earlier < 0:
            _add(state, hole, stop + 1, -arrays.table[SIZE, value], limit)
        elif stop == hole:
            _add(state, hole, hole + 1, -arrays.table[SIZE, value], limit)
        else:  # its readers fall back on the computation before
            _add(state, end(arrays, state, earlier, value) + 1, hole, arrays.table[SIZE, value], limit)
    _add(state, hole, hole + 1, -arrays.table[WORKSPACE, op], limit)
    if earlier >= 0:
        state[AFTER, earlier] = later
    else:
        state[FIRST, op] = later
    if later >= 0:
        state[BEFORE, later] = earlier
    else:
        state[LAST, op] = earlier
    for x in range(arrays.table[IN, op], arrays.table[IN, op + 1]):
        value = arrays.links[x]
        source = slot_before(state, arrays.table[PRODUCER, value], hole)
        stop = end(arrays, state, source, value)
        if stop < hole:
            _add(state, stop + 1, hole + 1, -arrays.table[SIZE, value], limit)


@kernel()
def _attach(arrays: SequenceArrays, state: Ints, slot: int, limit: int) -> None:
    """The inverse of `_detach`: the position of `slot` is a hole."""
    op, hole = state[OP, slot], state[POSITION, slot]
    for x in range(arrays.table[IN, op], arrays.table[IN, op + 1]):
        value = arrays.links[x]
        source = slot_before(state, arrays.table[PRODUCER, value], hole)
        stop = end(arrays, state, source, value)
        if stop < hole:
            _add(state, stop + 1, hole + 1, arrays.table[SIZE, value], limit)
    earlier = slot_before(state, op, hole)
    later = state[AFTER, earlier] if earlier >= 0 else state[FIRST, op]
    state[BEFORE, slot] = earlier
    state[AFTER, slot] = later
    if earlier >= 0:
        state[AFTER, earlier] = slot
    else:
        state[FIRST, op] = slot
    if later >= 0:
        state[BEFORE, later] = slot
    else:
        state[LAST, op] = slot
    _add(state, hole, hole + 1, arrays.table[WORKSPACE, op], limit)
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        value = arrays.links[x]
        stop = end(arrays, state, slot, value)
        if earlier < 0:
            _add(state, hole, stop + 1, arrays.table[SIZE, value], limit)
        elif stop == hole:
            _add(state, hole, hole + 1, arrays.table[SIZE, value], limit)
        else:
            _add(state, end(arrays, state, earlier, value) + 1, hole, -arrays.table[SIZE, value], limit)


@kernel()
def _insert(arrays: SequenceArrays, state: Ints, op: int, position: int, limit: int) -> int:
    count = state[COUNT]
    count[FREE] -= 1
    slot = state[UNUSED, count[FREE]]
    through = _through(arrays, state, position)
    for p in range(count[LENGTH], position, -1):
        state[ORDER, p] = state[ORDER, p - 1]
        state[LIVE, p] = state[LIVE, p - 1]
        state[POSITION, state[ORDER, p]] = p
    count[LENGTH] += 1
    state[ORDER, position] = slot
    state[LIVE, position] = through
    count[EXCESS] += max(through - limit, 0)
    state[POSITION, slot] = position
    state[OP, slot] = op
    state[COUNT, TOTAL] += arrays.table[COST, op]
    _attach(arrays, state, slot, limit)
    return slot


@kernel()
def _remove(arrays: SequenceArrays, state: Ints, slot: int, limit: int) -> None:
    count = state[COUNT]
    _detach(arrays, state, slot, limit)
    hole = state[POSITION, slot]
    count[EXCESS] -= max(state[LIVE, hole] - limit, 0)
    count[LENGTH] -= 1
    for p in range(hole, count[LENGTH]):
        state[ORDER, p] = state[ORDER, p + 1]
        state[LIVE, p] = state[LIVE, p + 1]
        state[POSITION, state[ORDER, p]] = p
    state[COUNT, TOTAL] -= arrays.table[COST, state[OP, slot]]
    state[UNUSED, count[FREE]] = slot
    count[FREE] += 1


@kernel()
def _move(arrays: SequenceArrays, state: Ints, slot: int, position: int, limit: int) -> None:
    _detach(arrays, state, slot, limit)
    hole = state[POSITION, slot]
    state[COUNT, EXCESS] -= max(state[LIVE, hole] - limit, 0)
    direction = 1 if position > hole else -1
    for p in range(hole, position, direction):
        state[ORDER, p] = state[ORDER, p + direction]
        state[LIVE, p] = state[LIVE, p + direction]
        state[POSITION, state[ORDER, p]] = p
    state[ORDER, position] = slot
    state[POSITION, slot] = position
    state[LIVE, position] = _through(arrays, state, position + 1)
    state[COUNT, EXCESS] += max(state[LIVE, position] - limit, 0)
    _attach(arrays, state, slot, limit)


@kernel()
def _log(state: Ints, kind: int, op: int, position: int, target: int) -> None:
    row = state[COUNT, CHANGES]
    state[KIND, row], state[WHAT, row], state[FROM, row], state[TO, row] = kind, op, position, target
    state[COUNT, CHANGES] += 1


@kernel()
def insert(arrays: SequenceArrays, state: Ints, op: int, position: int, limit: int) -> int:
    """Compute `op` just before what is at `position`; its inputs must be there. Returns the slot."""
    _log(state, _INSERTED, op, position, position)
    return _insert(arrays, state, op, position, limit)


@kernel()
def remove(arrays: SequenceArrays, state: Ints, slot: int, limit: int) -> None:
    """Drop a computation; its readers, if any, must have an earlier one."""
    _log(state, _REMOVED, state[OP, slot], state[POSITION, slot], -1)
    _remove(arrays, state, slot, limit)


@kernel()
def move(arrays: SequenceArrays, state: Ints, slot: int, position: int, limit: int) -> None:
    """Put a computation elsewhere; see `may_move`."""
    _log(state, _MOVED, state[OP, slot], state[POSITION, slot], position)
    _move(arrays, state, slot, position, limit)


@kernel()
def undo(arrays: SequenceArrays, state: Ints, limit: int) -> None:
    """Take back all changes since the log was last empty."""
    while state[COUNT, CHANGES] > 0:
        state[COUNT, CHANGES] -= 1
        row = state[COUNT, CHANGES]
        if state[KIND, row] == _INSERTED:
            _remove(arrays, state, state[ORDER, state[FROM, row]], limit)
        elif state[KIND, row] == _REMOVED:
            _insert(arrays, state, state[WHAT, row], state[FROM, row], limit)
        else:
            _move(arrays, state, state[ORDER, state[TO, row]], state[FROM, row], limit)


@kernel()
def phases_allow(arrays: SequenceArrays, state: Ints, op: int, begin: int, stop: int) -> bool:
    """The first computation of `op` may move across positions begin, ..., stop - 1."""
    phase = arrays.table[PHASE, op]
    if phase == 0:
        return True
    for p in range(begin, stop):
        slot = state[ORDER, p]
        if state[BEFORE, slot] < 0 and arrays.table[PHASE, state[OP, slot]] == 3 - phase:
            return False
    return True


@kernel()
def may_move(arrays: SequenceArrays, state: Ints, slot: int, position: int, reorder: bool) -> bool:
    """Whether the sequence is still legal with `slot` at `position`; `reorder`: first computations may change places."""
    op, start = state[OP, slot], state[POSITION, slot]
    opening = state[FIRST, op]
    if position == start or position < 0 or max(start, position) >= state[COUNT, LENGTH] - 1:  # the sink stays
        return False
    if position < start:
        for x in range(arrays.table[IN, op], arrays.table[IN, op + 1]):
            if state[POSITION, state[FIRST, arrays.table[PRODUCER, arrays.links[x]]]] >= position:
                return False
        if position > state[POSITION, opening]:
            return True
        return reorder and phases_allow(arrays, state, op, position, state[POSITION, opening])
    if slot != opening:
        return True
    if not reorder:
        return False
    following = state[AFTER, slot]
    if following >= 0 and state[POSITION, following] <= position:
        position = state[POSITION, following]
    return first_reader(arrays, state, op) > position and phases_allow(arrays, state, op, start + 1, position + 1)


@kernel()
def first_reader(arrays: SequenceArrays, state: Ints, op: int) -> int:
    """The first position that reads anything `op` makes; the end of the sequence if nothing does."""
    earliest = state[COUNT, LENGTH]
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        value = arrays.links[x]
        for y in range(arrays.table[USERS, value], arrays.table[USERS, value + 1]):
            earliest = min(earliest, state[POSITION, state[FIRST, arrays.links[y]]])
    return earliest


@kernel()
def superfluous(arrays: SequenceArrays, state: Ints, slot: int, reorder: bool) -> bool:
    """Nobody reads what `slot` computes, and it need not be there otherwise."""
    op, following = state[OP, slot], state[AFTER, slot]
    if state[BEFORE, slot] < 0 and (not reorder or following < 0):
        return False
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        if end(arrays, state, slot, arrays.links[x]) > state[POSITION, slot]:
            return False
    if state[BEFORE, slot] < 0:
        return phases_allow(arrays, state, op, state[POSITION, slot] + 1, state[POSITION, following])
    return True
