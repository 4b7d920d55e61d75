"""Begin a search with a schedule of the same graph, such as that of another budget.

What fits is the first schedule of the search. What does not is repaired: greedy eviction that drops what the schedule drops and
keeps what it keeps as far as it can, then a short annealing from the cheapest repair, or from the schedule itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import InvalidSchedule
from ...graph import Graph
from ...schedule import Schedule
from ..interface.running_search import Search
from ..interface.work_limits import annealing, eviction


def sequence_of(start: Schedule, graph: Graph) -> list[int]:
    """The ops of a schedule in the sequence it computes them.

    Raises:
        InvalidSchedule: it is one of another graph, or breaks its own.
    """
    theirs = start.graph
    if theirs is not graph and (theirs.ops, theirs.values) != (graph.ops, graph.values):
        raise InvalidSchedule(
            f"start is a schedule of another graph ({theirs.name!r}, {theirs.num_ops} ops) than {graph.name!r} "
            f"({graph.num_ops} ops): give one of the same ops and values"
        )
    try:
        assert start.trace
    except InvalidSchedule as error:
        raise InvalidSchedule(f"start is not a valid schedule: {error}") from None
    return start.sequence


def begin_with(search: Search, sequence: Sequence[int]) -> None:
    """Offer a schedule in the order of the search, or what a repair makes of it where it breaks the budget."""
    from ..heuristics.annealing import POLISH_HEAT, Anneal  # not at import time
    from ..heuristics.greedy_eviction import REPAIR_SETTINGS, Greedy
    from ..representation.decoding import evaluate, retained_by
    from ..representation.graph_arrays import problem_of
    from .tuning import TUNING

    graph, problem, numbers = search.graph, problem_of(search.graph), TUNING.warm_start
    found = evaluate(graph, sequence)
    if found.peak <= search.budget:
        search.offer(found.sequence, found.cost, "start")
        return
    plain = sequence
    if search.order == "given":
        step = -(-graph.num_ops * graph.num_values // numbers.pairs)
        stages = np.arange(0, graph.num_ops, max(1, step)).tolist()
        retained = retained_by(graph, sequence, stages)
        greedy = Greedy(problem, search.stopped)
        for setting in REPAIR_SETTINGS:
            search.work.spend(eviction(graph.num_ops))
            repaired = None if search.done() else greedy.run(search.budget, setting, stages, retained)
            if repaired is not None and repaired.peak <= search.budget:
                search.offer(repaired.sequence, repaired.cost, "repaired start")
        plain = search.best if search.best is not None else sequence
    if graph.num_ops <= numbers.few_ops and not search.done():
        search.work.spend(annealing(numbers.moves, graph.num_ops))
        annealed = Anneal(problem, search.budget, search.order, search.seed).run(
            plain, numbers.moves, POLISH_HEAT, stop=search.done
        )
        if annealed.peak <= search.budget:
            search.offer(annealed.sequence, annealed.cost, "repaired start")
