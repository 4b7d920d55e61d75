"""The nested snapshot bound: for steps that fall into blocks, near the least memory, where most ops are recomputed more than once.

The snapshot relaxation (snapshot_relaxation.py) counts a recomputation at most once between two snapshots that it is given. Here
snapshots are nested, as checkpoints are in Revolve. The forward phase is cut into blocks at places where few bytes pass; the largest
value that passes there is the `output` of the block below. Values of at least about that size are big. At a snapshot a block holds
none of its big values (it is empty), one, or more, and the memory limits how many can be held in all.

Where a block is empty, the output of the block below has to be recomputed for it, and if that one is empty too, the output of the
one below that, and so on down to a block that is not. All that is done before a certain moment in the backward phase of the block,
its `deadline`. At the deadline, again, only so many big values can be held; what is needed later and is not held is recomputed once
more after it, for which the blocks below have deadlines of their own. Before and after a deadline are different stretches of time,
so the costs add up.

A dynamic program over (block, big values held so far) puts runs of empty blocks together. The bytes held besides are limited by a
Lagrange multiplier, as in lagrangian_bound.py; what a block costs by itself is in block_costs.py. For chains of equal steps the
recursion is that of Revolve (Griewank & Walther, ACM Transactions on Mathematical Software 26, 2000), which is exact. Every part
leaves out limits and adds none, so the bound holds for all schedules whose first computations come in the graph's order.

No rounding adds up in the dynamic program: what goes into it is rounded down (what is subtracted, up) to multiples of one power of
two, small enough not to matter and large enough that every sum is a whole number of it below 2^53.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...float_rounding import UNIT, summation_error
from ..interface.work_limits import Work, block_programs
from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from ..representation.segments import LIKE, LONG, RADIUS, last_forward_use, passing
from .block_costs import Block, Tables, block_tables
from .nested_bound_kernels import LARGE, MORE, NONE, SMALL, runs

#: Multipliers tried: so many, from the first to the second of these multiples of the average cost per byte; and 0.
MULTIPLIERS, _LOWEST, _HIGHEST = 36, 0.3, 70.0
#: Places through which less passes than this share of the most are no places to cut at.
_SMALL = 0.02
#: Big values are counted in shares of the largest threshold: at most so many each.
_MOST_SHARES = 8
#: Big values of so many times the size of the smallest one are large.
_LARGE = 4.0
#: The first snapshot is where an op needs the most memory, among the stages with nearly the most live without recomputation.
_NEARLY = 0.9
#: Programs for one block and multiplier.
_PROGRAMS = 11
_NEVER = np.iinfo(np.int64).max


def nested_bound(
    problem: Problem,
    capacity: float,
    step: int,
    shift: int = 0,
    stop: Callable[[], bool] = lambda: False,
    multipliers: int = MULTIPLIERS,
    work: Work | None = None,
) -> float:
    """A lower bound on the cost of every schedule of the graph, ideal cost included; 0 if it does not fall apart.

    Args:
        capacity: bytes, without fixed memory.
        step, shift: of the places where few bytes pass, cut at every `step`-th, and leave out the first `shift` of them.
        stop: True gives up.
        multipliers: how many are tried; more are better, and take longer.
        work: to which the programs of blocks are added, which take nearly all of the time.
    """

    def solving() -> bool:
        if work is not None:
            work.spend(block_programs(_PROGRAMS))
        return stop()

    layout = _lay_out(problem, step, shift)
    if layout is None:
        return 0.0
    grid = _multipliers(problem, multipliers)
    tables = block_tables(layout.blocks, grid, solving)
    if tables is None:
        return 0.0
    return problem.graph.ideal_cost + max(0.0, float(_Nesting(problem, layout, tables, grid, capacity).least(stop)))


def repeats(problem: Problem, step: int, shift: int = 0) -> bool:
    """Whether the step falls into blocks most of which equal others, as the bound needs to be quick, and to be good."""
    layout = _lay_out(problem, step, shift)
    return layout is not None and 2 * len({block.key() for block in layout.blocks}) <= len(layout.blocks)


# --- the blocks ---


@dataclass(frozen=True)
class _Layout:
    """Blocks 1, ..., L (entry 0 of every array stands for the inputs, which are always there) and their moments.

    Attributes:
        first: the op of the first snapshot.
        deadline: per block the op by whose first computation the output below has been recomputed, if the block is empty; -1: none.
        single: the same holds if one big value of the block is held. linked: its output cannot be recomputed without the one below.
        forced: cost of the chain, the ops that are recomputed with the output of an empty block.
        threshold: bytes of the smallest big value, per block.
        counts_first, counts_above: whether big values take memory of their own at the first snapshot, at the deadline of a block
            above.
    """

    blocks: list[Block]
    first: int
    deadline: Ints
    single: Bools
    linked: Bools
    forced: Floats
    threshold: Floats
    counts_first: Bools
    counts_above: Bools


def _cuts(problem: Problem, turn: int) -> tuple[Ints, Ints]:
    """Places to cut the forward phase, each behind an op, and the largest value that passes there: where fewer bytes pass than at
    most other places."""
    last = last_forward_use(problem, turn)
    lasts = last - problem.producer
    used = np.flatnonzero((problem.producer < turn) & (lasts > 0) & (lasts <= max(3, LONG * turn)))
    through = passing(problem, used, last)[: turn - 1]
    largest = np.full(turn - 1, -1)
    for value in used[np.argsort(problem.size[used], kind="stable")].tolist():
        largest[problem.producer[value] : last[value]] = value
    least = [through[max(0, place - RADIUS) : place + RADIUS + 1].min() for place in range(turn - 1)]
    places = [place for place in range(turn - 1) if 0 < through[place] <= LIKE * least[place]]
    # Of neighbours through which the same passes the last one.
    places = [a for a, b in zip(places, [*places[1:], None], strict=False) if b != a + 1 or largest[b] != largest[a]]
    chosen = np.array(places, np.int64)
    sizes = problem.size[largest[chosen]]
    chosen = chosen[sizes >= _SMALL * sizes.max(initial=0.0)]
    return chosen, largest[chosen]


def _lay_out(problem: Problem, step: int, shift: int) -> _Layout | None:
    starts = np.flatnonzero(problem.backward)
    turn = int(starts[0]) if len(starts) else 0
    if turn < 3:
        return None
    places, outputs = (found[shift::step] for found in _cuts(problem, turn))
    if len(places) == 0:
        return None
    n, count = problem.graph.num_ops, len(places) + 1
    ranges = [range(0), *(range(a + 1, b + 1) for a, b in zip([-1, *places], [*places, turn - 1], strict=True))]
    output = np.concatenate([[-1], outputs, [-1]])
    threshold = problem.size[[outputs[0], *outputs, outputs[-1]]]
    big = np.zeros(problem.graph.num_values, np.bool_)
    for number in range(1, count + 1):
        made = np.flatnonzero((problem.producer >= ranges[number].start) & (problem.producer < ranges[number].stop))
        big[made] = problem.size[made] >= threshold[number]
    stages = np.arange(turn - 1, n)
    near = stages[problem.profile[stages] >= _NEARLY * problem.profile[stages].max()]
    first = int(near[np.argmax(problem.working_set[near])])

    chains, linked = [np.zeros(n, np.bool_)], np.zeros(count + 1, np.bool_)
    for number in range(1, count + 1):
        chain, linked[number] = _chain(problem, ranges[number], int(output[number]), int(output[number - 1]), big)
        chains.append(chain)
    deadline, single = np.full(count + 1, -1), np.zeros(count + 1, np.bool_)
    last = n - 1
    for number in range(2, count + 1):
        reads = _reads(problem, ranges[number], int(output[number - 1]), big, first)
        if reads is None or reads[0] > last:
            continue
        single[number] = reads[1] <= last
        begin = reads[1] if single[number] else reads[0]
        deadline[number] = begin + int(np.argmax(problem.working_set[begin : last + 1]))
        last = reads[0] - 1

    inside_first = _touched(problem, first)
    inside_deadline = [_touched(problem, int(op)) if op >= 0 else np.zeros(len(big), np.bool_) for op in deadline]
    blocks: list[Block] = []
    after, at_above = n, np.zeros(len(big), np.bool_)  # the deadline of the nearest block above, and what is free at any above
    for number in range(count, 0, -1):
        moments, inside = (first, int(deadline[number]), after), (inside_first, inside_deadline[number], at_above)
        large = big & (problem.size >= _LARGE * threshold[number])
        blocks.insert(0, _block(problem, ranges[number], chains[number], (big, large), moments, inside))
        if deadline[number] >= 0:
            after, at_above = int(deadline[number]), at_above | inside_deadline[number]
    return _Layout(
        blocks,
        first,
        deadline,
        single,
        linked,
        np.array([0.0, *(float(problem.cost[chain].sum()) for chain in chains[1:])]),
        threshold,
        np.array([False, *(not (one.big & one.at_first).any() for one in blocks)]),
        np.array([False, *(not (one.big & one.at_above).any() for one in blocks)]),
    )


def _chain(problem: Problem, ops: range, output: int, below: int, big: Bools) -> tuple[Bools, bool]:
    """Ops of a block that a recomputation of its output takes with it when no big value is held; is the output below needed?"""
    taken = np.zeros(problem.graph.num_ops, np.bool_)
    linked = False
    if output >= 0 and problem.producer[output] in ops:
        taken[problem.producer[output]] = True
        pointers, values = problem.inputs
        for op in reversed(ops):
            if taken[op]:
                read = values[pointers[op] : pointers[op + 1]]
                read = read[big[read]]
                linked |= below in read
                taken[problem.producer[read]] = True
    inside = np.zeros(len(taken), np.bool_)
    inside[ops.start : ops.stop] = taken[ops.start : ops.stop]
    return inside & problem.recomputable, linked


def _reads(problem: Problem, ops: range, below: int, big: Bools, first: int) -> tuple[int, int] | None:
    """The first stages after the first snapshot by which the output below has been recomputed: with no big value of the block
    held, and with one, whichever it is."""
    if below < 0:
        return None
    pointers, values = problem.inputs
    user_pointers, users = problem.users
    made = [value for op in ops for value in problem.graph.ops[op].outputs if big[value]]

    def reading(value: int) -> int:
        later = users[user_pointers[value] : user_pointers[value + 1]]
        later = later[np.searchsorted(later, first, side="right") :]
        return int(later[0]) if len(later) else _NEVER

    def needed(held: int) -> int:
        needs, earliest = {below}, reading(below)
        for op in ops:
            if any(int(value) in needs for value in values[pointers[op] : pointers[op + 1]]):
                for value in problem.graph.ops[op].outputs:
                    if big[value] and value != held:
                        needs.add(value)
                        earliest = min(earliest, reading(value))
        return earliest

    empty = needed(-1)
    return (empty, max((needed(value) for value in made), default=_NEVER)) if empty < _NEVER else None


def _touched(problem: Problem, op: int) -> Bools:
    touched = np.zeros(problem.graph.num_values, np.bool_)
    touched[[*problem.graph.ops[op].inputs, *problem.graph.ops[op].outputs]] = True
    return touched


def _block(
    problem: Problem,
    ops: range,
    chain: Bools,
    sizes: tuple[Bools, Bools],
    moments: tuple[int, int, int],
    inside: tuple[Bools, Bools, Bools],
) -> Block:
    values = np.array([value for op in ops for value in problem.graph.ops[op].outputs], np.int64)
    big, large = sizes
    place = {value: position for position, value in enumerate(values.tolist())}
    edges = [(place[v], op - ops.start) for op in ops for v in problem.graph.ops[op].inputs if v in place]
    first, deadline, above = moments
    pointers, users = problem.users
    reads = [users[pointers[value] : pointers[value + 1]] for value in values]
    start = above if above < problem.graph.num_ops else first
    last = problem.last_use[values]
    return Block(
        problem.cost[ops.start : ops.stop],
        problem.recomputable[ops.start : ops.stop],
        chain[ops.start : ops.stop],
        problem.size[values],
        problem.producer[values] - ops.start,
        big[values],
        large[values],
        np.array([value for value, _ in edges], np.int64),
        np.array([op for _, op in edges], np.int64),
        last > first,
        last > above,
        np.array([((later > start) & (later <= deadline)).any() for later in reads], np.bool_),
        last > max(deadline, start),
        *(one[values] for one in inside),
    )


def _gradients(problem: Problem, layout: _Layout, multipliers: Floats) -> Floats:
    """Per block and multiplier, (L + 1, multipliers): least cost of the backward values that live across its deadline, held, at the
    cost of their bytes, or recomputed later, from others that are held or recomputed.

    As in lagrangian_bound.py, a value counts only for the last op that reads it. What recomputation costs is shared out evenly among
    all deadlines, and what belongs to one value among the outputs of its op, since the bound adds it up.
    """
    found = np.zeros((len(layout.deadline), len(multipliers)))
    moments = np.sort(layout.deadline[layout.deadline >= 0])
    producer, last = problem.producer, problem.last_use
    late = np.flatnonzero(problem.backward[producer])
    crossed = np.maximum(1, np.searchsorted(moments, last) - np.searchsorted(moments, producer))
    outputs = np.diff(problem.outputs[0])[producer]
    for number, moment in enumerate(layout.deadline.tolist()):
        if moment < 0:
            continue
        inside = _touched(problem, moment)
        needed = last > moment
        inputs = np.zeros(
            (problem.graph.num_ops, len(multipliers))
        )  # of each op: what only it reads last, and nothing else needs
        for value in late[np.argsort(producer[late], kind="stable")].tolist():
            op = int(producer[value])
            if op >= moment:
                break
            if inside[value]:
                continue
            share = crossed[value] if needed[value] else len(moments)
            again = problem.cost[op] / (share * outputs[value]) if problem.recomputable[op] else np.inf
            least = np.minimum(multipliers * problem.size[value], again + inputs[op] / outputs[value])
            if needed[value]:
                found[number] += least
            elif problem.last_reader_in_phase[value] >= 0:
                inputs[problem.last_reader_in_phase[value]] += least
    # Sums, quotients and products of non-negative numbers: each passes through at most three roundings per value.
    return found - summation_error(3 * problem.graph.num_values + 3, 1.0) * found


# --- putting the blocks together ---


def _multipliers(problem: Problem, count: int) -> Floats:
    forward = ~problem.backward
    average = problem.cost[forward].sum() / max(1.0, problem.size[forward[problem.producer]].sum())
    return np.concatenate([[0.0], average * np.geomspace(_LOWEST, _HIGHEST, count)])


class _Nesting:
    """The dynamic program for one layout and capacity. Costs are whole multiples of `_unit`, see the module's description."""

    def __init__(self, problem: Problem, layout: _Layout, tables: Tables, multipliers: Floats, capacity: float):
        count = len(layout.blocks)
        self._problem, self._layout, self._multipliers, self._capacity = problem, layout, multipliers, capacity
        # Big values are counted in shares, rounded down.
        self._share = max(float(layout.threshold[1:].min()), float(layout.threshold[1:].max()) / _MOST_SHARES)
        self._sizes = np.array([layout.threshold, _LARGE * layout.threshold, 2 * layout.threshold])  # at least, from SMALL on
        self._shares = (self._sizes // self._share).astype(np.int64)
        gradients = _gradients(problem, layout, multipliers)
        holding = multipliers[:, None, None] * self._sizes  # cost of the bytes of big values, per multiplier, kind and block
        held = (capacity + float(problem.working_set.max())) * float(multipliers.max())
        # No sum has more than four of these terms per block, and nothing that is nested is counted as more than `most`.
        self._most = max(float(table.max()) for table in (tables.first, tables.below, tables.top))
        terms = 2 * self._most + float(gradients.max()) + float(holding.max()) + float(layout.forced.max())
        self._unit = 2.0 ** (math.ceil(math.log2(max(4 * (count + 2) * terms + held, 1e-300))) - 52)
        self._most = self._down(np.array(self._most)).item()
        self._tables = Tables(*(self._down(table) for table in (tables.first, tables.below, tables.top)))
        self._gradients, self._holding = self._down(gradients), self._down(holding * (1 - 4 * UNIT))
        self._forced = np.cumsum(self._down(layout.forced * (1 - (len(problem.cost) + 2) * UNIT)))
        self._lowest = np.arange(count + 1)  # the lowest block that a recomputation of each output takes with it
        for number in range(2, count + 1):
            if layout.linked[number]:
                self._lowest[number] = self._lowest[number - 1]
        # nested[held, a, b]: least cost of the topmost block b of a run, and of the empty blocks above a and below b after its
        # deadline; by what b holds at the snapshot before.
        self._nested = np.zeros((MORE, count + 1, count + 2))

    def _down(self, numbers: Floats) -> Floats:
        """Whole multiples of the unit that are not above these numbers: division by a power of two is exact."""
        return np.floor(numbers / self._unit) * self._unit

    def least(self, stop: Callable[[], bool]) -> float:
        """Least cost of all recomputations after the first snapshot; 0 if stopped."""
        problem, layout, count = self._problem, self._layout, len(self._layout.blocks)
        for top in range(2, count + 1):
            deadline = int(layout.deadline[top])
            if deadline < 0:
                continue
            left = self._capacity - float(problem.working_set[deadline])
            extra = [self._tables.top[held, :, top] + self._gradients[top] for held in (NONE, SMALL, LARGE)]
            for begin in range(top - 1, -1, -1):
                if stop():
                    return 0.0
                found = self._best(begin, top, left, self._tables.below, layout.counts_above, extra, stop)
                self._nested[:, begin, top] = np.minimum(found, self._most)
        left = self._capacity - float(problem.working_set[layout.first])
        nothing = np.zeros(len(self._multipliers))
        return self._best(0, count + 1, left, self._tables.first, layout.counts_first, [nothing], stop)[0]

    def _best(
        self, begin: int, end: int, left: float, cost: Floats, counts: Bools, extra: list[Floats], stop: Callable[[], bool]
    ) -> list[float]:
        """For the best multiplier the cost of the blocks begin + 1, ..., end - 1, with each of these costs (per multiplier) besides.

        Args:
            left: bytes that can be held. cost, counts: see `Tables` and `_Layout`.
        """
        layout = self._layout
        shares = self._shares * counts
        limit = int(max(0.0, left) // self._share)
        if limit >= shares[:, begin + 1 : end].max(axis=0).sum():
            limit, shares = 0, np.zeros_like(shares)
        found = [-np.inf] * len(extra)
        for k, multiplier in enumerate(self._multipliers):
            if k and stop():
                break  # fewer multipliers give a bound, too
            holding = self._holding[k] * counts
            by_kind = np.ascontiguousarray(cost[:, k])
            run = (begin, end, limit, shares, by_kind, self._forced, self._lowest, layout.deadline, layout.single)
            total = runs(*run, self._nested, holding)
            # Rounded up: the product by at most 2^-53 of it, and then to a multiple of the unit.
            paid = -self._down(-np.array(multiplier * left + 2 * UNIT * abs(multiplier * left))).item()
            for i, more in enumerate(extra):
                found[i] = max(found[i], total + more[k] - paid)
        return found
