"""From what a relaxation retains to an op sequence, and what that sequence costs and needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph import Graph
from ...schedule import Compute, simulate, steps_from_sequence
from .graph_arrays import Bools, Floats, Ints, problem_of
from .kernels import kernel


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
    given = np.asarray(sequence, np.int64)
    if len(given) and not (given.min() >= 0 and given.max() < n):
        simulate(graph, steps_from_sequence(graph, sequence))  # says what is wrong
    links = (*problem.inputs, *problem.outputs, problem.producer, problem.place)
    valid, used = _used(given, n, *problem.inputs, problem.producer, problem.keep, problem.recomputable)
    if not valid:
        simulate(graph, steps_from_sequence(graph, used.tolist()))  # says what is wrong
    memory = (problem.keep, sizes, workspaces, problem.reuses, graph.fixed_memory)
    peak, stage_peaks, own_peaks, peak_ops = _memory_profile(used, n, *links, *memory)
    return Evaluation(used.tolist(), math.fsum(problem.cost[used].tolist()), peak, stage_peaks, own_peaks, peak_ops)


@kernel()
def _used(
    sequence: Ints,
    n: int,
    in_pointers: Ints,
    in_values: Ints,
    producer: Ints,
    keep: Bools,
    recomputable: Bools,
) -> tuple[bool, Ints]:
    """Whether a sequence is valid, and what it is without recomputations that nobody reads, nor keeps at the end."""
    latest = np.full(n, -1)
    wanted = np.zeros(len(sequence), np.bool_)
    reads = 0
    for op in sequence:
        reads += in_pointers[op + 1] - in_pointers[op]
    sources = np.zeros(reads, np.int64)
    reads = 0
    for position in range(len(sequence)):
        op = sequence[position]
        wanted[position] = latest[op] < 0
        for x in range(in_pointers[op], in_pointers[op + 1]):
            sources[reads] = latest[producer[in_values[x]]]
            if sources[reads] < 0:
                return False, sequence
            reads += 1
        latest[op] = position
    for value in range(len(keep)):
        if keep[value] and latest[producer[value]] >= 0:
            wanted[latest[producer[value]]] = True
    count = 0
    for position in range(len(sequence) - 1, -1, -1):
        op = sequence[position]
        degree = in_pointers[op + 1] - in_pointers[op]
        reads -= degree
        if wanted[position]:
            count += 1
            for x in range(reads, reads + degree):
                wanted[sources[x]] = True
    result = np.zeros(count, np.int64)
    runs = np.zeros(n, np.int64)
    count = 0
    for position in range(len(sequence)):
        if wanted[position]:
            result[count] = sequence[position]
            runs[sequence[position]] += 1
            count += 1
    for op in range(n):
        if runs[op] == 0 or (runs[op] > 1 and not recomputable[op]):
            return False, result
    return True, result


@kernel()
def _memory_profile(
    sequence: Ints,
    n: int,
    in_pointers: Ints,
    in_values: Ints,
    out_pointers: Ints,
    out_values: Ints,
    producer: Ints,
    place: Ints,
    keep: Bools,
    sizes: Ints,
    workspaces: Ints,
    reuses: Ints,
    fixed: int,
) -> tuple[int, Floats, Floats, Ints]:
    """The peak; per stage the peak, the bytes live during the first computation, and the op that runs at the peak."""
    length = len(sequence)
    copies = np.zeros(length + 1, np.int64)  # of values: what a position computes starts here
    for position in range(length):
        op = sequence[position]
        copies[position + 1] = copies[position] + out_pointers[op + 1] - out_pointers[op]
    last = np.zeros(copies[length], np.int64)  # the position that reads the copy last
    latest = np.full(n, -1)
    reused = np.full(length, -1)  # the copy that the op of a position may write in
    for position in range(length):
        op = sequence[position]
        if reuses[op] >= 0:
            reused[position] = copies[latest[producer[reuses[op]]]] + place[reuses[op]]
        for x in range(in_pointers[op], in_pointers[op + 1]):
            last[copies[latest[producer[in_values[x]]]] + place[in_values[x]]] = position
        latest[op] = position
        last[copies[position] : copies[position + 1]] = position
    for value in range(len(keep)):
        if keep[value]:
            last[copies[latest[producer[value]]] + place[value]] = length
    dying = np.zeros(length + 1, np.int64)
    for position in range(length):
        start = out_pointers[sequence[position]]
        for copy in range(copies[position], copies[position + 1]):
            dying[last[copy]] += sizes[out_values[start + copy - copies[position]]]
    stage_peaks, own_peaks, peak_ops = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    stage, live, peak = 0, fixed, fixed
    for position in range(length):
        op = sequence[position]
        for x in range(out_pointers[op], out_pointers[op + 1]):
            live += sizes[out_values[x]]
        high = live + workspaces[op]
        if reused[position] >= 0 and last[reused[position]] == position:
            high -= sizes[reuses[op]]
        peak = max(peak, high)
        current = min(stage, n - 1)  # what is computed again for the end counts to the last stage
        if high > stage_peaks[current]:
            stage_peaks[current], peak_ops[current] = high, op
        if op == stage:
            own_peaks[stage] = high
            stage += 1
        live -= dying[position]
    return peak, stage_peaks, own_peaks, peak_ops


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
    return _decode(stages, kept, eager, graph.num_ops, *links, problem.keep).tolist()


def read_off(graph: Graph, snapshots: Sequence[int], retained: Sequence[Bools]) -> list[Evaluation]:
    """What `decode` makes of it, lazy and eager, simulated."""
    return [evaluate(graph, decode(graph, snapshots, retained, eager)) for eager in (False, True)]


@kernel()
def _decode(
    stages: Ints,
    kept: Bools,
    eager: bool,
    n: int,
    in_pointers: Ints,
    in_values: Ints,
    out_pointers: Ints,
    out_values: Ints,
    producer: Ints,
    keep: Bools,
) -> Ints:
    present = np.zeros(len(producer), np.bool_)
    sequence = np.zeros(4 * n + 4, np.int64)
    missing = np.full(n, -1)
    stack = np.zeros(n + 1, np.int64)
    plan = np.zeros(n + 1, np.int64)
    length, group = 0, 0
    for stage in range(n + 1):
        here = stage < n and group < len(stages) and stages[group] == stage
        for turn in range(2):
            # First what the op of the stage (at the end: the caller) reads, then what the snapshot retains.
            count, top = 0, 0
            if turn == 0 and stage < n:
                missing[stage] = stage
                stack[0] = stage
                top = 1
            elif (turn == 0) or (eager and here):
                for value in range(len(producer)):
                    wanted = keep[value] if stage == n else kept[group, value] and producer[value] < stage
                    if wanted and not present[value] and missing[producer[value]] != n + 1 + stage:
                        missing[producer[value]] = n + 1 + stage
                        stack[top] = producer[value]
                        top += 1
            stamp = stage if turn == 0 and stage < n else n + 1 + stage
            while top > 0:
                top -= 1
                op = stack[top]
                if op != stage:
                    plan[count] = op
                    count += 1
                for x in range(in_pointers[op], in_pointers[op + 1]):
                    origin = producer[in_values[x]]
                    if not present[in_values[x]] and missing[origin] != stamp:
                        missing[origin] = stamp
                        stack[top] = origin
                        top += 1
            while length + count + 1 > len(sequence):
                sequence = np.append(sequence, np.zeros(len(sequence), np.int64))
            for op in np.sort(plan[:count]):
                sequence[length] = op
                length += 1
                present[out_values[out_pointers[op] : out_pointers[op + 1]]] = True
        if stage < n:
            sequence[length] = stage
            length += 1
            present[out_values[out_pointers[stage] : out_pointers[stage + 1]]] = True
        if here:
            present &= kept[group]
            group += 1
    return sequence[:length]


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
