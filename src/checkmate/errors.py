"""The errors a user can meet. Every message is one line: what is wrong, and what to do."""

from __future__ import annotations

from typing import Any

from .text import format_bytes


class CheckmateError(Exception):
    """Base class of every error this package raises on purpose."""


class GraphError(CheckmateError, ValueError):
    """A graph, or the file it came from, is malformed."""


class BudgetError(CheckmateError, ValueError):
    """A budget or a byte count cannot be read."""


class UnknownMethod(CheckmateError, ValueError):
    """The name of a method (or of another choice) is not among the valid ones."""


class InvalidSchedule(CheckmateError, ValueError):
    """A sequence of steps computes something whose inputs are missing, frees what is not live, or leaves work undone."""


class TuningError(CheckmateError, ValueError):
    """A number that tunes a method is of the wrong kind, or beyond its limits."""


class InfeasibleBudget(CheckmateError):
    """No schedule was found under the budget.

    Attributes:
        budget: the budget asked for, in bytes.
        proven_minimum: no schedule exists below this many bytes (proven).
        smallest_found: the smallest budget, in bytes, for which a schedule was found.
        schedule: that one, a `Schedule`, in an error of `checkmate.solve`; else None.
    """

    def __init__(self, budget: int, proven_minimum: int, smallest_found: int, message: str | None = None):
        self.budget = budget
        self.proven_minimum = proven_minimum
        self.smallest_found = smallest_found
        self.schedule: Any = None
        if message is None:
            why = "is below the proven minimum" if budget < proven_minimum else "was not met by any schedule found"
            message = (
                f"budget {format_bytes(budget)} ({budget} bytes) {why}; no schedule exists below "
                f"{format_bytes(proven_minimum)} ({proven_minimum} bytes); ask for at least "
                f"{format_bytes(smallest_found)} ({smallest_found} bytes)"
            )
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        # The attributes survive pickling, so that the error can cross from a worker process.
        return type(self), (self.budget, self.proven_minimum, self.smallest_found, str(self))


class Contradiction(CheckmateError):
    """Two results of this package exclude each other, such as a bound and a schedule that costs less: one of them is wrong.

    It is never the caller's fault, and no result is worth having then.
    """

    def __init__(self, what: str):
        super().__init__(
            f"{what}: this is a defect of checkmate, please report it with the graph (Graph.save), budget and options"
        )
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what,)


class BudgetWarning(UserWarning):
    """Something about a planned model that its user should know: memory above the plan, or parts that no plan covers."""
