"""What PyTorch adds to a plan: a device, and the memory that it has."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .. import planning
from ..errors import BudgetError
from ..planning import Options, accelerator_budget, host_budget


@dataclass(eq=False)
class Plan(planning.Plan):
    """One compiled graph of a model, at one set of input shapes.

    Attributes:
        device: where the budget applies.
    """

    device: torch.device = field(kw_only=True)


def automatic_budget(device: torch.device) -> int:
    """The budget "auto" on a device, in bytes.

    Raises:
        BudgetError: it is not known how much memory the device has.
    """
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return accelerator_budget(total)
    if device.type == "cpu":
        return host_budget()
    raise BudgetError(f"cannot tell how much memory a {device.type!r} device has: give the budget in bytes")


def reserved_bytes(options: Options, device: torch.device, own: int) -> int:
    """Bytes outside the step; `own`: bytes of the step's inputs, which are allocated already."""
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" and options.reserved is None else 0
    return options.reserved_bytes(max(0, allocated - own))
