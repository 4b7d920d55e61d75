"""The user's budget in bytes, and what of it the schedule of a step can have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InfeasibleBudget
from ..graph import Graph
from ..schedule import Schedule
from ..units import format_bytes


@dataclass(frozen=True)
class Allowance:
    """A budget in bytes, everything included, and what of it is taken before the step begins.

    Attributes:
        total: the user's budget. reserved: lives outside the step. outside: held by training besides the step (optimizer state, gradients of earlier batches, the next batch).
        margin: left free, because steps were measured to take that much more than predicted.
    """

    total: int
    reserved: int = 0
    margin: int = 0
    outside: int = 0

    @property
    def elsewhere(self) -> int:
        """Bytes that are taken whatever the schedule."""
        return self.reserved + self.outside

    @property
    def taken(self) -> int:
        """Bytes that the schedule cannot have."""
        return self.elsewhere + self.margin

    @property
    def limit(self) -> int:
        """Bytes that the schedule can have, the graph's fixed memory included."""
        return max(1, self.total - self.taken)

    def of_user(self, schedule: Schedule) -> Schedule:
        """A schedule made for `limit`, as the user sees it: what is taken is fixed memory, and the budget is the user's own.

        Its lower bound holds as it did, for the schedules of both graphs are the same, each with `taken` bytes more.
        """
        if not self.taken:
            return schedule
        graph = schedule.graph
        wider = Graph(graph.ops, graph.values, graph.fixed_memory + self.taken, graph.name)
        return replace(schedule, graph=wider, budget=self.total)

    def of_user_error(self, error: InfeasibleBudget) -> InfeasibleBudget:
        """An error about `limit` in the numbers of the user's budget."""
        if not self.taken:
            return error
        # That steps take more than predicted was measured, and is no proof.
        proven, found = error.proven_minimum + self.elsewhere, error.smallest_found + self.taken
        message = (
            f"budget {format_bytes(self.total)} ({self.total} bytes), of which {format_bytes(self.taken)} are taken by "
            f"{self._takers()}, cannot be met; no schedule exists below {format_bytes(proven)} ({proven} bytes); ask for at least "
            f"{format_bytes(found)} ({found} bytes)"
        )
        return InfeasibleBudget(self.total, proven, found, message)

    def _takers(self) -> str:
        words = {
            "what is reserved": self.reserved,
            "what training holds besides the step": self.outside,
            "what steps were measured to take beyond the prediction": self.margin,
        }
        return " and ".join(name for name, amount in words.items() if amount)
