"""Schedules: what to compute and what to free, step by step; and the simulator that says what a schedule costs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import InvalidSchedule
from .files import write_file
from .float_rounding import summation_error
from .graph import Graph
from .text import printable

FORMAT = "checkmate-schedule"
VERSION = 1

#: A gap this small counts as optimal: bounds come from floating-point programs.
OPTIMAL_GAP = 1e-6


@dataclass(frozen=True, slots=True)
class Compute:
    """Run op `op`; every value it produces is live afterwards."""

    op: int


@dataclass(frozen=True, slots=True)
class Free:
    """Release value `value`."""

    value: int


Step = Compute | Free


@dataclass(frozen=True, slots=True)
class Trace:
    """What `simulate` saw.

    Attributes:
        cost: sum of the costs of all computations.
        peak: most bytes live at any moment, workspace and fixed memory included.
        memory: bytes live after every step.
        during: bytes live while every step runs (for a computation: with its outputs and workspace).
    """

    cost: float
    peak: int
    memory: list[int]
    during: list[int]


def simulate(graph: Graph, steps: Iterable[Step]) -> Trace:
    """Execute a schedule on paper. Written apart from the solvers' own kernels; some solvers ask it what a schedule costs.

    What `solve` returns has also passed `verification.verify`, which shares no code with this nor with any solver.

    A computation allocates all outputs of its op anew: an output that is still live is there twice until the op ends. Where the
    input that the op reuses is freed before anything else runs, one output takes its storage instead (`Op.reuses`).

    Raises:
        InvalidSchedule: an input is not live, a freed value is not live, an op that must not be recomputed is, an op
            never runs, or a kept value is not live at the end.
    """
    live = [False] * graph.num_values
    runs = [0] * graph.num_ops
    now = peak = graph.fixed_memory
    costs: list[float] = []
    memory: list[int] = []
    during: list[int] = []
    steps = list(steps)
    taken: set[int] = set()  # live values whose storage an output has
    for number, step in enumerate(steps):
        if isinstance(step, Compute):
            if not 0 <= step.op < graph.num_ops:
                raise InvalidSchedule(f"step {number} computes op {step.op}, which does not exist")
            op = graph.ops[step.op]
            for value in op.inputs:
                if not live[value]:
                    raise InvalidSchedule(
                        f"step {number} computes op {op.name!r}, but its input {graph.values[value].name!r} is not live"
                    )
            if runs[step.op] and not op.recomputable:
                raise InvalidSchedule(f"step {number} computes op {op.name!r} again, which must not be recomputed")
            runs[step.op] += 1
            costs.append(op.cost)
            if op.reuses is not None and op.reuses in freed_next(steps, number):
                now -= graph.values[op.reuses].size
                taken.add(op.reuses)
            high = now + op.workspace
            for value in op.outputs:
                high += graph.values[value].size
                if not live[value]:
                    live[value] = True
                    now += graph.values[value].size
            during.append(high)
            peak = max(peak, high)
        elif isinstance(step, Free):
            if not 0 <= step.value < graph.num_values:
                raise InvalidSchedule(f"step {number} frees value {step.value}, which does not exist")
            if not live[step.value]:
                raise InvalidSchedule(f"step {number} frees value {graph.values[step.value].name!r}, which is not live")
            during.append(now)
            live[step.value] = False
            if step.value in taken:
                taken.remove(step.value)
            else:
                now -= graph.values[step.value].size
        else:
            raise InvalidSchedule(f"step {number} is {step!r}: a step is Compute(op=...) or Free(value=...)")
        memory.append(now)
    for index, count in enumerate(runs):
        if not count:
            raise InvalidSchedule(f"op {graph.ops[index].name!r} never runs")
    for index, kept in enumerate(graph.values):
        if kept.keep and not live[index]:
            raise InvalidSchedule(f"value {kept.name!r} must be kept, but is not live at the end")
    return Trace(math.fsum(costs), peak, memory, during)


def freed_next(steps: Sequence[Step], number: int) -> set[int]:
    """Values that are freed between the computation of step `number` and the next one."""
    freed: set[int] = set()
    for following in range(number + 1, len(steps)):
        step = steps[following]
        if not isinstance(step, Free):
            break
        freed.add(step.value)
    return freed


def steps_from_sequence(graph: Graph, sequence: Sequence[int]) -> list[Step]:
    """The schedule that runs ops in this sequence (repeats allowed) and frees every value as early as possible.

    A value lives from a computation to its last use before the next computation of its op; kept values live on from
    their last computation. Computations whose outputs nobody uses are left in.
    """
    ops, producer = graph.ops, graph.producer
    place = [0] * graph.num_values  # among the values of its op
    for op in ops:
        for number, value in enumerate(op.outputs):
            place[value] = number
    copies: list[int] = []  # of values, in the order in which they are made
    last: list[int] = []  # the position that reads the copy last
    first_copy: list[int] = []  # of each position
    latest = [-1] * graph.num_ops
    for position, index in enumerate(sequence):
        if not 0 <= index < len(ops):
            raise InvalidSchedule(f"position {position} of the sequence names op {index}, which does not exist")
        latest[index] = position
        first_copy.append(len(copies))
        copies += ops[index].outputs
        last += [position] * len(ops[index].outputs)
        for value in ops[index].inputs:
            source = latest[producer[value]]
            if source < 0:
                raise InvalidSchedule(f"op {ops[index].name!r} runs before {ops[producer[value]].name!r}, whose value it reads")
            last[first_copy[source] + place[value]] = position
    kept = {
        first_copy[latest[producer[v]]] + place[v]
        for v, value in enumerate(graph.values)
        if value.keep and latest[producer[v]] >= 0
    }
    deaths: list[list[Step]] = [[] for _ in sequence]
    frees: list[Step] = [Free(value) for value in range(graph.num_values)]
    for copy, (value, position) in enumerate(zip(copies, last, strict=True)):
        if copy not in kept:
            deaths[position].append(frees[value])
    computes: list[Step] = [Compute(index) for index in range(len(ops))]
    steps: list[Step] = []
    for index, dying in zip(sequence, deaths, strict=True):
        steps.append(computes[index])
        steps += dying
    return steps


def _step_from_json(kind: Any, index: Any) -> Step:
    if isinstance(index, bool) or not isinstance(index, int) or kind not in ("compute", "free"):
        raise ValueError(f"{[kind, index]!r} is not a step: use ['compute', op] or ['free', value]")
    return Compute(index) if kind == "compute" else Free(index)


@dataclass(frozen=True)
class Schedule:
    """A verified schedule of a graph and what is proven about it.

    Attributes:
        graph: what is scheduled.
        steps: `Compute(op)` and `Free(value)` in order, ids as in the graph.
        budget: bytes asked for, fixed memory included; None if there was none.
        method: the name of the method that made it.
        lower_bound: proven: no schedule of this graph under this budget (in this order mode) costs less.
        order: "given" or "any": the class of schedules that the bound covers.
        solve_seconds: time of the search, without what kernels took to compile, the first time on a machine.
        seed: of the search.
    """

    graph: Graph
    steps: list[Step] = field(repr=False)
    budget: int | None = None
    method: str = "custom"
    lower_bound: float = 0.0
    order: str = "given"
    solve_seconds: float = 0.0
    seed: int = 0

    @property
    def sequence(self) -> list[int]:
        """Ops in the order in which they are computed, those that are computed again as often as they are."""
        return [step.op for step in self.steps if isinstance(step, Compute)]

    @cached_property
    def trace(self) -> Trace:
        """The simulation of the steps."""
        return simulate(self.graph, self.steps)

    @property
    def cost(self) -> float:
        """Sum of the costs of all computations."""
        return self.trace.cost

    @property
    def peak(self) -> int:
        """Peak bytes, fixed memory included."""
        return self.trace.peak

    @property
    def overhead(self) -> float:
        """Cost over the cost of computing every op once: 1.0 means no recomputation."""
        return self.cost / self.graph.ideal_cost if self.graph.ideal_cost else 1.0

    @property
    def gap(self) -> float:
        """(cost - lower bound) / lower bound: how far from the optimum the schedule can be at most."""
        excess = max(0.0, self.cost - self.lower_bound)
        return excess / self.lower_bound if self.lower_bound else (math.inf if excess else 0.0)

    @property
    def status(self) -> str:
        """Either "optimal" (the gap is at most 1e-6) or "feasible"."""
        return "optimal" if self.gap <= OPTIMAL_GAP else "feasible"

    @property
    def num_recomputations(self) -> int:
        """Computations beyond the first of every op."""
        return len(self.sequence) - self.graph.num_ops

    def summary(self) -> dict[str, Any]:
        """The figures of the schedule as plain JSON data."""
        return {
            "graph": self.graph.name,
            "method": self.method,
            "order": self.order,
            "status": self.status,
            "budget": self.budget,
            "peak": self.peak,
            "cost": self.cost,
            "overhead": self.overhead,
            "lower_bound": self.lower_bound,
            "gap": self.gap if math.isfinite(self.gap) else None,
            "recomputations": self.num_recomputations,
            "solve_seconds": self.solve_seconds,
            "seed": self.seed,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule as JSON, whole or not at all; `Schedule.load(path, graph)` reads and re-simulates it.

        Raises:
            OSError: the file cannot be written; an old one stays as it is.
        """
        steps = [["compute", s.op] if isinstance(s, Compute) else ["free", s.value] for s in self.steps]
        data = {"format": FORMAT, "version": VERSION, **self.summary(), "steps": steps}
        write_file(path, json.dumps(data, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Schedule:
        """Read a schedule of `graph`.

        Raises:
            InvalidSchedule: the file is not a schedule, or not one of this graph (it is re-simulated here).
        """
        where = printable(Path(path))
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(f"its format is not {FORMAT!r}, version {VERSION}")
            schedule = cls(
                graph,
                [_step_from_json(kind, index) for kind, index in data["steps"]],
                None if data["budget"] is None else int(data["budget"]),
                str(data["method"]),
                float(data["lower_bound"]),
                str(data["order"]),
                float(data["solve_seconds"]),
                int(data["seed"]),
            )
            if schedule.order not in ("given", "any"):
                raise ValueError(f"its order is {schedule.order!r}, not 'given' or 'any'")
            saved = data["cost"], data["peak"]
        except OSError as error:
            raise InvalidSchedule(f"cannot read {where}: {error.strerror or error}") from None
        except KeyError as error:
            raise InvalidSchedule(f"{where} is not a schedule file: the entry {error} is missing") from None
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidSchedule(f"{where} is not a schedule file: {error}") from None
        try:
            found = schedule.cost, schedule.peak
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{where} is not a schedule of graph {graph.name!r}: {error}") from None
        if found != saved:
            raise InvalidSchedule(
                f"{where} does not belong to graph {graph.name!r}: its cost or peak differs from what was saved"
            )
        rounding = summation_error(len(schedule.steps), schedule.cost)
        if not 0 <= schedule.lower_bound <= schedule.cost + rounding:
            raise InvalidSchedule(
                f"{where}: the lower bound {schedule.lower_bound} is not between 0 and the cost {schedule.cost}"
            )
        return schedule

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the memory timeline and the schedule to an image file (needs the extra `plot`)."""
        from .report.plots import plot_schedule

        plot_schedule(self, path)

    def report(self, path: str | os.PathLike[str], others: Iterable[Schedule] = ()) -> None:
        """Write one HTML page on where the memory goes, what is computed again, and what other budgets would cost.

        Args:
            others: schedules of the same graph under other budgets: the page draws their overheads and bounds as a curve.
        """
        from .report.page import write_report

        write_report(self, path, others)

    def trace_events(self, path: str | os.PathLike[str], unit: str | None = None) -> None:
        """Write what is computed when, and the memory it takes, as a trace for ui.perfetto.dev and chrome://tracing.

        Args:
            unit: of the costs: "seconds", or another such as "FLOPs", of which 10**12 are shown as one second. None: seconds, unless
                they add up to more than a day.
        """
        from .report.trace_events import write_trace_events

        write_trace_events(self, path, unit)
