"""From what a relaxation retains to an op sequence, and what that sequence costs and needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Graph
from ..schedule import Compute, simulate, steps_from_sequence
from .problem import Bools, Floats, Ints


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
    """Simulate a sequence with values freed as early as possible; recomputations that nobody uses are dropped first."""
    used = without_unused(graph, sequence)
    steps = steps_from_sequence(graph, used)
    trace = simulate(graph, steps)
    stage_peaks, own_peaks = np.zeros(graph.num_ops), np.zeros(graph.num_ops)
    peak_ops = np.zeros(graph.num_ops, np.int64)
    stage = 0
    for step, bytes_live in zip(steps, trace.during, strict=True):
        if isinstance(step, Compute):
            current = min(stage, graph.num_ops - 1)  # what is computed again for the end counts to the last stage
            if bytes_live > stage_peaks[current]:
                stage_peaks[current], peak_ops[current] = bytes_live, step.op
            if step.op == stage:
                own_peaks[stage] = bytes_live
                stage += 1
    return Evaluation(used, trace.cost, trace.peak, stage_peaks, own_peaks, peak_ops)


def without_unused(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence without recomputations that nobody reads before the next one, nor keeps at the end."""
    first_seen = [False] * graph.num_ops
    latest = [-1] * graph.num_ops
    wanted = [False] * len(sequence)
    sources: list[list[int]] = []
    for position, op in enumerate(sequence):
        wanted[position] = not first_seen[op]
        first_seen[op] = True
        sources.append([latest[graph.producer[value]] for value in graph.ops[op].inputs])
        latest[op] = position
    for value, kept in enumerate(graph.values):
        if kept.keep:
            wanted[latest[graph.producer[value]]] = True
    for position in range(len(sequence) - 1, -1, -1):
        if wanted[position]:
            for source in sources[position]:
                wanted[source] = True
    return [op for position, op in enumerate(sequence) if wanted[position]]


def decode(graph: Graph, snapshots: Iterable[int], retained: Iterable[Bools], eager: bool) -> list[int]:
    """The op sequence that drops, right after op s_k first ran, every earlier value that is not retained there.

    What is missing is recomputed, in graph order, when it is needed (lazy), or at the latest when the next snapshot retains it
    (eager).
    """
    plan = dict(zip(snapshots, retained, strict=True))
    present = np.zeros(graph.num_values, np.bool_)
    sequence: list[int] = []

    def compute(op: int) -> None:
        sequence.append(op)
        present[list(graph.ops[op].outputs)] = True

    def materialise(values: Iterable[int]) -> None:
        missing: set[int] = set()
        stack = [graph.producer[value] for value in values if not present[value]]
        while stack:
            op = stack.pop()
            if op not in missing:
                missing.add(op)
                stack.extend(graph.producer[value] for value in graph.ops[op].inputs if not present[value])
        for op in sorted(missing):
            compute(op)

    producer = np.array(graph.producer)
    for stage, op in enumerate(graph.ops):
        materialise(op.inputs)
        kept = plan.get(stage)
        if kept is not None and eager:
            materialise(np.flatnonzero(kept & (producer < stage)).tolist())
        compute(stage)
        if kept is not None:
            present &= kept | ~np.asarray([graph.ops[p].recomputable for p in graph.producer])
    materialise(index for index, value in enumerate(graph.values) if value.keep)
    return sequence


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
