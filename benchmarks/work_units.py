"""What a unit of work takes, of each kind: seconds of one core, which should be about one.

The default method counts its work (src/checkmate/solvers/interface/work_limits.py) to be the same in every run; these are the seconds behind
the counts. Processor time is measured, so that other work on the machine matters little. Programs of equal size differ by a factor of some units;
ratios between 0.2 and 5 are fine.

    python benchmarks/work_units.py [--seed 0] [--output work_units.json]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from solver import environment

from checkmate import Graph, networks
from checkmate.solvers.bounds.lagrangian_bound import LagrangianBound
from checkmate.solvers.bounds.nested_snapshot_bound import nested_bound
from checkmate.solvers.bounds.peak_bound import least_peak_bound
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.bounds.tail_bound import Tail
from checkmate.solvers.default.auto import auto
from checkmate.solvers.exact.best_first_search import Exact
from checkmate.solvers.heuristics.annealing import Anneal
from checkmate.solvers.heuristics.greedy_eviction import SETTINGS, Greedy
from checkmate.solvers.heuristics.nested_checkpointing import Nested
from checkmate.solvers.interface import work_limits as work
from checkmate.solvers.representation.graph_arrays import problem_of

#: A case: kind of work, graph, and what does some and says how many units that is.
Case = tuple[str, Graph, Callable[[], float]]


def capacity(graph: Graph, share: float) -> int:
    """Bytes without fixed memory, between the working set (0) and the peak without recomputation (1)."""
    least = graph.min_working_set - graph.fixed_memory
    return int(least + share * (graph.no_recompute_peak - graph.fixed_memory - least))


def relaxations(graph: Graph, share: float, snapshots: int, windows: bool) -> float:
    """Integer programs of a few units at most."""
    problem, limit = problem_of(graph), capacity(graph, share)
    over = np.flatnonzero(problem.profile > limit)
    stages = sorted({int(stage) for stage in np.linspace(over[0], over[-1], snapshots)})
    return SnapshotRelaxation(problem).solve(limit, stages, 60.0, 1e-7, windows=windows, work=3.0).work


def linear(graph: Graph) -> float:
    """The linear relaxation with one snapshot."""
    problem = problem_of(graph)
    return SnapshotRelaxation(problem).relax(capacity(graph, 0.2), [int(np.argmax(problem.profile))], 60.0).work


def annealing(graph: Graph, seed: int) -> float:
    """One run from the plain order."""
    budget = graph.fixed_memory + capacity(graph, 0.3)
    Anneal(problem_of(graph), budget, "given", seed).run(range(graph.num_ops), 100_000)
    return work.annealing(100_000, graph.num_ops)


def eviction(graph: Graph) -> float:
    """All settings, ten times."""
    greedy = Greedy(problem_of(graph))
    for _ in range(10):
        for setting in SETTINGS:
            greedy.run(graph.fixed_memory + capacity(graph, 0.3), setting, longest=8)
    return 10 * len(SETTINGS) * work.eviction(graph.num_ops)


def exact_search(graph: Graph) -> float:
    """As far as it goes."""
    search = Exact(graph, capacity(graph, 0.2))
    search.run(500_000)
    return work.exact_search(search.work)


def lagrangian(graph: Graph) -> float:
    """Some steps of the bound."""
    bound, done = LagrangianBound(problem_of(graph), capacity(graph, 0.1)), 0.0

    def count() -> bool:
        nonlocal done
        done += work.lagrangian(bound.entries)
        return False

    for _ in range(8):
        if not bound.exhausted:
            bound.step(count)
            bound.refine([])
    return done


def block_programs(graph: Graph) -> float:
    """The bound for one way to cut."""
    units = work.Work()
    nested_bound(problem_of(graph), capacity(graph, 0.1), 1, work=units)
    return units.done


def sets_of_values(graph: Graph) -> float:
    """The peak bound."""
    calls = 0

    def count() -> bool:
        nonlocal calls
        calls += 1
        return False

    least_peak_bound(problem_of(graph), graph.no_recompute_peak, count)
    return work.sets_of_values(200_000 * calls)


def tail(graph: Graph) -> float:
    """The bound of the second half."""
    units = work.Work()
    Tail(problem_of(graph), capacity(graph, 0.05), graph.num_ops // 2).bound(units)
    return units.done


def nested_cells(graph: Graph) -> float:
    """The dynamic program alone."""
    units = work.Work()
    limit = capacity(graph, 0.1)
    nested = Nested(problem_of(graph), auto, graph.num_ops // 25, limit, 0, work.Limits(units))
    units.done, began = 0.0, time.process_time()
    nested.run(graph.fixed_memory + limit)
    nested_cells.seconds = time.process_time() - began  # type: ignore[attr-defined]
    return units.done


def cases(seed: int) -> Iterator[Case]:
    """Small ones first: the first of a kind loads what it needs, and is not shown."""
    unet, mobile, deep, large = networks.unet(), networks.mobilenet(), networks.transformer(12), networks.transformer(40)
    small = Graph.from_arrays(
        [1.0] * 40,
        [random.Random(seed + i).randint(1, 9) for i in range(40)],
        [(i, i + 1) for i in range(39)] + [(i - 1, 39 - i) for i in range(1, 20)],
        phases=["forward"] * 20 + ["backward"] * 20,
    )
    for graph, share, snapshots, windows in ((unet, 0.1, 15, False), (mobile, 0.1, 20, True), (deep, 0.1, 10, True)):
        yield "integer programs", graph, lambda a=(graph, share, snapshots, windows): relaxations(*a)
    for graph in (deep, large, networks.transformer(120)):
        yield "linear programs", graph, lambda a=graph: linear(a)
    for graph in (unet, mobile, deep):
        yield "annealing", graph, lambda a=graph: annealing(a, seed)
    for graph in (unet, mobile, deep):
        yield "greedy eviction", graph, lambda a=graph: eviction(a)
    yield "exact search", small, lambda: exact_search(small)
    for graph in (unet, mobile, deep):
        yield "Lagrangian bound", graph, lambda a=graph: lagrangian(a)
    for graph in (mobile, deep):
        yield "programs of blocks", graph, lambda a=graph: block_programs(a)
    for graph in (unet, mobile):
        yield "sets of values", graph, lambda a=graph: sets_of_values(a)
    for graph in (mobile, deep, large):
        yield "tail bound", graph, lambda a=graph: tail(a)
    for graph in (mobile, deep, large):
        yield "nested checkpointing", graph, lambda a=graph: nested_cells(a)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("work_units.json"), help="JSON file (default: work_units.json)")
    options = parser.parse_args()
    rows, warmed = [], set()
    for kind, graph, run in cases(options.seed):
        if kind not in warmed:
            warmed.add(kind)
            run()
        began = time.process_time()
        units = run()
        seconds = time.process_time() - began
        if kind == "nested checkpointing":
            seconds = nested_cells.seconds  # type: ignore[attr-defined]
        rows.append({"kind": kind, "graph": graph.name, "ops": graph.num_ops, "units": units, "seconds": seconds})
        per_unit = seconds / units if units else float("nan")
        print(
            f"{kind:22} {graph.name[:20]:20} {graph.num_ops:6} ops {units:9.4f} units {seconds:9.4f} s {per_unit:8.2f} s/unit",
            flush=True,
        )
    data = {"environment": environment(), "seed": options.seed, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
