"""A graph as flat arrays, the form that the methods work on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from ...graph import Graph
from .graph_kernels import useful_until

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def compressed(lists: Iterable[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows of ids as (pointers, ids): row i is ids[pointers[i]:pointers[i + 1]]."""
    rows = list(lists)
    pointers = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointers[1:])
    return pointers, np.fromiter(chain.from_iterable(rows), np.int64, int(pointers[-1]))


@dataclass(frozen=True)
class Problem:
    """Arrays of one graph: n ops, m values. Memory is in bytes without fixed memory."""

    graph: Graph

    @cached_property
    def cost(self) -> Floats:
        return np.array([op.cost for op in self.graph.ops], np.float64)

    @cached_property
    def workspace(self) -> Floats:
        return np.array([op.workspace for op in self.graph.ops], np.float64)

    @cached_property
    def least_workspace(self) -> Floats:
        """Bytes that each op needs beyond its inputs and outputs if what it reuses dies with it: below zero where it does.

        A schedule that holds on to such an input needs more. There are few: only a recomputation of the same op could use it.
        """
        return np.array([op.workspace - self.graph.reusable(index) for index, op in enumerate(self.graph.ops)], np.float64)

    @cached_property
    def reuses(self) -> Ints:
        """Per op the value whose storage it may write in, or -1."""
        return np.array([-1 if op.reuses is None else op.reuses for op in self.graph.ops], np.int64)

    @cached_property
    def byte_counts(self) -> tuple[Ints, Ints]:
        """Sizes of values and workspaces of ops as whole numbers."""
        return self.size.astype(np.int64), self.workspace.astype(np.int64)

    @cached_property
    def recomputable(self) -> Bools:
        return np.array([op.recomputable for op in self.graph.ops], np.bool_)

    @cached_property
    def backward(self) -> Bools:
        """Ops of the backward phase."""
        return np.array([op.phase == "backward" for op in self.graph.ops], np.bool_)

    @cached_property
    def size(self) -> Floats:
        return np.array([value.size for value in self.graph.values], np.float64)

    @cached_property
    def keep(self) -> Bools:
        return np.array([value.keep for value in self.graph.values], np.bool_)

    @cached_property
    def producer(self) -> Ints:
        return np.array(self.graph.producer, np.int64)

    @cached_property
    def last_use(self) -> Ints:
        """Per value the last op that reads it (its producer if none); n for kept values."""
        last = np.array(self.graph.last_use, np.int64)
        last[self.keep] = self.graph.num_ops
        return last

    @cached_property
    def inputs(self) -> tuple[Ints, Ints]:
        """Value ids that each op reads, compressed."""
        return compressed([op.inputs for op in self.graph.ops])

    @cached_property
    def outputs(self) -> tuple[Ints, Ints]:
        """Value ids that each op produces, compressed."""
        return compressed([op.outputs for op in self.graph.ops])

    @cached_property
    def largest_output(self) -> Ints:
        """Per op the first of its largest outputs, or -1."""
        return np.array([max(op.outputs, key=lambda value: self.size[value], default=-1) for op in self.graph.ops], np.int64)

    @cached_property
    def place(self) -> Ints:
        """Per value its place among the outputs of its producer."""
        pointers, values = self.outputs
        places = np.zeros(self.graph.num_values, np.int64)
        places[values] = np.arange(len(values)) - pointers[:-1][self.producer[values]]
        return places

    @cached_property
    def users(self) -> tuple[Ints, Ints]:
        """Ops that read each value, ascending, compressed."""
        values, ops = self.edges
        pointers = np.zeros(self.graph.num_values + 1, np.int64)
        np.cumsum(np.bincount(values, minlength=self.graph.num_values), out=pointers[1:])
        return pointers, ops[np.argsort(values, kind="stable")]

    @cached_property
    def last_reader_in_phase(self) -> Ints:
        """Per value the last op that reads it in the phase (backward or not) of its producer, or -1."""
        values, users = self.edges
        same = self.backward[users] == self.backward[self.producer[values]]
        last = np.full(self.graph.num_values, -1)
        np.maximum.at(last, values[same], users[same])
        return last

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """All (value, op that reads it) pairs, by op."""
        pointers, values = self.inputs
        return values, np.repeat(np.arange(self.graph.num_ops), np.diff(pointers))

    @cached_property
    def working_set(self) -> Floats:
        """Bytes each op needs live while it runs at least."""
        values, ops = self.edges
        read = np.bincount(ops, self.size[values], self.graph.num_ops)
        made = np.bincount(self.producer, self.size, self.graph.num_ops)
        return self.least_workspace + read + made

    @cached_property
    def profile(self) -> Floats:
        """Bytes live while each op runs when every op runs once in order."""
        return np.array(self.graph.no_recompute_profile, np.float64) - self.graph.fixed_memory

    def useful_until(self, through: Bools) -> Ints:
        """Per value the last stage at which having it can save work.

        Args:
            through: ops (length n) whose recomputation reads its inputs; a value stays useful as long as a value that
                such an op makes from it.
        """
        return useful_until(self.last_use, through & self.recomputable, *self.inputs, *self.outputs)


def problem_of(graph: Graph) -> Problem:
    """The arrays of a graph, made once: graphs do not change."""
    problem = graph.__dict__.get("_problem")
    if problem is None:
        problem = graph.__dict__["_problem"] = Problem(graph)
    return problem
