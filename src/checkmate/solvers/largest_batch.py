"""The largest batch that fits a budget, with a proof of how much larger one could be at most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BudgetError, Contradiction, InfeasibleBudget
from ..graph import Graph
from ..schedule import Schedule
from ..units import Budget, format_bytes, parse_bytes
from .interface.running_search import Search, check_seed
from .smallest_budget import least_peak_found

#: Shares of the time limit that a single batch size may take while the largest is sought, and while larger ones are proven not to fit.
_PROBE_SHARE, _PROOF_SHARE = 1 / 10, 1 / 5
#: Larger batches that are neither found nor proven not to fit are no more than this share: that is near enough.
_NARROW = 0.005
#: Where the time is over, and nothing has been found to fit.
_LEAST_SECONDS = 0.1
#: A batch is found to be too large by steps of at most so many times; beyond the last nobody trains.
_LARGEST_JUMP, _MOST = 16, 10**7


@dataclass(frozen=True)
class MaxBatch:
    """The outcome of `max_batch_size`.

    Attributes:
        batch: a schedule was found for it.
        upper_bound: proven: no larger batch fits.
        schedule: of the batch-1 graph, if that was given: at `batch` its peak is fixed memory + batch * (peak - fixed memory). Of the
            graph at `batch`, if a function was given.
        seconds: time of the search.
    """

    batch: int
    upper_bound: int
    schedule: Schedule
    seconds: float


def max_batch_size(
    graph: Graph | Callable[[int], Graph],
    budget: Budget,
    max_overhead: float = 1.33,
    time_limit: float = 300.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> MaxBatch:
    """The largest batch that trains within `budget` at a cost of at most `max_overhead` times that of computing all once.

    Where cost and activations grow with the batch and fixed memory does not, a schedule of the batch-1 graph serves all batches
    (Jain et al., MLSys 2020, Section 6.4). Where other things grow otherwise, as gradients of parameters do not grow at all, a function
    gives the graph of each batch. Bisection over batches; each is answered by a schedule, or by a bound above the cost allowed.

    Args:
        graph: the step at batch 1, or a function from a batch to the step at that batch. It is called for about twenty batches; those
            of larger batches must need no less memory and have no lower cost in relation to computing all once.
        budget: bytes, fixed memory included.
        max_overhead: cost / ideal cost that is still acceptable, at least 1.
        time_limit: seconds. progress: called with a line of text after every batch size tried.

    Raises:
        InfeasibleBudget: not even batch 1 was found to fit. BudgetError: an argument cannot be read.
        KeyboardInterrupt: on Ctrl-C before a batch size was found to fit; later, Ctrl-C returns the best so far.
        Contradiction: a schedule was found for a batch that was proven not to fit.
    """
    if not 1 <= max_overhead < math.inf:
        raise BudgetError(f"max_overhead is cost / ideal cost: a number from 1 on, and finite, not {max_overhead!r}")
    if not time_limit >= 0:
        raise BudgetError(f"time_limit must be a number >= 0, not {time_limit!r}")
    check_seed(seed)
    room = parse_bytes(budget, percent_of=graph.no_recompute_peak) if isinstance(graph, Graph) else parse_bytes(budget)
    request = _Request(room, max_overhead, _Clock(time.perf_counter(), time_limit), seed, progress)
    return _scaled(graph, request) if isinstance(graph, Graph) else _traced(graph, request)


@dataclass(frozen=True)
class _Clock:
    started: float
    limit: float

    @property
    def passed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return self.limit - self.passed

    def part(self, share: float) -> float:
        """Seconds for a single batch size."""
        return max(_LEAST_SECONDS, min(share * self.limit, self.left))


@dataclass(frozen=True)
class _Request:
    budget: int
    max_overhead: float
    clock: _Clock
    seed: int
    progress: Callable[[str], None] | None

    def searched(self, graph: Graph, budget: int, seconds: float) -> Search:
        """A search for a schedule at an acceptable cost."""
        from .default.auto import auto  # the solver: not at import time

        target = self.max_overhead * graph.ideal_cost
        search = Search(graph, budget, time_limit=seconds, gap=0.0, seed=self.seed, target_cost=target)
        with search.catching_interrupts():
            auto(search)
        return search


def _nothing_fits(graph: Graph, budget: int, clock: _Clock) -> InfeasibleBudget:
    least, proven_minimum = least_peak_found(graph, seconds=max(_LEAST_SECONDS, min(15.0, clock.left)))
    return InfeasibleBudget(budget, proven_minimum, least.peak)


class _Bisection:
    """Over batches: the largest that fits is sought first, then the smallest that is proven not to.

    Args:
        at: the graph of a batch, and its budget. holds: the batch that a schedule found for one holds.
        upper: the largest batch of which one op alone does not prove that it does not fit.
    """

    def __init__(
        self,
        at: Callable[[int], tuple[Graph, int]],
        holds: Callable[[int, Schedule], int],
        upper: int,
        request: _Request,
    ):
        self.at, self.holds, self.request = at, holds, request
        self.upper, self.source = upper, "what one op needs while it runs"
        self.batch, self.interrupted = 0, False
        self.best: Schedule | None = None

    def run(self, probe: int) -> MaxBatch:
        """Begin with a batch that is worth a try.

        Raises:
            KeyboardInterrupt: on Ctrl-C before a batch was found to fit. InfeasibleBudget: none was found to fit.
        """
        clock, high = self.request.clock, self.upper
        while self.batch < high and not self._over():
            if not self._fits(probe, clock.part(_PROBE_SHARE)):
                high = probe - 1
            probe = (self.batch + high + 1) // 2
        if self.best is None:
            if self.interrupted:
                raise KeyboardInterrupt
            raise _nothing_fits(*self.at(1), clock)
        low = self.batch
        while self.upper - low > _NARROW * self.batch and not self._over():
            probe = (low + self.upper + 1) // 2
            self._fits(probe, clock.part(_PROOF_SHARE))
            low = max(self.batch, low if self.upper < probe else probe)
        return MaxBatch(self.batch, self.upper, self.best, clock.passed)

    def _over(self) -> bool:
        return self.interrupted or (self.best is not None and self.request.clock.left < 0)

    def _fits(self, probe: int, seconds: float) -> bool:
        """Whether a schedule for so large a batch is found."""
        try:
            graph, budget = self.at(probe)
        except KeyboardInterrupt:
            self.interrupted = True
            return False
        search = self.request.searched(graph, budget, seconds)
        fits = search.best is not None and search.best_cost <= self.request.max_overhead * graph.ideal_cost
        if fits:
            self.best = search.schedule("auto")
            self.batch = self.holds(probe, self.best)
            if self.batch > self.upper:
                raise Contradiction(
                    f"no batch above {self.upper} fits {self.request.budget} bytes at {self.request.max_overhead!r} times the ideal cost "
                    f"({self.source}), but there is a schedule for batch {self.batch}"
                )
        proven = not fits and (graph.min_working_set > budget or search.proven_infeasible or search.out_of_reach())
        if proven and probe <= self.upper:
            self.upper, self.source = probe - 1, search.infeasible_source or search.bound_source
        self.interrupted |= search.interrupted
        if self.request.progress is not None:
            answer = "fits" if fits else "proven not to fit" if proven else "not found to fit"
            self.request.progress(f"batch {probe} {answer}; largest so far {self.batch}, at most {self.upper}")
        return fits


def _scaled(graph: Graph, request: _Request) -> MaxBatch:
    """A schedule of batch 1 serves all batches; and it may leave memory for more than was asked for."""
    fixed, capacity = graph.fixed_memory, request.budget - graph.fixed_memory
    upper = max(0, capacity // max(1, graph.min_working_set - fixed))

    def at(batch: int) -> tuple[Graph, int]:
        return graph, fixed + capacity // batch

    def holds(_: int, schedule: Schedule) -> int:
        return capacity // max(1, schedule.peak - fixed)

    return _Bisection(at, holds, upper, request).run(upper)  # often that bound itself will do


def _traced(graph_at: Callable[[int], Graph], request: _Request) -> MaxBatch:
    """The batch where nothing but the graph of each is known."""
    steps = _Steps(graph_at)
    upper = steps.too_large(request.budget) - 1
    first = steps.first_probe(request.budget, upper)
    return _Bisection(lambda batch: (steps.at(batch), request.budget), lambda batch, _: batch, upper, request).run(first)


class _Steps:
    """Graphs by batch. Working sets and plain peaks grow about evenly with it: two of them tell where to look."""

    def __init__(self, graph_at: Callable[[int], Graph]):
        self._graph_at = graph_at
        self._known: dict[int, Graph] = {}

    def at(self, batch: int) -> Graph:
        if batch not in self._known:
            self._known[batch] = self._graph_at(batch)
        return self._known[batch]

    def too_large(self, budget: int) -> int:
        """A batch whose working set is above the budget, so that neither it nor a larger one fits."""
        batch = 2  # many networks cannot train on a batch of 1
        while self.at(batch).min_working_set <= budget:
            guess = self._reach(lambda graph: graph.min_working_set, budget) + 1
            batch = min(max(guess, batch + 1), _LARGEST_JUMP * batch)
            if batch > _MOST:
                raise BudgetError(
                    f"batches of more than {_MOST} fit {format_bytes(budget)}: does this step not depend on its batch?"
                )
        return batch

    def first_probe(self, budget: int, largest: int) -> int:
        """The largest batch that seems to fit without recomputation."""
        return max(1, min(largest, self._reach(lambda graph: graph.no_recompute_peak, budget)))

    def _reach(self, size: Callable[[Graph], int], budget: int) -> int:
        """Up to which batch a size seems to stay within the budget."""
        batches = sorted(self._known)
        last = batches[-1]
        if len(batches) == 1:
            return last * budget // max(1, size(self._known[last]))
        first = batches[0]
        grows = max(1, (size(self._known[last]) - size(self._known[first])) // (last - first))
        return last + (budget - size(self._known[last])) // grows
