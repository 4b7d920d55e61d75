"""What a user of the PyTorch front end can say about a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import planning
from ..errors import BudgetError, UnknownMethod

#: The budget of models that are compiled without one; scripts that can only name the backend have no other way to say it.
BUDGET_VARIABLE = "CHECKMATE_BUDGET"
#: 1: the first steps wait for the whole search.
WAIT_VARIABLE = "CHECKMATE_WAIT"

_OF = ("allocated", "reserved")
_INNER = ("eager", "inductor")


@dataclass(frozen=True)
class Options(planning.Options):
    """Options of `checkmate.torch.compile`, and of `torch.compile(..., backend="checkmate", options={...})`.

    Attributes:
        budget, reserved, method, gap, time_limit, seed, cost_model, wait: as in `checkmate.planning.Options`.
        keep_checkpoints: what is inside `torch.utils.checkpoint` is computed again in the backward pass even where the budget has
            room for it, and the first steps wait for the whole search. By default checkpoints count for nothing: their regions are
            planned like everything else.
        of: what the budget is put on. "allocated": bytes of live tensors. "reserved", on CUDA: what PyTorch's caching allocator has
            taken from the device, gaps between tensors included (what `nvidia-smi` shows, less the context of CUDA).
        order: "any" is for steps of one graph that draws random numbers no more than once. All others keep the given order: graphs run in
            turn, and numbers that are drawn in another order would be others than those of plain training.
        inner: what runs the ops of a planned step. "eager": the kernels that eager training runs, with results that are the same to the
            bit. "inductor": kernels that PyTorch's own compiler makes of both passes, with its results; each plan is compiled, so
            that the first steps wait for the whole search.
    """

    keep_checkpoints: bool = False
    of: str = "allocated"
    inner: str = "eager"

    def __post_init__(self) -> None:
        if self.inner not in _INNER:
            raise UnknownMethod(f"unknown inner={self.inner!r}: choose among {', '.join(_INNER)}")
        if self.of not in _OF:
            raise UnknownMethod(f"unknown of={self.of!r}: choose among {', '.join(_OF)}")

    def in_turn(self, graphs: int, draws: int) -> Options:
        """For a step of so many graphs, with so many random ops: see `order`."""
        return self if self.order == "given" or max(graphs, draws) <= 1 else replace(self, order="given")

    def check_device(self, device: torch.device) -> None:
        """Raises BudgetError where the device has no such thing as the budget is put on."""
        if self.of == "reserved" and device.type != "cuda":
            raise BudgetError(
                f'of="reserved" is about what the caching allocator of CUDA reserves, and this model is on {device.type!r}: leave it out'
            )


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
