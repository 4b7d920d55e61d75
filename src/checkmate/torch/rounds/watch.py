"""The first round of every plan is measured, and later ones at larger sizes; a plan that passes its budget is reported and made again
with more room. On CUDA all rounds are, for the same tensors take more or less of its caching allocator from one step to the next.

On the CPU each pass is measured by itself, on top of what the plan says is live when it begins; what the script does between the
passes is not seen. On CUDA it is, and the peak is that of the device's counters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...errors import BudgetWarning, CheckmateError
from ...units import format_bytes
from ..memory.measure import Measurement, cuda_bytes, measure_pass
from ..ops.sizes import Bindings, within
from ..plan import Plan

#: Rounds that may go by unmeasured before the user is told.
PATIENCE = 6
#: Sizes that are measured under one plan, at most.
_SIZES = 32


class Watch:
    """Measures a plan: one complete round under it, and those at larger sizes; on CUDA for as long as it serves.

    Args:
        before: bytes that are live when each event of the round begins, by the plan.

    Attributes:
        when: which step passed the budget, in a word.
    """

    def __init__(self, plan: Plan, before: Sequence[int]):
        self.plan = plan
        self.before = before
        self.over = False
        self._later = plan.device.type == "cuda"
        self.when = "first"
        self._passed = 0  # bytes that a later round took, if they are more than the budget
        self._postponed = 0
        self._peaks: list[int] | None = None
        self._left = 0  # events of the round that were not measured yet
        self._sizes: Bindings = ()  # of the round
        self._measured: list[Bindings] = []
        self._trusted = False

    def begins(self, sizes: Bindings) -> None:
        """A round begins, with its first pass at these sizes."""
        self._peaks, self._left, self._sizes = [], len(self.before), sizes
        known = any(within(sizes, seen) for seen in self._measured) or len(self._measured) == _SIZES
        self.over = self._trusted or known or bool(self._later and self._measured)

    def run(self, event: int, function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """Run a pass, and measure it if the round is measured.

        Args:
            event: its number in the round.
        """
        if self.over and self._later:
            return self._run_later(function, arguments)
        if self.over or self._peaks is None:
            return function(arguments)
        if self.plan.device.type == "cuda" and event:  # since the last pass began: what came between is in it
            self._peaks.append(self._cuda_peak())
        if self._of_reserved and not event:
            torch.cuda.empty_cache()  # what earlier steps and profiles took, and this plan may not need
        return _measured(self.plan.device, function, arguments, partial(self._saw, event), self._postpone)

    def _saw(self, event: int, seen: Measurement) -> None:
        # On the CPU only what the pass adds counts: the process may hold tensors that have nothing to do with the step.
        if self.plan.device.type != "cuda":
            self.saw(event, seen.peak - seen.base)
        elif self._peaks is not None:
            self._peaks.append(self._cuda_peak() if self._of_reserved else seen.peak)
            self._left -= 1

    def saw(self, event: int, more: int) -> None:
        """A pass on the CPU took so many bytes beyond what it was given, measured here or by somebody else."""
        if not self.over and self._peaks is not None:
            self._peaks.append(self.before[event] + more)
            self._left -= 1

    def _run_later(self, function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """The counters go on from where they are: whoever looks at them would miss what they had seen."""
        before = self._cuda_peak()
        results = function(arguments)
        after = self._cuda_peak()
        if after > before and after > self.plan.budget:
            self._passed = after
        return results

    @property
    def _of_reserved(self) -> bool:
        return self.plan.of == "reserved"

    def _cuda_peak(self) -> int:
        """The most bytes since the counters of the device began anew."""
        return cuda_bytes(self.plan.device, self.plan.of)

    def _postpone(self, error: CheckmateError) -> None:
        """The script measures or profiles this round itself: look at the next one."""
        self._peaks = None
        self._postponed += 1
        if self._postponed == PATIENCE:
            self.over = self._trusted = True
            warn(f"the peak of the first steps was not measured, so the plan is trusted: {error}")

    def end(self) -> bool:
        """The round is complete. True if it was measured, and took more than its budget."""
        if self._passed:
            self.plan.measured_peak, self._passed = self._passed, 0
            self.when = "last"
            return True
        if self.over or not self._peaks or self._left:  # as where a backward pass has failed
            return False
        self.when = "last" if self._measured else "first"
        self.over = True
        self._measured.append(self._sizes)
        peak = max(self._peaks)
        self.plan.measured_peak = max(peak, self.plan.measured_peak or 0)
        return peak > self.plan.budget

    def stop(self) -> None:
        """No plan takes less: what comes is known."""
        self.over, self._trusted, self._later = True, True, False


class WithoutPlan:
    """Measures the passes of a round that run before anybody knows which graphs follow.

    Attributes:
        peak: bytes that were taken at most while one of them ran; on the CPU as far as it is known what lives beside them.
        complete: all of them were measured.
    """

    def __init__(self, device: torch.device):
        self.peak = 0
        self.complete = True
        self.device = device

    def run(self, before: int, function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
        """Run a pass.

        Args:
            before: bytes that are live when it begins.
        """
        return _measured(self.device, function, arguments, partial(self._saw, before), self._failed)

    def saw(self, before: int, more: int) -> None:
        """A pass on the CPU took so many bytes beyond what it was given."""
        self.peak = max(self.peak, before + more)

    def _failed(self, _: CheckmateError) -> None:
        self.complete = False

    def _saw(self, before: int, seen: Measurement) -> None:
        if self.device.type == "cuda":
            self.peak = max(self.peak, seen.peak)
        else:
            self.saw(before, seen.peak - seen.base)


def _measured(
    device: torch.device,
    function: Callable[[list[Any]], Any],
    arguments: list[Any],
    saw: Callable[[Measurement], None],
    failed: Callable[[CheckmateError], None],
) -> Any:
    """Run a pass and say what it took; or, if it cannot be measured, why."""
    # Entered by hand: an error from the pass itself must not be mistaken for one of the measurement.
    context = measure_pass(device, arguments)
    try:
        seen = context.__enter__()
    except CheckmateError as error:
        failed(error)
        return function(arguments)
    try:
        results = function(arguments)
    finally:
        context.__exit__(None, None, None)
    saw(seen)
    return results


def report_excess(watch: Watch) -> None:
    """Tell the user that a step took more than its budget, and that the next one is planned anew."""
    plan = watch.plan
    excess = plan.excess_of(plan.measured_peak or 0)
    warn(f"the {watch.when} step {excess}: the next step runs under a new plan with that much more room{_advice(plan)}")


def order_unknown(plan: Plan, peak: int) -> str:
    """Words for a step that took more than the budget of this plan before one of its own could be made."""
    return (
        f"a step took {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(plan.budget)} ({plan.budget} bytes): it was "
        "not known which graphs belong to it; those of steps that come again are planned together, and where it cannot be foreseen which "
        "come, each graph holds as little as can be"
    )


def script_unknown(plan: Plan, peak: int) -> str:
    """Words for a step whose plan did not know what the script takes."""
    return (
        f"a step took up to {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(plan.budget)} ({plan.budget} "
        "bytes): what the script computes with the outputs of the model, such as a loss, or runs without gradients meanwhile, took more than "
        "twice their bytes, which was left for it; the next step runs under a plan that leaves that much; compute it inside the model to have it "
        "planned"
    )


def held_beside(plan: Plan, peak: int, held: int) -> str:
    """Words for a step whose plan did not know what the script holds beside it."""
    return (
        f"a step took up to {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(plan.budget)} ({plan.budget} "
        f"bytes): the script holds {format_bytes(held)} ({held} bytes) of tensors that the graphs do not read, such as further batches, "
        "while it trains; the next step runs under a plan that leaves that much; let go of what is not needed, or fetch it later"
    )


def no_room(plan: Plan, peak: int) -> str:
    """Words for steps that take more than the budget where no plan is known that does not."""
    return (
        f"the step takes {format_bytes(peak)} ({peak} bytes), {format_bytes(peak - plan.budget)} above the budget of "
        f"{format_bytes(plan.budget)} ({plan.budget} bytes), and no plan was found that takes less: training goes on under the "
        f"last one; give it that much more, or a smaller batch{_advice(plan)}"
    )


def no_room_held(plan: Plan, least: int) -> str:
    """Words for steps in which the script holds what graphs hand to each other, where only plans that compute it again keep to the budget.

    Args:
        least: bytes of a budget that another plan was found for.
    """
    return (
        f"no plan was found within the budget of {format_bytes(plan.budget)} ({plan.budget} bytes) that does not compute again what the script "
        "holds: training goes on under the last one, and steps take as much more as that; let go of it before backward(), or give at least "
        f"{format_bytes(least)} ({least} bytes)"
    )


def beyond_plans(plan: Plan, peak: int) -> str:
    """Words for an optimizer's step that takes more than the budget."""
    return (
        f"optimizer.step() takes {format_bytes(peak)} ({peak} bytes) with parameters, gradients and its state, "
        f"{format_bytes(peak - plan.budget)} above the budget of {format_bytes(plan.budget)} ({plan.budget} bytes), and no plan changes "
        "that: make the optimizer with fused=True or foreach=False, which take less at a time, or one that keeps less"
    )


def backward_beyond_plans(plan: Plan, peak: int) -> str:
    """Words for a backward pass through no compiled graph that takes more than the budget."""
    return (
        f"a backward pass through no compiled graph, as of a penalty computed with model.forward or of a loss of outputs without gradients, "
        f"takes {format_bytes(peak)} ({peak} bytes) with what training holds, {format_bytes(peak - plan.budget)} above the budget of "
        f"{format_bytes(plan.budget)} ({plan.budget} bytes), and no plan changes that: compute it for a part of the batch at a time"
    )


def evaluation_beyond(budget: int, peak: int) -> str:
    """Words for a pass without gradients that takes more than the budget."""
    return (
        f"the model takes {format_bytes(peak)} ({peak} bytes) without gradients, with what training holds, {format_bytes(peak - budget)} "
        f"above the budget of {format_bytes(budget)} ({budget} bytes), and no plan keeps to it: it runs as it is; give it smaller "
        "batches"
    )


def _advice(plan: Plan) -> str:
    """What makes the allocator reserve less for the same tensors."""
    if plan.of != "reserved":
        return ""
    return (
        "; what the allocator reserves includes gaps between tensors, of which there are fewer with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment"
    )


def warn(message: str) -> None:
    """A warning about the budget."""
    warnings.warn(message, BudgetWarning, stacklevel=2)
