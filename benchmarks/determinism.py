"""Same input, same seed, same schedule: every graph is solved in two processes, the second one beside a process that keeps a core busy.

The processes have different PYTHONHASHSEED, so that sets and dictionaries of strings come in another order. Graphs are random
training graphs (tests/support.py), graphs of benchmarks/tuning_instances.py, built-in networks, and whatever graph files or folders
are named. A search is compared where both ended by themselves (by the gap, or with nothing left to try); those that the time limit
ended are counted apart.

    python benchmarks/determinism.py [GRAPH ...] [--networks vgg16 unet mobilenet] [--layers 4] [--random 20] [--tuning 12]
        [--time-limit 120] [--gap 0.001] [--orders given any] [--seed 0] [--output determinism.json]

Exit code 1 if a schedule, a cost or a bound differs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Compute, Graph, networks

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from solver import NETWORKS, environment, instances
from tuning_instances import tuning_instances

from support import random_graph

#: Budgets, as shares between the largest working set and the peak without recomputation.
SHARES = (0.5, 0.2)
#: Keeps a core busy until the process that started it is gone.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
#: A search that ends this near its time limit may have been ended by it.
NEAR = 0.9


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Graph, int]]:
    """Name, graph and budget; the same in every process."""
    graphs, rng = instances(options.networks, options.graphs), random.Random(options.seed)
    if options.layers:
        graphs.append(networks.transformer(options.layers))
    drawn = (random_graph(rng, max_ops=90, min_ops=12) for _ in itertools.count())
    trained = (graph for graph in drawn if any(op.phase == "backward" for op in graph.ops))
    graphs += [*itertools.islice(trained, options.random), *tuning_instances(options.tuning, options.seed)]
    for number, graph in enumerate(graphs):
        for share in SHARES:
            budget = int(graph.min_working_set + share * (graph.no_recompute_peak - graph.min_working_set))
            yield f"{number} {graph.name} ({graph.num_ops} ops) {share}", graph, budget


def solved(graph: Graph, budget: int, order: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search: a fingerprint of its steps, what it costs and what is proven."""
    began = time.perf_counter()
    try:
        found = checkmate.solve(graph, budget, order=order, time_limit=options.time_limit, gap=options.gap, seed=options.seed)
    except checkmate.InfeasibleBudget as error:
        row: dict[str, Any] = {"steps": None, "least": error.smallest_found, "proven": error.proven_minimum}
    else:
        text = " ".join(f"c{step.op}" if isinstance(step, Compute) else f"f{step.value}" for step in found.steps)
        row = {"steps": hashlib.sha256(text.encode()).hexdigest()[:16], "cost": found.cost, "bound": found.lower_bound}
    seconds = time.perf_counter() - began
    return {"result": row, "seconds": round(seconds, 2), "by_clock": seconds > NEAR * options.time_limit}


def child(options: argparse.Namespace) -> None:
    """What each of the two processes does: a line of JSON for every search."""
    for name, graph, budget in cases(options):
        for order in options.orders:
            print(json.dumps({"name": f"{name} {order}"} | solved(graph, budget, order, options)), flush=True)


def run(hash_seed: int, busy: bool) -> list[dict[str, Any]]:
    """The lines of one process."""
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        done = subprocess.run(
            [sys.executable, *sys.argv, "--child"],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        if other is not None:
            other.kill()
            other.wait()
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("graphs", nargs="*", type=Path, metavar="GRAPH", help="JSON files of graphs, or folders of them")
    names = ["vgg16", "unet", "mobilenet"]
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=names, help=f"default: {' '.join(names)}")
    parser.add_argument("--layers", type=int, default=4, help="of a transformer; 0: none (default: 4)")
    parser.add_argument("--random", type=int, default=20, help="random training graphs (default: 20)")
    parser.add_argument("--tuning", type=int, default=12, help="graphs of benchmarks/tuning_instances.py (default: 12)")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for each search (default: 120)")
    parser.add_argument("--gap", type=float, default=1e-3, help="stop once proven this near (default: 0.001)")
    parser.add_argument("--orders", nargs="+", choices=["given", "any"], default=["given", "any"], help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("determinism.json"), help="JSON file (default: determinism.json)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    rows = []
    for one, two in zip(run(1, False), run(2, True), strict=True):
        clock = one["by_clock"] or two["by_clock"]
        same = one["result"] == two["result"]
        answer = "same" if same else ("ended by the clock" if clock else "DIFFERENT")
        rows.append({"name": one["name"], "same": same, "by_clock": clock, "runs": [one, two]})
        print(f"{one['name']:52} {one['seconds']:8.2f} s {two['seconds']:8.2f} s  {answer}")
    compared = [row for row in rows if not row["by_clock"]]
    different = [row for row in compared if not row["same"]]
    print(
        f"{len(compared)} searches ended by themselves, {len(different)} of them differ; {len(rows) - len(compared)} by the clock"
    )
    settings = {
        key: getattr(options, key) for key in ("networks", "layers", "random", "tuning", "time_limit", "gap", "orders", "seed")
    }
    data = {"environment": environment(), **settings, "different": len(different), "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
