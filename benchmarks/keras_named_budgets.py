"""Keras models under budgets that are too small: will the budget that the error names do, and is it always the same?

For each model and each of its budgets, below the least one, in processes of their own that share a folder of plans:

- the budget is asked for; the error names another, which is asked for next: it must be accepted at once and hold in every step;
- for the first pairs, the too small budget is asked for again in further processes: the answer must be the same every time.

    python benchmarks/keras_named_budgets.py [--models conv ...] [--processes 5] [--resume] [--output keras_named_budgets.json]

Exit code 1 if a named budget is refused or passed, or an answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from keras_matrix import MEBI, commit, environment, prepared_imports

#: Too small budgets, as parts of the plain peak.
BUDGETS = ("1%", "20%")
#: Model and how it is trained.
MODELS = {
    "conv": "adam",
    "conv-bias": "sgd",
    "sequential": "adam",
    "subclass": "adam",
    "unet": "adam",
    "dense-blocks": "adam",
    "separable": "rmsprop",
    "two-heads": "adam",
    "autoencoder": "adam",
    "transformer": "adamw",
    "conv1d": "adam",
    "variational": "adam",
    "lstm": "adam",
    "while-loop": "adam",
    "gan": "adam",
}
#: Pairs that are asked for again and again.
AGAIN = 10
#: Steps of a training under a named budget.
STEPS = 4


def pairs() -> list[tuple[str, str, str]]:
    """Model, feature and too small budget; every model once before one comes again."""
    return [(model, feature, budget) for budget in BUDGETS for model, feature in MODELS.items()]


def ask(model: str, feature: str, budget: int | str, options: argparse.Namespace, cache: str) -> dict[str, Any]:
    """Train in a process of its own."""
    from keras_matrix_networks import TASKS
    from keras_matrix_script import FEATURES, forked_with_cache, train

    return forked_with_cache(
        lambda: train(TASKS[model], FEATURES[feature], budget, options.time_limit, None, STEPS), f"{cache}/plans", options.timeout
    )


def row_of(model: str, feature: str, budget: str, processes: int, options: argparse.Namespace) -> dict[str, Any]:
    """One pair: its first answer, what the named budget did, and all answers."""
    with tempfile.TemporaryDirectory() as cache:
        refused = ask(model, feature, budget, options, cache)
        answers = [refused["infeasible"]]
        row: dict[str, Any] = {"model": model, "feature": feature, "budget": budget, "commit": commit()}
        if refused["infeasible"] is None:
            return {**row, "answers": [], "problems": [f"{budget} is not refused: {refused['error'] or 'it trained'}"]}
        result = ask(model, feature, refused["infeasible"]["named"], options, cache)
        while len(answers) < processes:
            answers.append(ask(model, feature, budget, options, cache)["infeasible"])
    row |= {"named": refused["infeasible"]["named"], "proven": refused["infeasible"]["proven"], "answers": answers}
    row |= {key: result[key] for key in ("error", "peaks", "warnings", "step_seconds")}
    return {**row, "refusal_seconds": refused["seconds"], "problems": problems(row)}


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with a pair; nothing if it passes."""
    if row["error"] is not None:
        return [f"the named budget: {row['error']}"]
    found = [
        f"step {step} passes the named budget by {peak - row['named']} ({peak / row['named'] - 1:.1%})"
        for step, peak in row["peaks"].items()
        if peak > row["named"]
    ]
    if any(answer != row["answers"][0] for answer in row["answers"]):
        found.append(f"answers differ: {row['answers']}")
    return found


def line(row: dict[str, Any]) -> str:
    """Of the table; memory in MiB."""
    start = f"{row['model']:14} {row['budget']:>6}"
    if "named" not in row:
        return f"{start} FAILS: {'; '.join(row['problems'])}"
    peak = max(row["peaks"].values(), default=0)
    figures = f"{row['proven'] / MEBI:8.2f} {row['named'] / MEBI:8.2f} {peak / MEBI:8.2f} {len(row['answers']):9}"
    return f"{start} {figures} {'passes' if not row['problems'] else 'FAILS: ' + '; '.join(row['problems'])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS), metavar="MODEL", help="default: all")
    parser.add_argument("--processes", type=int, default=5, help="answers of each of the first pairs (default: 5)")
    parser.add_argument("--resume", action="store_true", help="leave out pairs that the output already has and that pass")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each search of a plan (default: 5)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each training (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("keras_named_budgets.json"), help="JSON file")
    options = parser.parse_args()
    prepared_imports()
    had = json.loads(options.output.read_text("utf-8"))["pairs"] if options.resume and options.output.exists() else []
    done = {(row["model"], row["feature"], row["budget"]): row for row in had}
    data = {"environment": environment(), "time_limit": options.time_limit}
    print(f"{'model':14} {'budget':>6} {'proven':>8} {'named':>8} {'peak':>8} {'processes':>9}  (MiB)", flush=True)
    for number, pair in enumerate(pairs()):
        if pair[0] not in options.models or (pair in done and not done[pair]["problems"]):
            continue
        done[pair] = row_of(*pair, options.processes if number < AGAIN else 1, options)
        print(line(done[pair]), flush=True)
        rows = [done[pair] for pair in pairs() if pair in done]
        options.output.write_text(json.dumps({**data, "pairs": rows}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["problems"] for row in done.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
