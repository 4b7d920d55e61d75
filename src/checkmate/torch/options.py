"""What a user can say about a plan, and what "auto" means on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..costs import check_cost_model
from ..errors import BudgetError, UnknownMethod
from ..units import Budget, parse_bytes


@dataclass(frozen=True)
class Options:
    """Options of `checkmate.torch.compile` and of `torch.compile(..., backend="checkmate", options={...})`.

    Attributes:
        budget: bytes that the step may have live at its peak: a number, "4GiB", "50%" of the plain peak of each graph, or
            "auto": the memory of the device less 10% on an accelerator, 80% of the available memory on the CPU.
        reserved: bytes that live outside the step (optimizer state). None: on CUDA, what is allocated when the step is
            planned beyond the step's own inputs; on the CPU, 0.
        method, order, gap, time_limit, seed: as in `checkmate.solve`.
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

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """Options from keywords.

        Raises:
            UnknownMethod: a keyword that is not an option.
        """
        valid = [field.name for field in fields(cls)]
        for name in given:
            if name not in valid:
                raise UnknownMethod(f"unknown option {name!r}: choose among {', '.join(valid)}")
        options = cls(**given)
        if options.budget != "auto":
            parse_bytes(options.budget, percent_of=1 << 40)  # refuse what cannot be read before any work is done
        if options.reserved is not None and options.reserved != 0:
            parse_bytes(options.reserved)
        check_cost_model(options.cost_model)
        return options

    @property
    def is_relative(self) -> bool:
        """The budget is a percentage of each graph's plain peak."""
        return isinstance(self.budget, str) and self.budget.strip().endswith("%")

    def budget_bytes(self, device: torch.device, plain_peak: int) -> int:
        """The budget on a device for a graph whose plain peak is `plain_peak` bytes."""
        if self.budget == "auto":
            return device_memory(device)
        return parse_bytes(self.budget, percent_of=plain_peak)

    def reserved_bytes(self, device: torch.device, own: int) -> int:
        """Bytes outside the step; `own`: bytes of the step's inputs, which are allocated already."""
        if self.reserved is not None:
            return parse_bytes(self.reserved) if self.reserved != 0 else 0
        if device.type == "cuda":
            return max(0, torch.cuda.memory_allocated(device) - own)
        return 0


def device_memory(device: torch.device) -> int:
    """The budget "auto": 90% of an accelerator's memory, or 80% of the memory that is available on the CPU.

    Raises:
        BudgetError: it is not known how much memory the device has.
    """
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return int(total * 0.9)
    if device.type == "cpu":
        return int(_available_memory() * 0.8)
    raise BudgetError(f"cannot tell how much memory a {device.type!r} device has: give the budget in bytes")


def _available_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the size of the machine's memory has to do
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        raise BudgetError('budget "auto" cannot be worked out on this system: give the budget in bytes') from None
