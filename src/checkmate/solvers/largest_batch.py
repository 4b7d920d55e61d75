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
from .smallest_budget import least_peak_found, proven_minimum

#: Shares of the time limit that a single batch size may take.
_PROBE_SHARE = 1 / 10
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
    clock = _Clock(time.perf_counter(), time_limit)
    if isinstance(graph, Graph):
        return _scaled(graph, parse_bytes(budget, percent_of=graph.no_recompute_peak), max_overhead, clock, seed, progress)
    return _traced(graph, parse_bytes(budget), max_overhead, clock, seed, progress)


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

    def over(self) -> bool:
        return self.left < 0

    def of_a_probe(self) -> float:
        return max(_LEAST_SECONDS, min(_PROBE_SHARE * self.limit, self.left))


def _searched(graph: Graph, room: int, max_overhead: float, clock: _Clock, seed: int) -> tuple[Search, bool]:
    """A search for a schedule at an acceptable cost, and whether it found one."""
    from .default.auto import auto  # the solver: not at import time

    target = max_overhead * graph.ideal_cost
    search = Search(graph, room, time_limit=clock.of_a_probe(), gap=0.0, seed=seed, target_cost=target)
    with search.catching_interrupts():
        auto(search)
    return search, search.best is not None and search.best_cost <= target


def _nothing_fits(graph: Graph, budget: int, clock: _Clock) -> InfeasibleBudget:
    least, proven_minimum = least_peak_found(graph, seconds=max(_LEAST_SECONDS, min(15.0, clock.left)))
    return InfeasibleBudget(budget, proven_minimum, least.peak)


def _scaled(
    graph: Graph, budget: int, max_overhead: float, clock: _Clock, seed: int, progress: Callable[[str], None] | None
) -> MaxBatch:
    capacity = budget - graph.fixed_memory
    working_set = max(1, graph.min_working_set - graph.fixed_memory)
    largest = upper = max(0, capacity // working_set)  # largest: worth trying; upper: proven
    source = "what one op needs while it runs"
    batch, best, interrupted = 0, None, False
    probe = largest  # often the bound itself will do
    while batch < largest:
        if best is not None and clock.over():
            break
        search, fits = _searched(graph, graph.fixed_memory + capacity // probe, max_overhead, clock, seed)
        if fits:
            # The schedule may leave memory for more than was asked for.
            batch, best = capacity // max(1, search.schedule("auto").peak - graph.fixed_memory), search
            if batch > upper:
                raise Contradiction(
                    f"no batch above {upper} fits {budget} bytes at {max_overhead!r} times the ideal cost "
                    f"({source}), but there is a schedule for batch {batch}"
                )
            answer = "fits"
        else:
            if probe == upper and not search.interrupted and clock.left > 0:
                # No budget that is of interest is larger than what everything takes when it is kept.
                least = proven_minimum(graph, graph.no_recompute_peak, clock.over)
                at_most = capacity // max(1, least - graph.fixed_memory)
                if at_most < upper:
                    upper, source = at_most, "what a few values together need"
            largest = min(probe - 1, upper)
            proven = search.proven_infeasible or search.out_of_reach()
            if proven and probe <= upper:
                upper, source = probe - 1, search.infeasible_source or search.bound_source
            proven |= probe > upper
            answer = "proven not to fit" if proven else "not found to fit"
        if progress is not None:
            progress(f"batch {probe} {answer}; largest so far {batch}, at most {upper}")
        interrupted = search.interrupted
        if interrupted:
            break
        probe = (batch + largest + 1) // 2
    if best is None:
        if interrupted:
            raise KeyboardInterrupt
        raise _nothing_fits(graph, budget, clock)
    return MaxBatch(batch, upper, best.schedule("auto"), clock.passed)


def _traced(
    graph_at: Callable[[int], Graph],
    budget: int,
    max_overhead: float,
    clock: _Clock,
    seed: int,
    progress: Callable[[str], None] | None,
) -> MaxBatch:
    """The batch where nothing but the graph of each is known."""
    steps = _Steps(graph_at)
    upper = largest = steps.too_large(budget) - 1  # largest: worth trying; upper: proven
    batch, best, interrupted = 0, None, False
    probe = steps.first_probe(budget, largest)
    while batch < largest:
        if best is not None and clock.over():
            break
        try:
            graph = steps.at(probe)
        except KeyboardInterrupt:
            interrupted = True
            break
        search, fits = _searched(graph, budget, max_overhead, clock, seed)
        if fits:
            batch, best = probe, search
            answer = "fits"
        else:
            largest = probe - 1
            proven = graph.min_working_set > budget or search.proven_infeasible or search.out_of_reach()
            if proven:
                upper = largest
            answer = "proven not to fit" if proven else "not found to fit"
        if progress is not None:
            progress(f"batch {probe} {answer}; largest so far {batch}, at most {upper}")
        if search.interrupted:
            interrupted = True
            break
        probe = (batch + largest + 1) // 2
    if best is None:
        if interrupted:
            raise KeyboardInterrupt
        raise _nothing_fits(steps.at(1), budget, clock)
    low = batch  # what was not found to fit may be too large for any schedule
    while low < upper and not interrupted and not clock.over():
        probe = (low + upper + 1) // 2
        try:
            graph = steps.at(probe)
        except KeyboardInterrupt:
            break
        if proven_minimum(graph, budget + 1, clock.over) > budget:
            upper = probe - 1
        else:
            low = probe
    return MaxBatch(batch, upper, best.schedule("auto"), clock.passed)


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
