"""An execution sequence and its memory profile, changed in place and undone, for local search: the kernels that do it begin here.

A sequence is a list of computations, each in a numbered slot. The slots of one op are linked in time. A value lives from a
computation of its op to the last reader before the next one, so where it ends is found by asking its readers: nothing else
is stored, and inserting, removing or moving one computation touches only the values that its op reads or makes.

The kept values are read by one more op, the sink, which stays at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .graph_arrays import Ints, Problem
from .sequence_kernels import (
    COST,
    IDEAL_BITS,
    IN,
    OUT,
    PHASE,
    PRODUCER,
    RECOMPUTABLE,
    SHAPE,
    SIZE,
    USERS,
    WORKSPACE,
    SequenceState,
)


class SequenceArrays(NamedTuple):
    """A graph for the kernels; their rows are in sequence_kernels.pxd."""

    table: Ints
    links: Ints


def phase_codes(problem: Problem) -> Ints:
    """Per op 2: backward; 1: forward or loss, and before every backward op in the given order; 0: anything else.

    Every first computation of an op with code 1 comes before the first computation of any op with code 2.
    """
    phases = [op.phase for op in problem.graph.ops]
    codes = np.zeros(len(phases), np.int64)
    if "backward" in phases:
        start = phases.index("backward")
        codes[:start] = [phase in ("forward", "loss") for phase in phases[:start]]
        codes[problem.backward] = 2
    return codes


def arrays_of(problem: Problem) -> SequenceArrays:
    """The graph with the sink."""
    graph = problem.graph
    n, m = graph.num_ops, graph.num_values
    kept = np.flatnonzero(problem.keep)
    (in_pointers, in_values), (out_pointers, out_values) = problem.inputs, problem.outputs
    in_pointers, in_values = np.append(in_pointers, len(in_values) + len(kept)), np.append(in_values, kept)
    user_pointers, user_ops = problem.users
    user_ops = np.insert(user_ops, user_pointers[1:][kept], n)
    user_pointers = user_pointers + np.append(0, np.cumsum(problem.keep))
    table = np.zeros((10, max(n, m) + 2), np.int64)
    table[IN, : n + 2] = in_pointers
    table[OUT, : n + 2] = np.append(out_pointers, out_pointers[-1]) + len(in_values)
    table[USERS, : m + 1] = user_pointers + len(in_values) + len(out_values)
    table[COST, :n] = np.rint(problem.cost / (graph.ideal_cost or 1.0) * (1 << IDEAL_BITS))
    table[WORKSPACE, :n] = problem.least_workspace
    table[RECOMPUTABLE, :n] = problem.recomputable
    table[PHASE, :n] = phase_codes(problem)
    table[PRODUCER, :m] = problem.producer
    table[SIZE, :m] = problem.size
    table[SHAPE, :2] = n, m
    return SequenceArrays(table, np.concatenate([in_values, out_values, user_ops]))


def new_state(arrays: SequenceArrays, sequence: Sequence[int], capacity: int, limit: int) -> SequenceState:
    """A state for `sequence`, which must be legal, followed by the sink.

    Args:
        capacity: most computations it can hold. limit: bytes; what is above it is counted as excess.
    """
    sink = int(arrays.table[SHAPE, 0])
    return SequenceState(arrays.table, arrays.links, np.array([*sequence, sink], np.int64), capacity, limit)
