"""Same input, same seed, same schedule: in any process, however its sets are ordered and however busy the machine is.

The time limit is so long that every search ends by itself. benchmarks/determinism.py does the same on more graphs.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Compute, Graph, networks
from checkmate.solvers.default.auto import relaxations
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Work
from checkmate.solvers.smallest_budget import least_peak_found
from support import random_graph

#: Seconds that no search needs, on any machine.
LIMIT = 600.0
#: Keeps a core busy until the process that started it is gone.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def training_graph(seed: int) -> Graph:
    graph = random_graph(random.Random(seed), max_ops=90, min_ops=12)
    assert any(op.phase == "backward" for op in graph.ops)
    return graph


def between(graph: Graph, share: float) -> int:
    return int(graph.min_working_set + share * (graph.no_recompute_peak - graph.min_working_set))


def solve(graph: Graph, share: float, gap: float, order: str = "given") -> list[Any]:
    found = checkmate.solve(graph, between(graph, share), gap=gap, order=order, time_limit=LIMIT)
    assert found.solve_seconds < 0.9 * LIMIT
    return [found.cost, found.lower_bound, [step.op if isinstance(step, Compute) else -1 - step.value for step in found.steps]]


#: So little for each phase that all of them have had their turn after a few units of work.
SHORT = replace(
    TUNING,
    relaxations=replace(TUNING.relaxations, quick=0.02, limit=0.1, lower_limit=0.05),
    climb=replace(TUNING.climb, work=2e6),
    annealing=replace(TUNING.annealing, work=2e6),
    nested=replace(TUNING.nested, share=0.5 / LIMIT),
    prices=replace(TUNING.prices, first_share=0.05 / LIMIT, share=0.1 / LIMIT, nested_share=0.3 / LIMIT),
    neighbourhoods=replace(TUNING.neighbourhoods, limit=0.05, moves=1000),
)


def all_phases(graph: Graph, share: float, work: float) -> list[Any]:
    """A search that reaches no gap before its work is used up: every phase comes to its limits."""
    search = Search(graph, between(graph, share), gap=0.0, time_limit=LIMIT, work=Work(work))
    relaxations(search, tuning=SHORT)
    assert search.work.used_up and search.best is not None and search.seconds() < 0.9 * LIMIT
    return [search.best_cost, search.lower_bound, search.work.done, list(search.best)]


def outcomes() -> list[Any]:
    """What must be the same in every process."""
    rows = [solve(training_graph(seed), 0.3, 1e-3) for seed in (31, 21, 38, 11)]  # of 13, 33, 65 and 69 ops
    rows += [solve(training_graph(seed), 0.3, 1e-3, "any") for seed in (46, 11)]
    rows += [solve(networks.transformer(4), 0.5, 1e-3)]
    rows += [all_phases(networks.mobilenet(), 0.01, 3.0), all_phases(networks.unet(), 0.03, 1.5)]
    for seed in (0, 17):
        least, proven = least_peak_found(training_graph(seed), units=0.5, seconds=LIMIT)
        rows.append([proven, least.sequence])
    return rows


def start(hash_seed: int) -> subprocess.Popen[str]:
    """This file as a program."""
    places = [str(Path(checkmate.__file__).parent.parent), str(Path(__file__).parent.parent)]
    return subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_find_the_same() -> None:
    answers = []
    for hash_seed, busy in ((1, 0), (2, 1)):
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            with start(hash_seed) as process:
                answers.append(process.communicate()[0])
        finally:
            for other in others:
                other.kill()
                other.wait()
    one, two = (json.loads(answer) for answer in answers)
    assert len(one) == len(two) == 11 and all(len(row) >= 2 for row in one)
    for number, (first, second) in enumerate(zip(one, two, strict=True)):
        assert first == second, f"search {number}"


if __name__ == "__main__":
    print(json.dumps(outcomes()))
