"""PyTorch front end: train a model under a memory budget.

model = checkmate.torch.compile(model, budget="4GiB")
model = torch.compile(model, backend="checkmate", options={"budget": "4GiB"})       # the same, by name
"""

from __future__ import annotations

from ..errors import BudgetWarning
from ..planning import Options
from .api import capture, compile, plans
from .backend import checkmate
from .measure import Measurement, measure
from .plan import Plan

__all__ = ["BudgetWarning", "Measurement", "Options", "Plan", "capture", "checkmate", "compile", "measure", "plans"]
