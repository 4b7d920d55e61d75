"""Simulated annealing on execution sequences: a polish for any schedule, and a search over orders.

A move drops a recomputation, recomputes a value that is live where the budget is broken just before its next use (with or
without what that needs), does both, or puts computations elsewhere. What is left without a reader goes at once. The objective is
the cost plus a penalty for the bytes above the budget, whose weight rises while the budget stays broken and falls while it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..representation.decoding import Evaluation, evaluate
from ..representation.execution_sequence import arrays_of, new_state
from ..representation.graph_arrays import Problem
from .annealing_kernels import TOGETHER, Run, run_chunk

#: Temperatures, in units of the ideal cost, at the start and at the end of a run.
HOT, COLD = 3e-3, 1e-5
#: Start of a run that polishes a good schedule, in the same units.
POLISH_HEAT = 3e-4
#: Moves times ops between two draws of a seed, and work (readers asked, positions changed) between two looks at the clock: about
#: a third of a second, or less.
_CHUNK, _SLICE = 2e7, 50_000_000


class Anneal:
    """Annealing for one graph and budget.

    Args:
        budget: bytes, fixed memory included.
        order: "given": first computations stay in the graph's order; "any": they may change places, forward ops before
            backward ops.
        seed: every run draws on; same calls, same results.
    """

    def __init__(self, problem: Problem, budget: int, order: str, seed: int):
        self.problem = problem
        self._limit = budget - problem.graph.fixed_memory
        self._reorder = order == "any"
        self._arrays = arrays_of(problem)
        self._rng = np.random.default_rng(seed)

    def run(
        self,
        sequence: Sequence[int],
        moves: int,
        hot: float = HOT,
        cold: float = COLD,
        shifts_only: bool = False,
        stop: Callable[[], bool] = lambda: False,
        rng: np.random.Generator | None = None,
    ) -> Evaluation:
        """One annealing from `sequence`, which must be legal (for order "given": first computations in graph order).

        Args:
            moves: in all; a look at `stop` in between (a run that was stopped returns what it has).
            hot, cold: temperatures at the start and at the end, in units of the ideal cost.
            shifts_only: no recomputation is added or dropped: the search for an order of low peak.
            rng: in place of this object's own, for runs side by side.

        Returns:
            The cheapest sequence within the budget; if there was none, the one with the fewest bytes above it.
        """
        capacity = max(2 * len(sequence), 4 * self.problem.graph.num_ops) + 4 * TOGETHER
        run = Run(new_state(self._arrays, sequence, capacity, self._limit), self._reorder, shifts_only)
        chunk = max(1000, int(_CHUNK / (self.problem.graph.num_ops + 100)))
        done = 0
        while done < moves and not stop():
            count = min(chunk, moves - done)
            warm, cool = (hot * (cold / hot) ** (step / moves) for step in (done, done + count))
            run.seed(int((rng or self._rng).integers(2**31)))
            made = 0
            while made < count and not (made and stop()):
                made = run_chunk(run, warm, cool, made, count, run.work + _SLICE)
            done += count
        return evaluate(self.problem.graph, run.found)
