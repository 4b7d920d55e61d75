"""checkmate: train networks that do not fit their device, under a hard memory budget, with the least recomputation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BudgetError, CheckmateError, GraphError, InfeasibleBudget, InvalidSchedule, UnknownMethod
from .graph import Graph, Op, Value
from .schedule import Compute, Free, Schedule, Trace, simulate
from .solvers import MaxBatch, MinimumBudget, max_batch_size, methods, minimum_budget, solve
from .units import format_bytes, parse_bytes
from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import networks as networks
    from . import tf2 as tf2
    from . import torch as torch


__all__ = [
    "BudgetError",
    "CheckmateError",
    "Compute",
    "Free",
    "Graph",
    "GraphError",
    "InfeasibleBudget",
    "InvalidSchedule",
    "MaxBatch",
    "MinimumBudget",
    "Op",
    "Schedule",
    "Trace",
    "UnknownMethod",
    "Value",
    "format_bytes",
    "max_batch_size",
    "methods",
    "minimum_budget",
    "parse_bytes",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name in ("networks", "tf2", "torch"):  # imported when first used: a front end never before, for it imports its framework
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
