"""What every method shares: the request, the best schedule so far, the proven bound, the clock, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import BudgetError
from ...graph import Graph
from ...schedule import OPTIMAL_GAP, Compute, Schedule, Step, steps_from_sequence
from ...units import shown
from .work import Limits, Work

#: Seeds are below this: what HiGHS and CBC accept.
_SEEDS = 2**31 - 1


def check_seed(seed: int) -> None:
    """Refuse what is no seed.

    Raises:
        BudgetError: it is not a whole number from 0 on, or too large for the solvers that it is given to.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed < _SEEDS:
        raise BudgetError(f"seed must be a whole number from 0 to {_SEEDS - 1}, not {shown(seed)}")


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a running search.

    Attributes:
        seconds: since the search began.
        cost: of the best schedule so far; None before the first.
        lower_bound: proven so far.
        gap: (cost - lower_bound) / lower_bound; None before the first schedule.
        note: what the search is doing.
    """

    seconds: float
    cost: float | None
    lower_bound: float
    gap: float | None
    note: str


@dataclass
class Search:
    """A running search. A method reads the request, calls `offer` and `raise_bound`, and stops when `done()`.

    Attributes:
        graph: to schedule. budget: bytes, fixed memory included. order: "given" or "any".
        gap: stop once the cost is proven within this fraction of the optimum.
        target_cost: stop as soon as a schedule at most this dear is found, or proven not to exist.
        best: the cheapest feasible op sequence so far (its values freed as early as possible). best_cost: its cost.
        best_steps: the same as steps, from methods that also say when values are freed.
        lower_bound: proven bound on the cost of every schedule under the budget.
        proven_infeasible: set when a method proves that no schedule exists in this order.
        work: what the methods have done, and may do: what decides which phase comes next, where seconds only end the search.
    """

    graph: Graph
    budget: int
    order: str = "given"
    time_limit: float = 60.0
    gap: float = 1e-3
    seed: int = 0
    progress: Callable[[Progress], None] | None = None
    target_cost: float | None = None
    started: float = field(default_factory=time.perf_counter)
    best: Sequence[int] | None = None
    best_steps: list[Step] | None = None
    best_cost: float = math.inf
    lower_bound: float = 0.0
    proven_infeasible: bool = False
    interrupted: bool = False
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        self.lower_bound = self.graph.ideal_cost

    def seconds(self) -> float:
        """Time since the search began."""
        return time.perf_counter() - self.started

    def time_left(self) -> float:
        """Seconds until the time limit, never negative."""
        return max(0.0, self.time_limit - self.seconds())

    def offer(self, sequence: Sequence[int], cost: float, note: str = "schedule") -> bool:
        """Hand in a feasible op sequence; True if it is the best so far."""
        if cost >= self.best_cost:
            return False
        self.best, self.best_steps, self.best_cost = sequence, None, cost
        self.report(note)
        return True

    def offer_steps(self, steps: list[Step], cost: float, note: str = "schedule") -> bool:
        """Hand in a feasible schedule whose frees matter (baselines that hold values longer than they are used)."""
        if not self.offer([step.op for step in steps if isinstance(step, Compute)], cost, note):
            return False
        self.best_steps = steps
        return True

    def schedule(self, method: str) -> Schedule:
        """The best schedule so far, with the bound proven so far, in the name of a method; there must be one."""
        assert self.best is not None, "asked for before a schedule was found"
        steps = self.best_steps if self.best_steps is not None else steps_from_sequence(self.graph, self.best)
        bound = min(self.lower_bound, self.best_cost)
        return Schedule(self.graph, steps, self.budget, method, bound, self.order, self.seconds(), self.seed)

    def raise_bound(self, bound: float, note: str = "bound", order: str = "given") -> None:
        """Hand in a bound proven for an order; the best one stays. That of the given order says nothing about other orders."""
        if bound > self.lower_bound and order in (self.order, "any"):
            self.lower_bound = bound
            self.report(note)

    def current_gap(self) -> float:
        """(best cost - bound) / bound; infinite before the first schedule."""
        excess = max(0.0, self.best_cost - self.lower_bound)
        return excess / self.lower_bound if self.lower_bound else (math.inf if excess else 0.0)

    def closed(self) -> bool:
        """The gap asked for is reached; with a target cost, the target is met or out of reach."""
        if self.target_cost is not None:
            return self.best_cost <= self.target_cost or self.lower_bound > self.target_cost
        return self.current_gap() <= max(self.gap, OPTIMAL_GAP)

    def done(self) -> bool:
        """Time to stop: gap reached, proven infeasible, out of time or of work, or Ctrl-C."""
        return self.proven_infeasible or self.closed() or self.out_of_time()

    def out_of_time(self) -> bool:
        """The time limit is over, or Ctrl-C was pressed, or this is a part of another search that has had its share of work."""
        return self.interrupted or self.time_left() <= 0 or self.work.used_up

    def limits(self, share: float) -> Limits:
        """For a part of this search: until it is done, and for this share of all that it may do, which is the time limit in units."""
        units = self.work.limit if math.isfinite(self.work.limit) else self.time_limit
        return Limits(self.work.part(share * units), self.done, self.time_left)

    def report(self, note: str) -> None:
        """Tell the progress callback where the search stands."""
        if self.progress is not None:
            found = self.best is not None
            self.progress(
                Progress(
                    self.seconds(),
                    self.best_cost if found else None,
                    self.lower_bound,
                    self.current_gap() if found else None,
                    note,
                )
            )

    @contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """While inside, the first Ctrl-C asks the search to stop with what it has; a second one interrupts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_interrupt(*_: object) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, previous)

        previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)
