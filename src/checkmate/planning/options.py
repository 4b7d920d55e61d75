"""What a user can say about a plan, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from ..errors import UnknownMethod
from ..units import Budget, parse_bytes
from .op_costs import check_cost_model


@dataclass(frozen=True)
class Options:
    """Options of `checkmate.torch.compile`, of `torch.compile(..., backend="checkmate", options={...})`, of `checkmate.tf2.compile`
    and of `checkmate.tf2.prepare`; the last two know two more, see `checkmate.tf2.Options`.

    Attributes:
        budget: bytes that the step may have live at its peak: a number, "4GiB", "50%", or "auto". "auto" is the memory of the
            device less 10% on an accelerator, and on the CPU 80% of the memory that is available to the process (the limits of
            containers count), rounded down so that it stays the same from one run to the next. A percentage is of the plain peak
            of the training step, with what training holds: in PyTorch at its largest sizes so far, in TensorFlow at those of the first
            batch. In PyTorch it does not bind a model that runs without gradients: that keeps no activations, so that there is little
            to save; a budget in bytes and "auto" bind that too.
        reserved: bytes that live outside the step and are not seen. None: in PyTorch on CUDA, what is allocated when the step begins
            beyond what is known; elsewhere 0. The step's inputs, the model and the state of the optimizer are counted by themselves.
        method, order, gap, time_limit, seed: as in `checkmate.solve`.
        wait: the first steps wait for the whole search. Otherwise PyTorch's run under a schedule that is found at once, while the search
            goes on in another process; the better schedule is taken as soon as it is there. Results are the same either way. In
            TensorFlow, and for a method other than "auto", every step waits. In PyTorch, the environment variable CHECKMATE_WAIT=1
            says so where the script says nothing.
        cost_model: "profile" runs every distinct op on the device, "flops" runs nothing.
    """

    budget: Budget = "auto"
    reserved: Budget | None = None
    method: str = "auto"
    order: str = "given"
    gap: float = 1e-3
    time_limit: float = 30.0
    seed: int = 0
    cost_model: str = "profile"
    wait: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Options from keywords.

        Raises:
            UnknownMethod: a keyword that is not an option. BudgetError: an amount that cannot be read.
        """
        valid = [field.name for field in fields(cls)]
        for name in given:
            if name not in valid:
                raise UnknownMethod(f"unknown option {name!r}: choose among {', '.join(valid)}")
        options = cls(**given)
        options.total(1 << 40, lambda: 1)  # refuse what cannot be read before any work is done
        options.reserved_bytes()
        check_cost_model(options.cost_model)
        if not isinstance(options.wait, bool):
            raise UnknownMethod(f"option wait is True or False, not {options.wait!r}")
        return options

    @property
    def is_relative(self) -> bool:
        """The budget is a percentage of the plain peak."""
        return isinstance(self.budget, str) and self.budget.strip().endswith("%")

    @property
    def is_absolute(self) -> bool:
        """The budget is a number of bytes."""
        return self.budget != "auto" and not self.is_relative

    def total(self, plain_peak: int, automatic: Callable[[], int]) -> int:
        """The budget in bytes, everything included.

        Args:
            plain_peak: bytes that plain training takes, what is reserved included. automatic: what "auto" comes to on the device.
        """
        return automatic() if self.budget == "auto" else parse_bytes(self.budget, percent_of=plain_peak)

    def reserved_bytes(self, unsaid: int = 0) -> int:
        """Bytes outside the step; `unsaid`: as far as the front end knows by itself."""
        if self.reserved is None:
            return unsaid
        return parse_bytes(self.reserved) if self.reserved != 0 else 0

    def search(self) -> dict[str, Any]:
        """Those that `checkmate.solve` takes."""
        return {name: getattr(self, name) for name in ("method", "order", "time_limit", "gap", "seed")}
