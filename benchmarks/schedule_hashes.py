"""A fingerprint of every schedule: a change of the code that is meant to change none leaves the file as it was.

Instances are the built-in networks, a transformer of 4 layers, random graphs (tests/support.py), and whatever graph files or folders
are named; each is solved by several methods at three budgets with one seed. A search is compared where it ended by itself, by its
gap or with its method, and not by the clock: the time limit is there so that the script ends. Rows that the clock ended are marked.

    python benchmarks/schedule_hashes.py [GRAPH ...] [--random 60] [--time-limit 60] [--gap 0.01] [--seed 0]
        [--output schedule_hashes.json] [--against OLD.json]

With `--against`, exit code 1 if a schedule, a cost or a bound differs from that file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Compute, Graph, networks

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from solver import NETWORKS, budget_of, environment, instances

from support import random_budget, random_graph

METHODS = ("auto", "greedy", "lp-rounding-randomized", "chen-sqrt", "chen-greedy", "chen-sqrt-linear", "griewank", "keep-all")
BUDGETS = ("80%", "55%", "1.3x")
#: A program of the paper's relaxation on more ops than this is ended by the clock.
SMALL = 60


def fingerprint(schedule: checkmate.Schedule) -> str:
    """Of the steps, to the last one."""
    text = " ".join(f"c{step.op}" if isinstance(step, Compute) else f"f{step.value}" for step in schedule.steps)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def row(graph: Graph, budget: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search."""
    began = time.perf_counter()
    result: dict[str, Any] = {"hash": None}
    try:
        found = checkmate.solve(graph, budget, method, time_limit=options.time_limit, gap=options.gap, seed=options.seed)
        result = {"hash": fingerprint(found), "cost": found.cost, "bound": found.lower_bound}
    except checkmate.InfeasibleBudget:
        pass
    seconds = time.perf_counter() - began
    return result | {"seconds": round(seconds, 3), "by_clock": seconds >= 0.9 * options.time_limit}


def rows(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All searches, by graph, budget and method; prints a line for each."""
    found: dict[str, dict[str, Any]] = {}

    def add(graph: Graph, name: str, text: str, budget: int, method: str) -> None:
        key = f"{name} {text} {method}"
        found[key] = row(graph, budget, method, options)
        print(f"{key:60} {found[key]['hash']} {found[key]['seconds']:8.2f}", flush=True)

    graphs = [*instances(list(NETWORKS), options.graphs), networks.transformer(layers=4)]
    for graph in graphs:
        for text in BUDGETS:
            budget = budget_of(graph, text)
            for method in METHODS if budget is not None else ():
                if not method.startswith("lp") or graph.num_ops <= SMALL:
                    add(graph, f"{graph.name}-{graph.num_ops}", text, budget or 0, method)
    for number in range(options.random):
        rng = random.Random(options.seed + number)
        graph = random_graph(rng, max_ops=rng.choice([8, 20, 60]))
        budget = random_budget(rng, graph)
        for method in METHODS:
            add(graph, f"random-{number}", str(budget), budget, method)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("graphs", nargs="*", type=Path, metavar="GRAPH", help="JSON files of graphs, or folders of them")
    parser.add_argument("--random", type=int, default=60, help="random graphs (default: 60)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each search (default: 60)")
    parser.add_argument("--gap", type=float, default=0.01, help="stop once proven this near (default: 0.01)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("schedule_hashes.json"), help="default: schedule_hashes.json")
    parser.add_argument("--against", type=Path, help="an earlier output to compare with")
    options = parser.parse_args()
    found = rows(options)
    settings = {"seed": options.seed, "time_limit": options.time_limit, "gap": options.gap}
    data = {"environment": environment(), **settings, "rows": found}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.against is None:
        return 0
    old = json.loads(options.against.read_text(encoding="utf-8"))["rows"]
    kept = [key for key in found if key in old and not (found[key]["by_clock"] or old[key]["by_clock"])]
    parts = ("hash", "cost", "bound")
    changed = [key for key in kept if any(found[key].get(part) != old[key].get(part) for part in parts)]
    for key in changed:
        print(f"changed: {key}: {old[key]} -> {found[key]}")
    print(f"{len(kept)} compared, {len(changed)} changed, {len(found) - len(kept)} ended by the clock or new")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
