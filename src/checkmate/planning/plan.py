"""A graph, the user's options and what of the budget is left -> a plan. Nothing is run here."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InfeasibleBudget, InvalidSchedule
from ..graph import Graph
from ..schedule import Schedule
from ..units import format_bytes
from .budget import Allowance
from .checkpoints import with_second_runs
from .options import Options
from .plan_cache import first_cached, solve_cached


@dataclass(eq=False)
class Plan:
    """How a step runs at one set of input shapes.

    Attributes:
        graph: the step. schedule: how it runs; in its graph, what of the budget is taken counts as fixed memory.
        allowance: the budget, everything included, and what of it is taken.
        modelled_peak: bytes that the step takes at its peak by the model of its ops, everything outside the step included.
        rehearsed_peak: the same, measured when the plan was tried out without changing anything, or counted in the programs that a
            compiler made of it; None where it was not.
        measured_peak: bytes, of the steps that were measured; None before the first, or where nothing can be measured.
        executions: steps run so far.
        final: no better schedule is searched for.
        variant: which order its computations are in; 0 for the one that was found with them, or the seed of `reordered`.
    """

    graph: Graph
    schedule: Schedule
    allowance: Allowance
    modelled_peak: int
    rehearsed_peak: int | None = None
    measured_peak: int | None = None
    executions: int = 0
    final: bool = True
    variant: int = 0

    @property
    def budget(self) -> int:
        """Bytes, everything included."""
        return self.allowance.total

    @property
    def reserved(self) -> int:
        """Bytes outside the step."""
        return self.allowance.reserved

    @property
    def margin(self) -> int:
        """Bytes left free because an earlier plan took that much more than predicted."""
        return self.allowance.margin

    @property
    def outside(self) -> int:
        """Bytes that training holds besides the step, such as the state of the optimizer."""
        return self.allowance.outside

    @property
    def simulated_peak(self) -> int:
        """Bytes that the step takes at its peak when every value lives until the schedule frees it, everything included."""
        return self.schedule.peak - self.margin

    @property
    def predicted_peak(self) -> int:
        """Peak of live bytes that the plan promises: as rehearsed, or else as modelled."""
        return self.modelled_peak if self.rehearsed_peak is None else self.rehearsed_peak

    def report(self, path: str | os.PathLike[str], others: Iterable[Schedule] = ()) -> None:
        """Write the page on the schedule; see `Schedule.report`."""
        self.schedule.report(path, others)

    def trace_events(self, path: str | os.PathLike[str]) -> None:
        """Write the trace of the schedule for ui.perfetto.dev and chrome://tracing; see `Schedule.trace_events`."""
        self.schedule.trace_events(path)

    def excess_of(self, peak: int) -> str:
        """Words for a step that took more than its budget."""
        return (
            f"peaked at {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(self.budget)} ({self.budget} bytes; "
            f"{self.predicted_peak} were predicted)"
        )


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def make_plan(
    graph: Graph,
    options: Options,
    allowance: Allowance,
    kind: type[AnyPlan],
    others: Sequence[Plan] = (),
    soon: bool = False,
    again: Collection[int] = (),
    start: Schedule | None = None,
    **own: Any,
) -> AnyPlan:
    """Schedule a step under the budget.

    Args:
        kind: `Plan`, or what a front end makes of it. own: what that has besides.
        others: plans at other shapes. Where the step is the same op by op, a schedule of theirs that fits is taken as it is; if `soon`, it is
            not final, for at smaller shapes there may be a much better one.
        soon: a fair schedule will do; the plan says whether it is `final`. Methods that are named have the time that they take.
        again: ops of the forward pass that run a second time for the backward pass, whether the budget calls for it or not. Where
            there are any, the plan is final at once.
        start: a schedule of the same graph to begin with, as `checkmate.solve` does; methods that begin with none do without.

    Raises:
        InfeasibleBudget: its numbers count everything, as the user's budget does.
    """
    try:
        schedule, final = _schedule(graph, options, allowance.limit, others, soon, again, start)
    except InfeasibleBudget as error:
        raise allowance.of_user_error(error) from None
    return plan_of(schedule, allowance, kind, final=final, **own)


def plan_of(schedule: Schedule, allowance: Allowance, kind: type[AnyPlan], **own: Any) -> AnyPlan:
    """The plan with a schedule that was found for `allowance.limit`."""
    modelled = schedule.peak + allowance.elsewhere
    return kind(schedule.graph, allowance.of_user(schedule), allowance, modelled, **own)


def _schedule(
    graph: Graph,
    options: Options,
    limit: int,
    others: Sequence[Plan],
    soon: bool,
    again: Collection[int],
    start: Schedule | None,
) -> tuple[Schedule, bool]:
    """A schedule, and whether it is final."""
    problem = with_second_runs(graph, again)
    if problem.graph is not graph:  # no other plan, and no later search, knows of the second runs
        return problem.merged(solve_cached(problem.graph, limit, **options.search())), True
    ported = _ported(graph, limit, others, soon and options.method == "auto")
    if ported is not None:
        return ported
    if soon and options.method == "auto":
        return first_cached(graph, limit, **options.search())
    start = start if options.method == "auto" else None
    # The next process has nothing to begin with: what this one finds is kept for it, or it would find another schedule.
    return solve_cached(graph, limit, start=start, keep_always=start is not None, **options.search()), True


def _ported(graph: Graph, limit: int, others: Sequence[Plan], soon: bool) -> tuple[Schedule, bool] | None:
    """A schedule made for another batch size, if it runs here within the limit; None also where no recomputation is needed."""
    if graph.no_recompute_peak <= limit:
        return None
    for plan in others:
        if _names(plan.graph) == _names(graph):
            schedule = Schedule(graph, plan.schedule.steps, limit, plan.schedule.method, graph.ideal_cost)
            with suppress(InvalidSchedule):
                if schedule.peak <= limit:
                    same = schedule.cost == plan.schedule.cost
                    return schedule, plan.final and (same or not soon)
    return None


def _names(graph: Graph) -> tuple[list[str], list[str]]:
    return [op.name for op in graph.ops], [value.name for value in graph.values]
