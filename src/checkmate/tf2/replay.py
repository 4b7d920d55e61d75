"""A schedule as TensorFlow runs it: op by op, where a graph knows units only.

A schedule is made for the worst case: every value lives until it is freed, and an op's results stand beside its inputs.
TensorFlow does better in two ways that depend on the schedule: a tensor dies with its last reader, and an elementwise op
writes over an input that nothing reads afterwards. The replay counts both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..schedule import Compute, Step
from .capture import Captured
from .kinds import IN_PLACE, tensor_bytes
from .trace import is_fixed, root


@dataclass(slots=True)
class Run:
    """One run of one op.

    Attributes:
        reads: copies of tensors, each as its name and the number of the run that made it. made: bytes of each copy it makes.
        workspace: bytes. before: bytes live when it begins, fixed memory included. during: bytes live while it runs.
        takes: bytes that it adds at most, in whatever order runs end.
    """

    op: tf.Operation
    reads: list[tuple[str, int]]
    made: dict[tuple[str, int], int]
    workspace: int
    before: int = 0
    during: int = 0
    takes: int = 0


def replay(captured: Captured, steps: Sequence[Step]) -> list[Run]:
    """The runs of ops that a schedule asks for, one after the other. Reads of variables take nothing and are left out."""
    runs: list[Run] = []
    latest: dict[str, int] = {}  # tensor -> the run that made its newest copy
    last: dict[tuple[str, int], int] = {}  # copy -> the run that reads it last
    readers: Counter[tuple[str, int]] = Counter()  # runs that read a copy
    for step in steps:
        if not isinstance(step, Compute):
            continue
        for op in captured.units[step.op].ops:
            number = len(runs)
            reads = [(r.name, latest[r.name]) for r in map(root, op.inputs) if not is_fixed(r)]
            for copy in dict.fromkeys(reads):
                last[copy] = number
                readers[copy] += 1
            made = {(t.name, number): tensor_bytes(t) for t in op.outputs}
            latest.update((t.name, number) for t in op.outputs)
            runs.append(Run(op, reads, made, captured.costs[op.name].workspace))
    for tensor in map(root, captured.traced.outputs):
        if not is_fixed(tensor):
            last[tensor.name, latest[tensor.name]] = len(runs)
            readers[tensor.name, latest[tensor.name]] += 1
    size: dict[tuple[str, int], int] = {}
    live = captured.graph.fixed_memory
    for number, run in enumerate(runs):
        run.before = live
        dying = {copy for copy in run.reads if last[copy] == number}
        own = sum(run.made.values())
        run.takes = own + run.workspace
        if run.op.type in IN_PLACE:
            fitting = [copy for copy in dying if size[copy] == own and run.reads.count(copy) == 1]
            if fitting:
                dying.discard(fitting[0])
                live -= own
            if any(readers[copy] == 1 for copy in fitting):
                run.takes = run.workspace
        live += own
        run.during = live + run.workspace
        size.update(run.made)
        live -= sum(size[copy] for copy in dying)
        live -= sum(bytes_ for copy, bytes_ in run.made.items() if copy not in last)
    return runs


def replay_peak(captured: Captured, steps: Sequence[Step]) -> int:
    """Peak bytes of the schedule when nothing overlaps, fixed memory included."""
    return max((run.during for run in replay(captured, steps)), default=captured.graph.fixed_memory)
