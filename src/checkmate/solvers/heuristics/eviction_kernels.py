"""The inside of greedy eviction: a pass as compiled kernels, which stop after so much work and go on from there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..representation.graph_arrays import Bools, Floats, Ints
from ..representation.kernels import kernel

#: A pass that goes in circles is given up after this much work per op; passes that succeed take a small part of it.
_WORK_PER_OP = 20_000
#: Rows of `Pass.table`. Per op: where its inputs, its outputs begin in `links` (they end where the next op's begin), whether it
#: may be recomputed. Per value: where its readers begin, its producer, the last stage at which it is of use, whether it is a
#: candidate for eviction at all, all values by that last stage. Per snapshot: its op. COUNTS: numbers of ops, of values.
IN, OUT, AGAIN, USERS, PRODUCER, UNTIL, CANDIDATE, BY_UNTIL, SNAPSHOT, COUNTS = range(10)
#: Rows of `Pass.numbers`. Per op: cost, workspace. Per value: bytes, the part of its score that does not change. Powers of cost
#: and distance in the score.
COST, WORKSPACE, SIZE, WORTH, POWER = range(5)
#: Rows of `State.ints`. Per value: whether it is resident, the position at which it was read last, its version. Per op: the plan
#: that it is in while it has not run in it, the last search that met it. HEAP_VALUE, HEAP_VERSION: entries of the heap of
#: candidates, best first; one counts for as long as its version is that of the value. HELD, STACK: work space. COUNT: see below.
_RESIDENT, _LOCKED, _VERSION, _IN_PLAN, _VISITED, _HEAP_VALUE, _HEAP_VERSION, _HELD, _STACK, COUNT = range(10)
#: Rows of `State.scores`: of entries of the heap, of candidates that are held aside. _AMOUNT: see below.
_HEAP, _ASIDE, _AMOUNT = range(3)
#: Places in the row COUNT: entries of the heap, searches, work done, snapshots passed, plans made, length of the sequence, links
#: followed.
_ENTRIES, _VISIT, _WORK, _GROUP, _PLAN, LENGTH, FOLLOWED = range(7)
#: And where a slice of the pass goes on: the stage, the steps that it has taken (-1: not begun), how many values (by last stage) were
#: let go before it, and will be after it; the next op of its plan (-1: there is none yet), whether that must be made anew after it;
#: of an eviction that is being chosen the best candidate, and how many are held aside.
_STAGE, _STEPS, _ENDED, _TO_END, _NEXT, _REPLAN, _CHOSEN, _NUM_HELD = range(7, 15)
#: Places in the row _AMOUNT: bytes resident, score of the best candidate.
_LIVE, _BEST = range(2)
#: How a slice of a pass ended.
UNFINISHED, _FOUND, STUCK = range(3)


class Pass(NamedTuple):
    """The graph, the setting and the plan of one pass, in few arrays, since every call of a kernel passes them on."""

    table: Ints
    links: Ints
    numbers: Floats
    retained: Bools


class State(NamedTuple):
    """What changes during a pass."""

    ints: Ints
    scores: Floats


def new_state(graph: Pass) -> State:
    """Before anything has run."""
    n, m = graph.table[COUNTS, :2]
    state = State(np.zeros((10, 4 * m + n + 16), np.int64), np.zeros((3, 4 * m + n + 16)))
    state.ints[[_LOCKED, _IN_PLAN, _VISITED]] = -1
    state.ints[COUNT, [_STEPS, _NEXT, _CHOSEN]] = -1
    state.scores[_AMOUNT, _BEST] = -1.0
    return state


#: Missing ancestors of a value that are counted at most; ops that a recomputation may have made cheaper that are looked at.
_ANCESTORS, _DESCENDANTS = 1000, 300
#: An entry of the heap takes as long as following so many links.
_ENTRY = 20
#: Score of values of no further use.
_USELESS = 1e300


@kernel()
def _push(state: State, score: float, value: int) -> None:
    """Enter a value; its older entries no longer count. There must be room."""
    state.ints[_VERSION, value] += 1
    scores, values, versions = state.scores[_HEAP], state.ints[_HEAP_VALUE], state.ints[_HEAP_VERSION]
    i = state.ints[COUNT, _ENTRIES]
    state.ints[COUNT, _ENTRIES] += 1
    while i > 0:
        above = (i - 1) // 2
        if scores[above] > score or (scores[above] == score and values[above] < value):
            break
        scores[i], values[i], versions[i] = scores[above], values[above], versions[above]
        i = above
    scores[i], values[i], versions[i] = score, value, state.ints[_VERSION, value]


@kernel()
def _pop(state: State) -> None:
    """Drop the first entry."""
    scores, values, versions = state.scores[_HEAP], state.ints[_HEAP_VALUE], state.ints[_HEAP_VERSION]
    state.ints[COUNT, _ENTRIES] -= 1
    count, i = state.ints[COUNT, _ENTRIES], 0
    score, value, version = scores[count], values[count], versions[count]
    while 2 * i + 1 < count:
        below = 2 * i + 1
        other = below + 1
        if other < count and (
            scores[other] > scores[below] or (scores[other] == scores[below] and values[other] < values[below])
        ):
            below = other
        if score > scores[below] or (score == scores[below] and value < values[below]):
            break
        scores[i], values[i], versions[i] = scores[below], values[below], versions[below]
        i = below
    scores[i], values[i], versions[i] = score, value, version


@kernel(error_model="numpy")
def _score(graph: Pass, state: State, value: int, stage: int, total: float) -> float:
    """Of evicting a value that costs `total` to have again; what the plan of this stage needs it for is not considered."""
    later = graph.links[graph.table[USERS, value] : graph.table[USERS, value + 1]]
    position = np.searchsorted(later, stage + 1)
    next_use = later[position] if position < len(later) else graph.table[COUNTS, 0]
    score = (
        graph.numbers[WORTH, value]
        / (total + 1e-9) ** graph.numbers[POWER, 0]
        * (next_use - stage + 1.0) ** graph.numbers[POWER, 1]
    )
    group = state.ints[COUNT, _GROUP]
    if group < len(graph.retained) and graph.retained[group, value]:
        score *= 1e-3
    return score


@kernel()
def _enter_anyhow(graph: Pass, state: State, value: int, stage: int) -> None:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one. There must be room."""
    if state.ints[_RESIDENT, value] == 0 or graph.table[CANDIDATE, value] == 0:
        return
    score = _USELESS
    state.ints[COUNT, FOLLOWED] += _ENTRY
    if graph.table[UNTIL, value] > stage:
        score = _score(graph, state, value, stage, graph.numbers[COST, graph.table[PRODUCER, value]])
    _push(state, score, value)


@kernel()
def _start_over(graph: Pass, state: State, stage: int) -> None:
    """A heap of all that is resident."""
    state.ints[COUNT, _ENTRIES] = 0
    for value in range(graph.table[COUNTS, 1]):
        _enter_anyhow(graph, state, value, stage)


@kernel()
def _enter(graph: Pass, state: State, value: int, stage: int) -> None:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one."""
    if state.ints[COUNT, _ENTRIES] == state.ints.shape[1]:
        _start_over(graph, state, stage)
    _enter_anyhow(graph, state, value, stage)


@kernel()
def _recompute_cost(graph: Pass, state: State, origin: int) -> float:
    """Of an op and all that is missing for it."""
    state.ints[COUNT, _VISIT] += 1
    visit, stack, visited = state.ints[COUNT, _VISIT], state.ints[_STACK], state.ints[_VISITED]
    total, top, seen, followed = graph.numbers[COST, origin], 1, 1, 0
    stack[0] = origin
    visited[origin] = visit
    while top > 0 and seen < _ANCESTORS:
        top -= 1
        above = stack[top]
        followed += graph.table[IN, above + 1] - graph.table[IN, above]
        for x in range(graph.table[IN, above], graph.table[IN, above + 1]):
            value = graph.links[x]
            source = graph.table[PRODUCER, value]
            if not state.ints[_RESIDENT, value] and visited[source] != visit:
                visited[source] = visit
                total += graph.numbers[COST, source]
                stack[top] = source
                top += 1
                seen += 1
    state.ints[COUNT, _WORK] += seen
    state.ints[COUNT, FOLLOWED] += followed
    return total


@kernel()
def _cheaper(graph: Pass, state: State, op: int, stage: int) -> None:
    """Op was recomputed: what could not be had again without it costs less now."""
    state.ints[COUNT, _VISIT] += 1
    visit, stack, visited = state.ints[COUNT, _VISIT], state.ints[_STACK], state.ints[_VISITED]
    stack[0] = op
    visited[op] = visit
    top, seen = 1, 1
    while top > 0 and seen < _DESCENDANTS:
        top -= 1
        below = stack[top]
        for x in range(graph.table[OUT, below], graph.table[OUT, below + 1]):
            made = graph.links[x]
            if below != op and state.ints[_RESIDENT, made]:
                _enter(graph, state, made, stage)
                continue
            state.ints[COUNT, FOLLOWED] += graph.table[USERS, made + 1] - graph.table[USERS, made]
            for y in range(graph.table[USERS, made], graph.table[USERS, made + 1]):
                user = graph.links[y]
                if user < stage and visited[user] != visit:
                    visited[user] = visit
                    stack[top] = user
                    top += 1
                    seen += 1
    state.ints[COUNT, _WORK] += seen


@kernel()
def _planned_use(graph: Pass, state: State, value: int, op: int, stage: int) -> int:
    """The first op of the running plan, other than `op`, that reads the value; -1 if there is none."""
    for x in range(graph.table[USERS, value], graph.table[USERS, value + 1]):
        user = graph.links[x]
        state.ints[COUNT, FOLLOWED] += 1
        if user > stage:
            break
        if user != op and state.ints[_IN_PLAN, user] == state.ints[COUNT, _PLAN]:
            return user
    return -1


@kernel()
def _choose(graph: Pass, state: State, op: int, stage: int, until: int) -> int:
    """The value to evict while `op` is about to run, taken off the heap; -1 if there is none, -2 if it is not known yet."""
    count, amounts = state.ints[COUNT], state.scores[_AMOUNT]
    best, chosen, held = amounts[_BEST], count[_CHOSEN], count[_NUM_HELD]
    while count[_ENTRIES] > 0:
        if count[FOLLOWED] >= until:
            amounts[_BEST], count[_CHOSEN], count[_NUM_HELD] = best, chosen, held
            return -2
        score, value = state.scores[_HEAP, 0], state.ints[_HEAP_VALUE, 0]
        if score < best or (score == best and value > chosen):
            break
        current = state.ints[_HEAP_VERSION, 0] == state.ints[_VERSION, value] and state.ints[_RESIDENT, value]
        _pop(state)
        state.ints[COUNT, _WORK] += 1
        state.ints[COUNT, FOLLOWED] += _ENTRY
        if not current:
            continue
        if state.ints[_LOCKED, value] != state.ints[COUNT, LENGTH]:
            planned = _planned_use(graph, state, value, op, stage)
            true_score = score
            if planned >= 0 or score < _USELESS:
                true_score = _score(graph, state, value, stage, _recompute_cost(graph, state, graph.table[PRODUCER, value]))
            if score < _USELESS:
                score = true_score
            if planned >= 0:  # needed again within this stage: only if nothing else is left
                true_score *= 1e-6 * (1.0 + planned - op)
            if true_score > best or (true_score == best and value < chosen):
                best, chosen = true_score, value
        state.ints[_HELD, held], state.scores[_ASIDE, held] = value, score
        held += 1
    for i in range(held):
        if state.ints[_HELD, i] != chosen:
            _push(state, state.scores[_ASIDE, i], state.ints[_HELD, i])
    amounts[_BEST], count[_CHOSEN], count[_NUM_HELD] = -1.0, -1, 0
    return chosen


@kernel()
def _make_plan(graph: Pass, state: State, stage: int, plan: Ints) -> int:
    """Fill `plan` with all that is missing for this stage, in graph order; how many ops, -1 if one must not be recomputed."""
    state.ints[COUNT, _PLAN] += 1
    stamp, stack, in_plan = state.ints[COUNT, _PLAN], state.ints[_STACK], state.ints[_IN_PLAN]
    count, top = 0, 1
    stack[0] = stage
    in_plan[stage] = stamp
    while top > 0:
        top -= 1
        op = stack[top]
        if op != stage and not graph.table[AGAIN, op]:
            return -1  # its value is gone for good
        plan[count] = op
        count += 1
        state.ints[COUNT, FOLLOWED] += graph.table[IN, op + 1] - graph.table[IN, op]
        for x in range(graph.table[IN, op], graph.table[IN, op + 1]):
            source = graph.table[PRODUCER, graph.links[x]]
            if not state.ints[_RESIDENT, graph.links[x]] and in_plan[source] != stamp:
                in_plan[source] = stamp
                stack[top] = source
                top += 1
    plan[:count].sort()  # in place: assigning to a slice takes a second and a half more to compile
    return count


@kernel()
def _free_useless(graph: Pass, state: State, op: int, stage: int) -> float:
    """After `op` ran, free what nothing can use any more: what it read or made is all that can have become useless. Bytes."""
    freed = 0.0
    for side in range(2):
        row = IN if side == 0 else OUT
        for x in range(graph.table[row, op], graph.table[row, op + 1]):
            value = graph.links[x]
            # A value that cannot come back stays to the end of the stage: a new plan may need it.
            if (
                state.ints[_RESIDENT, value]
                and graph.table[UNTIL, value] <= stage
                and graph.table[AGAIN, graph.table[PRODUCER, value]]
            ):
                wanted = False
                for y in range(graph.table[USERS, value], graph.table[USERS, value + 1]):
                    user = graph.links[y]
                    state.ints[COUNT, FOLLOWED] += 1
                    if user > stage or state.ints[_IN_PLAN, user] == state.ints[COUNT, _PLAN]:
                        wanted = True
                        break
                if not wanted:
                    state.ints[_RESIDENT, value] = 0
                    freed += graph.numbers[SIZE, value]
    return freed


@kernel()
def _begin_stage(graph: Pass, state: State) -> None:
    """Put values on the heap whose score changes with the stage."""
    count, by_end = state.ints[COUNT], graph.table[BY_UNTIL]
    stage, last = count[_STAGE], count[_ENDED]
    while last < graph.table[COUNTS, 1] and graph.table[UNTIL, by_end[last]] <= stage:
        if state.ints[_RESIDENT, by_end[last]]:
            _enter(graph, state, by_end[last], stage)
        last += 1
    count[_TO_END], count[_STEPS], count[_NEXT] = last, 0, -1
    for x in range(graph.table[IN, stage], graph.table[IN, stage + 1]):
        _enter(graph, state, graph.links[x], stage)  # its next use is another one now


@kernel()
def _make_room(graph: Pass, state: State, op: int, budget: float, until: int) -> int:
    """Evict what is in the way of `op`."""
    count, amounts, resident = state.ints[COUNT], state.scores[_AMOUNT], state.ints[_RESIDENT]
    need = graph.numbers[WORKSPACE, op]
    for x in range(graph.table[OUT, op], graph.table[OUT, op + 1]):
        need += graph.numbers[SIZE, graph.links[x]]
        if resident[graph.links[x]]:  # an old copy: nothing reads it before the new one is there
            resident[graph.links[x]] = 0
            amounts[_LIVE] -= graph.numbers[SIZE, graph.links[x]]
    for x in range(graph.table[IN, op], graph.table[IN, op + 1]):
        state.ints[_LOCKED, graph.links[x]] = count[LENGTH]
    while amounts[_LIVE] + need > budget:
        chosen = _choose(graph, state, op, count[_STAGE], until)
        if chosen == -2:
            return UNFINISHED
        if chosen < 0 or count[_WORK] > _WORK_PER_OP * graph.table[COUNTS, 0]:
            return STUCK
        resident[chosen] = 0
        amounts[_LIVE] -= graph.numbers[SIZE, chosen]
        if _planned_use(graph, state, chosen, op, count[_STAGE]) >= 0:
            count[_REPLAN] = 1
    return _FOUND


@kernel()
def _run_stage(graph: Pass, state: State, plan: Ints, sequence: Ints, budget: float, until: int) -> int:
    """Compute what is missing for the op of the stage, and the op."""
    count, amounts, n = state.ints[COUNT], state.scores[_AMOUNT], graph.table[COUNTS, 0]
    stage, op = count[_STAGE], -1
    while op != stage:
        if count[_NEXT] < 0:
            if _make_plan(graph, state, stage, plan) < 0:
                return STUCK
            count[_NEXT], count[_REPLAN] = 0, 0
        op = plan[count[_NEXT]]
        if count[_STEPS] >= 40 * n + 1000 or count[LENGTH] == len(sequence) or count[_WORK] > _WORK_PER_OP * n:
            return STUCK
        made = _FOUND if count[FOLLOWED] < until else UNFINISHED
        if made == _FOUND:
            made = _make_room(graph, state, op, budget, until)
        if made != _FOUND:
            return made
        count[_STEPS] += 1
        count[_NEXT] += 1
        sequence[count[LENGTH]] = op
        count[LENGTH] += 1
        state.ints[_IN_PLAN, op] = -1
        for x in range(graph.table[OUT, op], graph.table[OUT, op + 1]):
            state.ints[_RESIDENT, graph.links[x]] = 1
            amounts[_LIVE] += graph.numbers[SIZE, graph.links[x]]
            _enter(graph, state, graph.links[x], stage)
        if op != stage:
            _cheaper(graph, state, op, stage)
        amounts[_LIVE] -= _free_useless(graph, state, op, stage)
        if count[_REPLAN]:
            count[_NEXT] = -1
    return _FOUND


@kernel()
def _end_stage(graph: Pass, state: State) -> None:
    """Free what cannot be of use, or is not to be retained."""
    count, amounts, resident = state.ints[COUNT], state.scores[_AMOUNT], state.ints[_RESIDENT]
    for x in range(count[_ENDED], count[_TO_END]):
        value = graph.table[BY_UNTIL, x]
        if resident[value] and not graph.table[AGAIN, graph.table[PRODUCER, value]]:
            resident[value] = 0
            amounts[_LIVE] -= graph.numbers[SIZE, value]
    count[_ENDED] = count[_TO_END]
    group = count[_GROUP]
    if group < len(graph.retained) and graph.table[SNAPSHOT, group] == count[_STAGE]:
        for value in range(graph.table[COUNTS, 1]):
            if resident[value] and not graph.retained[group, value] and graph.table[AGAIN, graph.table[PRODUCER, value]]:
                resident[value] = 0
                amounts[_LIVE] -= graph.numbers[SIZE, value]
        count[_GROUP] += 1
        _start_over(graph, state, count[_STAGE] + 1)


@kernel()
def run_slice(graph: Pass, state: State, plan: Ints, sequence: Ints, budget: float, until: int) -> int:
    """Go on with the pass until it ends, or so many links have been followed."""
    count = state.ints[COUNT]
    while count[_STAGE] < graph.table[COUNTS, 0]:
        if count[_STEPS] < 0:
            _begin_stage(graph, state)
        ended = _run_stage(graph, state, plan, sequence, budget, until)
        if ended != _FOUND:
            return ended
        _end_stage(graph, state)
        count[_STAGE] += 1
        count[_STEPS] = -1
    return _FOUND
