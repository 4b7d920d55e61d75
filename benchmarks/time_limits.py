"""How far searches run beyond their time limit, on graphs that are hard on clocks: dense ones and long ones.

Every search has a budget that cannot be met without recomputation; each runs in a process of its own, after small searches that load
what searches load. Seconds beyond the limit are those of the whole call, the check of the schedule included.

    python benchmarks/time_limits.py [--graphs dense-1000 ... ] [--methods auto ...] [--limits 2 5 10] [--budgets 60% 1.3x]
        [--others] [--profile] [--output time_limits.json]

With `--others` also `minimum_budget`, which has a limit of its own, and `max_batch_size`. Exit code 1 if a call ends more than a
second late. With `--profile`, each search prints where its time went.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from solver import budget_of, environment

import checkmate
from checkmate import Graph, networks

#: Methods that look for a schedule under a budget; those of the paper's program refuse graphs of more than 500 ops, and dense-300:
#: dense-200 is about the largest that they take.
METHODS = (
    "auto",
    "auto any",
    "greedy",
    "lp-rounding",
    "milp",
    "milp-cbc",
    "chen-sqrt",
    "chen-greedy",
    "chen-greedy-linear",
    "griewank",
)
#: Methods that need a variable per pair of ops.
PAIRS = ("lp-rounding", "milp", "milp-cbc")
LIMITS = (2.0, 5.0, 10.0)
BUDGETS = ("60%", "1.3x")
#: Seconds that a call may take beyond its limit, and the limit that `minimum_budget` has of its own.
LATE, LEAST_PEAK = 1.0, 15.0


def dense(ops: int, edges: int, seed: int = 0) -> Graph:
    """A training step at random: every op reads as many earlier values as the number of edges allows, near ones and far ones."""
    rng = random.Random(seed)
    reads = edges / ops
    pairs: list[tuple[int, int]] = []
    for op in range(1, ops):
        pairs += [(source, op) for source in {op - 1, *(rng.randrange(op) for _ in range(round(2 * reads * op / ops)))}]
    phases = ["forward" if op < ops // 2 else "backward" for op in range(ops)]
    cost, memory = ([rng.uniform(0.5, 2.0) for _ in range(ops)], [rng.randrange(1, 100) << 20 for _ in range(ops)])
    return Graph.from_arrays(cost, memory, pairs, name=f"dense-{ops}", phases=phases)


#: name -> how it is made
GRAPHS: dict[str, Callable[[], Graph]] = {
    "dense-200": lambda: dense(200, 8000),
    "dense-300": lambda: dense(300, 20_000),
    "dense-1000": lambda: dense(1000, 250_000),
    "dense-5000": lambda: dense(5000, 400_000),
    "dense-30000": lambda: dense(30_000, 600_000),
    "transformer-3400": lambda: networks.transformer(100),
    "transformer-30000": lambda: networks.transformer(882),
}


def warm_up() -> None:
    """Load what searches load."""
    for graph, text in ((dense(60, 300), "70%"), (networks.transformer(4), "80%"), (networks.transformer(120), "60%")):
        for method in ("auto", "greedy", "chen-sqrt"):
            with suppress(checkmate.InfeasibleBudget):
                checkmate.solve(graph, text, method, time_limit=1.0, gap=0.0)
    with suppress(checkmate.InfeasibleBudget):
        checkmate.solve(dense(60, 300), "70%", order="any", time_limit=1.0, gap=0.0)
    checkmate.minimum_budget(dense(100, 600))


def call(graph: Graph, budget: int, method: str, limit: float) -> str:
    """What came of it, in a word."""
    name, _, order = method.partition(" ")
    try:
        if name == "minimum_budget":
            found = checkmate.minimum_budget(graph)
            return f"least {found.smallest_found / max(1, found.proven_minimum):.4f}"
        if name == "max_batch_size":
            most = checkmate.max_batch_size(graph, budget, time_limit=limit)
            return f"batch {most.batch} of {most.upper_bound}"
        schedule = checkmate.solve(graph, budget, name, order or "given", time_limit=limit, gap=0.0)
        return f"gap {schedule.gap:.4f}"
    except checkmate.InfeasibleBudget:
        return "infeasible"
    except checkmate.CheckmateError as error:
        return f"refused: {str(error)[:40]}"


def measured(name: str, text: str, method: str, limits: list[float], profile: bool) -> list[dict[str, Any]]:
    """A row per limit, in this process."""
    warm_up()
    rows = []
    for limit in limits:
        graph = GRAPHS[name]()  # a fresh one: nothing is known of it from the call before
        budget = 4 * graph.no_recompute_peak if method == "max_batch_size" else budget_of(graph, text)
        if budget is None:
            return []
        profiler = cProfile.Profile()
        began = time.perf_counter()
        outcome = profiler.runcall(call, graph, budget, method, limit) if profile else call(graph, budget, method, limit)
        seconds = time.perf_counter() - began
        if profile:
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(18)
        allowed = LEAST_PEAK if method == "minimum_budget" else limit
        row = {"graph": name, "ops": graph.num_ops, "budget": text, "method": method, "limit": limit}
        rows.append(row | {"seconds": seconds, "late": max(0.0, seconds - allowed), "outcome": outcome})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--limits", nargs="+", type=float, default=list(LIMITS))
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--others", action="store_true", help="also minimum_budget and max_batch_size")
    parser.add_argument("--profile", action="store_true", help="print where the time of each search went")
    parser.add_argument("--output", type=Path, default=Path("time_limits.json"), help="default: time_limits.json")
    parser.add_argument(
        "--only", nargs=3, metavar=("GRAPH", "BUDGET", "METHOD"), help="these searches in this process; prints JSON"
    )
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(*options.only, options.limits, options.profile)))
        return 0
    wanted = [(name, text, method) for name in options.graphs for text in options.budgets for method in options.methods]
    if options.others:
        wanted += [
            (name, options.budgets[0], method) for name in options.graphs for method in ("minimum_budget", "max_batch_size")
        ]
    rows: list[dict[str, Any]] = []
    print(f"{'graph':18} {'budget':>6} {'method':20} {'limit':>6} {'seconds':>8} {'late':>6}  outcome")
    for name, text, method in wanted:
        if method in PAIRS and GRAPHS[name]().num_ops > 500:
            continue
        limits = options.limits[:1] if method == "minimum_budget" else options.limits
        command = [sys.executable, __file__, "--only", name, text, method, "--limits", *map(str, limits)]
        command += ["--profile"] if options.profile else []
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for row in json.loads(process.stdout):
            rows.append(row)
            print(
                f"{name:18} {text:>6} {method:20} {row['limit']:6.1f} {row['seconds']:8.2f} {row['late']:6.2f}  {row['outcome']}",
                flush=True,
            )
    options.output.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["late"] > LATE for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
