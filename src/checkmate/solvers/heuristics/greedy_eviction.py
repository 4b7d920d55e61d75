"""Offline greedy eviction: run the ops in order, and when memory is short evict what is cheap to have again, and not soon.

The eviction score is that of DTR (Kirisame et al., ICLR 2021) with the future known. What is missing for an op is
recomputed as a list in graph order, with only the inputs of the running op locked: this stays feasible essentially down to the
minimum working set, where a depth-first recursion fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..interface.running_search import Search
from ..representation.decoding import Evaluation, evaluate
from ..representation.graph_arrays import Bools, Floats, Ints, Problem
from ..representation.kernels import kernel


@dataclass(frozen=True, slots=True)
class Weights:
    """Exponents of the eviction score: size^size * distance to next use^distance / recomputation cost^cost."""

    cost: float
    distance: float
    size: float


#: Settings that between them are near the best one on every graph tried.
SETTINGS = (
    Weights(1, 1, 1),
    Weights(1, 0.5, 0),
    Weights(1, 0, 1),
    Weights(0.5, 1, 1),
    Weights(2, 1, 1),
    Weights(1, 2, 1),
    Weights(1.5, 1, 0.5),
    Weights(0.3, 0, 0.25),
)
#: Enough of them to repair a plan, or to have any schedule at all.
REPAIR_SETTINGS = SETTINGS[:3]


#: A pass that goes in circles is given up after this much work per op; passes that succeed take a small part of it.
_WORK_PER_OP = 20_000


def greedy(search: Search) -> None:
    """The best of a handful of settings; no bound beyond the cost of computing everything once."""
    planner = Greedy(Problem(search.graph))
    for setting in SETTINGS:
        found = planner.run(search.budget, setting)
        if found is not None and found.peak <= search.budget:
            search.offer(found.sequence, found.cost, "greedy")
        if search.done():
            return


#: Rows of `_Graph.table`. Per op: where its inputs, its outputs begin in `links` (they end where the next op's begin), whether it
#: may be recomputed. Per value: where its readers begin, its producer, the last stage at which it is of use, whether it is a
#: candidate for eviction at all, all values by that last stage. Per snapshot: its op. COUNTS: numbers of ops, of values.
_IN, _OUT, _AGAIN, _USERS, _PRODUCER, _UNTIL, _CANDIDATE, _BY_UNTIL, _SNAPSHOT, _COUNTS = range(10)
#: Rows of `_Graph.numbers`. Per op: cost, workspace. Per value: bytes, the part of its score that does not change. Powers of cost
#: and distance in the score.
_COST, _WORKSPACE, _SIZE, _WORTH, _POWER = range(5)
#: Rows of `_State.ints`. Per value: whether it is resident, the position at which it was read last, its version. Per op: the plan
#: that it is in while it has not run in it, the last search that met it. HEAP_VALUE, HEAP_VERSION: entries of the heap of
#: candidates, best first; one counts for as long as its version is that of the value. HELD, STACK: work space. COUNT: see below.
_RESIDENT, _LOCKED, _VERSION, _IN_PLAN, _VISITED, _HEAP_VALUE, _HEAP_VERSION, _HELD, _STACK, _COUNT = range(10)
#: Rows of `_State.scores`: of entries of the heap, of candidates that are held aside.
_HEAP, _ASIDE = range(2)
#: Places in the row COUNT: entries of the heap, searches, work done, snapshots passed, plans made, length of the sequence.
_ENTRIES, _VISIT, _WORK, _GROUP, _PLAN, _LENGTH = range(6)


class _Graph(NamedTuple):
    """The graph, the setting and the plan of one pass, in few arrays, since every call of a kernel passes them on."""

    table: Ints
    links: Ints
    numbers: Floats
    retained: Bools


class _State(NamedTuple):
    """What changes during a pass."""

    ints: Ints
    scores: Floats


#: Missing ancestors of a value that are counted at most; ops that a recomputation may have made cheaper that are looked at.
_ANCESTORS, _DESCENDANTS = 1000, 300
#: Score of values of no further use.
_USELESS = 1e300


class Greedy:
    """Greedy eviction on one graph."""

    def __init__(self, problem: Problem):
        self.problem = problem
        # Letting go of what only recomputed backward ops could use is right nearly always, and never final, except for
        # values that cannot be had again.
        needed_until = problem.useful_until(problem.recomputable)
        mostly_until = problem.useful_until(problem.recomputable & ~problem.backward)
        self._useful_until = np.where(problem.recomputable[problem.producer], mostly_until, needed_until)
        self._size_unit = max(problem.size.max(initial=1.0), 1.0)
        self._tables()

    def _tables(self) -> None:
        """The graph with one more op at the end that reads every kept value, so that they are all live when it runs."""
        problem = self.problem
        graph, kept = problem.graph, np.flatnonzero(problem.keep)
        n, m = graph.num_ops, graph.num_values
        (in_pointers, in_values), (out_pointers, out_values) = problem.inputs, problem.outputs
        user_pointers, user_ops = problem.users
        users = np.insert(user_ops, user_pointers[1:][kept], n)
        begins = np.cumsum([0, len(in_values) + len(kept), len(out_values)])
        self._links = np.concatenate([in_values, kept, out_values, users])
        self._table = table = np.zeros((10, max(n, m) + 3), np.int64)
        table[_IN, : n + 2] = np.append(in_pointers, in_pointers[-1] + len(kept))
        table[_OUT, : n + 2] = np.append(out_pointers, out_pointers[-1]) + begins[1]
        table[_AGAIN, : n + 1] = np.append(problem.recomputable, True)
        table[_USERS, : m + 1] = user_pointers + np.append(0, np.cumsum(problem.keep)) + begins[2]
        table[_PRODUCER, :m] = problem.producer
        table[_UNTIL, :m] = self._useful_until
        table[_CANDIDATE, :m] = problem.recomputable[problem.producer] & (problem.size > 0)
        table[_BY_UNTIL, :m] = np.argsort(self._useful_until, kind="stable")
        table[_COUNTS, :2] = n + 1, m
        self._numbers = numbers = np.zeros((5, max(n, m) + 3))
        numbers[_COST, :n] = problem.cost / ((graph.ideal_cost or 1.0) / max(1, n))
        numbers[_WORKSPACE, :n] = problem.workspace
        numbers[_SIZE, :m] = problem.size

    def run(
        self,
        budget: int,
        setting: Weights,
        snapshots: Sequence[int] = (),
        retained: Sequence[Bools] = (),
        weight: Floats | None = None,
        longest: int = 30,
        below: float = math.inf,
    ) -> Evaluation | None:
        """One pass.

        Args:
            budget: bytes, fixed memory included.
            snapshots, retained: a plan to repair: right after op snapshots[k] first ran, values not in retained[k] are
                dropped, and values in it are evicted before only if nothing else is left.
            weight: per value, multiplies its eviction score.
            longest: give up on sequences longer than this many times the number of ops.
            below: only sequences that cost less are of interest.

        Returns:
            The sequence found, simulated; None if the pass got stuck or cost too much.
        """
        problem, m = self.problem, self.problem.graph.num_values
        table, numbers = self._table, self._numbers
        worth = (problem.size / self._size_unit) ** setting.size
        worth[problem.backward[problem.producer]] *= 1e-12  # recomputing gradients drags the whole backward pass along
        numbers[_WORTH, :m] = worth if weight is None else worth * weight
        numbers[_POWER, :2] = setting.cost, setting.distance
        table[_SNAPSHOT, : len(snapshots)] = snapshots
        graph = _Graph(table, self._links, numbers, np.array(retained, np.bool_).reshape(len(snapshots), m))
        length, sequence = _run(graph, float(budget - problem.graph.fixed_memory), longest * problem.graph.num_ops + 100)
        if length < 0:
            return None
        found = sequence[:length]
        found = found[found < problem.graph.num_ops]
        return evaluate(problem.graph, found.tolist()) if problem.cost[found].sum() < below else None


@kernel()
def _push(state: _State, score: float, value: int) -> None:
    """Enter a value; its older entries no longer count. The heap must have a free place."""
    state.ints[_VERSION, value] += 1
    scores, values, versions = state.scores[_HEAP], state.ints[_HEAP_VALUE], state.ints[_HEAP_VERSION]
    i = state.ints[_COUNT, _ENTRIES]
    state.ints[_COUNT, _ENTRIES] += 1
    while i > 0:
        above = (i - 1) // 2
        if scores[above] > score or (scores[above] == score and values[above] < value):
            break
        scores[i], values[i], versions[i] = scores[above], values[above], versions[above]
        i = above
    scores[i], values[i], versions[i] = score, value, state.ints[_VERSION, value]


@kernel()
def _pop(state: _State) -> None:
    """Drop the first entry."""
    scores, values, versions = state.scores[_HEAP], state.ints[_HEAP_VALUE], state.ints[_HEAP_VERSION]
    state.ints[_COUNT, _ENTRIES] -= 1
    count, i = state.ints[_COUNT, _ENTRIES], 0
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
def _score(graph: _Graph, state: _State, value: int, stage: int, total: float) -> float:
    """Of evicting a value that costs `total` to have again; what the plan of this stage needs it for is not considered."""
    later = graph.links[graph.table[_USERS, value] : graph.table[_USERS, value + 1]]
    position = np.searchsorted(later, stage + 1)
    next_use = later[position] if position < len(later) else graph.table[_COUNTS, 0]
    score = (
        graph.numbers[_WORTH, value]
        / (total + 1e-9) ** graph.numbers[_POWER, 0]
        * (next_use - stage + 1.0) ** graph.numbers[_POWER, 1]
    )
    group = state.ints[_COUNT, _GROUP]
    if group < len(graph.retained) and graph.retained[group, value]:
        score *= 1e-3
    return score


@kernel()
def _enter_anyhow(graph: _Graph, state: _State, value: int, stage: int) -> None:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one. The heap must have a free place."""
    if state.ints[_RESIDENT, value] == 0 or graph.table[_CANDIDATE, value] == 0:
        return
    score = _USELESS
    if graph.table[_UNTIL, value] > stage:
        score = _score(graph, state, value, stage, graph.numbers[_COST, graph.table[_PRODUCER, value]])
    _push(state, score, value)


@kernel()
def _start_over(graph: _Graph, state: _State, stage: int) -> None:
    """A heap of all that is resident."""
    state.ints[_COUNT, _ENTRIES] = 0
    for value in range(graph.table[_COUNTS, 1]):
        _enter_anyhow(graph, state, value, stage)


@kernel()
def _enter(graph: _Graph, state: _State, value: int, stage: int) -> None:
    """Put a value on the heap, if it is a candidate, with a score that is at least its true one."""
    if state.ints[_COUNT, _ENTRIES] == state.ints.shape[1]:
        _start_over(graph, state, stage)
    _enter_anyhow(graph, state, value, stage)


@kernel()
def _recompute_cost(graph: _Graph, state: _State, origin: int) -> float:
    """Of an op and all that is missing for it."""
    state.ints[_COUNT, _VISIT] += 1
    visit, stack, visited = state.ints[_COUNT, _VISIT], state.ints[_STACK], state.ints[_VISITED]
    total, top, seen = graph.numbers[_COST, origin], 1, 1
    stack[0] = origin
    visited[origin] = visit
    while top > 0 and seen < _ANCESTORS:
        top -= 1
        above = stack[top]
        for x in range(graph.table[_IN, above], graph.table[_IN, above + 1]):
            value = graph.links[x]
            source = graph.table[_PRODUCER, value]
            if not state.ints[_RESIDENT, value] and visited[source] != visit:
                visited[source] = visit
                total += graph.numbers[_COST, source]
                stack[top] = source
                top += 1
                seen += 1
    state.ints[_COUNT, _WORK] += seen
    return total


@kernel()
def _cheaper(graph: _Graph, state: _State, op: int, stage: int) -> None:
    """Op was recomputed: what could not be had again without it costs less now."""
    state.ints[_COUNT, _VISIT] += 1
    visit, stack, visited = state.ints[_COUNT, _VISIT], state.ints[_STACK], state.ints[_VISITED]
    stack[0] = op
    visited[op] = visit
    top, seen = 1, 1
    while top > 0 and seen < _DESCENDANTS:
        top -= 1
        below = stack[top]
        for x in range(graph.table[_OUT, below], graph.table[_OUT, below + 1]):
            made = graph.links[x]
            if below != op and state.ints[_RESIDENT, made]:
                _enter(graph, state, made, stage)
                continue
            for y in range(graph.table[_USERS, made], graph.table[_USERS, made + 1]):
                user = graph.links[y]
                if user < stage and visited[user] != visit:
                    visited[user] = visit
                    stack[top] = user
                    top += 1
                    seen += 1
    state.ints[_COUNT, _WORK] += seen


@kernel()
def _planned_use(graph: _Graph, state: _State, value: int, op: int, stage: int) -> int:
    """The first op of the running plan, other than `op`, that reads the value; -1 if there is none."""
    for x in range(graph.table[_USERS, value], graph.table[_USERS, value + 1]):
        user = graph.links[x]
        if user > stage:
            break
        if user != op and state.ints[_IN_PLAN, user] == state.ints[_COUNT, _PLAN]:
            return user
    return -1


@kernel()
def _choose(graph: _Graph, state: _State, op: int, stage: int) -> int:
    """The value to evict while `op` is about to run, taken off the heap; -1 if there is none."""
    best, chosen, held = -1.0, -1, 0
    while state.ints[_COUNT, _ENTRIES] > 0:
        score, value = state.scores[_HEAP, 0], state.ints[_HEAP_VALUE, 0]
        if score < best or (score == best and value > chosen):
            break
        current = state.ints[_HEAP_VERSION, 0] == state.ints[_VERSION, value] and state.ints[_RESIDENT, value]
        _pop(state)
        state.ints[_COUNT, _WORK] += 1
        if not current:
            continue
        if state.ints[_LOCKED, value] != state.ints[_COUNT, _LENGTH]:
            planned = _planned_use(graph, state, value, op, stage)
            true_score = score
            if planned >= 0 or score < _USELESS:
                true_score = _score(graph, state, value, stage, _recompute_cost(graph, state, graph.table[_PRODUCER, value]))
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
    return chosen


@kernel()
def _make_plan(graph: _Graph, state: _State, stage: int, plan: Ints) -> int:
    """Fill `plan` with all that is missing for this stage, in graph order; how many ops, -1 if one must not be recomputed."""
    state.ints[_COUNT, _PLAN] += 1
    stamp, stack, in_plan = state.ints[_COUNT, _PLAN], state.ints[_STACK], state.ints[_IN_PLAN]
    count, top = 0, 1
    stack[0] = stage
    in_plan[stage] = stamp
    while top > 0:
        top -= 1
        op = stack[top]
        if op != stage and not graph.table[_AGAIN, op]:
            return -1  # its value is gone for good
        plan[count] = op
        count += 1
        for x in range(graph.table[_IN, op], graph.table[_IN, op + 1]):
            source = graph.table[_PRODUCER, graph.links[x]]
            if not state.ints[_RESIDENT, graph.links[x]] and in_plan[source] != stamp:
                in_plan[source] = stamp
                stack[top] = source
                top += 1
    plan[:count] = np.sort(plan[:count])
    return count


@kernel()
def _free_useless(graph: _Graph, state: _State, op: int, stage: int) -> float:
    """After `op` ran, free what nothing can use any more: what it read or made is all that can have become useless. Bytes."""
    freed = 0.0
    for side in range(2):
        row = _IN if side == 0 else _OUT
        for x in range(graph.table[row, op], graph.table[row, op + 1]):
            value = graph.links[x]
            # A value that cannot come back stays to the end of the stage: a new plan may need it.
            if (
                state.ints[_RESIDENT, value]
                and graph.table[_UNTIL, value] <= stage
                and graph.table[_AGAIN, graph.table[_PRODUCER, value]]
            ):
                wanted = False
                for y in range(graph.table[_USERS, value], graph.table[_USERS, value + 1]):
                    user = graph.links[y]
                    if user > stage or state.ints[_IN_PLAN, user] == state.ints[_COUNT, _PLAN]:
                        wanted = True
                        break
                if not wanted:
                    state.ints[_RESIDENT, value] = 0
                    freed += graph.numbers[_SIZE, value]
    return freed


@kernel()
def _pass_snapshot(graph: _Graph, state: _State, stage: int) -> float:
    """Drop what the plan does not retain at the snapshot after `stage`. Bytes."""
    group, freed = state.ints[_COUNT, _GROUP], 0.0
    for value in range(graph.table[_COUNTS, 1]):
        again = graph.table[_AGAIN, graph.table[_PRODUCER, value]]
        if state.ints[_RESIDENT, value] and not graph.retained[group, value] and again:
            state.ints[_RESIDENT, value] = 0
            freed += graph.numbers[_SIZE, value]
    state.ints[_COUNT, _GROUP] += 1
    _start_over(graph, state, stage + 1)
    return freed


@kernel()
def _run(graph: _Graph, budget: float, longest: int) -> tuple[int, Ints]:
    """The length of the sequence found, -1 if there is none, and the sequence."""
    n, m = graph.table[_COUNTS, 0], graph.table[_COUNTS, 1]
    state = _State(np.zeros((10, 4 * m + n + 16), np.int64), np.zeros((2, 4 * m + n + 16)))
    state.ints[_LOCKED : _VISITED + 1] = -1
    state.ints[_VERSION] = 0
    resident = state.ints[_RESIDENT]
    by_end = graph.table[_BY_UNTIL]
    ended = 0
    plan = np.zeros(n + 1, np.int64)
    sequence = np.zeros(4 * n + 100, np.int64)
    length, live = 0, 0.0
    limit, most_work = 40 * n + 1000, _WORK_PER_OP * n
    for stage in range(n):
        steps = 0
        last_ended = ended
        while last_ended < m and graph.table[_UNTIL, by_end[last_ended]] <= stage:
            if resident[by_end[last_ended]]:
                _enter(graph, state, by_end[last_ended], stage)
            last_ended += 1
        for x in range(graph.table[_IN, stage], graph.table[_IN, stage + 1]):
            _enter(graph, state, graph.links[x], stage)  # its next use is another one now
        finished = False
        while not finished:
            count = _make_plan(graph, state, stage, plan)
            if count < 0:
                return -1, sequence
            replan = False
            for number in range(count):
                op = plan[number]
                steps += 1
                if steps > limit or length >= longest or state.ints[_COUNT, _WORK] > most_work:
                    return -1, sequence
                need = graph.numbers[_WORKSPACE, op]
                for x in range(graph.table[_OUT, op], graph.table[_OUT, op + 1]):
                    need += graph.numbers[_SIZE, graph.links[x]]
                    if resident[graph.links[x]]:  # an old copy: nothing reads it before the new one is there
                        resident[graph.links[x]] = 0
                        live -= graph.numbers[_SIZE, graph.links[x]]
                for x in range(graph.table[_IN, op], graph.table[_IN, op + 1]):
                    state.ints[_LOCKED, graph.links[x]] = length
                while live + need > budget:
                    chosen = _choose(graph, state, op, stage)
                    if chosen < 0 or state.ints[_COUNT, _WORK] > most_work:
                        return -1, sequence
                    resident[chosen] = 0
                    live -= graph.numbers[_SIZE, chosen]
                    replan |= _planned_use(graph, state, chosen, op, stage) >= 0
                if length == len(sequence):
                    sequence = np.append(sequence, np.zeros(length, np.int64))
                sequence[length] = op
                length += 1
                state.ints[_COUNT, _LENGTH] = length
                state.ints[_IN_PLAN, op] = -1
                for x in range(graph.table[_OUT, op], graph.table[_OUT, op + 1]):
                    resident[graph.links[x]] = 1
                    live += graph.numbers[_SIZE, graph.links[x]]
                    _enter(graph, state, graph.links[x], stage)
                if op != stage:
                    _cheaper(graph, state, op, stage)
                live -= _free_useless(graph, state, op, stage)
                if op == stage:
                    finished = True
                elif replan:
                    break
        while ended < last_ended:
            value = by_end[ended]
            ended += 1
            if resident[value] and not graph.table[_AGAIN, graph.table[_PRODUCER, value]]:
                resident[value] = 0
                live -= graph.numbers[_SIZE, value]
        group = state.ints[_COUNT, _GROUP]
        if group < len(graph.retained) and graph.table[_SNAPSHOT, group] == stage:
            live -= _pass_snapshot(graph, state, stage)
    return length, sequence
