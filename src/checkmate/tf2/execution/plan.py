"""What TensorFlow adds to a plan: its peak is found op by op, and where former values of variables take too much they are planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from ... import planning
from ...errors import BudgetError, InfeasibleBudget
from ...planning import Allowance, Options, accelerator_budget, host_budget
from ...planning.plan_cache import least_cached
from ...planning.reordering import reordered
from ...schedule import Schedule
from ..graphs.capture import Captured
from .former_values import LITTLE, FormerValues
from .replay import Run, peak_of, replay


@dataclass(eq=False)
class Plan(planning.Plan):
    """How the step runs at one set of input shapes.

    Attributes:
        mode: how the order is kept: "sparse", "full" or "eager"; None before the first step.
        runs: of the ops of its schedule.
    """

    mode: str | None = None
    runs: list[Run] = field(default_factory=list, repr=False)


def automatic_budget() -> int:
    """The budget "auto" in bytes: on the first GPU, or on the CPU.

    Raises:
        BudgetError: it is not known how much memory the device has.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        limits = [c.memory_limit for c in tf.config.get_logical_device_configuration(gpu) or () if c.memory_limit]
        if not limits:
            raise BudgetError('budget "auto" cannot be worked out for this GPU: give the budget in bytes')
        return accelerator_budget(int(limits[0] * 2**20))
    return host_budget()


def make_plan(
    captured: Captured, options: Options, allowance: Allowance, others: Sequence[Plan] = (), start: Schedule | None = None
) -> Plan:
    """Schedule a step under the budget.

    Args:
        others: plans at other shapes. Where the step is the same op by op, a schedule of theirs that fits is taken as it is.
        start: a schedule of the same step to begin with.

    Raises:
        InfeasibleBudget: its numbers count everything, as the user's budget does.
    """
    plan = planning.make_plan(captured.graph, options, allowance, Plan, others, start=start)
    plan.runs = replay(captured, plan.schedule.steps)
    peak = peak_of(captured, plan.runs)
    too_much = allowance.limit + allowance.limit // LITTLE
    if any(run.during > too_much and run.outdated for run in plan.runs):
        known = FormerValues(captured)
        try:
            steps = known.of_step(planning.make_plan(known.graph, options, allowance, Plan).schedule.steps)
        except InfeasibleBudget as error:
            if peak > allowance.total - allowance.elsewhere:  # with nothing left free either
                raise _too_small(captured, known, options, allowance, error) from None
        else:
            if (other := peak_of(captured, runs := replay(captured, steps))) < peak:
                plan.schedule, plan.runs, peak = replace(plan.schedule, steps=steps), runs, other
    plan.modelled_peak = peak + allowance.elsewhere
    return plan


def in_another_order(captured: Captured, plan: Plan, seed: int) -> Plan | None:
    """The plan with what is computed again in another order, which takes no more by what is modelled; None where there is none."""
    schedule = reordered(plan.schedule, seed)
    if schedule is None:
        return None
    runs = replay(captured, schedule.steps)
    peak = peak_of(captured, runs) + plan.allowance.elsewhere
    if peak > max(plan.modelled_peak, plan.simulated_peak):
        return None
    return Plan(plan.graph, schedule, plan.allowance, peak, final=plan.final, variant=seed, runs=runs)


def _too_small(
    captured: Captured, known: FormerValues, options: Options, allowance: Allowance, error: InfeasibleBudget
) -> InfeasibleBudget:
    """The error for a budget that is met only without a thought to former values of variables."""
    least = least_cached(known.graph, options.order, options.time_limit)
    named = min(error.smallest_found, least + allowance.taken)
    return InfeasibleBudget(allowance.total, captured.graph.min_working_set + allowance.elsewhere, named)
