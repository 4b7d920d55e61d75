"""checkmate: train networks that do not fit their device, under a hard memory budget, with the least recomputation."""

from __future__ import annotations

from .version import __version__ as __version__

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from . import networks as networks
    from . import tf2 as tf2
    from . import torch as torch
    from .errors import BudgetError, CheckmateError, Contradiction, GraphError, InfeasibleBudget, InvalidSchedule, UnknownMethod
    from .graph import Graph, Op, Value
    from .schedule import Compute, Free, Schedule, Trace, simulate
    from .solvers import MaxBatch, MinimumBudget, max_batch_size, methods, minimum_budget, solve
    from .units import format_bytes, parse_bytes

__all__ = [
    "BudgetError",
    "CheckmateError",
    "Compute",
    "Contradiction",
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

#: Imported when first used: the front ends because they import a framework, and all of them because the command line is in charge
#: of Ctrl-C before it imports anything that takes long.
_MODULES = ("errors", "graph", "networks", "schedule", "solvers", "tf2", "torch", "units")
_HOMES = {
    **dict.fromkeys(
        ("BudgetError", "CheckmateError", "Contradiction", "GraphError", "InfeasibleBudget", "InvalidSchedule", "UnknownMethod"),
        "errors",
    ),
    **dict.fromkeys(("Graph", "Op", "Value"), "graph"),
    **dict.fromkeys(("Compute", "Free", "Schedule", "Trace", "simulate"), "schedule"),
    **dict.fromkeys(("MaxBatch", "MinimumBudget", "max_batch_size", "methods", "minimum_budget", "solve"), "solvers"),
    **dict.fromkeys(("format_bytes", "parse_bytes"), "units"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
