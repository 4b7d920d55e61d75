"""A schedule as a trace for ui.perfetto.dev and chrome://tracing, in the Trace Event Format.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds. There is one row
of computations, one of the layers that they belong to, and counters of memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..files import write_file
from ..graph import Graph, Op
from ..schedule import Compute, Free, Schedule
from ..text import named

#: Costs that add up to more are no seconds: no step takes a day.
_MOST_SECONDS = 1e5
#: Of costs that are no seconds, so many are one second.
_PER_SECOND = 1e12
#: Nanoseconds that a trace may take: each of them is a floating-point number, and so is its thousandth, near enough.
_MOST_NANOSECONDS = 1e15

_PROCESS, _COMPUTATIONS, _LAYERS = 1, 1, 2
#: Names of colours that Chrome's viewer knows (pale blue, grey, orange; all else pale grey); Perfetto goes by the name of the event.
_COLOURS = {
    "forward": "thread_state_runnable",
    "backward": "cq_build_abandoned",
    "recomputation": "thread_state_iowait",
}
_MEMORY, _PLAIN, _BUDGET = "memory of this schedule", "memory without recomputation", "budget"


@dataclass(frozen=True)
class _Run:
    """One computation.

    Attributes:
        op: what is computed. first: for the first time. begin, end: nanoseconds.
        during, after: bytes live while it runs, and when what is freed behind it is gone. freed: values.
    """

    op: int
    first: bool
    begin: int
    end: int
    during: int
    after: int
    freed: tuple[int, ...]


def write_trace_events(schedule: Schedule, path: str | os.PathLike[str], unit: str | None = None) -> None:
    """Write the trace of a schedule.

    Args:
        unit: of the costs, such as "seconds" or "FLOPs". Seconds are shown as they are, and of any other unit 10**12 as one second.
            None: seconds, unless they add up to more than a day.

    Raises:
        OSError: the file cannot be written; an old one stays as it is.
    """
    write_file(path, json.dumps(trace_data(schedule, unit), separators=(",", ":")) + "\n")


def trace_data(schedule: Schedule, unit: str | None = None) -> dict[str, Any]:
    """The trace as plain JSON data; `unit` is as in `write_trace_events`."""
    nanoseconds, scale = _scale(schedule, unit)
    runs = _runs(schedule, nanoseconds)
    graph = schedule.graph
    events = [*_titles(schedule, scale)]
    events += (_computation(graph, run, number) for number, run in enumerate(runs))
    if any(op.layer for op in graph.ops):
        events += _layers(graph, runs)
    events += _counters(schedule, runs)
    about = {key: value for key, value in schedule.summary().items() if value is not None}
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",  # how exactly Chrome's viewer tells slices beside each other from slices within others
        "otherData": {**about, "graph": named(graph.name), "time": scale},
    }


def _scale(schedule: Schedule, unit: str | None) -> tuple[float, str]:
    """Nanoseconds that one unit of cost is shown as, and words for it."""
    cost = schedule.cost
    if unit == "seconds" or (unit is None and cost <= _MOST_SECONDS):
        nanoseconds, words = 1e9, "costs are seconds"
    else:
        nanoseconds, words = 1e9 / _PER_SECOND, f"a cost of {_PER_SECOND:g} {unit or 'units'} is shown as one second"
    if cost * nanoseconds > _MOST_NANOSECONDS:
        nanoseconds = _MOST_NANOSECONDS / cost
        words = f"a cost of {1e9 / nanoseconds:g} {unit or 'units'} is shown as one second"
    return nanoseconds, words


def _runs(schedule: Schedule, nanoseconds: float) -> list[_Run]:
    """The computations one after the other. Each takes a nanosecond at least, so that its memory can be seen."""
    graph, steps, trace = schedule.graph, schedule.steps, schedule.trace
    starts = [number for number, step in enumerate(steps) if isinstance(step, Compute)]
    found: list[_Run] = []
    done: set[int] = set()
    now = 0
    for start, following in pairwise([*starts, len(steps)]):
        step = steps[start]
        assert isinstance(step, Compute)
        end = now + max(1, round(graph.ops[step.op].cost * nanoseconds))
        freed = tuple(one.value for one in steps[start + 1 : following] if isinstance(one, Free))
        first = step.op not in done
        found.append(_Run(step.op, first, now, end, trace.during[start], trace.memory[following - 1], freed))
        done.add(step.op)
        now = end
    return found


def _titles(schedule: Schedule, scale: str) -> Iterator[dict[str, Any]]:
    """What the rows are called."""
    overhead = f"overhead {schedule.overhead:.4g}"
    process = f"{named(schedule.graph.name)}: schedule by {named(schedule.method)}, {overhead} ({scale})"
    titles: list[tuple[str, int, str]] = [
        ("process_name", _COMPUTATIONS, process),
        ("thread_name", _COMPUTATIONS, "computations"),
        ("thread_name", _LAYERS, "layers"),
    ]
    for kind, thread, name in titles:
        yield {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}
    for thread in (_COMPUTATIONS, _LAYERS):
        yield {"name": "thread_sort_index", "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"sort_index": thread}}


def _microseconds(nanoseconds: int) -> float:
    """A number that gives the nanoseconds again, also to a reader who rounds down: slices that touch must not overlap."""
    time = nanoseconds / 1000
    return time if int(time * 1000) == nanoseconds else math.nextafter(time, math.inf)


def _slice(name: str, thread: int, begin: int, end: int, category: str, **more: Any) -> dict[str, Any]:
    times = {"ts": _microseconds(begin), "dur": _microseconds(end - begin)}
    return {"name": name, "ph": "X", "cat": category, "pid": _PROCESS, "tid": thread, **times, **more}


def _kind(op: Op, run: _Run) -> str:
    return op.phase if run.first else "recomputation"


def _computation(graph: Graph, run: _Run, number: int) -> dict[str, Any]:
    op = graph.ops[run.op]
    kind = _kind(op, run)
    made = sum(graph.values[value].size for value in op.outputs)
    details = {
        "layer": named(op.layer),
        "phase": named(op.phase),
        "computation": number,
        "op": run.op,
        "cost": op.cost,
        "bytes made": made,
        "bytes freed after it": sum(graph.values[value].size for value in run.freed),
        "workspace": op.workspace,
        "bytes live": run.during,
        "bytes live after it": run.after,
    }
    name = named(op.name) if run.first else f"{named(op.name)} (again)"
    colour = _COLOURS.get(kind, "grey")
    return _slice(name, _COMPUTATIONS, run.begin, run.end, named(kind), cname=colour, args=details)


def _layers(graph: Graph, runs: Sequence[_Run]) -> Iterator[dict[str, Any]]:
    """A slice for every stretch of computations of one pass, and within it for every layer, from the outside in."""
    open_slices: list[tuple[str, int, int]] = []  # name, first run, where in the list of found ones
    found: list[dict[str, Any]] = []

    def close(depth: int, end: int) -> None:
        while len(open_slices) > depth:
            _, begin, place = open_slices.pop()
            found[place]["dur"] = _microseconds(end - begin)

    for run in runs:
        op = graph.ops[run.op]
        path = [named(_kind(op, run)), *(named(level) for level in op.layer.split(".") if op.layer)]
        same = 0
        while same < min(len(path), len(open_slices)) and open_slices[same][0] == path[same]:
            same += 1
        close(same, run.begin)
        for depth in range(same, len(path)):
            inside = ".".join(path[1 : depth + 1])
            open_slices.append((path[depth], run.begin, len(found)))
            details = {"args": {"layer": inside}} if inside else {}
            found.append(_slice(path[depth], _LAYERS, run.begin, run.begin, path[0], **details))
    close(0, runs[-1].end if runs else 0)
    yield from found


def _counters(schedule: Schedule, runs: Sequence[_Run]) -> Iterator[dict[str, Any]]:
    """Bytes. What the step takes without recomputation stands where the same op is computed for the first time."""

    def at(time: int, name: str, size: int) -> dict[str, Any]:
        return {"name": name, "ph": "C", "pid": _PROCESS, "tid": 0, "ts": _microseconds(time), "args": {"bytes": size}}

    plain = schedule.graph.no_recompute_profile
    end = runs[-1].end if runs else 0
    for run in runs:
        yield at(run.begin, _MEMORY, run.during)
    yield at(end, _MEMORY, runs[-1].after if runs else schedule.graph.fixed_memory)
    for run in runs:
        if run.first:
            yield at(run.begin, _PLAIN, plain[run.op])
    if schedule.budget is not None:
        yield at(0, _BUDGET, schedule.budget)
        yield at(end, _BUDGET, schedule.budget)
