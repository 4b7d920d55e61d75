"""The first step of every plan is measured; a plan that passes its budget is reported and made again with more room.

On the CPU the two passes are measured one by one, each on top of what the plan says is live when it begins; what the
script does between them is not seen. On CUDA it is, and the peak is that of the device's counters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..errors import BudgetWarning, CheckmateError
from ..units import format_bytes
from .measure import measure_pass
from .plan import Plan

#: Passes that may go by unmeasured before the user is told.
PATIENCE = 6


class FirstStep:
    """Measures a plan until its first step is complete.

    Args:
        before: bytes that the plan has live when its forward pass begins; across: when its backward pass begins.
    """

    def __init__(self, plan: Plan, before: int, across: int):
        self.plan = plan
        self.before = before + plan.reserved + plan.outside
        self.across = across + plan.reserved + plan.outside
        self.watching = True
        self.postponed = 0
        self.peak: int | None = None

    def forward(self, run: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """Run the forward pass."""
        return self._run(run, arguments, self.before) if self.watching else run(arguments)

    def backward(self, run: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """Run the backward pass; afterwards the plan's `measured_peak` is known."""
        if not self.watching or self.peak is None:  # its forward pass was not measured
            return run(arguments)
        if self.plan.device.type == "cuda":  # since the forward pass began: what came between is in it
            self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.plan.device))
        results = self._run(run, arguments, self.across)
        if self.peak is not None:
            self.watching = False
            self.plan.measured_peak = self.peak
        return results

    def _run(self, run: Callable[[list[Any]], Any], arguments: list[Any], base: int) -> Any:
        # Entered by hand: an error from the pass itself must not be mistaken for one of the measurement.
        context = measure_pass(self.plan.device, arguments)
        try:
            seen = context.__enter__()
        except CheckmateError as error:
            # The script measures or profiles this step itself: look at the next one.
            self.peak = None
            self.postponed += 1
            if self.postponed == PATIENCE:
                self.watching = False
                _warn(f"the peak of the first steps was not measured, so the plan is trusted: {error}")
            return run(arguments)
        try:
            results = run(arguments)
        finally:
            context.__exit__(None, None, None)
        # On the CPU only what the pass adds counts: the process may hold tensors that have nothing to do with the step.
        peak = seen.peak if self.plan.device.type == "cuda" else base + seen.peak - seen.base
        self.peak = max(peak, self.peak or 0)
        return results

    @property
    def passed(self) -> bool:
        """The step took more than its budget."""
        return (self.plan.measured_peak or 0) > self.plan.budget


def report_excess(plan: Plan) -> None:
    """Tell the user that a step took more than its budget."""
    excess = plan.excess_of(plan.measured_peak or 0)
    _warn(f"the first step {excess}: the next step runs under a new plan with that much more room")


def warn_shared(budget: int, peak: int) -> None:
    """Tell the user that the graphs of a model did not fit together, and that they will."""
    _warn(
        f"this model runs as several graphs, and the first ones left too little of the budget of {format_bytes(budget)}: this "
        f"step peaks at up to {format_bytes(peak)}; from the next step on they share the budget "
        "(fewer graph breaks make better plans)"
    )


def warn_twice(plan: Plan, held: int) -> None:
    """Tell the user that two forward passes are live at once, which one plan does not account for."""
    _warn(
        f"a forward pass began while an earlier one of the same model still holds {format_bytes(held)} for its backward pass: "
        f"the step takes that much more than the {format_bytes(plan.predicted_peak)} of its plan; say so with reserved=, or run "
        "the backward pass in between"
    )


def _warn(message: str) -> None:
    warnings.warn(message, BudgetWarning, stacklevel=2)
