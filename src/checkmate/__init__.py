"""checkmate: train networks that do not fit their device, under a hard memory budget, with the least recomputation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import BudgetError, CheckmateError, GraphError, InfeasibleBudget, InvalidSchedule, UnknownMethod
from .graph import Graph, Op, Value
from .schedule import Compute, Free, Schedule, Trace, simulate
from .solvers import methods, solve
from .units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from . import tf2 as tf2
    from . import torch as torch

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "CheckmateError",
    "Compute",
    "Free",
    "Graph",
    "GraphError",
    "InfeasibleBudget",
    "InvalidSchedule",
    "Op",
    "Schedule",
    "Trace",
    "UnknownMethod",
    "Value",
    "format_bytes",
    "methods",
    "parse_bytes",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name in ("tf2", "torch"):  # a front end is imported when it is first used, never before
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
