"""The peak that a schedule takes when TensorFlow runs it: op by op, where a graph knows units only.

A schedule is made for the worst case: every value lives until it is freed, and an op's results stand beside its inputs.
TensorFlow does better in two ways that depend on the schedule: a tensor dies with its last reader, and an elementwise op
writes over an input that nothing reads afterwards. The replay counts both.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..schedule import Compute, Step
from .capture import Captured
from .kinds import IN_PLACE, tensor_bytes
from .trace import is_fixed, root


def replay_peak(captured: Captured, steps: Sequence[Step]) -> int:
    """Peak bytes of the schedule, fixed memory included."""
    runs: list[_Run] = []
    latest: dict[str, int] = {}  # tensor -> the run that made its newest copy
    last: dict[tuple[str, int], int] = {}  # copy -> the run that reads it last
    for step in steps:
        if not isinstance(step, Compute):
            continue
        for op in captured.units[step.op].ops:
            number = len(runs)
            reads = [(r.name, latest[r.name]) for r in map(root, op.inputs) if not is_fixed(r)]
            for copy in reads:
                last[copy] = number
            made = [((t.name, number), tensor_bytes(t)) for t in op.outputs]
            latest.update((t.name, number) for t in op.outputs)
            runs.append(_Run(reads, made, op.type in IN_PLACE, captured.costs[op.name].workspace))
    for tensor in map(root, captured.traced.outputs):
        if not is_fixed(tensor):
            last[tensor.name, latest[tensor.name]] = len(runs)
    size: dict[tuple[str, int], int] = {}
    live = peak = captured.graph.fixed_memory
    for number, run in enumerate(runs):
        dying = {copy for copy in run.reads if last[copy] == number}
        own = sum(bytes_ for _, bytes_ in run.made)
        if run.in_place:
            over = next((copy for copy in dying if size[copy] == own and run.reads.count(copy) == 1), None)
            if over is not None:
                dying.discard(over)
                live -= own
        live += own
        peak = max(peak, live + run.workspace)
        size.update(run.made)
        live -= sum(size[copy] for copy in dying)
        live -= sum(bytes_ for copy, bytes_ in run.made if copy not in last)
    return peak


class _Run:
    """One run of one op."""

    __slots__ = ("in_place", "made", "reads", "workspace")

    def __init__(self, reads: list[tuple[str, int]], made: list[tuple[tuple[str, int], int]], in_place: bool, workspace: int):
        self.reads = reads
        self.made = made
        self.in_place = in_place
        self.workspace = workspace
