"""The largest batch that fits a budget, with a proof of how much larger one could be at most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BudgetError, Contradiction, InfeasibleBudget
from ..graph import Graph
from ..schedule import Schedule
from ..units import Budget, parse_bytes
from .interface.running_search import Search, check_seed
from .representation.compile_clock import search_clock
from .smallest_budget import least_peak_found

#: Shares of the time limit that a single batch size may take.
_PROBE_SHARE = 1 / 10
#: Where the time is over, and nothing has been found to fit.
_LEAST_SECONDS = 0.1


@dataclass(frozen=True)
class MaxBatch:
    """The outcome of `max_batch_size`.

    Attributes:
        batch: a schedule was found for it.
        upper_bound: proven: no larger batch fits.
        schedule: of the batch-1 graph; at `batch` its peak is fixed memory + batch * (peak - fixed memory).
        seconds: time of the search, without what kernels took to compile.
    """

    batch: int
    upper_bound: int
    schedule: Schedule
    seconds: float


def max_batch_size(
    graph: Graph,
    budget: Budget,
    max_overhead: float = 1.33,
    time_limit: float = 300.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> MaxBatch:
    """The largest batch that trains within `budget` at a cost of at most `max_overhead` times that of computing all once.

    Cost and activations grow with the batch, fixed memory does not: a schedule of the batch-1 graph serves all batches
    (Jain et al., MLSys 2020, Section 6.4). Bisection over batches; each is answered by a schedule, or by a bound above the
    cost allowed.

    Args:
        graph: the step at batch 1. budget: bytes, fixed memory included.
        max_overhead: cost / ideal cost that is still acceptable, at least 1.
        time_limit: seconds. progress: called with a line of text after every batch size tried.

    Raises:
        InfeasibleBudget: not even batch 1 was found to fit. BudgetError: an argument cannot be read.
        KeyboardInterrupt: on Ctrl-C before a batch size was found to fit; later, Ctrl-C returns the best so far.
        Contradiction: a schedule was found for a batch that was proven not to fit.
    """
    from .default.auto import auto  # solver and compiled kernels: not at import time

    started = search_clock()
    if not 1 <= max_overhead < math.inf:
        raise BudgetError(f"max_overhead is cost / ideal cost: a number from 1 on, and finite, not {max_overhead!r}")
    if not time_limit >= 0:
        raise BudgetError(f"time_limit must be a number >= 0, not {time_limit!r}")
    check_seed(seed)
    capacity = parse_bytes(budget, percent_of=graph.no_recompute_peak) - graph.fixed_memory
    working_set = max(1, graph.min_working_set - graph.fixed_memory)
    largest = upper = max(0, capacity // working_set)  # largest: worth trying; upper: proven
    source = "what one op needs while it runs"
    batch, best, interrupted = 0, None, False
    probe = largest  # often the bound itself will do
    while batch < largest:
        left = time_limit - (search_clock() - started)
        if best is not None and left < 0:
            break
        search = Search(
            graph,
            graph.fixed_memory + capacity // probe,
            time_limit=max(_LEAST_SECONDS, min(_PROBE_SHARE * time_limit, left)),
            gap=0.0,
            seed=seed,
            target_cost=max_overhead * graph.ideal_cost,
        )
        with search.catching_interrupts():
            auto(search)
        if search.best is not None and search.best_cost <= max_overhead * graph.ideal_cost:
            # The schedule may leave memory for more than was asked for.
            batch, best = capacity // max(1, search.schedule("auto").peak - graph.fixed_memory), search
            if batch > upper:
                raise Contradiction(
                    f"no batch above {upper} fits {graph.fixed_memory + capacity} bytes at {max_overhead!r} times the ideal cost "
                    f"({source}), but there is a schedule for batch {batch}"
                )
            answer = "fits"
        else:
            largest = probe - 1
            proven = search.proven_infeasible or search.out_of_reach()
            if proven and probe <= upper:
                upper, source = probe - 1, search.infeasible_source or search.bound_source
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
        left = time_limit - (search_clock() - started)
        least, proven_minimum = least_peak_found(graph, seconds=max(_LEAST_SECONDS, min(15.0, left)))
        raise InfeasibleBudget(graph.fixed_memory + capacity, proven_minimum, least.peak)
    return MaxBatch(batch, upper, best.schedule("auto"), search_clock() - started)
