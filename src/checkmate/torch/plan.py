"""What PyTorch adds to a plan: a device, and the memory that it has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import torch

from .. import planning
from ..errors import BudgetError
from ..planning import accelerator_budget, host_budget
from .memory.measure import cuda_bytes
from .pytorch.internals import no_modes


@dataclass(eq=False)
class Plan(planning.Plan):
    """The training step of a model: all graphs that run between a forward pass and the end of the backward pass.

    It serves the sizes that it was made for, and smaller ones.

    Attributes:
        device: where the budget applies.
        num_graphs: compiled graphs that the step consists of.
        of: what the budget is put on, as in `Options`.
    """

    device: torch.device = field(kw_only=True)
    num_graphs: int = field(default=1, kw_only=True)
    of: str = field(default="allocated", kw_only=True)


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


def set_up(device: torch.device) -> None:
    """Let cuBLAS take the workspace that it keeps in each thread that multiplies matrices: this one and autograd's.

    Else the first step takes it, which was planned without: 32 MiB a thread on an H100.
    """
    if device.type != "cuda" or device in _set_up:
        return
    _set_up.add(device)
    with (
        no_modes(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cuda", enabled=False),
        suppress(RuntimeError),
    ):
        small = torch.ones(8, 8, device=device, requires_grad=True)
        torch.nn.functional.linear(small @ small, small, small[0]).sum().backward()  # with a bias it is another of its libraries


_set_up: set[torch.device] = set()


def allocated_bytes(device: torch.device) -> int:
    """Bytes that live on a device now, where it counts them."""
    return cuda_bytes(device, when="current") if device.type == "cuda" else 0
