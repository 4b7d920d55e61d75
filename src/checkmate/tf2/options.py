"""What a user can say about a plan, and what "auto" means on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tensorflow as tf

from ..costs import check_cost_model
from ..errors import BudgetError, UnknownMethod
from ..units import Budget, parse_bytes


@dataclass(frozen=True)
class Options:
    """Options of `checkmate.tf2.compile`.

    Attributes:
        budget: bytes that the step may have live at its peak: a number, "4GiB", "50%" of the plain peak, or "auto": the
            memory of the GPU less 10%, or 80% of the available memory on the CPU.
        reserved: bytes that live outside the step. The step's inputs, the variables of the model and of the optimizer are
            counted by themselves.
        method, order, gap, time_limit, seed: as in `checkmate.solve`.
        cost_model: "profile" runs every distinct op on the device, "flops" runs nothing.
    """

    budget: Budget = "auto"
    reserved: Budget = 0
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
            UnknownMethod: a keyword that is not an option. BudgetError: an amount that cannot be read.
        """
        valid = [field.name for field in fields(cls)]
        for name in given:
            if name not in valid:
                raise UnknownMethod(f"unknown option {name!r}: choose among {', '.join(valid)}")
        options = cls(**given)
        if options.budget != "auto":
            parse_bytes(options.budget, percent_of=1 << 40)  # refuse what cannot be read before any work is done
        if options.reserved != 0:
            parse_bytes(options.reserved)
        check_cost_model(options.cost_model)
        return options

    def budget_bytes(self, plain_peak: int) -> int:
        """The budget for a step whose plain peak is `plain_peak` bytes."""
        if self.budget == "auto":
            return device_memory()
        return parse_bytes(self.budget, percent_of=plain_peak)

    def reserved_bytes(self) -> int:
        return parse_bytes(self.reserved) if self.reserved != 0 else 0


def device_memory() -> int:
    """The budget "auto": 90% of the first GPU's memory, or 80% of the memory that is available on the CPU.

    Raises:
        BudgetError: it is not known how much memory the device has.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        limits = [c.memory_limit for c in tf.config.get_logical_device_configuration(gpu) or () if c.memory_limit]
        if not limits:
            raise BudgetError('budget "auto" cannot be worked out for this GPU: give the budget in bytes')
        return int(limits[0] * 2**20 * 0.9)
    return int(_available_memory() * 0.8)


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
