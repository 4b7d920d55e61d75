"""Simulated annealing on execution sequences: a polish for any schedule, and a search over orders.

A move drops a recomputation, recomputes a value that is live where the budget is broken just before its next use (with or
without what that needs), does both, or puts computations elsewhere. What is left without a reader goes at once. The objective is
the cost plus a penalty for the bytes above the budget, whose weight rises while the budget stays broken and falls while it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..representation.decoding import Evaluation, evaluate
from ..representation.execution_sequence import (
    AFTER,
    BEFORE,
    CHANGES,
    COUNT,
    EXCESS,
    FREE,
    IDEAL,
    IN,
    LENGTH,
    LIVE,
    OP,
    ORDER,
    OUT,
    POSITION,
    PRODUCER,
    RECOMPUTABLE,
    SHAPE,
    TOTAL,
    WORK,
    SequenceArrays,
    arrays_of,
    end,
    insert,
    may_move,
    move,
    new_state,
    next_reader,
    remove,
    slot_before,
    superfluous,
    undo,
)
from ..representation.graph_arrays import Floats, Ints, Problem
from ..representation.kernels import kernel

#: Temperatures, in units of the ideal cost, at the start and at the end of a run.
HOT, COLD = 3e-3, 1e-5
#: Start of a run that polishes a good schedule, in the same units.
POLISH_HEAT = 3e-4
#: Weight of one budget's worth of excess bytes at one position, in units of the ideal cost, to start with; and its limits.
_PENALTY, _PENALTY_RANGE = 0.1, (1e-3, 1e3)
#: Moves between two adjustments of that weight (and as many as there are ops), and the factor.
_ADJUST_EVERY, _ADJUST_BY = 100, 1.1
#: Moves times ops between two draws of a seed, and work (readers asked, positions changed) between two looks at the clock: about
#: a third of a second, or less.
_CHUNK, _SLICE = 2e7, 50_000_000
#: Most ops recomputed together in one move, and most ops moved together.
_TOGETHER, _BLOCK = 64, 14
#: Places in `_Memory.figures`: of the best sequence; of the run; and where a slice goes on: the temperature, the value of the
#: sequence, moves since the weight was adjusted, and those of them within the budget.
_COST, _EXCESS, _WEIGHT, _TEMPERATURE, _CURRENT, _SINCE, _WITHIN = range(7)


class _Memory(NamedTuple):
    """What a run keeps between chunks: the best sequence, its length, its figures (see above), and work space."""

    best: Ints
    length: Ints
    figures: Floats
    stack: Ints
    marks: Ints


class Anneal:
    """Annealing for one graph and budget.

    Args:
        budget: bytes, fixed memory included.
        order: "given": first computations stay in the graph's order; "any": they may change places, forward ops before
            backward ops.
        seed: every run draws on; same calls, same results.
    """

    def __init__(self, problem: Problem, budget: int, order: str, seed: int):
        self.problem = problem
        self._limit = budget - problem.graph.fixed_memory
        self._reorder = order == "any"
        self._arrays = arrays_of(problem)
        self._rng = np.random.default_rng(seed)

    def run(
        self,
        sequence: Sequence[int],
        moves: int,
        hot: float = HOT,
        cold: float = COLD,
        shifts_only: bool = False,
        stop: Callable[[], bool] = lambda: False,
        rng: np.random.Generator | None = None,
    ) -> Evaluation:
        """One annealing from `sequence`, which must be legal (for order "given": first computations in graph order).

        Args:
            moves: in all; a look at `stop` in between (a run that was stopped returns what it has).
            hot, cold: temperatures at the start and at the end, in units of the ideal cost.
            shifts_only: no recomputation is added or dropped: the search for an order of low peak.
            rng: in place of this object's own, for runs side by side.

        Returns:
            The cheapest sequence within the budget; if there was none, the one with the fewest bytes above it.
        """
        arrays = self._arrays
        capacity = max(2 * len(sequence), 4 * self.problem.graph.num_ops) + 4 * _TOGETHER
        state = new_state(arrays, sequence, capacity, self._limit)
        memory = _Memory(
            np.zeros(capacity, np.int64),
            np.zeros(1, np.int64),
            np.array([np.inf, np.inf, _PENALTY, 0.0, 0.0, 0.0, 0.0]),
            np.zeros(4 * capacity, np.int64),
            np.zeros(self.problem.graph.num_ops, np.int64),
        )
        _remember(state, memory)
        chunk = max(1000, int(_CHUNK / (self.problem.graph.num_ops + 100)))
        done = 0
        while done < moves and not stop():
            count = min(chunk, moves - done)
            warm, cool = (hot * (cold / hot) ** (step / moves) for step in (done, done + count))
            _seed(int((rng or self._rng).integers(2**31)))
            made = 0
            while made < count and not (made and stop()):
                until = state[COUNT, WORK] + _SLICE
                made = _chunk(arrays, state, memory, self._limit, self._reorder, shifts_only, warm, cool, made, count, until)
            done += count
        return evaluate(self.problem.graph, memory.best[: memory.length[0]].tolist())


@kernel()
def _remember(state: Ints, memory: _Memory) -> None:
    """Keep the sequence if it is the best so far."""
    excess, cost = state[COUNT, EXCESS], float(state[COUNT, TOTAL])
    if excess < memory.figures[_EXCESS] or (excess == memory.figures[_EXCESS] and cost < memory.figures[_COST]):
        memory.figures[_EXCESS], memory.figures[_COST] = excess, cost
        memory.length[0] = state[COUNT, LENGTH] - 1
        for p in range(memory.length[0]):
            memory.best[p] = state[OP, state[ORDER, p]]


@kernel()
def _seed(seed: int) -> None:
    """For the numbers drawn in this thread."""
    np.random.seed(seed)


@kernel(nogil=True)
def _chunk(
    arrays: SequenceArrays,
    state: Ints,
    memory: _Memory,
    limit: int,
    reorder: bool,
    shifts_only: bool,
    hot: float,
    cold: float,
    made: int,
    moves: int,
    until: int,
) -> int:
    """`moves` moves while the temperature falls from `hot` to `cold`, of which some are `made`; returns how many are, at latest when
    the work is `until`."""
    figures, unit = memory.figures, 1.0 / max(limit, 1)
    weight, period = figures[_WEIGHT], _ADJUST_EVERY + arrays.table[SHAPE, 0]
    cooling = (cold / hot) ** (1.0 / moves)
    if made == 0:
        figures[_TEMPERATURE], figures[_SINCE], figures[_WITHIN] = hot, 0, 0
        figures[_CURRENT] = state[COUNT, TOTAL] / IDEAL + weight * unit * state[COUNT, EXCESS]
    temperature, current, since, within = figures[_TEMPERATURE], figures[_CURRENT], figures[_SINCE], figures[_WITHIN]
    while made < moves and state[COUNT, WORK] < until:
        temperature *= cooling
        choice = np.random.random()
        if shifts_only:
            _shift(arrays, state, memory.stack, limit, reorder, False)
        elif choice < 0.3:
            if _drop_one(arrays, state, memory.stack, limit, reorder) and choice < 0.12:
                _recompute(arrays, state, memory, limit, reorder, made)
        elif choice < (0.7 if reorder else 0.8):
            _recompute(arrays, state, memory, limit, reorder, made)
        else:
            _shift(arrays, state, memory.stack, limit, reorder, not reorder)
        made += 1
        if state[COUNT, CHANGES] > 0:
            value = state[COUNT, TOTAL] / IDEAL + weight * unit * state[COUNT, EXCESS]
            if value <= current or np.random.random() < np.exp((current - value) / temperature):
                current = value
                state[COUNT, CHANGES] = 0
                _remember(state, memory)
            else:
                undo(arrays, state, limit)
        within += state[COUNT, EXCESS] == 0
        since += 1
        if since == period and not shifts_only:
            if within == 0:
                weight = min(weight * _ADJUST_BY, _PENALTY_RANGE[1])
            elif within == period:
                weight = max(weight / _ADJUST_BY, _PENALTY_RANGE[0])
            within = since = 0.0
            current = state[COUNT, TOTAL] / IDEAL + weight * unit * state[COUNT, EXCESS]
    figures[_WEIGHT], figures[_TEMPERATURE], figures[_CURRENT] = weight, temperature, current
    figures[_SINCE], figures[_WITHIN] = since, within
    return made


@kernel()
def _tidy(arrays: SequenceArrays, state: Ints, stack: Ints, top: int, limit: int, reorder: bool) -> None:
    """Remove those of the slots stack[:top] that are superfluous, and what that leaves without a reader."""
    while top > 0:
        top -= 1
        slot = stack[top]
        if slot < 0 or state[ORDER, state[POSITION, slot]] != slot or not superfluous(arrays, state, slot, reorder):
            continue
        top = _push_sources(arrays, state, slot, stack, top)
        remove(arrays, state, slot, limit)


@kernel()
def _push_sources(arrays: SequenceArrays, state: Ints, slot: int, stack: Ints, top: int) -> int:
    """Add the slots that `slot` reads from to the stack."""
    op = state[OP, slot]
    for x in range(arrays.table[IN, op], arrays.table[IN, op + 1]):
        stack[top] = slot_before(state, arrays.table[PRODUCER, arrays.links[x]], state[POSITION, slot])
        top += 1
    return top


@kernel()
def _some_repeat(state: Ints) -> int:
    """The slot of a recomputation; -1 if there is none."""
    length = state[COUNT, LENGTH]
    start = np.random.randint(length)
    for i in range(length):
        slot = state[ORDER, (start + i) % length]
        if state[BEFORE, slot] >= 0:
            return slot
    return -1


@kernel()
def _some_excess(state: Ints, limit: int) -> int:
    """A position above the limit; a random one if there is none."""
    length = state[COUNT, LENGTH]
    start = np.random.randint(length)
    for i in range(length):
        p = (start + i) % length
        if state[LIVE, p] > limit:
            return p
    return start


@kernel()
def _drop_one(arrays: SequenceArrays, state: Ints, stack: Ints, limit: int, reorder: bool) -> bool:
    """Remove one recomputation."""
    slot = _some_repeat(state)
    if slot < 0:
        return False
    top = _push_sources(arrays, state, slot, stack, 0)
    remove(arrays, state, slot, limit)
    _tidy(arrays, state, stack, top, limit, reorder)
    return True


@kernel()
def _recompute(arrays: SequenceArrays, state: Ints, memory: _Memory, limit: int, reorder: bool, stamp: int) -> None:
    """Let go of a value that is live somewhere (above the limit, if anywhere) and recompute it before its next use."""
    stack = memory.stack
    if state[COUNT, FREE] <= _TOGETHER or arrays.table[SHAPE, 1] == 0:
        return
    if state[COUNT, EXCESS] > 0 and np.random.random() < 0.8:
        here = _some_excess(state, limit)
    else:
        here = np.random.randint(state[COUNT, LENGTH])
    position = -1
    op = 0
    for _ in range(40):
        value = np.random.randint(arrays.table[SHAPE, 1])
        op = arrays.table[PRODUCER, value]
        if not arrays.table[RECOMPUTABLE, op]:
            continue
        slot = slot_before(state, op, here)
        if slot >= 0 and end(arrays, state, slot, value) > here:
            position = next_reader(arrays, state, slot, value, here - 1)
            if position > here:
                break
            position = -1  # it is read right here
    if position < 0:
        return
    if np.random.random() < 0.25:
        position = here + 1 + np.random.randint(position - here)
    choice = np.random.random()
    share = 0.0 if choice < 0.4 else (1.0 if choice < 0.75 else 0.5)
    # What to compute: `op`, and missing inputs of it and of one another.
    stamp = -1 - stamp
    stack[0] = op
    memory.marks[op] = stamp
    count, scanned = 1, 0
    while scanned < count and share > 0.0:
        reader = stack[scanned]
        scanned += 1
        for x in range(arrays.table[IN, reader], arrays.table[IN, reader + 1]):
            value = arrays.links[x]
            source = arrays.table[PRODUCER, value]
            if memory.marks[source] == stamp or not arrays.table[RECOMPUTABLE, source] or count == _TOGETHER:
                continue
            if share < 1.0 and np.random.random() > share:
                continue
            if end(arrays, state, slot_before(state, source, position), value) < position:
                memory.marks[source] = stamp
                stack[count] = source
                count += 1
    chosen = np.sort(stack[:count])  # op numbers are a topological order
    for i in range(count):
        stack[i] = insert(arrays, state, chosen[i], position + i, limit)
    for i in range(count):
        stack[count + i] = state[BEFORE, stack[i]]
    _tidy(arrays, state, stack, 2 * count, limit, reorder)


@kernel()
def _shift(arrays: SequenceArrays, state: Ints, stack: Ints, limit: int, reorder: bool, repeats_only: bool) -> None:
    """Put one computation, or a block of neighbours, elsewhere."""
    length = state[COUNT, LENGTH]
    if repeats_only:
        slot = _some_repeat(state)
        if slot < 0:
            return
        position = state[POSITION, slot]
    elif state[COUNT, EXCESS] > 0 and np.random.random() < 0.3:
        position = _some_excess(state, limit)
    else:
        position = np.random.randint(length)
    block = 1
    if not repeats_only and np.random.random() < 0.3:
        block = min(2 + np.random.randint(_BLOCK - 1), length - position)
    choice = np.random.random()
    if choice < 0.35:
        target = position + np.random.randint(-8, 9)
    elif choice < 0.7 and block == 1:
        target = _within_reach(arrays, state, state[ORDER, position])
    else:
        width = 5 + int(0.3 * length * np.random.random())
        target = position + np.random.randint(-width, width + 1)
    target = max(0, min(target, length - 1 - block))
    for i in range(block):
        # Neighbours move one by one, the foremost in the direction of the move first.
        offset = i if target < position else block - 1 - i
        if not _move_one(arrays, state, stack, state[ORDER, position + offset], target + offset, limit, reorder):
            undo(arrays, state, limit)
            return
        if state[COUNT, LENGTH] != length:
            return  # something became superfluous: positions are no longer what they were


@kernel()
def _within_reach(arrays: SequenceArrays, state: Ints, slot: int) -> int:
    """A position between what a computation reads and its first reader: as late as possible, as early, or between."""
    op, position, following = state[OP, slot], state[POSITION, slot], state[AFTER, slot]
    low, high = 0, state[POSITION, following] if following >= 0 else state[COUNT, LENGTH] - 1
    for x in range(arrays.table[IN, op], arrays.table[IN, op + 1]):
        low = max(low, state[POSITION, slot_before(state, arrays.table[PRODUCER, arrays.links[x]], position)] + 1)
    for x in range(arrays.table[OUT, op], arrays.table[OUT, op + 1]):
        reader = next_reader(arrays, state, slot, arrays.links[x], position)
        if reader >= 0:
            high = min(high, reader)
    choice = np.random.random()
    if choice < 0.4:
        return high - 1
    return low if choice < 0.6 or high <= low else np.random.randint(low, high)


@kernel()
def _move_one(arrays: SequenceArrays, state: Ints, stack: Ints, slot: int, position: int, limit: int, reorder: bool) -> bool:
    if not may_move(arrays, state, slot, position, reorder):
        return False
    top = _push_sources(arrays, state, slot, stack, 0)
    stack[top], stack[top + 1] = state[BEFORE, slot], state[AFTER, slot]
    move(arrays, state, slot, position, limit)
    stack[top + 2], stack[top + 3], stack[top + 4] = state[BEFORE, slot], state[AFTER, slot], slot
    _tidy(arrays, state, stack, top + 5, limit, reorder)
    return True
