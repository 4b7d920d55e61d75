"""Compile all kernels ahead of the first search, where an image or an environment is built: `python -m checkmate.solvers.compile_kernels`.

The machine code goes where searches look for it (see representation/kernel_cache.py): beside the package if that can be written,
where it also serves users who cannot write there.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from ..graph import Graph
from .bounds.lagrangian_bound import LagrangianBound
from .bounds.nested_snapshot_bound import nested_bound
from .bounds.peak_bound import least_peak_bound
from .exact.best_first_search import Exact
from .heuristics.annealing import Anneal
from .heuristics.greedy_eviction import SETTINGS, Greedy
from .heuristics.nested_checkpointing import Nested
from .interface.running_search import Search
from .representation.decoding import decode, evaluate
from .representation.graph_arrays import problem_of
from .representation.kernels import all_kernels


def compile_kernels() -> int:
    """Compile what is not compiled, or read it; returns how many kernels there are."""
    graph = _training_step(layers=16)
    problem, n = problem_of(graph), graph.num_ops
    budget = int(0.7 * graph.no_recompute_peak)
    capacity = budget - graph.fixed_memory
    evaluate(graph, decode(graph, [n // 2], [np.ones(graph.num_values, np.bool_)], eager=True))
    Greedy(problem).run(budget, SETTINGS[0])
    for order in ("given", "any"):
        Anneal(problem, budget, order, seed=0).run(range(n), moves=1000)
    small = _training_step(layers=24)
    Exact(small, int(0.6 * small.no_recompute_peak)).run(most=20_000)  # more than the first tables of the search take
    least_peak_bound(problem, graph.no_recompute_peak)
    LagrangianBound(problem, capacity).step(lambda: False)
    Nested(problem, _plainly, n // 6, graph.no_recompute_peak, seed=0).run(budget)
    nested_bound(problem, capacity, 1, multipliers=2)
    return len(all_kernels)


def _plainly(search: Search, rounds: int) -> None:
    """Segments without recomputation will do."""
    if search.graph.no_recompute_peak <= search.budget:
        search.offer(range(search.graph.num_ops), search.graph.ideal_cost)


def _training_step(layers: int) -> Graph:
    """A chain of layers, forward and back: gradients read the values of their layer."""
    forward = [(op, op + 1) for op in range(layers - 1)]
    backward = [(2 * layers - 2 - op, 2 * layers - 1 - op) for op in range(layers - 1)]
    saved = [(op, 2 * layers - 1 - op) for op in range(layers)]
    phases = ["forward"] * layers + ["backward"] * layers
    memory = [10 - 6 * (op % 2) for op in range(2 * layers)]
    return Graph.from_arrays([1.0] * (2 * layers), memory, [*forward, *saved, (layers - 1, layers), *backward], phases=phases)


def main() -> int:
    began = time.perf_counter()
    print("compiling kernels; takes a minute the first time", flush=True)
    count = compile_kernels()
    print(f"{count} kernels are ready after {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
