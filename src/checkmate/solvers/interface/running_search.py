"""What every method shares: the request, the best schedule so far, the proven bound, the clock, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ...errors import BudgetError, Contradiction
from ...float_rounding import summation_error
from ...graph import Graph
from ...schedule import OPTIMAL_GAP, Compute, Schedule, Step, simulate, steps_from_sequence
from ...units import shown
from .work_limits import Limits, Work

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
    """A running search. A method reads the request, calls `offer`, `raise_bound` and `prove_infeasible`, and stops when `done()`.

    A schedule that costs less than a bound, or fits where none is said to fit, raises `Contradiction` at once.

    Attributes:
        graph: to schedule. budget: bytes, fixed memory included. order: "given" or "any".
        gap: stop once the cost is proven within this fraction of the optimum.
        target_cost: stop as soon as a schedule at most this dear is found, or proven not to exist.
        best: the cheapest feasible op sequence so far (its values freed as early as possible). best_cost: its cost.
        best_steps: the same as steps, from methods that also say when values are freed.
        lower_bound: proven bound on the cost of every schedule under the budget, as it was handed in. bound_source: what proved it.
        infeasible_source: what proved that no schedule exists in this order; None as long as that is open.
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
    bound_source: str = "cost of computing every op once"
    infeasible_source: str | None = None
    work: Work = field(default_factory=Work)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.lower_bound = self.graph.ideal_cost

    @property
    def proven_infeasible(self) -> bool:
        """A method has proven that no schedule exists in this order."""
        return self.infeasible_source is not None

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
        self._check(note)
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
        self._check(f"the schedule of method {method!r}")
        # Above the cost it is by no more than rounding.
        bound = min(self.lower_bound, self.best_cost)
        return Schedule(self.graph, self._steps(), self.budget, method, bound, self.order, self.seconds(), self.seed)

    def raise_bound(self, bound: float, source: str, order: str = "given") -> None:
        """Hand in a bound proven for an order; the best one stays. That of the given order says nothing about other orders.

        Args:
            source: names the proof, for progress and for the message should it be contradicted.
        """
        if bound == math.inf:
            self.prove_infeasible(source, order)
        elif bound > self.lower_bound and order in (self.order, "any"):
            self.lower_bound, self.bound_source = bound, source
            self._check("an earlier schedule")
            self.report(source)

    def prove_infeasible(self, source: str, order: str = "given") -> None:
        """Hand in a proof that no schedule in this order fits the budget; `source` names it."""
        if order in (self.order, "any"):
            self.infeasible_source = source
            self._check("an earlier schedule")

    def rounding(self) -> float:
        """The most by which the bound can be above the cost of the best schedule without being wrong.

        A bound is the cost of every op once and a sum over recomputations, and methods take what their own sums may be off by
        from it; what is left is a sum over the computations of the schedule, added up in any order.
        """
        return summation_error(self.graph.num_ops + len(self.best or ()), self.best_cost)

    def _steps(self) -> list[Step]:
        assert self.best is not None
        return self.best_steps if self.best_steps is not None else steps_from_sequence(self.graph, self.best)

    def _check(self, note: str) -> None:
        """The best schedule, if there is one, is as dear as the bound says, and possible.

        Raises:
            Contradiction: it is not. The schedule is simulated first, so that the message says what is certain.
        """
        if self.best is None or (self.infeasible_source is None and self.lower_bound <= self.best_cost + self.rounding()):
            return
        trace = simulate(self.graph, self._steps())
        found = f"a schedule of {trace.peak} bytes that costs {trace.cost!r} ({note}, order {self.order!r})"
        if trace.peak > self.budget:
            raise Contradiction(f"{found} was handed in for a budget of {self.budget} bytes")
        if self.infeasible_source is not None:
            raise Contradiction(f"no schedule fits {self.budget} bytes ({self.infeasible_source}), but there is {found}")
        if trace.cost > self.best_cost + self.rounding():
            raise Contradiction(f"{found} was handed in as one that costs {self.best_cost!r}")
        raise Contradiction(
            f"no schedule within {self.budget} bytes costs less than {self.lower_bound!r} ({self.bound_source}), "
            f"but there is {found}"
        )

    def current_gap(self) -> float:
        """(best cost - bound) / bound; infinite before the first schedule."""
        excess = max(0.0, self.best_cost - self.lower_bound)
        return excess / self.lower_bound if self.lower_bound else (math.inf if excess else 0.0)

    def closed(self) -> bool:
        """The gap asked for is reached; with a target cost, the target is met or out of reach."""
        if self.target_cost is not None:
            return self.best_cost <= self.target_cost or self.out_of_reach()
        return self.current_gap() <= max(self.gap, OPTIMAL_GAP)

    def out_of_reach(self) -> bool:
        """Every schedule is proven to cost more than the target, by more than the rounding of sums over two computations per op."""
        rounding = summation_error(2 * self.graph.num_ops, self.lower_bound)
        return self.target_cost is not None and self.lower_bound > self.target_cost + rounding

    def stopped(self) -> bool:
        """Out of time, or Ctrl-C: whatever runs ends with what it has."""
        return self.interrupted or self.time_left() <= 0 or self.work.used_up

    def done(self) -> bool:
        """Time to stop: gap reached, proven infeasible, out of time or of work, or Ctrl-C."""
        return self.proven_infeasible or self.closed() or self.stopped()

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
        only_default = _interrupting.get()  # a handler of the program's own does what it is there for, and the search goes on
        own_handler = only_default and signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if own_handler or threading.current_thread() is not threading.main_thread():
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
        if self.interrupted and only_default:
            raise KeyboardInterrupt


_interrupting: ContextVar[bool] = ContextVar("interrupting", default=False)


@contextmanager
def interrupting() -> Iterator[None]:
    """Inside, Ctrl-C ends a search with KeyboardInterrupt, and not with the best schedule so far: for programs that would go on."""
    token = _interrupting.set(True)
    try:
        yield
    finally:
        _interrupting.reset(token)
