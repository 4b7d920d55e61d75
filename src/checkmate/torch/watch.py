"""The first step of every plan is measured; a plan that passes its budget is reported and made again with more room."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..errors import CheckmateError
from ..units import format_bytes
from .measure import Measurement, measure
from .planning import Plan


class BudgetWarning(UserWarning):
    """Something about a planned model that its user should know: memory above the plan, or parts that no plan covers."""


class Meter:
    """At most one measurement at a time in the process: it spans the forward pass of the plan that began it, what the
    script does next, other graphs of the same model, and the backward pass of that plan.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.resident = 0
        self._context: AbstractContextManager[Measurement] | None = None
        self._result: Measurement | None = None

    def begin(self, plan: Plan, inputs: list[Any]) -> None:
        """Start measuring for a plan, unless that is done or a measurement is under way for another."""
        if self.plan is plan:  # its backward never came: that forward pass was not a step
            self.cancel()
        if self.plan is not None or plan.measured_peak is not None:
            return
        context = measure(plan.device)
        try:
            self._result = context.__enter__()
        except CheckmateError as error:
            warnings.warn(f"the peak of this step was not measured, the plan is trusted: {error}", BudgetWarning, stacklevel=2)
            plan.measured_peak = 0
            return
        self.plan, self._context = plan, context
        self.resident = resident_bytes(inputs, plan.device)

    def join(self, inputs: list[Any]) -> None:
        """Another graph runs inside the measurement: its parameters were there from the start."""
        if self.plan is not None:
            leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad]
            self.resident += resident_bytes(leaves, self.plan.device)

    def end(self, plan: Plan) -> int | None:
        """Stop if this plan began the measurement; the peak in bytes, counted as the budget counts it."""
        if self.plan is not plan or self._context is None or self._result is None:
            return None
        result = self._result
        self.cancel()
        if plan.device.type == "cuda":
            plan.measured_peak = result.peak
        else:  # tensors of the process that have nothing to do with the step do not count
            plan.measured_peak = result.peak - result.base + self.resident + plan.reserved
        return plan.measured_peak

    def cancel(self) -> None:
        """Stop and forget."""
        context, self._context, self._result, self.plan = self._context, None, None, None
        if context is not None:
            context.__exit__(None, None, None)


def resident_bytes(tensors: list[Any], device: torch.device) -> int:
    """Bytes of the distinct storages of tensors on a device."""
    found = {}
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == device.type:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
    return sum(found.values())


def report_excess(plan: Plan, peak: int) -> None:
    """Tell the user that a step took more than its budget, once per plan."""
    warnings.warn(
        f"the first step peaked at {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(plan.budget)} "
        f"({plan.predicted_peak} bytes were predicted): the next step runs under a new plan that leaves that much more room",
        BudgetWarning,
        stacklevel=2,
    )


METER = Meter()
