"""Models whose planned steps are compiled by Inductor (`inner="inductor"`), under budgets that are shares of what plain Inductor takes.

Each training runs in a process of its own, four steps of SGD on CPU with dropout and batch norm as the networks have them: once with
plain `torch.compile(backend="inductor")`, and once under each budget. Peaks are those of `checkmate.torch.measure` around steps 2-4:
parameters, gradients and inputs count. Plain Inductor recomputes by itself what it can fuse, so that its peak is no longer one without
recomputation.

A row passes if all measured peaks keep to the budget and at most one plan was made in place of another. Losses and final parameters
are compared with those of plain Inductor: to the bit, and as the largest difference relative to the largest number of that tensor. So are
those of plain Inductor in a second process: some models differ from themselves (additions to rows of embeddings by several threads).
Seconds of the first step (everything is compiled in it) and of later ones are noted and not judged: whatever else the machine does is
in them.

    python benchmarks/torch_inductor.py [--rows gpt/*] [--output torch_inductor.json]

Rows that the output file has already are kept; rows that passed are not run again. Exit code 1 if a row fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from torch_matrix import environment
from worker import result_of

MODELS = ("gpt", "llama", "vit", "resnet50", "unet", "densenet121")
SHARES = (1.0, 0.9, 0.8, 0.7)
#: Seconds for the search for a schedule, of which every plan waits for the end.
SEARCH = 5.0
STEPS, EXAMPLES, MEBI = 4, {"gpt": 16, "llama": 16, "vit": 32}, 2**20
OTHER_EXAMPLES = 16


def trained(model: str, budget: int | None) -> dict[str, Any]:
    """Losses, peaks and plans of one training. In a process that does nothing else.

    Args:
        budget: bytes; None: plain Inductor.
    """
    import torch
    from torch_matrix_networks import TASKS

    import checkmate.torch
    from checkmate.errors import InfeasibleBudget

    torch.set_num_threads(2)
    task = TASKS[model]
    torch.manual_seed(0)
    net = task.build()
    if budget is None:
        torch._inductor.config.fx_graph_cache = False
        run: Any = torch.compile(net)
    else:
        run = checkmate.torch.compile(net, budget, inner="inductor", time_limit=SEARCH, gap=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(1)
    result: dict[str, Any] = {"losses": [], "peaks": [], "seconds": [], "plans": 0}
    known = set()
    said: list[str] = []
    for number in range(STEPS):
        *inputs, target = task.batch(number, EXAMPLES.get(model, OTHER_EXAMPLES), task.length)
        began = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if number:
                    with checkmate.torch.measure("cpu") as seen:
                        loss = _step(run, inputs, target, task.loss, optimizer)
                    result["peaks"].append(seen.peak)
                else:
                    loss = _step(run, inputs, target, task.loss, optimizer)
            except InfeasibleBudget as error:
                return {**result, "refused": str(error), "named": error.smallest_found}
        said += [str(one.message) for one in caught if "checkmate" in one.category.__module__]
        result["seconds"].append(round(time.perf_counter() - began, 3))
        result["losses"].append(loss)
        if budget is not None:
            known |= {id(plan) for plan in checkmate.torch.plans(net)}
            result["plans"] = len(known)
    if budget is not None:
        (plan,) = checkmate.torch.plans(net)
        result |= {
            "measured": plan.measured_peak,
            "overhead": plan.schedule.overhead,
            "margin": plan.margin,
            "ops": plan.graph.num_ops,
        }
    result["said"] = said
    result["parameters"] = [tensor.flatten().double().tolist() for tensor in [*net.parameters(), *net.buffers()]]
    return result


def _step(run: Any, inputs: list[Any], target: Any, loss_of: Any, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss = loss_of(run(*inputs), target)
    loss.backward()
    optimizer.step()
    return float(loss)


def compared(row: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """How the numbers of a row differ from plain Inductor's."""
    differences = [
        max(abs(a - b) for a, b in zip(one, other, strict=True)) / max(1e-12, *(abs(b) for b in other))
        for one, other in zip(row["parameters"], plain["parameters"], strict=True)
    ]
    return {
        "same losses": row["losses"] == plain["losses"],
        "same parameters": row["parameters"] == plain["parameters"],
        "difference": max(differences),
    }


def is_same(found: dict[str, Any]) -> bool:
    """Of what `compared` found: to the bit."""
    return bool(found["same losses"] and found["same parameters"])


def problems(row: dict[str, Any]) -> list[str]:
    """Why a row does not pass."""
    if "refused" in row:
        return [f"refused: {row['named'] / MEBI:.1f} MiB would do"]
    found = []
    if max(row["peaks"]) > row["budget"]:
        found.append(f"took {max(row['peaks']) - row['budget']} bytes too much")
    if row["plans"] > 2:
        found.append(f"{row['plans']} plans")
    return found


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    if "refused" in row:
        return f"{name:<20}{row['budget'] / MEBI:>9.2f}  {'; '.join(problems(row))}"
    same = "same" if is_same(row) else f"{row['difference']:.0e}"
    return (
        f"{name:<20}{row['budget'] / MEBI:>9.2f}{max(row['peaks']) / MEBI:>9.2f}{row['plans']:>6}{row['overhead']:>9.3f}"
        f"{same:>9}{row['seconds'][0]:>8.1f}{min(row['seconds'][1:]):>9.3f}  {'; '.join(problems(row)) or 'pass'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="*", help="MODEL/SHARE; * and ? stand for anything")
    parser.add_argument("--output", default="torch_inductor.json", help="file in benchmarks/results")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        model, budget = json.loads(options.worker)
        print(json.dumps(trained(model, budget)))
        return 0
    path = Path(__file__).parent / "results" / options.output
    rows: dict[str, Any] = json.loads(path.read_text())["rows"] if path.exists() else {}
    print(f"{'model/share':<20}{'budget':>9}{'peak':>9}{'plans':>6}{'modelled':>9}{'results':>9}{'first s':>8}{'step s':>9}")
    for model in MODELS:
        names = [f"{model}/{share:g}" for share in SHARES]
        wanted = [name for name in names if fnmatch(name, options.rows) and (name not in rows or problems(rows[name]))]
        if not wanted:
            continue
        plain, again = result_of(__file__, [model, None]), result_of(__file__, [model, None])
        repeated = compared(again, plain)
        for name in wanted:
            budget = int(max(plain["peaks"]) * float(name.partition("/")[2]))
            row = {
                "budget": budget,
                "plain": max(plain["peaks"]),
                "search seconds": SEARCH,
                **result_of(__file__, [model, budget]),
            }
            row |= {"plain seconds": plain["seconds"], "plain again": repeated}
            if "refused" not in row:
                row |= compared(row, plain)
            row.pop("parameters", None)
            rows[name] = row
            path.write_text(json.dumps({"environment": environment(0), "rows": rows}, indent=1) + "\n")
            print(line(name, row), flush=True)
    everything = [rows.get(f"{model}/{share:g}") for model in MODELS for share in SHARES]
    passed = sum(row is not None and not problems(row) for row in everything)
    print(f"{passed} of {len(everything)} rows pass")
    trained_rows = [row for row in everything if row is not None and "refused" not in row]
    same = sum(map(is_same, trained_rows))
    unlike = sum(not is_same(row) and not is_same(row["plain again"]) for row in trained_rows)
    print(f"{same} are equal to plain Inductor to the bit; in {unlike} of the others it is not equal to itself")
    return 0 if passed == len(everything) else 1


if __name__ == "__main__":
    sys.exit(main())
