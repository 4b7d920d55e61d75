"""Which runs of ops may overlap: TensorFlow computes several at a time where memory allows it.

A schedule is a sequence, and its peak is that of one op after the other. Where the peak is far, ops that do not read each other
may run at the same time, as they do in plain training. Let all runs before number f be over: then every run up to number l may
have begun, and what is live is at most what is live when run f begins in the sequence, and all that the runs f to l take.
As long as this is within the limit, no order in which they end can pass it.

That holds for the bytes that are asked for. TensorFlow's pool gives out a free block whole unless it is twice as large, and which
blocks are free depends on the order in which runs end. The further the limit is below the budget, the less that matters: then runs go
one by one where the sequence comes near its peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..internals import is_stateful
from ..ops.op_kinds import is_handle, is_one_kernel
from .replay import Run


def one_by_one(runs: Sequence[Run]) -> list[int]:
    """As `overlapping`, with nothing that overlaps."""
    return _with_pairs(runs, list(range(len(runs))))


def overlapping(runs: Sequence[Run], limit: int) -> list[int]:
    """How many runs, counted from the first, have to be over before each run of an op may begin.

    Args:
        runs: of `replay`. limit: bytes that the step may take at its peak, fixed memory included. Where the sequence takes more, nothing overlaps.
    """
    waits: list[int] = []
    first, taken = 0, 0  # runs first, ..., number may overlap, and take so many bytes
    newest: dict[str, int] = {}
    for number, run in enumerate(runs):
        taken += run.takes
        while first < number and runs[first].before + taken > limit:
            taken -= runs[first].takes
            first += 1
        # What changes a variable comes after all that read it, which `emit` sees to. Other effects may concern anything. A copy
        # comes after the copy before it, or else TensorFlow would take one for the other.
        anything = is_stateful(run.op) and not any(map(is_handle, run.op.inputs))
        waits.append(number if anything else max(first, newest.get(run.op.name, -1) + 1))
        newest[run.op.name] = number
    return _with_pairs(runs, waits)


def _with_pairs(runs: Sequence[Run], waits: list[int]) -> list[int]:
    """Two gradients that are one kernel wait for the same: what the second of them must wait for, but not for the first."""
    for number in range(1, len(runs)):
        if is_one_kernel(runs[number - 1].op, runs[number].op):
            waits[number - 1] = waits[number] = min(waits[number], number - 1)
    return waits
