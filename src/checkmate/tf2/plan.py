"""What TensorFlow adds to a plan: its peak is found op by op, and outputs are computed once where that takes less."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import tensorflow as tf

from .. import planning
from ..errors import BudgetError, InfeasibleBudget
from ..graph import Graph
from ..planning import Allowance, Options, accelerator_budget, host_budget
from .capture import Captured
from .op_kinds import root
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


def make_plan(captured: Captured, options: Options, allowance: Allowance, others: Sequence[Plan] = ()) -> Plan:
    """Schedule a step under the budget.

    Args:
        others: plans at other shapes. Where the step is the same op by op, a schedule of theirs that fits is taken as it is.

    Raises:
        InfeasibleBudget: its numbers count everything, as the user's budget does.
    """
    plan = planning.make_plan(captured.graph, options, allowance, Plan, others)
    plan.runs = replay(captured, plan.schedule.steps)
    peak = peak_of(captured, plan.runs)
    if peak > allowance.limit:
        with suppress(InfeasibleBudget):
            steps = planning.make_plan(_with_outputs_once(captured), options, allowance, Plan).schedule.steps
            if (other := peak_of(captured, runs := replay(captured, steps))) < peak:
                plan.schedule, plan.runs, peak = replace(plan.schedule, steps=steps), runs, other
    plan.modelled_peak = peak + allowance.reserved
    return plan


def _with_outputs_once(captured: Captured) -> Graph:
    """The graph for a schedule that computes the outputs of the step once.

    A schedule may drop the prediction of the model and compute it again at the very end, when the variables have changed. What
    they were would still be read then and take memory, as a `Graph` cannot say.
    """
    kept = {root(tensor).op.name for tensor in captured.traced.outputs}
    once = [any(op.name in kept for op in group.ops) for group in captured.groups]
    graph = captured.graph
    ops = [replace(op, recomputable=op.recomputable and not o) for op, o in zip(graph.ops, once, strict=True)]
    return Graph(ops, graph.values, graph.fixed_memory, graph.name)
