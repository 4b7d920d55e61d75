"""An execution sequence and its memory profile, changed in place and undone: compiled kernels for local search.

A sequence is a list of computations, each in a numbered slot. The slots of one op are linked in time. A value lives from a
computation of its op to the last reader before the next one, so where it ends is found by asking its readers: nothing else
is stored, and inserting, removing or moving one computation touches only the values that its op reads or makes.

The kept values are read by one more op, the sink, which stays at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .problem import Bools, Floats, Ints, Problem, compressed

#: Places in `State.count`.
LENGTH, EXCESS, FREE, CHANGES = 0, 1, 2, 3
_INSERTED, _REMOVED, _MOVED = 0, 1, 2


class Arrays(NamedTuple):
    """A graph for the kernels: n ops and the sink (number n), m values; bytes as whole numbers.

    Attributes:
        cost: relative to the ideal cost.
        phase: 1 for ops that must first run before every op of phase 2 first runs; 0 for all others.
    """

    in_pointers: Ints
    in_values: Ints
    out_pointers: Ints
    out_values: Ints
    user_pointers: Ints
    user_ops: Ints
    producer: Ints
    cost: Floats
    size: Ints
    workspace: Ints
    recomputable: Bools
    phase: Ints


class State(NamedTuple):
    """A sequence: its slots, the live bytes at every position, and the changes since the last `accept`.

    Attributes:
        order: slot at each position. live: bytes at each position, workspace included.
        op, position, before, after: per slot; before and after link the slots of one op (-1: none).
        first, last: per op its first and last slot (-1: none).
        free: stack of unused slots.
        changes: (kind, op or unused, position, new position) of every change, for `undo`.
        count: length, sum of the bytes above the limit, number of free slots, number of changes.
        cost: one number, the sum of the costs.
    """

    order: Ints
    live: Ints
    op: Ints
    position: Ints
    before: Ints
    after: Ints
    first: Ints
    last: Ints
    free: Ints
    changes: Ints
    count: Ints
    cost: Floats


def phase_codes(problem: Problem) -> Ints:
    """Per op 2: backward; 1: forward or loss, and before every backward op in the given order; 0: anything else."""
    phases = [op.phase for op in problem.graph.ops]
    start = phases.index("backward") if "backward" in phases else len(phases)
    codes = np.array([2 if p == "backward" else int(p in ("forward", "loss") and i < start) for i, p in enumerate(phases)])
    return codes.astype(np.int64) if start < len(phases) else np.zeros(len(phases), np.int64)


def arrays_of(problem: Problem) -> Arrays:
    """The graph with the sink."""
    graph = problem.graph
    kept = np.flatnonzero(problem.keep)
    inputs = compressed([*(op.inputs for op in graph.ops), kept.tolist()])
    users: list[list[int]] = [[] for _ in graph.values]
    for index, op in enumerate(graph.ops):
        for value in op.inputs:
            users[value].append(index)
    for value in kept.tolist():
        users[value].append(graph.num_ops)
    return Arrays(
        *inputs,
        *compressed([*(op.outputs for op in graph.ops), ()]),
        *compressed(users),
        problem.producer,
        np.append(problem.cost / (graph.ideal_cost or 1.0), 0.0),
        problem.size.astype(np.int64),
        np.append(problem.workspace, 0).astype(np.int64),
        np.append(problem.recomputable, False),
        np.append(phase_codes(problem), 0),
    )


def new_state(arrays: Arrays, capacity: int) -> State:
    """An empty sequence with room for `capacity` slots."""
    order, op, position, before, after = (np.full(capacity, -1, np.int64) for _ in range(5))
    first, last = (np.full(len(arrays.cost), -1, np.int64) for _ in range(2))
    return State(
        order,
        np.zeros(capacity, np.int64),
        op,
        position,
        before,
        after,
        first,
        last,
        np.zeros(capacity, np.int64),
        np.zeros((3 * capacity, 4), np.int64),
        np.zeros(4, np.int64),
        np.zeros(1),
    )


@njit(cache=True)
def fill(arrays: Arrays, state: State, sequence: Ints, limit: int) -> None:
    """Start over with `sequence` and the sink; a sequence that the graph allows is the caller's promise."""
    capacity, length = len(state.op), len(sequence) + 1
    state.first[:] = -1
    state.last[:] = -1
    state.live[:] = 0
    state.cost[0] = 0.0
    for p in range(length):
        op = sequence[p] if p < length - 1 else len(arrays.cost) - 1
        state.order[p] = p
        state.op[p] = op
        state.position[p] = p
        state.before[p] = state.last[op]
        state.after[p] = -1
        if state.last[op] >= 0:
            state.after[state.last[op]] = p
        else:
            state.first[op] = p
        state.last[op] = p
        state.cost[0] += arrays.cost[op]
    for p in range(length):
        op = state.op[p]
        state.live[p] += arrays.workspace[op]
        for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
            value = arrays.out_values[x]
            for q in range(p, end(arrays, state, p, value) + 1):
                state.live[q] += arrays.size[value]
    state.count[LENGTH] = length
    state.count[EXCESS] = np.maximum(state.live[:length] - limit, 0).sum()
    state.count[FREE] = capacity - length
    state.count[CHANGES] = 0
    for i in range(capacity - length):
        state.free[i] = capacity - 1 - i


@njit(cache=True)
def end(arrays: Arrays, state: State, slot: int, value: int) -> int:
    """The last position at which `value`, as computed in `slot`, is live."""
    begin, following = state.position[slot], state.after[slot]
    limit = state.position[following] if following >= 0 else len(state.order)
    result = begin
    for x in range(arrays.user_pointers[value], arrays.user_pointers[value + 1]):
        reader = state.last[arrays.user_ops[x]]
        while reader >= 0 and state.position[reader] > limit:
            reader = state.before[reader]
        if reader >= 0 and state.position[reader] > result:
            result = state.position[reader]
    return result


@njit(cache=True)
def next_reader(arrays: Arrays, state: State, slot: int, value: int, after: int) -> int:
    """The first position past `after` that reads `value` as computed in `slot`; -1 if there is none."""
    following = state.after[slot]
    limit = state.position[following] if following >= 0 else len(state.order)
    for x in range(arrays.user_pointers[value], arrays.user_pointers[value + 1]):
        reader = state.last[arrays.user_ops[x]]
        while reader >= 0 and state.position[reader] > after:
            limit = min(limit, state.position[reader])
            reader = state.before[reader]
    if limit == len(state.order) or (following >= 0 and limit == state.position[following]):
        return -1
    return limit


@njit(cache=True)
def slot_before(state: State, op: int, position: int) -> int:
    """The last slot of `op` before `position`; -1 if there is none."""
    slot = state.last[op]
    while slot >= 0 and state.position[slot] >= position:
        slot = state.before[slot]
    return slot


@njit(cache=True)
def _add(state: State, begin: int, stop: int, size: int, limit: int) -> None:
    """`size` more bytes live at positions begin, ..., stop - 1."""
    live = state.live
    excess = 0
    for p in range(begin, stop):
        old = live[p]
        live[p] = old + size
        excess += max(old + size - limit, 0) - max(old - limit, 0)
    state.count[EXCESS] += excess


@njit(cache=True)
def _through(arrays: Arrays, state: State, position: int) -> int:
    """Bytes that live on from before `position` past it."""
    op = state.op[state.order[position]]
    through = state.live[position] - arrays.workspace[op]
    for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
        through -= arrays.size[arrays.out_values[x]]
    return through


@njit(cache=True)
def _detach(arrays: Arrays, state: State, slot: int, limit: int) -> None:
    """Take the computation in `slot` out of the profile and of its op's list; its position stays, as a hole."""
    op, hole = state.op[slot], state.position[slot]
    earlier, later = state.before[slot], state.after[slot]
    for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
        value = arrays.out_values[x]
        stop = end(arrays, state, slot, value)
        if earlier < 0:
            _add(state, hole, stop + 1, -arrays.size[value], limit)
        elif stop == hole:
            _add(state, hole, hole + 1, -arrays.size[value], limit)
        else:  # its readers fall back on the computation before
            _add(state, end(arrays, state, earlier, value) + 1, hole, arrays.size[value], limit)
    _add(state, hole, hole + 1, -arrays.workspace[op], limit)
    if earlier >= 0:
        state.after[earlier] = later
    else:
        state.first[op] = later
    if later >= 0:
        state.before[later] = earlier
    else:
        state.last[op] = earlier
    for x in range(arrays.in_pointers[op], arrays.in_pointers[op + 1]):
        value = arrays.in_values[x]
        source = slot_before(state, arrays.producer[value], hole)
        stop = end(arrays, state, source, value)
        if stop < hole:
            _add(state, stop + 1, hole + 1, -arrays.size[value], limit)


@njit(cache=True)
def _attach(arrays: Arrays, state: State, slot: int, limit: int) -> None:
    """The inverse of `_detach`: the position of `slot` is a hole."""
    op, hole = state.op[slot], state.position[slot]
    for x in range(arrays.in_pointers[op], arrays.in_pointers[op + 1]):
        value = arrays.in_values[x]
        source = slot_before(state, arrays.producer[value], hole)
        stop = end(arrays, state, source, value)
        if stop < hole:
            _add(state, stop + 1, hole + 1, arrays.size[value], limit)
    earlier = slot_before(state, op, hole)
    later = state.after[earlier] if earlier >= 0 else state.first[op]
    state.before[slot] = earlier
    state.after[slot] = later
    if earlier >= 0:
        state.after[earlier] = slot
    else:
        state.first[op] = slot
    if later >= 0:
        state.before[later] = slot
    else:
        state.last[op] = slot
    _add(state, hole, hole + 1, arrays.workspace[op], limit)
    for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
        value = arrays.out_values[x]
        stop = end(arrays, state, slot, value)
        if earlier < 0:
            _add(state, hole, stop + 1, arrays.size[value], limit)
        elif stop == hole:
            _add(state, hole, hole + 1, arrays.size[value], limit)
        else:
            _add(state, end(arrays, state, earlier, value) + 1, hole, -arrays.size[value], limit)


@njit(cache=True)
def _insert(arrays: Arrays, state: State, op: int, position: int, limit: int) -> int:
    count = state.count
    count[FREE] -= 1
    slot = state.free[count[FREE]]
    through = _through(arrays, state, position)
    for p in range(count[LENGTH], position, -1):
        state.order[p] = state.order[p - 1]
        state.live[p] = state.live[p - 1]
        state.position[state.order[p]] = p
    count[LENGTH] += 1
    state.order[position] = slot
    state.live[position] = through
    count[EXCESS] += max(through - limit, 0)
    state.position[slot] = position
    state.op[slot] = op
    state.cost[0] += arrays.cost[op]
    _attach(arrays, state, slot, limit)
    return slot


@njit(cache=True)
def _remove(arrays: Arrays, state: State, slot: int, limit: int) -> None:
    count = state.count
    _detach(arrays, state, slot, limit)
    hole = state.position[slot]
    count[EXCESS] -= max(state.live[hole] - limit, 0)
    count[LENGTH] -= 1
    for p in range(hole, count[LENGTH]):
        state.order[p] = state.order[p + 1]
        state.live[p] = state.live[p + 1]
        state.position[state.order[p]] = p
    state.cost[0] -= arrays.cost[state.op[slot]]
    state.free[count[FREE]] = slot
    count[FREE] += 1


@njit(cache=True)
def _move(arrays: Arrays, state: State, slot: int, position: int, limit: int) -> None:
    _detach(arrays, state, slot, limit)
    hole = state.position[slot]
    state.count[EXCESS] -= max(state.live[hole] - limit, 0)
    direction = 1 if position > hole else -1
    for p in range(hole, position, direction):
        state.order[p] = state.order[p + direction]
        state.live[p] = state.live[p + direction]
        state.position[state.order[p]] = p
    state.order[position] = slot
    state.position[slot] = position
    state.live[position] = _through(arrays, state, position + 1)
    state.count[EXCESS] += max(state.live[position] - limit, 0)
    _attach(arrays, state, slot, limit)


@njit(cache=True)
def _log(state: State, kind: int, op: int, position: int, target: int) -> None:
    row = state.changes[state.count[CHANGES]]
    row[0], row[1], row[2], row[3] = kind, op, position, target
    state.count[CHANGES] += 1


@njit(cache=True)
def insert(arrays: Arrays, state: State, op: int, position: int, limit: int) -> int:
    """Compute `op` just before what is at `position`; its inputs must be there. Returns the slot."""
    _log(state, _INSERTED, op, position, position)
    return _insert(arrays, state, op, position, limit)


@njit(cache=True)
def remove(arrays: Arrays, state: State, slot: int, limit: int) -> None:
    """Drop a computation; its readers, if any, must have an earlier one."""
    _log(state, _REMOVED, state.op[slot], state.position[slot], -1)
    _remove(arrays, state, slot, limit)


@njit(cache=True)
def move(arrays: Arrays, state: State, slot: int, position: int, limit: int) -> None:
    """Put a computation elsewhere; see `may_move`."""
    _log(state, _MOVED, state.op[slot], state.position[slot], position)
    _move(arrays, state, slot, position, limit)


@njit(cache=True)
def undo(arrays: Arrays, state: State, limit: int) -> None:
    """Take back all changes since the log was last empty."""
    while state.count[CHANGES] > 0:
        state.count[CHANGES] -= 1
        row = state.changes[state.count[CHANGES]]
        if row[0] == _INSERTED:
            _remove(arrays, state, state.order[row[2]], limit)
        elif row[0] == _REMOVED:
            _insert(arrays, state, row[1], row[2], limit)
        else:
            _move(arrays, state, state.order[row[3]], row[2], limit)


@njit(cache=True)
def phases_allow(arrays: Arrays, state: State, op: int, begin: int, stop: int) -> bool:
    """The first computation of `op` may move across positions begin, ..., stop - 1."""
    phase = arrays.phase[op]
    if phase == 0:
        return True
    for p in range(begin, stop):
        slot = state.order[p]
        if state.before[slot] < 0 and arrays.phase[state.op[slot]] == 3 - phase:
            return False
    return True


@njit(cache=True)
def may_move(arrays: Arrays, state: State, slot: int, position: int, reorder: bool) -> bool:
    """Whether the sequence is still legal with `slot` at `position`; `reorder`: first computations may change places."""
    op, start = state.op[slot], state.position[slot]
    opening = state.first[op]
    if position == start or position < 0 or max(start, position) >= state.count[LENGTH] - 1:  # the sink stays
        return False
    if position < start:
        for x in range(arrays.in_pointers[op], arrays.in_pointers[op + 1]):
            if state.position[state.first[arrays.producer[arrays.in_values[x]]]] >= position:
                return False
        if position > state.position[opening]:
            return True
        return reorder and phases_allow(arrays, state, op, position, state.position[opening])
    if slot != opening:
        return True
    if not reorder:
        return False
    following = state.after[slot]
    if following >= 0 and state.position[following] <= position:
        position = state.position[following]
    return first_reader(arrays, state, op) > position and phases_allow(arrays, state, op, start + 1, position + 1)


@njit(cache=True)
def first_reader(arrays: Arrays, state: State, op: int) -> int:
    """The first position that reads anything `op` makes; the end of the sequence if nothing does."""
    earliest = state.count[LENGTH]
    for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
        value = arrays.out_values[x]
        for y in range(arrays.user_pointers[value], arrays.user_pointers[value + 1]):
            earliest = min(earliest, state.position[state.first[arrays.user_ops[y]]])
    return earliest


@njit(cache=True)
def superfluous(arrays: Arrays, state: State, slot: int, reorder: bool) -> bool:
    """Nobody reads what `slot` computes, and it need not be there otherwise."""
    op, following = state.op[slot], state.after[slot]
    if state.before[slot] < 0 and (not reorder or following < 0):
        return False
    for x in range(arrays.out_pointers[op], arrays.out_pointers[op + 1]):
        if end(arrays, state, slot, arrays.out_values[x]) > state.position[slot]:
            return False
    if state.before[slot] < 0:
        return phases_allow(arrays, state, op, state.position[slot] + 1, state.position[following])
    return True
