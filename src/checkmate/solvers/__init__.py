"""Methods that turn a graph and a budget into a schedule: one signature for all, chosen by name."""

from __future__ import annotations

from .interface.running_search import Progress, Search
from .largest_batch import MaxBatch, max_batch_size
from .registry import methods
from .smallest_budget import MinimumBudget, minimum_budget
from .solving import first_schedule, solve

__all__ = [
    "MaxBatch",
    "MinimumBudget",
    "Progress",
    "Search",
    "first_schedule",
    "max_batch_size",
    "methods",
    "minimum_budget",
    "solve",
]
