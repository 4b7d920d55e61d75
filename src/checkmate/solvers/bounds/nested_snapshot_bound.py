"""A lower bound for steps that fall into blocks: near the least memory, most of a step is recomputed twice or more often.

One snapshot (see snapshot.py) counts every recomputation once. Here snapshots are nested. A block is a stretch of the forward
phase, its `gate` a value that leaves it. At a snapshot a block holds no big value (blank), one (single) or more (many); the memory
left limits how many are not blank. Below a block that needs its input again, all blank blocks have to be recomputed, gate after
gate, before a certain moment tau in the backward phase of that block. At tau again only so much can be held; the rest is
recomputed once more after tau, and so on below. The two stretches of time are disjoint, so that the costs add up.

A dynamic program over (block, big values held so far) puts the runs of blank blocks together, with a Lagrange multiplier (price) for
the bytes held. The recursion is that of Revolve (Griewank & Walther, 2000), which is exact for chains of equal steps. Every part
leaves limits out, so the bound holds for all schedules whose first computations come in the graph's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from ..representation.kernels import kernel
from ..representation.segments import LIKE, LONG, RADIUS, last_forward_use, passing
from .block_costs import LARGE, MORE, NONE, SMALL, Block, Tables, price_blocks

#: Prices tried: so many, from the first to the second of these multiples of the average cost per byte; and 0.
PRICES, _CHEAPEST, _DEAREST = 36, 0.3, 70.0
#: Places through which less passes than this share of the most are no places to cut at.
_SMALL = 0.02
#: Most units of memory that one big value is counted as.
_MOST_UNITS = 8
#: Big values of so many times the size of the smallest one are large.
_LARGE = 4.0
#: The first snapshot is where an op needs the most memory, among the stages with nearly the most live without recomputation.
_NEARLY = 0.9
_NEVER = np.iinfo(np.int64).max


def nested_bound(
    problem: Problem, room: float, step: int, shift: int = 0, stop: Callable[[], bool] = lambda: False, prices: int = PRICES
) -> float:
    """A lower bound on the cost of every schedule of the graph, ideal cost included; 0 if it does not fall apart.

    Args:
        room: bytes, without fixed memory.
        step, shift: of the places where few bytes pass, cut at every `step`-th, and leave out the first `shift` of them.
        stop: True gives up.
        prices: how many are tried; more are better, and take longer.
    """
    layout = _lay_out(problem, step, shift)
    if layout is None:
        return 0.0
    grid = _prices(problem, prices)
    tables = price_blocks(layout.blocks, grid, stop)
    if tables is None:
        return 0.0
    ideal = problem.graph.ideal_cost
    return float(ideal + max(0.0, _recomputed(problem, layout, tables, grid, room, stop)))


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
        tau: per block the op by whose first computation the gate below has been recomputed, if the block is blank; -1: none.
        single: the same holds if one big value of the block is held. linked: its gate cannot be recomputed without the gate below.
        forced: cost of the chain.
        threshold: bytes of the smallest big value, per block.
        counts_first, counts_above: whether big values cost memory of their own at the first snapshot, at the tau of a block above.
    """

    blocks: list[Block]
    first: int
    tau: Ints
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
    places, gates = (found[shift::step] for found in _cuts(problem, turn))
    if len(places) == 0:
        return None
    n, count = problem.graph.num_ops, len(places) + 1
    ranges = [range(0), *(range(a + 1, b + 1) for a, b in zip([-1, *places], [*places, turn - 1], strict=True))]
    gate = np.concatenate([[-1], gates, [-1]])
    threshold = problem.size[[gates[0], *gates, gates[-1]]]
    big = np.zeros(problem.graph.num_values, np.bool_)
    for number in range(1, count + 1):
        made = np.flatnonzero((problem.producer >= ranges[number].start) & (problem.producer < ranges[number].stop))
        big[made] = problem.size[made] >= threshold[number]
    stages = np.arange(turn - 1, n)
    near = stages[problem.profile[stages] >= _NEARLY * problem.profile[stages].max()]
    first = int(near[np.argmax(problem.working_set[near])])

    chains, linked = [np.zeros(n, np.bool_)], np.zeros(count + 1, np.bool_)
    for number in range(1, count + 1):
        chain, linked[number] = _chain(problem, ranges[number], int(gate[number]), int(gate[number - 1]), big)
        chains.append(chain)
    tau, single = np.full(count + 1, -1), np.zeros(count + 1, np.bool_)
    last = n - 1
    for number in range(2, count + 1):
        reads = _reads(problem, ranges[number], int(gate[number - 1]), big, first)
        if reads is None or reads[0] > last:
            continue
        single[number] = reads[1] <= last
        begin = reads[1] if single[number] else reads[0]
        tau[number] = begin + int(np.argmax(problem.working_set[begin : last + 1]))
        last = reads[0] - 1

    inside_first = _touched(problem, first)
    inside_tau = [_touched(problem, int(op)) if op >= 0 else np.zeros(len(big), np.bool_) for op in tau]
    blocks: list[Block] = []
    after, at_above = n, np.zeros(len(big), np.bool_)  # the tau of the nearest block above, and what is free at any above
    for number in range(count, 0, -1):
        moments, inside = (first, int(tau[number]), after), (inside_first, inside_tau[number], at_above)
        large = big & (problem.size >= _LARGE * threshold[number])
        blocks.insert(0, _block(problem, ranges[number], chains[number], (big, large), moments, inside))
        if tau[number] >= 0:
            after, at_above = int(tau[number]), at_above | inside_tau[number]
    return _Layout(
        blocks,
        first,
        tau,
        single,
        linked,
        np.array([0.0, *(float(problem.cost[chain].sum()) for chain in chains[1:])]),
        threshold,
        np.array([False, *(not (one.big & one.at_first).any() for one in blocks)]),
        np.array([False, *(not (one.big & one.at_above).any() for one in blocks)]),
    )


def _chain(problem: Problem, ops: range, gate: int, below: int, big: Bools) -> tuple[Bools, bool]:
    """Ops of a block that a recomputation of its gate takes with it when no big value is held; is the gate below needed?"""
    taken = np.zeros(problem.graph.num_ops, np.bool_)
    linked = False
    if gate >= 0 and problem.producer[gate] in ops:
        taken[problem.producer[gate]] = True
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
    """The first stages after the first snapshot by which the gate below has been recomputed: with no big value of the block
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

    blank = needed(-1)
    return (blank, max((needed(value) for value in made), default=_NEVER)) if blank < _NEVER else None


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
    first, tau, above = moments
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
        np.array([((later > start) & (later <= tau)).any() for later in reads], np.bool_),
        last > max(tau, start),
        *(one[values] for one in inside),
    )


def _gradients(problem: Problem, layout: _Layout, prices: Floats) -> Floats:
    """Per block and price, (L + 1, prices): least cost of the backward values that live across its tau, held, at the cost of their
    bytes, or recomputed later, from others that are held or recomputed.

    As in forest_bound.py, a value counts only for the last op that reads it. What recomputation costs is shared out evenly among
    all taus, and what belongs to one value among the outputs of its op, since the bound adds it up.
    """
    found = np.zeros((len(layout.tau), len(prices)))
    moments = np.sort(layout.tau[layout.tau >= 0])
    producer, last = problem.producer, problem.last_use
    late = np.flatnonzero(problem.backward[producer])
    crossed = np.maximum(1, np.searchsorted(moments, last) - np.searchsorted(moments, producer))
    outputs = np.diff(problem.outputs[0])[producer]
    for number, moment in enumerate(layout.tau.tolist()):
        if moment < 0:
            continue
        inside = _touched(problem, moment)
        needed = last > moment
        inputs = np.zeros((problem.graph.num_ops, len(prices)))  # of each op: what it claims, and is not needed by others anyway
        for value in late[np.argsort(producer[late], kind="stable")].tolist():
            op = int(producer[value])
            if op >= moment:
                break
            if inside[value]:
                continue
            share = crossed[value] if needed[value] else len(moments)
            again = problem.cost[op] / (share * outputs[value]) if problem.recomputable[op] else np.inf
            least = np.minimum(prices * problem.size[value], again + inputs[op] / outputs[value])
            if needed[value]:
                found[number] += least
            elif problem.claiming[value] >= 0:
                inputs[problem.claiming[value]] += least
    return found


# --- putting the blocks together ---


def _prices(problem: Problem, count: int) -> Floats:
    forward = ~problem.backward
    average = problem.cost[forward].sum() / max(1.0, problem.size[forward[problem.producer]].sum())
    return np.concatenate([[0.0], average * np.geomspace(_CHEAPEST, _DEAREST, count)])


def _recomputed(
    problem: Problem, layout: _Layout, tables: Tables, prices: Floats, room: float, stop: Callable[[], bool]
) -> float:
    """Least cost of all recomputations after the first snapshot."""
    count = len(layout.blocks)
    gradients = _gradients(problem, layout, prices)
    # nested[held, a, b]: least cost of the topmost block b of a run, and of the blank blocks above a and below b after its tau;
    # by what b holds at the snapshot before.
    nested = np.zeros((MORE, count + 1, count + 2))
    lowest = np.arange(count + 1)  # the lowest block that a recomputation of each gate takes with it
    for number in range(2, count + 1):
        if layout.linked[number]:
            lowest[number] = lowest[number - 1]
    forced = np.cumsum(layout.forced)

    # Big values are counted in units, rounded down.
    unit = max(float(layout.threshold[1:].min()), float(layout.threshold[1:].max()) / _MOST_UNITS)
    sizes = np.array([layout.threshold, _LARGE * layout.threshold, 2 * layout.threshold])  # at least, from SMALL on
    units = (sizes // unit).astype(np.int64)

    def best(begin: int, end: int, left: float, cost: Floats, counts: Bools, extra: list[Floats]) -> list[float]:
        weight = units * counts
        limit = int(max(0.0, left) // unit)
        if limit >= weight[:, begin + 1 : end].max(axis=0).sum():
            limit, weight = 0, np.zeros_like(weight)
        found = [-np.inf] * len(extra)
        for k, price in enumerate(prices):
            rent = price * sizes * counts
            held = np.ascontiguousarray(cost[:, k])
            total = _runs(begin, end, limit, weight, held, forced, lowest, layout.tau, layout.single, nested, rent)
            for i, more in enumerate(extra):
                found[i] = max(found[i], total + more[k] - price * left)
        return found

    for top in range(2, count + 1):
        tau = int(layout.tau[top])
        if tau < 0:
            continue
        left = room - float(problem.working_set[tau])
        extra = [tables.top[held, :, top] + gradients[top] for held in (NONE, SMALL, LARGE)]
        for begin in range(top - 1, -1, -1):
            if stop():
                return 0.0
            nested[:, begin, top] = best(begin, top, left, tables.below, layout.counts_above, extra)
    left = room - float(problem.working_set[layout.first])
    return best(0, count + 1, left, tables.first, layout.counts_first, [np.zeros(len(prices))])[0]


@kernel()
def _runs(
    begin: int,
    end: int,
    units: int,
    unit: Ints,
    cost: Floats,
    forced: Floats,
    lowest: Ints,
    tau: Ints,
    linked_single: Bools,
    nested: Floats,
    rent: Floats,
) -> float:
    """Least cost of blocks begin + 1, ..., end - 1: which are not blank, with at most `units` of big values held in all.

    Args:
        unit: units of the big values held, per kind (from SMALL on) and block. rent: price of their bytes.
        cost: of each block by itself, per kind (from NONE on).
        forced: cumulative cost of the chains. lowest: per block, the lowest one that its gate takes with it.
        nested: see `_recomputed`.
    """
    plain = np.zeros(end)
    for block in range(begin + 1, end):
        plain[block] = cost[0, block]
    plain = np.cumsum(plain)
    # best[b, u]: of blocks up to b, which is not blank, or is `begin`, with u big values held.
    best = np.full((end, units + 1), np.inf)
    best[begin, 0] = 0.0
    least = np.inf
    for low in range(begin, end):
        for high in range(low + 1, end + 1):
            # Blocks low + 1, ..., high - 1 are blank.
            top = high - 1
            run = plain[top] - plain[low]
            if top > low and tau[top] >= 0:
                last = max(low, lowest[top - 1] - 1) if top - 1 > low else low
                nest = forced[top - 1] - forced[last] + nested[0, last, top] + plain[last] - plain[low]
                run = max(run, nest)
            if high == end:
                for held in range(units + 1):
                    least = min(least, best[low, held] + run)
                continue
            for kind in range(SMALL, MORE + 1):
                value = run + cost[kind, high]
                if kind < MORE and linked_single[high] and tau[high] >= 0:
                    last = max(low, lowest[top] - 1) if top > low else low
                    nest = forced[top] - forced[last] + nested[kind, last, high] + plain[last] - plain[low]
                    value = max(value, nest + rent[kind - 1, high])
                more = unit[kind - 1, high]
                for held in range(units + 1 - more):
                    best[high, held + more] = min(best[high, held + more], best[low, held] + value)
    return least
