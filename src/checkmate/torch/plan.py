"""What PyTorch adds to a plan: a device, and the memory that it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import planning
from ..errors import BudgetError
from ..planning import Options, accelerator_budget, host_budget

#: The budget of models that are compiled without one; scripts that can only name the backend have no other way to say it.
BUDGET_VARIABLE = "CHECKMATE_BUDGET"
#: 1: the first steps wait for the whole search.
WAIT_VARIABLE = "CHECKMATE_WAIT"


@dataclass(eq=False)
class Plan(planning.Plan):
    """The training step of a model: all graphs that run between a forward pass and the end of the backward pass.

    It serves the sizes that it was made for, and smaller ones.

    Attributes:
        device: where the budget applies.
        num_graphs: compiled graphs that the step consists of.
    """

    device: torch.device = field(kw_only=True)
    num_graphs: int = field(default=1, kw_only=True)


def read_options(given: Mapping[str, Any]) -> Options:
    """Options from keywords; the environment variables CHECKMATE_BUDGET and CHECKMATE_WAIT say what they do not.

    Raises:
        UnknownMethod: a keyword that is not an option. BudgetError: an amount, or the variable, cannot be read.
    """
    options = {"wait": os.environ.get(WAIT_VARIABLE, "").strip() == "1", **given}
    if options.get("budget", 0) is None:
        del options["budget"]
    said = os.environ.get(BUDGET_VARIABLE, "").strip()
    if "budget" in options or not said:
        return Options.read(options)
    Options.read(options)  # mistakes in what the script says are not the variable's
    try:
        return Options.read({**options, "budget": said})
    except BudgetError as error:
        raise BudgetError(f"environment variable {BUDGET_VARIABLE}: {error}") from None


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


def allocated_bytes(device: torch.device) -> int:
    """Bytes that live on a device now, where it counts them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
