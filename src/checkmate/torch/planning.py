"""A captured graph and the user's options -> a plan: pure, nothing is run here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import InfeasibleBudget
from ..graph import Graph
from ..plan_cache import solve_cached
from ..schedule import Schedule
from ..units import format_bytes
from .options import Options


@dataclass(eq=False)
class Plan:
    """One compiled graph of a model, at one set of input shapes.

    Attributes:
        graph: the step. schedule: how it runs.
        budget: bytes, everything included.
        reserved: bytes outside the step. margin: bytes left free because an earlier plan took that much more than
            predicted. outside: bytes that other graphs of the model hold while this one runs.
        device: where the budget applies.
        measured_peak: bytes, from the first step; None before, or if it could not be measured.
        executions: forward passes run so far.
    """

    graph: Graph
    schedule: Schedule
    budget: int
    reserved: int
    margin: int
    outside: int
    device: torch.device
    measured_peak: int | None = None
    executions: int = 0

    @property
    def predicted_peak(self) -> int:
        """Peak of live bytes that the plan promises, everything outside the step included."""
        return self.schedule.peak + self.reserved + self.outside


def make_plan(graph: Graph, options: Options, device: torch.device, own: int, *, margin: int = 0, outside: int = 0) -> Plan:
    """Schedule a graph under the budget.

    Args:
        own: bytes of the graph's inputs on the device.
        margin: bytes to leave free. outside: bytes that other graphs hold.

    Raises:
        InfeasibleBudget: its numbers count everything, as the user's budget does.
    """
    reserved = options.reserved_bytes(device, own + outside)
    budget = options.budget_bytes(device, graph.no_recompute_peak + reserved + outside)
    taken = reserved + margin + outside
    try:
        schedule = solve_cached(
            graph,
            max(1, budget - taken),
            method=options.method,
            order=options.order,
            time_limit=options.time_limit,
            gap=options.gap,
            seed=options.seed,
        )
    except InfeasibleBudget as error:
        if not taken:
            raise
        proven, found = error.proven_minimum + taken, error.smallest_found + taken
        message = (
            f"budget {format_bytes(budget)} ({budget} bytes), of which {format_bytes(taken)} are taken by what lives outside the "
            f"step, cannot be met; no schedule exists below {format_bytes(proven)} ({proven} bytes); ask for at least "
            f"{format_bytes(found)} ({found} bytes)"
        )
        raise InfeasibleBudget(budget, proven, found, message) from None
    return Plan(graph, schedule, budget, reserved, margin, outside, device)
