"""PyTorch front end: train a model under a memory budget.

model = checkmate.torch.compile(model, budget="4GiB")
model = torch.compile(model, backend="checkmate", options={"budget": "4GiB"})       # the same, by name
"""

from __future__ import annotations

from ..errors import BudgetWarning
from .api import capture, compile, plans
from .backend import checkmate
from .largest import LargestSize, max_batch_size, max_sequence_length
from .memory.measure import Measurement, measure
from .options import Options
from .plan import Plan

__all__ = [
    "BudgetWarning",
    "LargestSize",
    "Measurement",
    "Options",
    "Plan",
    "capture",
    "checkmate",
    "compile",
    "max_batch_size",
    "max_sequence_length",
    "measure",
    "plans",
]
