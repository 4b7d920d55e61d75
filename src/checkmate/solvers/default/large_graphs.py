"""Graphs of thousands of ops: one linear relaxation for the bound, rounding and greedy eviction for the schedule.

Every step takes time that grows about linearly with the number of ops. The bound is that of the snapshot relaxation at the peak
of the step without recomputation, solved as a linear program: among thousands of decisions a fraction of one does not matter.

Its solution is rounded with thresholds: an op is recomputed if its variable is at least its threshold. For one threshold drawn
at random the expected cost and memory of the result are those of the linear program, as in a minimum cut. Here every op has a
threshold of its own, from a sequence that fills [0, 1] evenly. The interior point method gives equal layers equal variables, so
of the layers that tie the right share is recomputed, evenly spread: long stretches without anything retained would need more
memory to recompute than there is. Greedy eviction repairs what the rounding leaves. Then the hill climb, whose moves change
classes of values of equal layers together, takes what time is left.

Limits: at a few times the minimum working set the bound of one snapshot says little about the recomputations of recomputations.
"""

from __future__ import annotations

import numpy as np

from ..bounds.snapshot_relaxation import SnapshotRelaxation
from ..heuristics.greedy_eviction import SETTINGS, Greedy
from ..heuristics.hill_climbing import Climb
from ..interface.running_search import Search
from ..interface.work_limits import eviction
from ..representation.decoding import Evaluation, decode, evaluate
from ..representation.graph_arrays import Bools, Floats, problem_of
from .tuning import TUNING, LargeNumbers

#: Settings of the eviction that repair well.
_REPAIRS = (SETTINGS[0], SETTINGS[3], SETTINGS[2])


def large(search: Search, numbers: LargeNumbers = TUNING.large) -> None:
    """See the module's description."""
    graph = search.graph
    problem = problem_of(graph)

    def consider(found: Evaluation | None, note: str) -> None:
        if found is not None and found.peak <= search.budget:
            search.offer(found.sequence, found.cost, note)

    consider(evaluate(graph, range(graph.num_ops)), "no recomputation")
    if search.done():
        return
    relaxation, greedy = SnapshotRelaxation(problem), Greedy(problem, search.stopped)
    capacity, snapshot = search.budget - graph.fixed_memory, int(np.argmax(problem.profile))
    for share in numbers.budgets:
        if search.done():
            return
        relaxed = relaxation.relax(share * capacity, [snapshot], search.time_left(), lambda: search.interrupted)
        search.work.spend(relaxed.work)
        if share == numbers.budgets[0]:
            search.raise_bound(relaxed.bound, "bound of the linear relaxation")
            if np.isinf(relaxed.bound):
                return
        if relaxed.recomputed is None:
            break
        retained = rounded(search, snapshot, relaxed.recomputed[0])
        consider(evaluate(graph, decode(graph, [snapshot], [retained], eager=False)), "rounded schedule")
        for setting in _REPAIRS:
            if not search.done():
                search.work.spend(eviction(graph.num_ops))
                consider(greedy.run(search.budget, setting, [snapshot], [retained], longest=8), "repaired schedule")
        if share == numbers.budgets[0]:
            climb = Climb(greedy, search.budget, search.seed)
            search.work.spend(len(SETTINGS) * eviction(graph.num_ops))
            for found in climb.start(search.done):
                consider(found, "greedy eviction")
    for _ in range(numbers.moves if graph.num_ops > numbers.too_many_ops else numbers.few_moves):
        if search.done():
            return
        search.work.spend(eviction(graph.num_ops))
        consider(climb.step(), "greedy eviction")


def rounded(search: Search, snapshot: int, recomputed: Floats) -> Bools:
    """The values to retain past `snapshot`: what is needed later and not recomputed, for itself or for another op."""
    problem = problem_of(search.graph)
    values, ops = problem.edges
    again = recomputed >= 0.01 + 0.98 * _evenly(search.graph.num_ops)
    needed = problem.keep.copy()
    needed[values[(ops > snapshot) | again[ops]]] = True
    return needed & ~again[problem.producer] & (problem.producer <= snapshot)


def _evenly(count: int) -> Floats:
    """Numbers in [0, 1) of which every stretch is spread evenly: 0, 1/2, 1/4, 3/4, 1/8, ... (van der Corput)."""
    numbers, index, part = np.zeros(count), np.arange(count), 0.5
    while index.any():
        numbers += part * (index & 1)
        index >>= 1
        part /= 2
    return numbers
