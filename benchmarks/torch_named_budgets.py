"""PyTorch training under budgets that cannot be met: is the budget that the error names accepted at once, and does it hold?

Every pair is a model with a training script of `torch_matrix.py` and a budget below the minimum: 1%, and two shares of the minimum
that the first error proves. The budget that the error names is given to two new processes, which train 4 steps. The pair passes if
neither raises anything and the measured peak of each step keeps to the named budget. The first step is measured in a process of its
own: a script's own memory is recorded in it, by the same profiler of which a process has one.

    python benchmarks/torch_named_budgets.py [--rows PATTERN ...] [--output torch_named_budgets.json]

Exit code 1 if a pair fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.backends.common  # these two are loaded before processes are copied
import torch._functorch.aot_autograd
from torch_matrix import MEBI, environment, trained, wanted
from torch_matrix_networks import TASKS
from torch_matrix_script import FEATURES, Run

#: Of several graphs: by a break before the loss, one for each block, two models in turn, experts that are chosen by what is
#: computed. Others have a loss inside and outside, several microbatches, two forward passes, batches that change.
ROWS = (
    "gpt/adamw",
    "gpt/accumulation",
    "gpt/regional",
    "bert/graph-break",
    "gan/two-optimizers",
    "routed/adamw",
    "t5/accumulation",
    "vit/average",
    "resnet50/sgd",
    "unet/loss-outside",
)
FIRST, SHARES = "1%", (0.8, 0.99)
STEPS = 4
#: Steps that are measured, by process.
MEASURED = (1,), (2, 3, 4)


def pair(row: str, way: str, budget: int | str, options: argparse.Namespace) -> dict[str, Any]:
    """What a budget is answered with, and what training under that answer shows."""
    task, feature = (table[name] for table, name in zip((TASKS, FEATURES), row.split("/"), strict=True))
    began = time.perf_counter()
    made: dict[str, Any] = {"row": row, "way": way, "budget": budget, "named": None, "proven": None, "peaks": {}, "warnings": []}

    def run(budget: int | str, measured: tuple[int, ...] = ()) -> dict[str, Any]:
        return trained(task, feature, Run(way, budget, options.time_limit, STEPS, measured), options.timeout)

    refused = run(budget)
    if refused["infeasible"] is None:
        problem = f"it is not refused: {refused['error'] or 'it trained'}"
    else:
        made |= {"named": refused["infeasible"]["smallest"], "proven": refused["infeasible"]["proven"]}
        results = [run(made["named"], measured) for measured in MEASURED]
        made["peaks"] = {step: peak for result in results for step, peak in result["peaks"].items()}
        made["warnings"] = sorted({message for result in results for message in result["warnings"]})
        problem = next((result["error"] for result in results if result["error"]), "") or _excess(made["peaks"], made["named"])
    return {**made, "problem": problem, "passed": not problem, "seconds": time.perf_counter() - began}


def _excess(peaks: dict[str, int], budget: int) -> str:
    return ", ".join(f"step {step} is {peak - budget} bytes over" for step, peak in peaks.items() if peak > budget)


def line(made: dict[str, Any]) -> str:
    """Of the table; memory in MiB."""
    asked = made["budget"] if isinstance(made["budget"], str) else f"{made['budget'] / MEBI:.3f}"
    peaks = " ".join(f"{peak / MEBI:8.3f}" for peak in made["peaks"].values())
    figures = (
        f"{made['row']:22} {made['way']:8} {asked:>8} {(made['proven'] or 0) / MEBI:8.3f} {(made['named'] or 0) / MEBI:8.3f}"
    )
    verdict = "passes" if made["passed"] else f"FAILS: {made['problem']}"
    return f"{figures} {peaks:35} {len(made['warnings']):5} {made['seconds']:7.0f} {verdict}"


HEADER = (
    f"{'model/script':22} {'way':8} {'asked':>8} {'proven':>8} {'named':>8} {'peaks of steps 1-4':35} {'warns':>5} {'seconds':>7}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="as in gpt/* (default: all)")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each search of a plan (default: 5)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each training (default: 300)")
    parser.add_argument(
        "--output", type=Path, default=Path("torch_named_budgets.json"), help="JSON file (default: torch_named_budgets.json)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    data: dict[str, Any] = {"environment": environment(0), "steps": STEPS, "time_limit": options.time_limit, "pairs": []}
    print(HEADER, flush=True)
    for number, row in enumerate(name for name in ROWS if wanted(name, options.rows)):
        way = ("function", "name")[number % 2]
        budgets: list[int | str] = [FIRST]
        for budget in budgets:  # it grows
            made = pair(row, way, budget, options)
            if budget == FIRST and made["proven"]:
                budgets += [int(share * made["proven"]) for share in SHARES]
            data["pairs"].append(made)
            print(line(made), flush=True)
            options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    passed = sum(made["passed"] for made in data["pairs"])
    print(f"{passed} of {len(data['pairs'])} pairs pass")
    return 0 if passed == len(data["pairs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
