"""Time, memory and proven gap of the default method against the number of ops: transformers and residual conv nets, any depth.

Every search runs in a process of its own, so that its peak memory is its own; small searches before it load what searches load.

    python benchmarks/solver_scale.py [--families transformer residual] [--ops 100 ... 20000] [--budgets 70% 50% 30%]
        [--time-limit 120] [--gap 0.001] [--seed 0] [--output scale.json] [--plot scale.png]

Exit code 1 if a search of the largest size takes more than 120 s or 4 GiB, or leaves a gap above 1%, or if a bound, as it was proven,
is above the cost of the schedule.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from solver import budget_of, environment

import checkmate
from checkmate import Graph, networks
from checkmate.float_rounding import summation_error
from checkmate.networks.layers import Layers, build
from checkmate.report import plot_curves

OPS = (100, 300, 1000, 3000, 10000, 20000)
BUDGETS = ("70%", "50%", "30%")
#: What the largest size must keep to: seconds, bytes of the whole process, gap.
MOST_SECONDS, MOST_BYTES, MOST_GAP = 120.0, 4 << 30, 0.01


def residual(blocks: int) -> Graph:
    """A chain of residual blocks of two convolutions each on 56 x 56 pixels and 64 channels: 14 ops per block, and 3."""

    def network(net: Layers) -> None:
        x = net.conv("stem", net.input, 64)
        for block in range(1, blocks + 1):
            y = net.activation(f"relu{block}_1", net.norm(f"norm{block}_1", net.conv(f"conv{block}_1", x, 64)))
            y = net.norm(f"norm{block}_2", net.conv(f"conv{block}_2", y, 64))
            x = net.activation(f"relu{block}_2", net.add(f"add{block}", x, y))

    return build(f"residual{blocks}", (56, 56, 3), 1, network)


#: name -> (graph of so many layers, ops per layer, ops beside them)
FAMILIES = {"transformer": (networks.transformer, 34, 11), "residual": (residual, 14, 3)}


def graph_of(family: str, ops: int) -> Graph:
    """The graph of that family with about so many ops, and at least the number asked for from 10,000 on."""
    make, per_layer, others = FAMILIES[family]
    layers = (ops - others) / per_layer
    return make(math.ceil(layers) if ops >= 10_000 else max(1, round(layers)))


def search(family: str, ops: int, text: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """One search, in this process; None where the budget is below the minimum."""
    for warm in (networks.transformer(12), networks.transformer(120)):
        checkmate.solve(warm, "60%", gap=0.0, time_limit=1.0, seed=options.seed)
    before = time.perf_counter()
    graph = graph_of(family, ops)
    budget = budget_of(graph, text)
    if budget is None:
        return None
    began = time.perf_counter()
    bounds = [graph.ideal_cost]
    schedule = checkmate.solve(
        graph,
        budget,
        time_limit=options.time_limit,
        gap=options.gap,
        seed=options.seed,
        progress=lambda report: bounds.append(report.lower_bound),
    )
    seconds = time.perf_counter() - began
    sound = max(bounds) <= schedule.cost + summation_error(10 * graph.num_ops, schedule.cost)
    figures = {key: getattr(schedule, key) for key in ("overhead", "gap", "lower_bound", "cost", "peak", "status")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row = {"family": family, "ops": graph.num_ops, "budget_text": text, "budget": budget, "seconds": seconds, "sound": sound}
    return row | {"graph_seconds": began - before, "peak_rss": peak, **figures}


def measured(family: str, ops: int, text: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """One search in a new process; prints a line."""
    command = [sys.executable, __file__, "--only", family, str(ops), text, "--time-limit", str(options.time_limit)]
    command += ["--gap", str(options.gap), "--seed", str(options.seed)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] | None = json.loads(process.stdout)
    if row is None:
        return None
    memory = row["peak_rss"] / 2**20
    print(
        f"{family:12} {row['ops']:6} {text:>6} {row['overhead']:9.5f} {100 * row['gap']:9.4f}% {row['seconds']:8.2f} {memory:8.0f}",
        flush=True,
    )
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--ops", nargs="+", type=int, default=list(OPS))
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), help="shares of the no-recompute peak")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for each search (default: 120)")
    parser.add_argument("--gap", type=float, default=0.001, help="stop once proven this near (default: 0.001)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("scale.json"), help="JSON file (default: scale.json)")
    parser.add_argument("--plot", type=Path, help="picture of time against size")
    parser.add_argument("--only", nargs=3, metavar=("FAMILY", "OPS", "BUDGET"), help="one search; prints JSON")
    options = parser.parse_args()
    if options.only:
        family, ops, text = options.only
        print(json.dumps(search(family, int(ops), text, options)))
        return 0
    print(f"{'family':12} {'ops':>6} {'budget':>6} {'overhead':>9} {'gap':>10} {'seconds':>8} {'MiB':>8}")
    wanted = [(family, ops, text) for family in options.families for ops in options.ops for text in options.budgets]
    rows = [row for one in wanted if (row := measured(*one, options)) is not None]
    settings = {"seed": options.seed, "time_limit": options.time_limit, "gap": options.gap}
    data = {"environment": environment(), **settings, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        curves = []
        for family in options.families:
            for text in options.budgets:
                mine = [row for row in rows if (row["family"], row["budget_text"]) == (family, text)]
                curves.append((f"{family} {text}", [row["ops"] for row in mine], [row["seconds"] for row in mine]))
        plot_curves(curves, options.plot, f"Time to a gap of {100 * options.gap:g}%", "ops", "seconds", log=(True, True))
    largest = [row for row in rows if row["ops"] >= max(options.ops)]
    kept = all(row["seconds"] <= MOST_SECONDS and row["peak_rss"] <= MOST_BYTES and row["gap"] <= MOST_GAP for row in largest)
    kept &= all(row["sound"] for row in rows)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
