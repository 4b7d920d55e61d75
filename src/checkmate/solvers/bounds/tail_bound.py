"""The tail bound: what the end of a step costs, where the memory left is so small that little survives from one op to the next.

In training steps the first layers have the largest values and the last gradients. Near the least memory each of those gradients
finds next to nothing in memory but what it works on, and pays for long recomputations; programs with snapshots count the same one
again and again as if there were room for parts of it. Here the time after the first computation of one op, the tail, is looked at
step by step.

Look back from a moment at which some values are resident together. One op was the last to compute any of them. While it ran, the
others were resident, and what it read; just before, these were resident together, at less cost, by the cost of that op. If it ran
for the first time, that was one phase earlier: a phase lies between the first computations of two ops that follow one another in the
given order. So the least cost of a set of values in a phase is that of the best choice of the op, and of the set before: exactly, if
the cost of every set were known. Here a dynamic program knows that of all sets of a few values; larger ones are counted as the
dearest of their parts (the heuristic h^m of Haslum & Geffner, Admissible Heuristics for Optimal Planning, AIPS 2000). A search from
the end of the step back to the begin of the tail (A*) takes these costs as what is still ahead, and is exact.

What was resident at the begin of the tail is free, as long as there was room for it. The costs of the time before come on top: those
of the graph that ends there.

Two things keep the number of values small, and can only lower the bound. Values that are left out are always there and take no
memory. And a value that is computed from one other at next to no cost, both small, is one item with it: the item is resident if any
of its values is, takes the bytes of the smallest, and costs its first op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...graph import Graph
from ..interface.work_limits import Work, tail_sets, tail_states
from ..representation.graph_arrays import Ints, Problem
from .tail_kernels import COLUMNS, ENTRY, IMPOSSIBLE, MOST_ITEMS, OPEN, PROVEN, STATES, Layout, fill, search

#: Values that are looked at: with more, sets have three members instead of four, and the bound is lower. All numbers here are shown by
#: python benchmarks/largest_batch.py --networks resnet50
_VALUES = 80
#: Members of the sets of the dynamic program, for a glance and for all it can give; its entries in all, of 4 bytes.
_GLANCE, _MEMBERS, _MOST_ENTRIES = 2, 4, 40_000_000
#: Small values take no more than this share of the memory; next to no cost is no more than this share of the ideal cost.
_SMALL, _CHEAP = 1 / 16, 1e-3
#: Costs are whole multiples of a power of two that is about this share of the ideal cost, rounded down: up to 256 times the ideal cost
#: a sum has no more than 30 bits.
_FINEST = 2.0**-22
#: States that a search has room for, at 75 bytes each: a new one begins where that was not enough. Open entries for each of them.
_ROOMS, _OPEN_PER_STATE = (10_000, 100_000, 1_000_000), 3
#: States that are looked at between two looks at the clock: up to 0.3 s.
_SLICE = 1000


class _Arrays(NamedTuple):
    """What the kernels read. Per op: bytes, cost, items that it reads and writes; per item: bytes, op that recomputes it, first phase."""

    need: Ints
    cost: npt.NDArray[np.int32]
    reads: Ints
    writes: Ints
    items: Ints


class Tail:
    """The computations after the first one of an op.

    Args:
        capacity: bytes, without fixed memory.
        after: the op; the first phase begins when it has run.
        most_values: that are looked at.

    Attributes:
        phases: as many as ops run for the first time in the tail, and one before them.
        ideal_cost: of computing the ops of the tail once.
    """

    def __init__(self, problem: Problem, capacity: float, after: int, most_values: int = _VALUES):
        self.problem, self.capacity, self.after = problem, int(capacity), after
        self.phases = problem.graph.num_ops - after
        self.ideal_cost = float(problem.cost[after + 1 :].sum())
        self._item = _items(problem, self.capacity, after, min(most_values, MOST_ITEMS))
        self._unit = 2.0 ** math.ceil(math.log2(max(problem.graph.ideal_cost, np.finfo(float).tiny) * _FINEST))

    def glance(self, work: Work | None = None) -> float:
        """A lower bound on the cost of the tail, in a moment; inf if no schedule exists. `work`: to which it is added."""
        tables, binomial = self._tables(_GLANCE, work or Work(), lambda: False), self._binomial(self._members(_GLANCE))
        assert tables is not None
        # Those of one kept item at a time: filled up with the first of the padding.
        members = binomial.shape[1] - 1
        return self._cost(int(tables[-1, binomial[self._kept() + members, members]].max(initial=tables[-1, 0])))

    def bound(self, work: Work | None = None, stop: Callable[[], bool] = lambda: False) -> float:
        """The best lower bound on the cost of the tail; inf if no schedule exists. `stop`: True ends it with what is proven."""
        work = work or Work()
        tables = self._tables(_MEMBERS, work, stop)
        if tables is None:
            return 0.0
        layout, kept = self._layout(self._binomial(self._members(_MEMBERS))), self._kept()
        proven = 0
        for room in _ROOMS:
            states, heap = np.empty((room, COLUMNS), np.int32), np.empty((_OPEN_PER_STATE * room, ENTRY), np.int32)
            index, counts = np.full(2 ** (2 * room).bit_length(), -1, np.int32), np.zeros(3, np.int64)
            ended = False
            while not ended and not stop():
                before = counts[STATES]
                ended = search(layout, tables, kept, states, heap, index, counts, _SLICE)
                work.spend(tail_states(counts[STATES] - before))
            proven = max(proven, int(counts[PROVEN]))
            if not ended or (counts[STATES] < len(states) and counts[OPEN] < len(heap)):
                break
        return self._cost(proven)

    def before(self) -> Graph:
        """What comes before: the graph that ends with op `after`, and keeps nothing."""
        graph = self.problem.graph
        there = [value for value, op in enumerate(graph.producer) if op <= self.after]
        number = {value: index for index, value in enumerate(there)}
        ops = [
            replace(
                op,
                inputs=tuple(number[value] for value in op.inputs),
                outputs=tuple(number[value] for value in op.outputs),
                reuses=None if op.reuses is None else number[op.reuses],
            )
            for op in graph.ops[: self.after + 1]
        ]
        return Graph(ops, [replace(graph.values[value], keep=False) for value in there], graph.fixed_memory, graph.name)

    def _cost(self, found: int) -> float:
        return math.inf if found >= IMPOSSIBLE else found * self._unit

    @cached_property
    def _arrays(self) -> _Arrays:
        problem, item = self.problem, self._item
        count = int(item.max(initial=-1)) + 1
        first = np.full(count, problem.graph.num_ops)
        size = np.full(count, np.inf)
        values = np.flatnonzero(item >= 0)
        np.minimum.at(first, item[values], problem.producer[values])
        np.minimum.at(size, item[values], problem.size[values])
        again = np.where(problem.recomputable[first], first, -1)
        items = np.array([size.astype(np.int64), again, first - self.after]) if count else np.zeros((3, 1), np.int64)
        used = {*range(self.after, problem.graph.num_ops), *again[again >= 0].tolist()}
        return _Arrays(
            problem.working_set.astype(np.int64),
            np.floor(problem.cost / self._unit).astype(np.int32),
            _rows(item, [op.inputs if index in used else () for index, op in enumerate(problem.graph.ops)]),
            _rows(item, [op.outputs if index in used else () for index, op in enumerate(problem.graph.ops)]),
            items,
        )

    def _kept(self) -> Ints:
        """The items of what is resident at the end."""
        kept = self._item[self.problem.keep]
        return np.unique(kept[kept >= 0])

    def _members(self, most: int) -> int:
        """Of a set, for so many at most."""
        count = self._arrays.items.shape[1]
        return next(k for k in range(most, 0, -1) if k == 1 or comb(count + k, k) * self.phases <= _MOST_ENTRIES)

    def _binomial(self, members: int) -> Ints:
        rows = range(self._arrays.items.shape[1] + members + 1)
        return np.array([[comb(n, k) for k in range(members + 1)] for n in rows], np.int64)

    def _layout(self, binomial: Ints) -> Layout:
        return Layout(*self._arrays, binomial, self.after, self.capacity)

    def _tables(self, most: int, work: Work, stop: Callable[[], bool]) -> npt.NDArray[np.int32] | None:
        """Per phase and set of items the least cost; sets are numbered as in peak_bound.py. None if `stop` says so."""
        binomial = self._binomial(self._members(most))
        layout = self._layout(binomial)
        tables = np.zeros((self.phases, int(binomial[-1, -1])), np.int32)
        for phase in range(self.phases):
            if stop():
                return None
            fill(layout, tables[max(0, phase - 1)], tables[phase], phase)
            work.spend(tail_sets(tables.shape[1]))
        return tables


def _rows(item: Ints, values: list[tuple[int, ...]]) -> Ints:
    """The items of values, ascending, row by row; -1 closes a row."""
    rows = [sorted({int(item[value]) for value in row} - {-1}) for row in values]
    result = np.full((len(rows), max(map(len, rows), default=0) + 1), -1)
    for row, items in enumerate(rows):
        result[row, : len(items)] = items
    return result


def _items(problem: Problem, capacity: int, after: int, most: int) -> Ints:
    """Per value the number of its item, or -1. Items come in the order of their first ops."""
    values = _looked_at(problem, after, most)
    item = np.full(problem.graph.num_values, -1)
    small = problem.size <= _SMALL * capacity
    cheap = problem.cost <= _CHEAP * problem.graph.ideal_cost
    count = 0
    for value in values[np.argsort(problem.producer[values], kind="stable")]:
        op = problem.producer[value]
        reads = {int(item[one]) for one in problem.graph.ops[op].inputs} - {-1}
        alone = len(problem.graph.ops[op].outputs) == 1
        (before,) = reads if len(reads) == 1 else (-1,)
        if before >= 0 and alone and op <= after and cheap[op] and small[value] and small[item == before].all():
            item[value] = before
        else:
            item[value] = count
            count += 1
    return item


def _looked_at(problem: Problem, after: int, most: int) -> Ints:
    """What the tail reads; what is read to compute that again; and so on: so many values at most, of the last ones the largest."""
    graph = problem.graph
    wanted = {value for op in graph.ops[after + 1 :] for value in op.inputs}
    wanted.update(np.flatnonzero(problem.keep).tolist())
    chosen: list[int] = []
    while wanted and len(chosen) < most:
        found = np.array(sorted(wanted))
        found = found[problem.size[found] > 0]
        chosen.extend(found[np.argsort(-problem.size[found], kind="stable")[: most - len(chosen)]].tolist())
        again = (graph.ops[problem.producer[value]] for value in wanted)
        wanted = {value for op in again if op.recomputable for value in op.inputs} - set(chosen)
    return np.array(sorted(chosen), np.int64)
