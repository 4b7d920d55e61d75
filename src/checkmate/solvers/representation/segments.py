"""A training step cut into segments: stretches of the forward phase, each with the stretch of the backward phase that belongs to it.

Where few bytes pass from one forward op to the next (between the layers of a transformer, the blocks of a residual network) the
step falls apart: what lies before the cut and what lies behind it share only what passes through. A segment alone is then a
small graph of its own, and equal layers make equal segments, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...graph import Graph, Op, Value
from .graph_arrays import Bools, Floats, Ints, Problem

#: Values that pass more than this share of the forward phase count as live throughout.
LONG = 0.25
#: Places to cut at which a little more passes than at the best one nearby are as good.
LIKE = 1.1
#: Most ops on either side that a place to cut is compared with.
RADIUS = 16
#: So many places to cut at do no harm; of more, those are taken that are best among more neighbours.
_FINE = 60
#: Costs that agree to this many significant digits are equal, when segments are compared (profiled costs are noisy).
_DIGITS = 2


@dataclass(frozen=True)
class Segment:
    """Forward ops begin, ..., end - 1 and the backward ops that read what they make.

    Attributes:
        forward, backward: ops, as ranges.
        enters, leaves: forward values that pass from the segment before, and to the segment behind.
        returns, passes: backward values that come from the segment behind, and go to the segment before.
    """

    forward: range
    backward: range
    enters: tuple[int, ...]
    leaves: tuple[int, ...]
    returns: tuple[int, ...]
    passes: tuple[int, ...]


@dataclass(frozen=True)
class Segments:
    """The segments of a graph, first to last, and `lasting`: values (length m) that count as live from first use to the end."""

    graph: Graph
    segments: tuple[Segment, ...]
    lasting: Bools


def cut(problem: Problem, most: int, early: bool = False, tail: float = 0.0) -> Segments | None:
    """Cut the step of a graph into at most `most` segments; None where it does not fall apart.

    Cuts are where the fewest bytes pass, among the neighbouring places. The backward phase of a segment ends where the fewest bytes
    pass, too, or with `early` as soon as it can. The last segment makes at least `tail` bytes that its backward phase reads.
    """
    graph = problem.graph
    starts = np.flatnonzero(problem.backward)
    if len(starts) == 0 or starts[0] < 3:
        return None
    turn = int(starts[0])
    pointers, users = problem.users
    forward = np.flatnonzero(problem.producer < turn)
    last_forward = last_forward_use(problem, turn)
    first_backward = np.full(graph.num_values, graph.num_ops)
    last_backward = np.full(graph.num_values, -1)
    for value in forward.tolist():
        readers = users[pointers[value] : pointers[value + 1]]
        split = int(np.searchsorted(readers, turn))
        if split < len(readers):
            first_backward[value], last_backward[value] = readers[split], readers[-1]
    lasting = problem.keep | ~problem.recomputable[problem.producer]
    lasting[forward] |= (last_forward - problem.producer)[forward] > max(3, LONG * turn)
    plain = forward[~lasting[forward]]
    through = passing(problem, plain, last_forward)[: turn - 1]
    back = passing(problem, np.flatnonzero((problem.producer >= turn) & ~lasting), problem.last_use)
    # Behind each cut the backward phase goes on to the last op that reads anything made there, at least; and ends before what was
    # made before the cut, and does not pass it, is read. Between the two it ends where the fewest bytes pass.
    least, latest = np.full(turn + 1, turn - 1), np.full(turn, graph.num_ops)
    np.maximum.at(least, problem.producer[plain], last_backward[plain])
    least = np.maximum.accumulate(least[::-1])[::-1][1:]
    np.minimum.at(latest, last_forward[plain], first_backward[plain])
    latest = np.minimum.accumulate(latest) - 1
    ends = np.full(turn, -1)
    for place in range(turn - 1):
        between = back[least[place] : latest[place] + 1]
        if len(between):
            ends[place] = least[place] if early else latest[place] - int(np.argmin(between[::-1]))
            through[place] += back[ends[place]]
    chosen, fine = list[int](), max(most, _FINE)
    for radius in range(1, RADIUS + 1):
        places = [
            place
            for place in range(turn - 1)
            if through[place] <= LIKE * through[max(0, place - radius) : place + radius + 1].min()
        ]
        chosen = [place for place in places if ends[place] >= 0] if radius == RADIUS or len(places) <= 2 * fine else []
        if 0 < len(chosen) < fine:
            break
    chosen = _regular(problem, chosen, most, turn)
    read = np.zeros(turn)
    np.add.at(read, problem.producer[plain], problem.size[plain] * (last_backward[plain] >= 0))
    behind = np.cumsum(read[::-1])[::-1]
    chosen = [place for place in chosen if behind[place + 1] >= tail]
    if not chosen:
        return None
    for i in range(len(chosen) - 2, -1, -1):
        ends[chosen[i]] = max(ends[chosen[i]], ends[chosen[i + 1]])
    return Segments(graph, _between(problem, chosen, ends, turn, last_forward, lasting), lasting)


def _regular(problem: Problem, places: list[int], most: int, turn: int) -> list[int]:
    """Every so many of the places, so that there are at most `most` segments, and as many equal ones as can be."""
    if len(places) < most:
        return places
    spent = np.concatenate([[0.0], np.cumsum(problem.cost)])

    def kinds(chosen: list[int]) -> int:
        bounds = [0, *(place + 1 for place in chosen), turn]
        return len({(b - a, f"{spent[b] - spent[a]:.1e}") for a, b in pairwise(bounds)})

    least = -(-len(places) // max(1, most - 1))
    selections = [places[first::step] for step in range(least, least + -(-least // 2) + 1) for first in range(step)]
    fitting = (selection for selection in selections if 0 < len(selection) < most)
    return min(fitting, key=lambda selection: (kinds(selection), -len(selection)), default=[])


def passing(problem: Problem, values: Ints, until: Ints) -> Floats:
    """Bytes of these values that live on past each op (length n + 1), if each lives until op until[value]."""
    change = np.zeros(problem.graph.num_ops + 1)
    np.add.at(change, problem.producer[values], problem.size[values])
    np.add.at(change, until[values], -problem.size[values])
    return np.cumsum(change)


def last_forward_use(problem: Problem, turn: int) -> Ints:
    """Per value the last op before op `turn` that reads it; its producer if there is none."""
    pointers, users = problem.users
    before = np.concatenate([[0], np.cumsum(users < turn)])
    count = before[pointers[1:]] - before[pointers[:-1]]
    last, read = problem.producer.copy(), np.flatnonzero(count)
    last[read] = users[pointers[:-1][read] + count[read] - 1]
    return last


def _between(
    problem: Problem, places: list[int], ends: Ints, turn: int, last_forward: Ints, lasting: Bools
) -> tuple[Segment, ...]:
    graph = problem.graph
    bounds = [0, *(place + 1 for place in places), turn]
    back = [graph.num_ops, *(int(ends[place]) + 1 for place in places), turn]
    last = problem.last_use
    crossing: list[tuple[int, ...]] = []
    returning: list[tuple[int, ...]] = []
    for start, stop in zip(bounds, back, strict=True):
        passes = (
            (problem.producer < start) & (last_forward >= start) & ~lasting if 0 < start < turn else np.zeros(len(last), bool)
        )
        crossing.append(tuple(np.flatnonzero(passes).tolist()))
        returns = (problem.producer >= turn) & (problem.producer < stop) & (last >= stop) & ~lasting
        returning.append(tuple(np.flatnonzero(returns).tolist()) if turn < stop < graph.num_ops else ())
    return tuple(
        Segment(
            range(bounds[i], bounds[i + 1]),
            range(back[i + 1], back[i]),
            crossing[i],
            crossing[i + 1],
            returning[i + 1],
            returning[i],
        )
        for i in range(len(bounds) - 1)
    )


@dataclass(frozen=True)
class SegmentGraph:
    """One segment as a graph: what enters is made by op `source`, and op `gap` stands for all that happens behind it.

    Attributes:
        graph: forward values that last are of size 0. ops: per op of it the op of the whole graph; -1 for source and gap.
        gap: its position; the forward ops come before it.
    """

    graph: Graph
    ops: tuple[int, ...]
    gap: int

    def signature(self) -> tuple[object, ...]:
        """Equal for segments that do the same (their names do not count)."""
        ops = tuple(
            (float(f"{op.cost:.{_DIGITS - 1}e}"), op.inputs, op.outputs, op.workspace, op.recomputable, op.reuses)
            for op in self.graph.ops
        )
        return ops, tuple((value.size, value.keep) for value in self.graph.values), self.gap


def segment_graph(segments: Segments, number: int) -> SegmentGraph:
    """Segment `number` as a graph of its own."""
    whole, segment = segments.graph, segments.segments[number]
    values: list[Value] = []
    ids: dict[int, int] = {}
    passes = set(segment.passes)

    def define(old: tuple[int, ...]) -> tuple[int, ...]:
        for value in old:
            ids[value] = len(values)
            lasts = segments.lasting[value]
            size = 0 if lasts and whole.producer[value] < segment.backward.start else whole.values[value].size
            values.append(Value(f"v{value}", size, lasts or value in passes))
        return tuple(ids[value] for value in old)

    def known(old: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ids[value] for value in old if value in ids)

    ops: list[Op] = []
    origin: list[int] = []

    def add(op: Op, old: int) -> None:
        ops.append(op)
        origin.append(old)

    def inside(old: int) -> Op:
        op = whole.ops[old]
        inputs, outputs = known(op.inputs), define(op.outputs)
        reuses = ids.get(op.reuses) if op.reuses is not None else None
        if reuses is not None and (
            values[reuses].keep or op.reuses in segment.leaves or all(values[v].size != values[reuses].size for v in outputs)
        ):
            reuses = None  # counted as a buffer of its own, which is safe
        return replace(op, name=f"op{old}", inputs=inputs, outputs=outputs, reuses=reuses)

    add(Op("source", 0.0, (), define(segment.enters), recomputable=False), -1)
    for old in segment.forward:
        add(inside(old), old)
    gap = len(ops)
    add(Op("gap", 0.0, known(segment.leaves), define(segment.returns), recomputable=False), -1)
    for old in segment.backward:
        add(inside(old), old)
    return SegmentGraph(Graph(ops, values, 0, f"segment {number}"), tuple(origin), gap)
