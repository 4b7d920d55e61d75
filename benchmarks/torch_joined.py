"""PyTorch models in five graphs against the same model in one: what does the plan of the joined graphs cost more?

Every model is five blocks. It is compiled as a whole (one graph), block by block (five sessions that find each other), and as a whole
with a graph break after each block. All three are planned under the same budgets in bytes, shares of the plain peak of the one graph,
with costs from the number of operations, and train 4 steps in a process of their own. What the processor reaches is measured once, for
all of them, so that equal ops cost the same everywhere.

A joined plan passes if its overhead is at most that of the one graph + 2 percentage points, its lower bound is no more than its cost,
and no less than the one graph's cost excludes (a joined schedule is also one of the one graph), and the measured peak of steps 2-4
keeps to the budget.

    python benchmarks/torch_joined.py [--time-limit 30] [--output torch_joined.json]

Exit code 1 if a plan fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.backends.common  # these two are loaded before processes are copied
import torch._functorch.aot_autograd
from torch import Tensor, nn
from torch_matrix import MEBI, environment
from torch_matrix_networks import LENGTH, WIDTH, Bottleneck, GatedLayer, Layer, NextLayer

import checkmate.torch
from checkmate.errors import CheckmateError
from checkmate.torch.ops import profile

BLOCKS, STEPS, EXAMPLES = 5, 4, 8
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)
POINTS = 0.02
ONE, JOINED = "one graph", ("block by block", "graph breaks")

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gpt": (lambda: Layer(causal=True), (EXAMPLES, LENGTH, WIDTH)),
    "llama": (GatedLayer, (EXAMPLES, LENGTH, WIDTH)),
    "resnet50": (lambda: Bottleneck(64, 64), (EXAMPLES, 64, 16, 16)),
    "convnext": (lambda: NextLayer(24), (EXAMPLES, 24, 16, 16)),
}


class Chain(nn.Module):
    """Blocks in a row, with a graph break after each or without."""

    def __init__(self, make: Callable[[], nn.Module], broken: bool):
        super().__init__()
        self.blocks, self.broken = nn.ModuleList(make() for _ in range(BLOCKS)), broken

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.broken:
                torch._dynamo.graph_break()
        return x


def in_full(measured: Callable[..., Any]) -> Callable[..., Any]:
    """What a device reaches, measured in as much room as that takes, and not in what the budget of a plan leaves."""
    return lambda device, dtype, limit=None: measured(device, dtype)


def trained(model: str, way: str, budget: int | str, time_limit: float) -> dict[str, Any]:
    """The plan, and what steps under it take. In a process that does nothing else."""
    make, shape = MODELS[model]
    profile.rates_of = in_full(profile.rates_of)
    torch.manual_seed(0)
    net = Chain(make, way == JOINED[1])
    for part in net.blocks if way == JOINED[0] else [net]:
        checkmate.torch.compile(part, budget, cost_model="flops", time_limit=time_limit, wait=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    peaks = []
    try:
        for step in range(STEPS):
            with checkmate.torch.measure("cpu") if step else nullcontext() as seen:
                net(torch.randn(*shape)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if seen is not None:
                peaks.append(seen.peak)
    except CheckmateError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    plan = checkmate.torch.plans(net)[-1]
    schedule = plan.schedule
    return {
        "error": None,
        "graphs": plan.num_graphs,
        "budget": plan.budget,
        "cost": schedule.cost,
        "overhead": schedule.overhead,
        "lower_bound": schedule.lower_bound,
        "ideal_cost": plan.graph.ideal_cost,
        "predicted_peak": plan.predicted_peak,
        "peak": max(peaks),
    }


def problems(joined: dict[str, Any], one: dict[str, Any]) -> list[str]:
    """What is wrong with a joined plan."""
    if joined["error"] or one["error"]:
        return [said for said in (joined["error"], one["error"]) if said]
    found = []
    if joined["overhead"] > one["overhead"] + POINTS:
        found.append(f"{100 * (joined['overhead'] - one['overhead']):.1f} points more than in one graph")
    # Costs are seconds by a model of the processor, added up in another order.
    if joined["lower_bound"] > joined["cost"] * (1 + 1e-6):
        found.append("the bound is above the cost")
    if one["lower_bound"] / one["ideal_cost"] > joined["overhead"] * (1 + 1e-6):
        found.append("it costs less than the bound of the one graph allows")
    if joined["peak"] > joined["budget"]:
        found.append(f"{joined['peak'] - joined['budget']} bytes over the budget")
    return found


def line(row: dict[str, Any]) -> str:
    """Of the table; memory in MiB."""
    start = f"{row['model']:10} {row['share']:5.0%} {row['way']:15}"
    if row["error"]:
        return f"{start} {row['error']}"
    bound = row["lower_bound"] / row["ideal_cost"]
    figures = f"{row['graphs']:6} {row['budget'] / MEBI:8.3f} {row['peak'] / MEBI:8.3f} {row['overhead']:8.4f} {bound:8.4f}"
    return f"{start} {figures} {'FAILS: ' + '; '.join(row['problems']) if row['problems'] else ''}".rstrip()


HEADER = f"{'model':10} {'share':>5} {'way':15} {'graphs':>6} {'budget':>8} {'peak':>8} {'overhead':>8} {'bound':>8}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--models", nargs="+", choices=tuple(MODELS), metavar="MODEL", default=list(MODELS), help="(default: all)"
    )
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each search of a plan (default: 30)")
    parser.add_argument("--output", type=Path, default=Path("torch_joined.json"), help="JSON file (default: torch_joined.json)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    data = {"environment": environment(0), "time_limit": options.time_limit, "points": POINTS, "rows": rows}
    print(HEADER, flush=True)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:

        def ask(model: str, way: str, budget: int | str) -> dict[str, Any]:
            return pool.apply(trained, (model, way, budget, options.time_limit))

        for model in options.models:
            plain = ask(model, ONE, "100%")["budget"]
            for share in SHARES:
                one = ask(model, ONE, int(share * plain))
                results = {ONE: one, **{way: ask(model, way, int(share * plain)) for way in JOINED}}
                for way, result in results.items():
                    wrong = [] if way == ONE else problems(result, one)
                    rows.append({"model": model, "share": share, "way": way, **result, "problems": wrong})
                    print(line(rows[-1]), flush=True)
                options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    failed = sum(bool(row["problems"]) for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} plans pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
