"""The largest batch of Checkmate's seven networks on a GPU of 16 GB at the cost of at most one more forward pass.

As in Jain et al., MLSys 2020, Section 6.4: activations and costs (FLOPs) grow with the batch, parameters and the rest do not. For
each network the largest batch that was found, the smallest that is proven to be too large, and for comparison the largest
without recomputation.

    python benchmarks/largest_batch.py [--networks vgg19 ...] [--budget 16GB] [--time-limit 300] [--seed 0] [--output largest_batch.json]

Exit code 1 if a batch breaks the budget or the cost.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from solver import NETWORKS, environment

import checkmate
from checkmate import Graph, networks

#: Of Checkmate's evaluation.
NAMES = tuple(name for name in NETWORKS if name != "transformer")


def largest(graph: Graph, budget: int, time_limit: float, seed: int) -> dict[str, Any]:
    """One network."""
    forward = sum(op.cost for op in graph.ops if op.phase != "backward")
    most = 1 + forward / graph.ideal_cost
    found = checkmate.max_batch_size(graph, budget, most, time_limit=time_limit, seed=seed)
    fixed, schedule = graph.fixed_memory, found.schedule
    return {
        "graph": graph.name,
        "without_recomputation": (budget - fixed) // (graph.no_recompute_peak - fixed),
        "batch": found.batch,
        "upper_bound": found.upper_bound,
        "max_overhead": most,
        "overhead": schedule.overhead,
        "peak": fixed + found.batch * (schedule.peak - fixed),
        "seconds": found.seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NAMES, help="default: those seven")
    parser.add_argument("--budget", default="16GB", help="of the GPU (default: 16GB)")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for each network (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("largest_batch.json"), help="JSON file (default: largest_batch.json)")
    options = parser.parse_args()
    budget = checkmate.parse_bytes(options.budget)
    print(f"{'graph':12} {'plain':>6} {'batch':>6} {'proven below':>12} {'overhead':>9} {'allowed':>8} {'seconds':>8}")
    rows = []
    for name in options.networks:
        row = largest(getattr(networks, name)(), budget, options.time_limit, options.seed)
        rows.append(row)
        sizes = f"{row['without_recomputation']:6} {row['batch']:6} {row['upper_bound'] + 1:12}"
        print(f"{row['graph']:12} {sizes} {row['overhead']:9.4f} {row['max_overhead']:8.4f} {row['seconds']:8.1f}", flush=True)
    settings = {"seed": options.seed, "budget": budget, "time_limit": options.time_limit}
    options.output.write_text(
        json.dumps({"environment": environment(), **settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    kept = all(row["peak"] <= budget and row["overhead"] <= row["max_overhead"] * (1 + 1e-9) for row in rows)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
