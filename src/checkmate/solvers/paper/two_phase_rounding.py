"""Two-phase rounding of the linear relaxation of Checkmate's program (Jain et al., MLSys 2020, Section 5).

Phase one, here, rounds S, which says what is retained into each stage; phase two computes the cheapest R for it exactly
(`representation.retention`, which the baselines use as well). The relaxation is solved for less than the budget, (1 - epsilon)
times it, so that what rounding up adds is likely to fit; every rounded schedule is simulated, and offered only if it does fit.
A heuristic: it proves no bound (see `milp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..interface.running_search import Search
from ..mixed_integer.dispatch import solve_with_highs
from ..representation.decoding import evaluate
from ..representation.graph_arrays import Bools, Floats, Problem
from ..representation.retention import Retention
from .checkmate_milp import Formulation

#: Allowances that are tried in turn until one gives a schedule; the paper uses the first. The relaxation often spreads a
#: value thinly over many stages, and takes much less memory than what any rounding of it needs.
_EPSILONS = (0.1, 0.05, 0.0, 0.2, 0.3, 0.4, 0.5)
_THRESHOLDS = tuple(0.05 * step for step in range(1, 20))
_ROUNDS = 100


def lp_rounding(search: Search) -> None:
    """Deterministic: round S up from a threshold on, for nineteen thresholds; the cheapest schedule that fits."""
    _round(search, lambda retained: (retained >= threshold for threshold in _THRESHOLDS))


def lp_rounding_randomized(search: Search) -> None:
    """Randomized: round each S up with its value as probability, a hundred times; the cheapest schedule that fits."""
    rng = np.random.default_rng(search.seed)
    _round(search, lambda retained: (rng.random(retained.shape) < retained for _ in range(_ROUNDS)))


def _round(search: Search, roundings: Callable[[Floats], Iterable[Bools]]) -> None:
    graph = search.graph
    if graph.no_recompute_peak <= search.budget:
        search.offer(range(graph.num_ops), graph.ideal_cost, "no recomputation")
        return
    problem = Problem(graph)
    smallest = graph.min_working_set - graph.fixed_memory
    tried: set[int] = set()
    for epsilon in _EPSILONS:
        budget = max(smallest, int((1 - epsilon) * (search.budget - graph.fixed_memory)))
        if budget in tried:
            continue
        tried.add(budget)
        formulation = Formulation(problem, budget, integral=False)
        search.report(f"solving a linear program: {formulation.program.num_variables} variables, epsilon {epsilon}")
        answer = solve_with_highs(formulation.program, search.time_left(), 0.0, search)
        if answer.x is not None and answer.optimal:
            retained = np.clip(formulation.retained(answer.x), 0.0, 1.0)
            for rounded in roundings(retained):
                if search.stopped():
                    break
                sequence = Retention.from_matrix(graph, rounded).sequence(search.stopped)
                if sequence is not None:
                    found = evaluate(graph, sequence)
                    if found.peak <= search.budget:
                        search.offer(found.sequence, found.cost, f"rounded, epsilon {epsilon}")
        if search.best is not None or search.done():
            return
