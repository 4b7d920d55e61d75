"""A captured step and the user's options -> a plan: pure, nothing is run here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import InfeasibleBudget, InvalidSchedule
from ..graph import Graph
from ..plan_cache import solve_cached
from ..schedule import Schedule
from ..units import format_bytes
from .capture import Captured
from .kinds import root
from .options import Options
from .replay import replay_peak


@dataclass(eq=False)
class Plan:
    """How the step runs at one set of input shapes.

    Attributes:
        graph: the step. schedule: how it runs.
        modelled_peak: bytes that the step takes at its peak by the model of its ops, what is reserved included.
        rehearsed_peak: the same, measured when the plan was tried out without changing anything; None if that cannot be done.
        budget: bytes, everything included.
        reserved: bytes outside the step. margin: bytes left free because an earlier plan took that much more than
            predicted.
        mode: how the order is kept: "sparse", "full" or "eager"; None before the first step.
        measured_peak: bytes, the most of the steps that were measured: the first, and where ops overlap all; None before, or if
            TensorFlow does not count on this device.
        executions: steps run so far.
    """

    graph: Graph
    schedule: Schedule
    modelled_peak: int
    budget: int
    reserved: int
    margin: int = 0
    mode: str | None = None
    measured_peak: int | None = None
    executions: int = 0
    rehearsed_peak: int | None = None

    @property
    def predicted_peak(self) -> int:
        """Peak of live bytes that the plan promises: as rehearsed, or else as modelled."""
        return self.modelled_peak if self.rehearsed_peak is None else self.rehearsed_peak


def make_plan(captured: Captured, options: Options, *, margin: int = 0, others: Sequence[Plan] = ()) -> Plan:
    """Schedule a step under the budget.

    Args:
        margin: bytes to leave free.
        others: plans at other shapes. Where the step is the same op by op, a schedule of theirs that fits is taken as it is.

    Raises:
        InfeasibleBudget: its numbers count everything, as the user's budget does.
    """
    graph = captured.graph
    reserved = options.reserved_bytes()
    budget = options.budget_bytes(graph.no_recompute_peak + reserved)
    taken = reserved + margin
    limit = max(1, budget - taken)
    try:
        schedule = _ported(graph, limit, others) or _solved(graph, limit, options)
        peak = replay_peak(captured, schedule.steps)
        if peak > limit:
            with suppress(InfeasibleBudget):
                steps = _solved(_with_outputs_once(captured), limit, options).steps
                if (other := replay_peak(captured, steps)) < peak:
                    schedule, peak = replace(schedule, steps=steps), other
    except InfeasibleBudget as error:
        if not taken:
            raise
        proven, found = error.proven_minimum + taken, error.smallest_found + taken
        message = (
            f"budget {format_bytes(budget)} ({budget} bytes), of which {format_bytes(taken)} are taken by what is reserved or was "
            f"measured beyond the prediction, cannot be met; no schedule fits below {format_bytes(proven)} ({proven} bytes); ask "
            f"for at least {format_bytes(found)} ({found} bytes)"
        )
        raise InfeasibleBudget(budget, proven, found, message) from None
    return Plan(graph, schedule, peak + reserved, budget, reserved, margin)


def _solved(graph: Graph, limit: int, options: Options) -> Schedule:
    return solve_cached(
        graph,
        limit,
        method=options.method,
        order=options.order,
        time_limit=options.time_limit,
        gap=options.gap,
        seed=options.seed,
    )


def _with_outputs_once(captured: Captured) -> Graph:
    """The graph for a schedule that computes the outputs of the step once.

    A schedule may drop the prediction of the model and compute it again at the very end, when the variables have changed. What
    they were would still be read then and take memory, as a `Graph` cannot say.
    """
    kept = {root(tensor).op.name for tensor in captured.traced.outputs}
    once = [any(op.name in kept for op in unit.ops) for unit in captured.units]
    graph = captured.graph
    ops = [replace(op, recomputable=op.recomputable and not o) for op, o in zip(graph.ops, once, strict=True)]
    return Graph(ops, graph.values, graph.fixed_memory, graph.name)


def _ported(graph: Graph, limit: int, others: Sequence[Plan]) -> Schedule | None:
    """A schedule made for another batch size, if it runs here within the limit; None also where no recomputation is needed."""
    if graph.no_recompute_peak <= limit:
        return None
    for plan in others:
        if _names(plan.graph) == _names(graph):
            schedule = Schedule(graph, plan.schedule.steps, limit, plan.schedule.method, graph.ideal_cost)
            with suppress(InvalidSchedule):
                if schedule.peak <= limit:
                    return schedule
    return None


def _names(graph: Graph) -> tuple[list[str], list[str]]:
    return [op.name for op in graph.ops], [value.name for value in graph.values]
