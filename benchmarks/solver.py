"""Every method on every instance at several budgets: overhead, proven bound, gap, seconds and peak.

Instances are the built-in networks of Checkmate's evaluation (at batch 1) and whatever graph files are named, or are in folders
that are named. Budgets are fixed memory plus a share of the bytes that the step without recomputation needs beyond it, and,
written as 1.02x, fixed memory plus a multiple of the largest working set; those below the minimum are left out.

The gap of a schedule is measured against the best bound that any method proved on that instance and budget, in its order of ops
or in any. The picture shows for every search of the first method how the gap it could prove by then fell with time.

    python benchmarks/solver.py [GRAPH ...] [--networks vgg19 ...] [--methods auto ...] [--budgets 90% 1.02x ...]
        [--orders given any] [--time-limit 60] [--gap 0.001] [--seed 0] [--output solver.json] [--plot solver.png]

Exit code 1 if a schedule breaks its budget, or a bound, as it was proven and not as a schedule reports it, is above the cost of a
schedule that any method found.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Contradiction, Graph, networks
from checkmate.float_rounding import summation_error
from checkmate.planning.environment import available_processors, processor_name
from checkmate.report import plot_curves

BUDGETS = ("90%", "70%", "50%", "35%", "1.02x")
METHODS = ("auto", "greedy", "lp-rounding", "chen-sqrt", "chen-greedy", "griewank", "keep-all-forward")
#: Of Checkmate's evaluation, and one since.
NETWORKS = ("fcn8", "mobilenet", "resnet50", "segnet", "transformer", "unet", "vgg16", "vgg19")
PACKAGES = ("checkmate", "numpy", "highspy")


def environment() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # run from a source tree
            versions[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return {"versions": versions, "system": platform.system(), "processor": processor_name(), "cores": available_processors()}


def instances(names: list[str], paths: list[Path]) -> list[Graph]:
    """The built-in networks of these names and the graphs in these files and folders."""
    files = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    return [getattr(networks, name)() for name in names] + [Graph.load(file) for file in files]


def budget_of(graph: Graph, text: str) -> int | None:
    """Bytes; None if no schedule fits."""
    if text.endswith("x"):
        room = math.ceil(float(text[:-1]) * (graph.min_working_set - graph.fixed_memory))
    else:
        room = int(float(text.rstrip("%")) / 100 * (graph.no_recompute_peak - graph.fixed_memory))
    budget = graph.fixed_memory + room
    return budget if graph.min_working_set <= budget else None


def search(graph: Graph, budget: int, method: str, order: str, options: argparse.Namespace) -> dict[str, Any]:
    """One search and the course it took."""
    course: list[tuple[float, float | None, float]] = []

    def record(report: checkmate.solvers.Progress) -> None:
        course.append((report.seconds, report.cost, report.lower_bound))

    row: dict[str, Any] = {"method": method, "order": order, "status": "infeasible", "overhead": None, "cost": None, "peak": None}
    row |= {"lower_bound": graph.ideal_cost, "note": "", "contradicted": False}
    began = time.perf_counter()
    try:
        schedule = checkmate.solve(
            graph, budget, method, order, time_limit=options.time_limit, gap=options.gap, seed=options.seed, progress=record
        )
    except checkmate.InfeasibleBudget:
        pass
    except checkmate.CheckmateError as error:
        row |= {"status": "failed", "note": str(error), "contradicted": isinstance(error, Contradiction)}
    else:
        row |= {key: getattr(schedule, key) for key in ("status", "overhead", "cost", "peak", "lower_bound")}
        course.append((schedule.solve_seconds, schedule.cost, schedule.lower_bound))
    # A schedule reports no bound above its cost; what was proven is what the search had.
    row["proven"] = max(graph.ideal_cost, *(bound for _, _, bound in course)) if course else graph.ideal_cost
    return row | {"seconds": time.perf_counter() - began, "course": course}


def compare(graph: Graph, text: str, budget: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All methods at one budget; prints a line for each."""
    rows = [search(graph, budget, method, order, options) for order in options.orders for method in options.methods]
    for row in rows:
        cost = row["cost"]
        # What holds for any order holds for the given one.
        bound = max(other["proven"] for other in rows if other["order"] in (row["order"], "any"))
        row["gap"] = None if cost is None else max(0.0, cost - bound) / bound if bound else 0.0
        # What would be a defect: it must not pass unseen in a table.
        row["sound"] = not row["contradicted"]
        if cost is not None:
            row["sound"] &= row["peak"] <= budget and bound <= cost + summation_error(10 * graph.num_ops, cost)
        row |= {"graph": graph.name, "ops": graph.num_ops, "budget": budget, "budget_text": text}
        figures = f"{'-':>10} {'-':>9}" if cost is None else f"{row['overhead']:10.5f} {100 * row['gap']:8.3f}%"
        line = f"{graph.name[:24]:24} {graph.num_ops:6} {text:>6} {row['method']:22} {row['order']:5} {figures}"
        print(f"{line} {row['seconds']:8.2f}", row["status"] if row["sound"] else "WRONG", flush=True)
    return rows


def course_of_gap(row: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds, and the gap in percent that was proven by then (at least 1e-5, for a logarithmic axis)."""
    seconds, gaps = [], []
    for moment, cost, bound in row["course"]:
        if cost is not None and bound:
            seconds.append(max(moment, 1e-3))
            gaps.append(max(1e-5, 100 * (cost - bound) / bound))
    return seconds, gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("graphs", nargs="*", type=Path, metavar="GRAPH", help="JSON files of graphs, or folders of them")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS), help="default: all")
    parser.add_argument("--methods", nargs="+", choices=checkmate.methods(), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), help=f"default: {' '.join(BUDGETS)}".replace("%", "%%"))
    parser.add_argument("--orders", nargs="+", choices=("given", "any"), default=["given"], help="default: given")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each search (default: 60)")
    parser.add_argument("--gap", type=float, default=0.001, help="stop once proven this near (default: 0.001)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("solver.json"), help="JSON file (default: solver.json)")
    parser.add_argument("--plot", type=Path, help="picture of the gap against time")
    options = parser.parse_args()
    small = networks.vgg16()
    checkmate.solve(small, small.min_working_set, time_limit=10)  # loads what searches load
    print(f"{'graph':24} {'ops':>6} {'budget':>6} {'method':22} {'order':5} {'overhead':>10} {'gap':>9} {'seconds':>8}")
    rows = []
    for graph in instances(options.networks, options.graphs):
        for text in options.budgets:
            budget = budget_of(graph, text)
            if budget is not None:
                rows += compare(graph, text, budget, options)
    settings = {"seed": options.seed, "time_limit": options.time_limit, "gap": options.gap}
    data = {"environment": environment(), **settings, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        first = [row for row in rows if row["method"] == options.methods[0] and row["course"]]
        curves = [(f"{row['graph']} {row['budget_text']} {row['order']}", *course_of_gap(row)) for row in first]
        title = f"Proven gap of {options.methods[0]} against time"
        plot_curves(curves, options.plot, title, "seconds", "gap (%)", steps=True, log=(True, True))
    return 0 if all(row["sound"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
