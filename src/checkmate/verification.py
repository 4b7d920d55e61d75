"""The last check of a schedule before a caller gets it, apart from everything that made it.

`verify` shares no code with the solvers, nor with `simulate`, which some of them use to judge what they try: it looks at a
schedule as lifetimes of values and adds up the bytes of those that overlap, while the simulator and the compiled kernels
keep count of what is live. Costs are added up op by op, rounded once at the end. Only `solve` imports this module; the tests compare it with
`simulate` and with a third judge of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain, repeat

from .errors import InvalidSchedule
from .graph import Graph
from .schedule import Compute, Free, Step


def verify(graph: Graph, steps: Sequence[Step]) -> tuple[float, int]:
    """Cost and peak (bytes, fixed memory included) of a schedule.

    Raises:
        InvalidSchedule: an op is computed without its inputs, is missing, or is repeated though it must not be; or a value is
            freed that is not there, or is not kept though it must be.
    """
    begins: dict[int, int] = {}  # values that are live -> the step that computed them first
    change = [0] * (len(steps) + 1)  # bytes that are live from this step on, and were not before
    extra = [0] * len(steps)  # bytes during this step only
    computed: dict[int, int] = {}
    latest = 0  # the last computation
    for number, step in enumerate(steps):
        if isinstance(step, Free):
            begin = begins.pop(step.value, None)
            if begin is None:
                raise InvalidSchedule(f"step {number} frees value {step.value}, which is not live")
            size = graph.values[step.value].size
            run = steps[latest]
            # Where an output of the last op was written in its place, it was gone when that op began.
            taken = isinstance(run, Compute) and graph.ops[run.op].reuses == step.value
            change[begin] += size
            change[latest if taken else number + 1] -= size
            continue
        latest = number
        op = graph.ops[step.op]
        missing = [value for value in op.inputs if value not in begins]
        if missing:
            raise InvalidSchedule(f"step {number} computes op {op.name!r} without {graph.values[missing[0]].name!r}, its input")
        computed[step.op] = computed.get(step.op, 0) + 1
        # The new copy of a value is there beside the old one until the op ends.
        extra[number] = op.workspace + sum(graph.values[value].size for value in op.outputs if value in begins)
        for value in op.outputs:
            begins.setdefault(value, number)
    for value, begin in begins.items():
        change[begin] += graph.values[value].size
    for index, op in enumerate(graph.ops):
        times = computed.get(index, 0)
        if times != 1 and (times == 0 or not op.recomputable):
            raise InvalidSchedule(f"op {op.name!r} runs {times} times")
    lost = [value.name for number, value in enumerate(graph.values) if value.keep and number not in begins]
    if lost:
        raise InvalidSchedule(f"value {lost[0]!r} must be kept, but is not live at the end")
    during = [live + more for live, more in zip(accumulate(change[:-1]), extra, strict=True)]
    cost = math.fsum(chain.from_iterable(repeat(graph.ops[op].cost, times) for op, times in computed.items()))
    return cost, graph.fixed_memory + max(during, default=0)


def in_order(graph: Graph, steps: Sequence[Step], order: str) -> bool:
    """First computations come in the order asked for (that inputs come before their readers is for `verify` to say)."""
    firsts = list(dict.fromkeys(step.op for step in steps if isinstance(step, Compute)))
    if order == "given":
        return firsts == sorted(firsts)
    phases = [op.phase for op in graph.ops]
    if "backward" not in phases:
        return True
    forward = {op for op in range(phases.index("backward")) if phases[op] in ("forward", "loss")}
    start = next(position for position, op in enumerate(firsts) if phases[op] == "backward")
    return forward <= set(firsts[:start])
