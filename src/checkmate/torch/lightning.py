"""Lightning: a callback that puts what a LightningModule is made of under a budget.

`Trainer(callbacks=[MemoryBudget("8GiB")])`; or, with nothing to import, CHECKMATE_BUDGET in the environment: Lightning finds
the callback by its entry point. It is imported by Lightning's own name, `lightning.pytorch` or `pytorch_lightning`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..errors import BudgetWarning
from ..units import Budget
from .api import compile
from .coverage import is_compiled
from .options import BUDGET_VARIABLE, read_options

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_lightning: Any = import_module(next((name for name in _NAMES if name in sys.modules), _NAMES[0]))


class MemoryBudget(_lightning.Callback):
    """Compiles the modules inside a LightningModule when its training begins.

    Lightning calls `training_step`, which goes around the call of the LightningModule itself; so the modules that it calls are
    compiled, each in place. Their graphs are planned together, under one budget. What is compiled already stays as it is.

    Args:
        budget, options: of `checkmate.torch.compile`.
    """

    def __init__(self, budget: Budget | None = None, **options: Any):
        super().__init__()
        self.given = {**({} if budget is None else {"budget": budget}), **options}
        read_options(self.given)

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Called by Lightning before training, and before validation and tests alone."""
        if stage != "fit" or is_compiled(pl_module):
            return
        modules = list(_called(pl_module))
        for module in modules:
            compile(module, **self.given)
        if not modules:
            warnings.warn(
                f"{type(pl_module).__name__} is not under the budget: its layers are not in modules of their own that it calls",
                BudgetWarning,
                stacklevel=2,
            )


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that `module` calls and that are trained; lists of modules are not called themselves."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _called(child)
        elif any(isinstance(p, torch.Tensor) and p.requires_grad for p in child.parameters()):
            yield child


def callbacks() -> list[MemoryBudget]:
    """What Lightning adds to every Trainer: the callback, where the environment says a budget."""
    return [MemoryBudget()] if os.environ.get(BUDGET_VARIABLE, "").strip() else []
