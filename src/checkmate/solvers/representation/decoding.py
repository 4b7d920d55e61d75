"""From what a relaxation retains to an op sequence, and what that sequence costs and needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import Graph
from ...schedule import Compute, simulate, steps_from_sequence
from . import decoding_kernels
from .graph_arrays import Bools, Floats, Ints, problem_of


@dataclass(frozen=True)
class Evaluation:
    """An op sequence under the simulator.

    Attributes:
        sequence: op ids, repeats allowed. cost: of all of them. peak: bytes, fixed memory included.
        stage_peaks: per stage (it ends with the first computation of its op) the peak bytes, fixed memory included.
        own_peaks: per stage the bytes live during that first computation.
        peak_ops: per stage the op that runs when the stage peaks.
    """

    sequence: list[int]
    cost: float
    peak: int
    stage_peaks: Floats
    own_peaks: Floats
    peak_ops: Ints


def evaluate(graph: Graph, sequence: Sequence[int]) -> Evaluation:
    """Simulate a sequence with values freed as early as possible; recomputations that nobody uses are dropped first.

    Raises:
        InvalidSchedule: an op runs before what it reads, is missing, or is repeated though it must not be.
    """
    problem = problem_of(graph)
    n = graph.num_ops
    sizes, workspaces = problem.byte_counts
    given = np.ascontiguousarray(sequence, np.int64)
    if len(given) and not (given.min() >= 0 and given.max() < n):
        simulate(graph, steps_from_sequence(graph, sequence))  # says what is wrong
    links = (*problem.inputs, *problem.outputs, problem.producer, problem.place)
    valid, used = decoding_kernels.used(given, n, *problem.inputs, problem.producer, problem.keep, problem.recomputable)
    if not valid:
        simulate(graph, steps_from_sequence(graph, used.tolist()))  # says what is wrong
    memory = (problem.keep, sizes, workspaces, problem.reuses, graph.fixed_memory)
    peak, stage_peaks, own_peaks, peak_ops = decoding_kernels.memory_profile(used, n, *links, *memory)
    return Evaluation(used.tolist(), math.fsum(problem.cost[used].tolist()), peak, stage_peaks, own_peaks, peak_ops)


def decode(graph: Graph, snapshots: Iterable[int], retained: Iterable[Bools], eager: bool) -> list[int]:
    """The op sequence that drops, right after op s_k first ran, every earlier value that is not retained there.

    What is missing is recomputed, in graph order, when it is needed (lazy), or at the latest when the next snapshot retains it
    (eager).
    """
    problem = problem_of(graph)
    stages = np.array(list(snapshots), np.int64)
    kept = np.array(list(retained), np.bool_).reshape(len(stages), graph.num_values)
    kept |= ~problem.recomputable[problem.producer]
    links = (*problem.inputs, *problem.outputs, problem.producer)
    return decoding_kernels.decode(stages, kept, eager, graph.num_ops, *links, problem.keep).tolist()


def read_off(graph: Graph, snapshots: Sequence[int], retained: Sequence[Bools]) -> list[Evaluation]:
    """What `decode` makes of it, lazy and eager, simulated."""
    return [evaluate(graph, decode(graph, snapshots, retained, eager)) for eager in (False, True)]


def retained_by(graph: Graph, sequence: Sequence[int], snapshots: Sequence[int]) -> list[Bools]:
    """Per snapshot the values that a schedule keeps live past the first computation of that op (the inverse of decode)."""
    steps = steps_from_sequence(graph, sequence)
    wanted = set(snapshots)
    live = np.zeros(graph.num_values, np.bool_)
    result: list[Bools] = []
    stage, pending = 0, False
    for step in steps:
        if isinstance(step, Compute):
            if pending:
                result.append(live.copy())
                pending = False
            live[list(graph.ops[step.op].outputs)] = True
            if step.op == stage:
                pending = stage in wanted
                stage += 1
        else:
            live[step.value] = False
    if pending:
        result.append(live.copy())
    return result
