"""Nested checkpointing over segments: near the least memory, where whole stretches are recomputed again and again.

The dynamic program of rotor (Beaumont et al., 2019: optimal checkpointing of chains) over the segments of `segments.cut`. To train
segments s..t from what enters s, either run forward to some segment, holding only what enters s, train from there to t, and then
train the first part; or run segment s by one of its options, that is, with some of its values held, train the rest, and then go
back through s. The options of a segment (as in Rockmate, Zhao et al., ICML 2023) are schedules of the segment alone, found once
for all equal segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...graph import Graph
from ...schedule import Free, steps_from_sequence
from ..interface.numbers import Numbers, number
from ..interface.running_search import Search
from ..interface.work_limits import Limits, nested_cells
from ..representation.decoding import Evaluation, evaluate
from ..representation.graph_arrays import Floats, Problem
from ..representation.segments import SegmentGraph, cut, segment_graph
from .nested_kernels import below, solve_width

_NEAR_MINIMUM = "python benchmarks/solver.py --methods auto --budgets 1.02x 1.1x"


@dataclass(frozen=True)
class NestedNumbers(Numbers):
    """What nested checkpointing spends."""

    levels: int = number(3000, "levels of memory", "the finest grid between the least memory and the budget", _NEAR_MINIMUM, 1)
    level_work: int = number(
        7_500_000, "levels x segments^2", "the dynamic program takes about a second for so much", _NEAR_MINIMUM, 1
    )
    hold: tuple[float, ...] = number(
        (1.0, 0.0, 0.3, 0.08, 0.5, 0.04, 0.14, 0.7, 0.2, 0.4, 0.85, 0.6),
        "shares of all that a segment makes",
        "what it may hold while those behind it run; the extremes come first, for when time is short",
        _NEAR_MINIMUM,
        most=1.0,
    )
    need: tuple[float, ...] = number(
        (1.0, 0.5, 0.3, 0.15, 0.08, 0.0),
        "shares of the way from its working set to its peak without recomputation",
        "what it may need in all: much, which is cheap, comes first",
        _NEAR_MINIMUM,
        most=1.0,
    )
    gap: float = number(0.005, "gap", "of an option of a segment: there are many, and the best of them count", _NEAR_MINIMUM)
    rounds: int = number(1, "rounds", "of the search for an option; a second one rarely brings a better one", _NEAR_MINIMUM, 1)
    work: float = number(2.0, "units of work", "that the search for an option never needs but for huge segments", _NEAR_MINIMUM)


NESTED_NUMBERS = NestedNumbers()


Shorts = npt.NDArray[np.int16]


@dataclass(frozen=True)
class SegmentOption:
    """One schedule of a segment.

    Attributes:
        sequence: ops of the graph of its segment. gap: where in the sequence the segments behind run.
        held: bytes that stay while those run. forward_peak, backward_peak: bytes, before and after.
        cost: of all its ops. again: of those that are needed when the segment has run before.
        alone_peak, alone_cost: forward peak and cost when it has run before, and no segment is behind it.
    """

    sequence: tuple[int, ...]
    gap: int
    held: float
    forward_peak: float
    backward_peak: float
    cost: float
    again: float
    alone_peak: float
    alone_cost: float

    def figures(self) -> tuple[float, ...]:
        """All but the sequence, in the order of the attributes."""
        memory = self.held, self.forward_peak, self.backward_peak
        return (*memory, self.cost, self.again, self.alone_peak, self.alone_cost)

    def beats(self, other: SegmentOption) -> bool:
        """No worse in anything."""
        return all(mine <= theirs * (1 + 1e-9) for mine, theirs in zip(self.figures(), other.figures(), strict=True))


def _option(one: SegmentGraph, sequence: Sequence[int]) -> SegmentOption:
    """The figures of an op sequence of a segment."""
    graph, used = one.graph, evaluate(one.graph, sequence).sequence
    ops = list(graph.ops)
    ops[one.gap] = replace(ops[one.gap], inputs=())
    closed = Graph(ops, graph.values)  # nothing is handed on
    gap = used.index(one.gap)
    during, held = _memory(graph, used, one.gap)
    again, alone = _needed(graph, used, gap), _needed(closed, used, gap)
    return SegmentOption(
        tuple(used),
        gap,
        held,
        max(during[:gap], default=0),
        max(during[gap + 1 :], default=0),
        sum(graph.ops[op].cost for op in used),
        sum(graph.ops[op].cost for op in again),
        max(_memory(closed, alone, one.gap)[0][: alone.index(one.gap)], default=0),
        sum(graph.ops[op].cost for op in alone),
    )


def _memory(graph: Graph, sequence: Sequence[int], gap: int) -> tuple[list[int], int]:
    """Bytes live during each computation of a sequence, which may lack ops; and what is held over op `gap`."""
    live, held, during = 0, 0, []
    resident: set[int] = set()
    passed = False
    for step in steps_from_sequence(graph, sequence):
        if isinstance(step, Free):
            live -= graph.values[step.value].size
            resident.discard(step.value)
            continue
        if passed and not held:  # what only `gap` read has gone by now
            held = sum(graph.values[value].size for value in resident)
            passed = False
        outputs = graph.ops[step.op].outputs
        live += sum(graph.values[value].size for value in outputs)
        during.append(live + graph.ops[step.op].workspace - graph.reusable(step.op))
        if step.op == gap:
            passed = True
        else:
            resident.update(outputs)
    return during, held


def _needed(graph: Graph, sequence: Sequence[int], gap: int) -> list[int]:
    """What of a sequence has to run, up to position `gap`, if all of it has run before; and the rest."""
    wanted: set[int] = set()
    kept: list[int] = []
    for position in range(len(sequence) - 1, -1, -1):
        op = graph.ops[sequence[position]]
        if position >= gap or not op.recomputable or wanted.intersection(op.outputs):
            kept.append(sequence[position])
            wanted.difference_update(op.outputs)
            wanted.update(op.inputs)
    return kept[::-1]


#: Finds a schedule of a segment alone: takes the search, and the rounds that it may take.
SegmentSolver = Callable[[Search, int], None]


class SegmentOptions:
    """Schedules of a segment that need at most `capacity` bytes; none beats another in everything."""

    def __init__(self, one: SegmentGraph, solve_segment: SegmentSolver, capacity: int, seed: int, numbers: NestedNumbers):
        self.segment, self.solve_segment, self.capacity, self.seed = one, solve_segment, capacity, seed
        self.numbers = numbers
        self.options: list[SegmentOption] = []
        self._shares: set[float] = set()  # those that have been looked at
        self.plain = _option(one, range(one.graph.num_ops))
        if max(self.plain.forward_peak, self.plain.backward_peak) <= capacity:
            self._consider(self.plain)

    def _consider(self, option: SegmentOption) -> None:
        if not any(other.beats(option) for other in self.options):
            self.options = [other for other in self.options if not option.beats(other)] + [option]

    def add(self, share: float, limits: Limits) -> bool:
        """Look for options that hold at most this share of all that the segment makes; are there any?"""
        one, graph = self.segment, self.segment.graph
        around = graph.working_set(one.gap)
        least, most = graph.min_working_set, min(graph.no_recompute_peak, self.capacity)
        peak = math.inf
        for need in () if share in self._shares else self.numbers.need:
            limit = int(least + need * (most - least))
            if limit >= peak:
                continue  # what was found for more memory does with this much
            if limits.over():
                break
            ops = list(graph.ops)
            ops[one.gap] = replace(ops[one.gap], workspace=max(0, int(limit - around - share * self.plain.held)))
            alone = Graph(ops, graph.values, 0, graph.name)
            work = limits.work.part(self.numbers.work)
            search = Search(alone, limit, "given", limits.time_left(), self.numbers.gap, self.seed, work=work)
            self.solve_segment(search, self.numbers.rounds)
            if search.best is None:
                break
            option = _option(one, search.best)
            self._consider(option)
            peak = max(option.forward_peak, option.backward_peak)
        else:
            self._shares.add(share)
        return bool(self.options)


class _Tables(NamedTuple):
    """Per segment, in bytes but for costs.

    Attributes:
        options: per option its figures, closed by a row of infinities.
        enters: what enters it. before: what is live while segments up to it run forward again, besides theirs.
        after: the same while it runs backward. advance: see `_advance`.
    """

    options: Floats
    enters: Floats
    before: Floats
    after: Floats
    advance: Floats

    def cells(self) -> float:
        """How much each level of memory takes: options, and places to split at, of all stretches of segments."""
        count, most = self.options.shape[:2]
        return count * count / 2 * (most + count / 3)


class Nested:
    """The dynamic program for one graph.

    Args:
        solve_segment: a method for graphs of a few dozen ops.
        most, early, tail: see `segments.cut`.
        capacity: most bytes that will be asked for, without fixed memory.
        limits: once over, no more options are looked for, and nothing is found.
        known: options of segments by signature, from others for the same capacity; what is found is added.
        numbers: what it spends.
    """

    def __init__(
        self,
        problem: Problem,
        solve_segment: SegmentSolver,
        most: int,
        capacity: int,
        seed: int,
        limits: Limits | None = None,
        early: bool = False,
        tail: float = 0.0,
        known: dict[object, SegmentOptions] | None = None,
        numbers: NestedNumbers = NESTED_NUMBERS,
    ):
        self.graph, self.numbers = problem.graph, numbers
        self.limits = Limits() if limits is None else limits
        self.segments = cut(problem, most, early, tail)
        if self.segments is None:
            return
        self._segment_graphs = [segment_graph(self.segments, index) for index in range(len(self.segments.segments))]
        known = {} if known is None else known
        for one in self._segment_graphs:
            if one.signature() not in known:
                known[one.signature()] = SegmentOptions(one, solve_segment, capacity, seed, numbers)
        mine = [known[key] for key in dict.fromkeys(one.signature() for one in self._segment_graphs)]
        # Where all may be held and there still is no option, there is no schedule of the whole either.
        all(options.add(share, self.limits) for share in numbers.hold for options in mine)
        self._options = [known[one.signature()].options for one in self._segment_graphs]
        self._arrays = self._tables(problem)

    def _tables(self, problem: Problem) -> _Tables:
        assert self.segments is not None
        segments, lasting = self.segments.segments, np.flatnonzero(self.segments.lasting)
        size, made = problem.size, problem.producer[lasting]
        turn = segments[-1].forward.stop
        always = size[lasting[made < turn]].sum()

        def base(stop: int) -> float:
            return float(always + size[lasting[(made >= turn) & (made < stop)]].sum())

        options = np.full((len(segments), max(map(len, self._options)) + 1, 7), np.inf)
        for index, offered in enumerate(self._options):
            for position, option in enumerate(offered):
                options[index, position] = option.figures()
        return _Tables(
            options,
            np.array([size[list(segment.enters)].sum() for segment in segments]),
            np.array([base(segment.backward.start) + size[list(segment.returns)].sum() for segment in segments]),
            np.array([base(segment.backward.start) for segment in segments]),
            np.array([_advance(one) for one in self._segment_graphs]),
        )

    def run(self, budget: int) -> Evaluation | None:
        """The cheapest nested schedule within `budget` bytes (fixed memory included); None if there is none."""
        if self.segments is None or not all(self._options):
            return None
        capacity = float(budget - self.graph.fixed_memory)
        lowest = min(option.forward_peak for offered in self._options for option in offered)
        if capacity <= lowest:
            return None
        levels = min(self.numbers.levels, self.numbers.level_work // len(self._segment_graphs) ** 2)
        unit = (capacity - lowest) / levels
        self.limits.work.spend(nested_cells(levels * self._arrays.cells()))
        count = len(self._segment_graphs)
        cost = np.full((count, count, levels + 1), np.inf, np.float32)
        choice = np.zeros((count, count, levels + 1), np.int16)
        for width in range(count):
            if width and self.limits.stop():
                return None
            solve_width(*self._arrays, cost, choice, width, lowest, unit)
        if not np.isfinite(cost[0, -1, -1]):
            return None
        return evaluate(self.graph, self._sequence(choice, unit, levels))

    def _sequence(self, choice: Shorts, unit: float, levels: int) -> list[int]:
        """The ops of the whole graph, read off the choices."""
        sequence: list[int] = []
        done: set[int] = set()

        def emit(index: int, ops: Iterable[int]) -> None:
            for op in ops:
                old = self._segment_graphs[index].ops[op]
                if old >= 0 and (old not in done or self.graph.ops[old].recomputable):
                    sequence.append(old)
                    done.add(old)

        # Ranges of segments still to train, with the level of memory for them; or an option whose backward part is still to run.
        stack: list[tuple[int, int, int, SegmentOption | None]] = [(0, len(self._segment_graphs) - 1, levels, None)]
        while stack:
            first, last, level, option = stack.pop()
            if option is not None:
                emit(first, option.sequence[option.gap + 1 :])
                continue
            chosen = int(choice[first, last, level])
            if chosen >= 0:
                option = self._options[first][chosen]
                emit(first, option.sequence[: option.gap])
                stack.append((first, last, level, option))
                if first < last:
                    stack.append((first + 1, last, below(level, option.held, unit), None))
            else:
                for index in range(first, -chosen):
                    emit(index, range(self._segment_graphs[index].gap))
                stack.append((first, -chosen - 1, level, None))
                stack.append((-chosen, last, below(level, self._arrays.enters[first], unit), None))
        return sequence


def _advance(one: SegmentGraph) -> tuple[float, float, float, float]:
    """Running forward through a segment and holding nothing of it: peak; peak if what enters is held; cost; cost of a repeat."""
    ops = one.graph.ops[: one.gap]
    leaves = one.graph.ops[one.gap].inputs
    values = one.graph.values[: max((value for op in ops for value in op.outputs), default=-1) + 1]
    peaks = []
    for kept in (set(leaves), {*leaves, *ops[0].outputs}):
        apart = [replace(op, reuses=None) if op.reuses in kept else op for op in ops]  # nothing is written in what is kept
        part = Graph(apart, [replace(value, keep=index in kept) for index, value in enumerate(values)])
        peaks.append(float(part.no_recompute_peak))
    again = _needed(one.graph, range(one.gap + 1), one.gap)
    return peaks[0], peaks[1], sum(op.cost for op in ops), sum(one.graph.ops[op].cost for op in again)
