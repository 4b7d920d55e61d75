"""Keras training under budgets, models of many kinds with what scripts do: does the budget hold in every step?

Every row is a model and a feature of the training script, and every training of it a process of its own, 8 steps from the same
weights and over the same batches:

- plain, twice: its peak over the steps from the second on (all that lives by TensorFlow's allocator, from the batch to the
  optimizer), and whether it repeats itself;
- under a budget of 1%, which must be refused: the error names the least budget that will do;
- under 80% and 60% of the plain peak, in bytes, and under 1.1 x the least budget. Where a share of the plain peak is refused, under the
  budget that the error names instead.

A row passes if the measured peaks of steps 1, 2, 3 and 8 keep to each budget, but for a first step that passes it and says so, and
losses and all variables are bit-equal to plain ones, where plain training repeats itself.

    python benchmarks/keras_matrix.py [--rows PATTERN ...] [--levels LEVEL ...] [--resume] [--output keras_matrix.json]

Exit code 1 if a row fails, or if more than one row in 20 has a first step above its budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

MEBI = 2**20
#: Trainings by level, and the share of the plain peak.
SHARES = {"80%": 0.8, "60%": 0.6}
LEAST = "1.1 x minimum"
LEVELS = (*SHARES, LEAST)
#: Steps that are judged.
JUDGED = ("1", "2", "3", "8")
#: One row in so many may have a first step above the budget, if a warning says so.
FEW = 20
ROWS = {
    "sequential": "adam fit",
    "subclass": "adam sizes",
    "subclass-built": "fit",
    "unet": "adam loop",
    "cond": "adam",
    "lstm": "adam",
    "while-loop": "adam",
    "gan": "adam",
    "two-heads": "adam",
    "transformer": "adamw loop-sizes bfloat16 accumulation",
    "conv": "adam sgd momentum rmsprop accumulation average clipping lion nadam adagrad schedule loss-scale bfloat16 float16 callbacks "
    "loop sizes class-weights sample-weights metrics freeze-and-compile freeze-later save-and-load export",
    "scan": "adam",
    "gru": "adam",
    "bidirectional": "adam",
    "rnn": "adam",
    "lstm-unrolled": "adam",
    "conv1d": "adam",
    "augmented": "adam",
    "normalized": "fit",
    "perceptron": "adamw fit",
    "conv-focal": "adam",
    "conv-bias": "loop-sgd bfloat16 float16",
    "dense-blocks": "adam",
    "separable": "rmsprop",
    "twins": "adam",
    "autoencoder": "adam",
    "variational": "adam",
    "gradient-penalty": "adam",
    "mobilenet-v3-small": "adam",
    "resnet50-v2": "adam",
    "vgg19": "momentum",
    "efficientnet-v2b0": "momentum",
    "convnext-tiny": "adamw",
    "densenet121": "sgd",
}


def rows() -> list[tuple[str, str]]:
    """Model and feature."""
    return [(model, feature) for model, features in ROWS.items() for feature in features.split()]


def environment() -> dict[str, Any]:
    """What the figures depend on besides the rows."""
    from keras_matrix_script import SEED, STEPS
    from worker import environment as machine

    return {**machine(), "seed": SEED, "steps": STEPS}


def commit() -> str:
    """Of the source tree that this script is in."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()


def prepared_imports() -> None:
    """Load what trainings need, once: they run in copies of this process."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras_matrix_script  # noqa: F401

    import checkmate.solvers.default  # noqa: F401


# --- one row ---


def work(model: str, feature: str, levels: list[str], options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """All trainings of a row; plans are kept in a folder of its own."""
    from keras_matrix_networks import TASKS
    from keras_matrix_script import FEATURES, forked_with_cache, train

    def run(budget: int | str | None, name: str) -> dict[str, Any]:
        output = f"{folder}/{name}.npz"
        made = forked_with_cache(
            lambda: train(TASKS[model], FEATURES[feature], budget, options.time_limit, output), f"{folder}/cache", options.timeout
        )
        print(f"    {model}/{feature} {name}: {made['seconds']:.0f} s {(made['error'] or '')[:150]}", file=sys.stderr, flush=True)
        return made

    plain, again = run(None, "plain"), run(None, "again")
    if plain["error"] is not None:
        return {"plain": plain, "levels": {}}
    peak = max(value for step, value in plain["peaks"].items() if step != "1")
    repeats = same(plain, again)
    refused = run("1%", "refused") if LEAST in levels else None
    least = (refused["infeasible"] or {}) if refused else {}
    found = {}
    for level in levels:
        budget = int(1.1 * least.get("named", 0) if level == LEAST else SHARES[level] * peak)
        if not budget:
            continue
        result = run(budget, level)
        named = (result["infeasible"] or {}).get("named", 0)
        result["refusal"] = result["infeasible"]
        if named and level != LEAST:  # what the error names must do
            refusal, budget = result["infeasible"], int(named)
            result = {**run(named, f"{level} named"), "refusal": refusal}
        result |= {"budget": budget, "was_named": bool(named) and level != LEAST, "equal": same(plain, result)}
        result["difference"] = 0.0 if result["equal"] else difference(f"{folder}/plain.npz", _file(folder, level, result))
        del result["losses"]
        found[level] = result
    made: dict[str, Any] = {"peak": peak, "repeats": repeats, "proven": least.get("proven"), "minimum": least.get("named")}
    made["plain"] = {key: plain[key] for key in ("error", "peaks", "step_seconds", "seconds")}
    if refused is not None:
        made["refused"] = {key: refused[key] for key in ("error", "infeasible", "seconds")}
    return {**made, "levels": found}


def _file(folder: str, level: str, result: dict[str, Any]) -> str:
    return f"{folder}/{level}{' named' if result['was_named'] else ''}.npz"


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Losses of all steps and all variables, bit for bit."""
    return all(one.get(key) == other.get(key) for key in ("losses", "state"))


def difference(one: str, other: str) -> float | None:
    """The largest between two variables, as a part of the largest number in them; None if they cannot be compared."""
    import numpy as np

    try:
        with np.load(one) as a, np.load(other) as b:
            shares = [float(np.abs(a[key] - b[key]).max(initial=0) / (np.abs(a[key]).max(initial=0) or 1)) for key in a.files]
    except (OSError, KeyError, ValueError):
        return None
    return max(shares, default=0.0)


# --- the verdict ---


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row; nothing if it passes."""
    if row["plain"]["error"] is not None:
        return [f"plain training fails: {row['plain']['error']}"]
    found = []
    if row.get("refused") is not None and row["minimum"] is None:
        found.append(f"1% is not refused: {row['refused']['error'] or 'it trained'}")
    for level, result in row["levels"].items():
        found += [f"{level}: {problem}" for problem in _problems_of(result, row["repeats"])]
    return found


def _problems_of(result: dict[str, Any], repeats: bool) -> list[str]:
    if result["error"] is not None:
        return [result["error"]]
    found = []
    for step in JUDGED:
        over = result["peaks"][step] - result["budget"]
        told = step in result["warnings"]
        if over > 0 and not (step == "1" and told):
            said = "warned" if told else "no warning"
            found.append(f"step {step} over budget by {over} ({over / result['budget']:.1%}), {said}")
    if repeats and not result["equal"]:
        found.append(f"losses or variables differ (by {result['difference']})")
    return found


def first_steps_above(row: dict[str, Any]) -> list[str]:
    """Levels whose first step passed the budget."""
    return [level for level, one in row["levels"].items() if one["peaks"].get("1", 0) > one["budget"]]


HEADER = (
    f"{'row':26} {'plain':>7} {'minimum':>7} {'80%':>8}  {'peak':>7} {'60%':>8}  {'peak':>7} {'1.1xmin':>8}  {'peak':>7} "
    f"{'1st step':>8} {'told':>4} {'s':>4}\n(MiB; * the budget that an error named; 1st step: seconds, the longest of all levels)"
)


def line(row: dict[str, Any]) -> str:
    """Of the table; memory in MiB."""
    start = f"{row['model'] + '/' + row['feature']:26}"
    if "peak" not in row:
        return f"{start} FAILS: {'; '.join(row['problems'])}"
    figures = f"{row['peak'] / MEBI:7.2f} {(row['minimum'] or 0) / MEBI:7.2f}"
    for result in row["levels"].values():
        peak = max(result["peaks"].values(), default=0)
        figures += f" {result['budget'] / MEBI:8.2f}{'*' if result['was_named'] else ' '}{peak / MEBI:7.2f}"
    first = max((result["step_seconds"][0] for result in row["levels"].values() if result["step_seconds"]), default=0)
    told = sum(len(one) for result in row["levels"].values() for one in result["warnings"].values())
    notes = "" if row["repeats"] else "(plain differs from itself) "
    if above := first_steps_above(row):
        notes += f"(step 1 above, {', '.join(above)}) "
    verdict = "passes" if not row["problems"] else "FAILS: " + "; ".join(row["problems"])
    return f"{start} {figures} {first:8.1f} {told:4} {row['seconds']:4.0f} {notes}{verdict}"


# --- all rows ---


def row_of(model: str, feature: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row with its verdict."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        made = work(model, feature, options.levels, options, folder)
    row: dict[str, Any] = {"model": model, "feature": feature, "commit": commit(), **made}
    row["seconds"] = round(time.perf_counter() - began, 1)
    return {**row, "problems": problems(row)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN", help="as in conv/* or */adam (default: all)")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS), metavar="LEVEL", help="default: all")
    parser.add_argument("--resume", action="store_true", help="leave out rows that the output already has and that pass")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each search of a plan (default: 5)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each training (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("keras_matrix.json"), help="JSON file (default: keras_matrix.json)")
    options = parser.parse_args()
    prepared_imports()
    had = json.loads(options.output.read_text("utf-8"))["rows"] if options.resume and options.output.exists() else []
    done = {(row["model"], row["feature"]): row for row in had}
    chosen = [
        pair
        for pair in rows()
        if any(fnmatch("/".join(pair), pattern) for pattern in options.rows) and (pair not in done or done[pair]["problems"])
    ]
    data = {"environment": environment(), "time_limit": options.time_limit, "levels": options.levels}
    print(HEADER, flush=True)
    for pair in chosen:
        done[pair] = row_of(*pair, options)
        print(line(done[pair]), flush=True)
        ordered = [done[pair] for pair in rows() if pair in done]
        text = json.dumps({**data, "rows": ordered}, indent=1) + "\n"
        options.output.write_text(text, encoding="utf-8")
    above = [row for row in done.values() if first_steps_above(row)]
    print(
        f"{len(done)} rows, {sum(not row['problems'] for row in done.values())} pass, {len(above)} with a first step above its budget"
    )
    return 0 if not any(row["problems"] for row in done.values()) and FEW * len(above) < max(len(done), FEW + 1) else 1


if __name__ == "__main__":
    sys.exit(main())
