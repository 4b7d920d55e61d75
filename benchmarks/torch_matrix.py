"""PyTorch training under budgets, many architectures with what scripts do: does the budget hold for the whole step?

Every row is an architecture and a feature of the training script, and every training of it a process of its own, 8 steps from the
same weights and over the same batches:

- plain, twice: its peak over the steps from the second on (all tensors that live, from the batch to the optimizer), and whether it
  repeats itself;
- under a budget of 1%, which must be refused: the error names the minimum;
- under 90% and 60% of the plain peak, in bytes, and under 1.1 x the minimum. Where one is refused, under the budget that the error
  names instead, or the warning of a script that accumulates gradients: the error comes before anybody can know of them.

A row passes if the measured peaks of steps 2, 3 and 8 keep to each budget, losses of all steps and final parameters and buffers are
bit-equal to plain ones (where those repeat themselves; to those of PyTorch's own aot_eager where that differs from plain), and every
graph that PyTorch handed over is planned and nothing else ran where gradients flow, or a warning told so ("in_silence" is what none
told). The rows take turns in how they are compiled: by checkmate.torch.compile ("function") and by torch.compile ("name").

    python benchmarks/torch_matrix.py [--rows PATTERN ...] [--levels LEVEL ...] [--resume | --again] [--extra-path FOLDER]
        [--jobs 1] [--output torch_matrix.json]

With --resume, levels that a row lacks are added to it. Every level notes the commit of the package that it ran with.

Exit code 1 if a row fails. Rows of transformers, timm and diffusers are skipped where these are not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from worker import forked

MEBI = 2**20
#: Trainings by level, and the share of the plain peak.
SHARES = {"90%": 0.9, "60%": 0.6}
LEAST = "1.1 x minimum"
ROWS = {
    "gpt": "sgd adamw accumulation graph-break loss-outside autocast checkpoint regional tied lora freezing two-forwards retain-graph "
    "zero-grad-to-zero batch-sizes lengths average hooks evaluation clipping scaler ddp",
    "sparse": "sparse-embedding",
    "llama": "accumulation lora lengths autocast",
    "bert": "adamw lengths graph-break",
    "t5": "accumulation tied",
    "mixtral": "adamw accumulation",
    "routed": "adamw",
    "mamba": "adamw",
    "lstm": "adamw accumulation",
    "vit": "adamw clipping average",
    "resnet50": "sgd accumulation autocast evaluation ddp",
    "convnext": "adamw checkpoint",
    "efficientnet": "sgd two-forwards",
    "densenet121": "sgd checkpoint",
    "swin": "adamw freezing",
    "unet": "adamw loss-outside accumulation",
    "gan": "two-optimizers",
    "hf-gpt2": "adamw accumulation lengths checkpoint",
    "hf-llama": "accumulation lora",
    "hf-bert": "adamw",
    "hf-t5": "accumulation",
    "hf-vit": "adamw",
    "hf-mixtral": "adamw",
    "hf-mamba": "adamw",
    "timm-resnet50": "sgd accumulation",
    "timm-convnext": "adamw",
    "timm-efficientnet": "sgd",
    "timm-densenet121": "sgd",
    "timm-swin": "adamw",
    "diffusers-unet": "adamw",
}


def rows() -> list[tuple[str, str, str]]:
    """Architecture, feature, and way of compiling."""
    pairs = [(architecture, feature) for architecture, features in ROWS.items() for feature in features.split()]
    return [(*pair, ("function", "name")[number % 2]) for number, pair in enumerate(pairs)]


def environment(seed: int) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    from importlib.metadata import PackageNotFoundError, version

    from solver import environment as machine

    made = machine()
    for package in ("torch", "transformers", "timm", "diffusers"):
        try:
            made["versions"][package] = version(package)
        except PackageNotFoundError:
            made["versions"][package] = None
    return {**made, "seed": seed}


# --- one row, in a process of its own ---


def work(name: list[str], time_limit: float, seconds: float, chosen: list[str], had: dict[str, Any]) -> dict[str, Any]:
    """The trainings of a row, each in a process that begins with the packages loaded and nothing else.

    Args:
        name: architecture, feature, and way of compiling.
        had: the row as far as it is known; its trainings are not repeated.
    """
    import torch
    from torch_matrix_networks import TASKS
    from torch_matrix_packages import PACKAGED
    from torch_matrix_script import FEATURES, Run

    architecture, feature, way = name
    package, task = PACKAGED[architecture] if architecture in PACKAGED else (None, TASKS.get(architecture))
    if package is not None and find_spec(package) is None:
        return {"skipped": f"{package} is not installed"}
    assert task is not None
    torch.set_num_threads(1)
    import torch._dynamo.backends.common
    import torch._functorch.aot_autograd

    if package is not None:
        task.build()  # loads the package

    def run(way: str, budget: int | str | None = None) -> dict[str, Any]:
        return trained(task, FEATURES[feature], Run(way, budget, time_limit), seconds)

    row = {"levels": {}, "refused": None, "minimum": None, **had}
    if "peak" not in row:
        plain, again = run("plain"), run("plain")
        row["plain"] = plain
        if plain["error"] is not None:
            return row
        row |= {"peak": max(plain["peaks"].values()), "repeats": same(plain, again)}
    if row["refused"] is None and LEAST in chosen:
        row["refused"] = run(way, "1%")
        row["minimum"] = (row["refused"]["infeasible"] or {}).get("smallest")
    for level in chosen:
        given = budget = int(1.1 * (row["minimum"] or 0) if level == LEAST else SHARES[level] * row["peak"])
        if not budget:
            continue
        result = run(way, budget)
        for _ in range(_NAMED):
            named = named_by(result)
            if named <= budget:
                break
            if level == LEAST:
                row["minimum"] = named
            budget = int(1.1 * named) if level == LEAST else named
            result = run(way, budget)
        noted = {"budget": budget, "was_named": level != LEAST and budget != given, "time_limit": time_limit, "commit": commit()}
        row["levels"][level] = result | noted
    _compare(row, lambda: run("aot_eager"))
    return row


#: What is named is tried, and once more if gradients of earlier microbatches, which nobody knew of at first, leave too little room.
_NAMED = 2
#: Words of the warnings that name a budget.
_NO_PLAN = ("no plan was found that takes less", "cannot be planned")


def named_by(result: dict[str, Any]) -> int:
    """The budget that the error names, or the warning that no plan was found; 0 if there is none."""
    if result["infeasible"]:
        return int(result["infeasible"]["smallest"])
    said = [message for message in result["warnings"] if any(words in message for words in _NO_PLAN)]
    named = (
        found for message in said for found in re.findall(r"(?:the step takes|ask for at least) [^(]*\((\d+) bytes\)", message)
    )
    return max(map(int, named), default=0)


def _compare(row: dict[str, Any], compiled: Callable[[], dict[str, Any]]) -> None:
    """Note which levels equal plain training, or, where all that PyTorch compiles differs from it, what PyTorch compiled."""
    plain, results = row["plain"], row["levels"].values()
    reference, row["compared_with"] = plain, "plain"
    if row["repeats"] and not all(same(plain, result) or result["error"] for result in results):
        other = compiled()  # PyTorch's own tracing may lead to other kernels
        if not same(plain, other):
            reference, row["compared_with"] = other, "aot_eager"
    for result in results:
        result["equal"] = same(reference, result)


def commit() -> str:
    """Of the package that runs; "-dirty" if it was changed since."""
    import checkmate

    folder = Path(checkmate.__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=12", "--dirty"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip() or "unknown"


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Losses of all steps and the final parameters and buffers, bit for bit."""
    return all(one.get(key) == other.get(key) for key in ("losses", "state"))


def trained(task: Any, feature: Any, run: Any, seconds: float) -> dict[str, Any]:
    """`train` in a process of its own: this one, copied."""
    from torch_matrix_script import train

    failed: dict[str, Any] = {"losses": [], "peaks": {}, "infeasible": None, "warnings": [], "seconds": seconds}
    return forked(partial(train, task, feature, run), seconds, failed)


# --- the verdict ---


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row; nothing if it passes."""
    if row.get("error"):
        return [row["error"]]
    if row["plain"]["error"] is not None:
        return [f"plain training fails: {row['plain']['error']}"]
    found = []
    if row["refused"] is not None and row["minimum"] is None:
        found.append(f"1% is not refused: {row['refused']['error'] or 'it trained'}")
    for level, result in row["levels"].items():
        found += [f"{level}: {problem}" for problem in _problems_of(result, row["repeats"])]
    return found


def _problems_of(result: dict[str, Any], repeats: bool) -> list[str]:
    if result["error"] is not None:
        return [result["error"]]
    found = []
    over = {step: peak for step, peak in result["peaks"].items() if peak > result["budget"]}
    if over:
        said = ", ".join(
            f"step {step} by {peak - result['budget']} ({peak / result['budget'] - 1:.1%})" for step, peak in over.items()
        )
        found.append(f"over budget: {said}, {'warned' if result['warnings'] else 'no warning'}")
    if repeats and not result["equal"]:
        found.append("losses or parameters differ")
    return found + [f"uncovered in silence: {what}" for what in in_silence(result)]


#: Words of the warnings that something is outside all plans.
_TOLD = ("under the budget", "outside the plan", "cannot be planned")


def in_silence(result: dict[str, Any]) -> list[str]:
    """What ran outside all plans in a training, unless a warning told that something does."""
    if result["error"] is not None or any(words in message for message in result["warnings"] for words in _TOLD):
        return []
    if not result["parts"]:
        return ["no graph came"]
    found = list(result["uncovered"])
    if result["handed_over"] > result["parts"] or result["planned_parts"] < result["parts"]:
        found.append(f"{result['handed_over']} graphs came, {result['parts']} were taken, {result['planned_parts']} are planned")
    return found


def line(row: dict[str, Any]) -> str:
    """Of the table; memory in MiB."""
    start = f"{row['architecture'] + '/' + row['feature']:30} {row['way']:8}"
    if row.get("skipped"):
        return f"{start} skipped: {row['skipped']}"
    if row.get("error") or "minimum" not in row:
        return f"{start} FAILS: {'; '.join(problems(row))}"
    figures = f"{row['peak'] / MEBI:7.2f} {(row['minimum'] or 0) / MEBI:7.2f}"
    for result in row["levels"].values():
        peak = max(result["peaks"].values(), default=0)
        figures += f" {result['budget'] / MEBI:8.2f}{'*' if result['was_named'] else ' '}{peak / MEBI:7.2f}"
    graphs = max((result.get("parts", 0) for result in row["levels"].values()), default=0)
    told = sum(len(result["warnings"]) for result in row["levels"].values())
    verdict = "passes" if row["passed"] else "FAILS: " + "; ".join(row["problems"])
    note = "" if row["compared_with"] == "plain" else "(equal to aot_eager, which differs from plain) "
    note += "" if row["repeats"] else "(plain differs from itself) "
    return f"{start} {figures} {graphs:6} {told:5} {row['seconds']:7.0f} {note}{verdict}"


HEADER = (
    f"{'row':30} {'way':8} {'plain':>7} {'minimum':>7} {'90%':>8}  {'peak':>7} {'60%':>8}  {'peak':>7} {'1.1xmin':>8}  {'peak':>7} "
    f"{'graphs':>6} {'warns':>5} {'seconds':>6}\n(* the budget that an error named)"
)


# --- all rows ---


def row_of(architecture: str, feature: str, way: str, options: argparse.Namespace, had: dict[str, Any]) -> dict[str, Any]:
    """A row from a process of its own, or what it ended with; what it had before stays in it."""
    began = time.perf_counter()
    lacking = [level for level in options.levels if level not in had.get("levels", {})]
    command = [
        sys.executable,
        __file__,
        "--worker",
        json.dumps([[architecture, feature, way], options.time_limit, options.timeout, lacking]),
    ]
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command += ["--extra-path", str(options.extra_path)] if options.extra_path else []
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.run(
            command,
            input=json.dumps(had),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, **settings},
            check=False,
        )
        said.seek(0)
        last = said.read().strip().splitlines()[-1:]
    row: dict[str, Any] = {**had, "architecture": architecture, "feature": feature, "way": way}
    if process.returncode:
        row["error"] = f"exit code {process.returncode}: {''.join(last)}"
    else:
        row |= json.loads(process.stdout.splitlines()[-1])
    row["seconds"] = had.get("seconds", 0.0) + time.perf_counter() - began
    row["problems"] = [] if row.get("skipped") else problems(row)
    row["in_silence"] = {level: silent for level, one in row.get("levels", {}).items() if (silent := in_silence(one))}
    return {**row, "passed": not row["problems"]}


def wanted(name: str, patterns: list[str]) -> bool:
    """Whether a row is asked for."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="as in gpt/* or */ddp (default: all)")
    parser.add_argument("--way", choices=("function", "name"), help="for all rows (default: they take turns)")
    parser.add_argument(
        "--levels",
        nargs="+",
        choices=(*SHARES, LEAST),
        metavar="LEVEL",
        default=[*SHARES, LEAST],
        help="90%%, 60%% or 1.1 x minimum (default: all)",
    )
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--resume", action="store_true", help="run only what the output lacks")
    keep.add_argument("--again", action="store_true", help="run the chosen rows anew; the others stay in the output")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time (default: 1)")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each search of a plan (default: 10)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each training (default: 300)")
    parser.add_argument("--extra-path", type=Path, help="folder with packages to use besides those installed")
    parser.add_argument("--output", type=Path, default=Path("torch_matrix.json"), help="JSON file (default: torch_matrix.json)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.extra_path:
        sys.path.append(str(options.extra_path))  # last: what is installed comes first
    if options.worker:
        print("\n" + json.dumps(work(*json.loads(options.worker), json.load(sys.stdin))))
        return 0
    chosen = [row for row in rows() if wanted("/".join(row[:2]), options.rows)]
    done: dict[tuple[str, str], dict[str, Any]] = {}
    if (options.resume or options.again) and options.output.exists():
        done = {(row["architecture"], row["feature"]): row for row in json.loads(options.output.read_text("utf-8"))["rows"]}
    if options.again:
        done = {name: row for name, row in done.items() if name not in [row[:2] for row in chosen]}
    chosen = [row for row in chosen if set(options.levels) - set(done.get(row[:2], {}).get("levels", {}))]
    data = {"environment": environment(0), "steps": 8, "time_limit": options.time_limit}
    print(HEADER, flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda row: row_of(*row[:2], options.way or row[2], options, done.get(row[:2], {})), chosen):
            done[row["architecture"], row["feature"]] = row
            print(line(row), flush=True)
            order = {row[:2]: number for number, row in enumerate(rows())}
            data["rows"] = [done[name] for name in sorted(done, key=order.__getitem__)]
            options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
