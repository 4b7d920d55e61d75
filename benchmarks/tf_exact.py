"""TensorFlow training under budgets: are the variables those of plain training, and does the peak stay where it should?

For each network, in a process of its own: plain training for some steps, twice (to see whether it repeats itself), the planned
step without recomputation, and the planned step under three budgets. Everything starts from the same weights and sees the same
batches. The table says for each budget

- measured: the highest peak over all steps, by TensorFlow's allocator, plus the variables and the batch;
- predicted: what the plan promised before the first step;
- equal: whether all variables of the model and the optimizer are, bit for bit, those of plain training; or, where plain
  training runs other kernels or does not repeat itself, those of the planned step without recomputation.

    python benchmarks/tf_exact.py [--model unet] [--size small|real] [--steps 5] [--output tf_exact.json]

Exit code 1 if a peak passes its budget or is more than 5% off its prediction, or if variables differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("conv24", "resnet50", "mobilenet", "unet", "transformer")
MEBI = 2**20
#: Budgets between 1.2 x the least that any schedule could need (0) and the plain peak (1).
LEVELS = (0.7, 0.4, 0.15)
CLOSE = 0.05


class Trainings:
    """All trainings of one network."""

    def __init__(self, name: str, size: str, steps: int, time_limit: float):
        import tensorflow as tf
        from tf_models import task

        self.task = task(name, size)
        self.time_limit = time_limit
        self.batches = [tuple(tf.constant(array) for array in self.task.batch(number)) for number in range(steps)]

    def train(self, make: Callable[[Any, Any], Any]) -> dict[str, Any]:
        """Train from the start: variables at the end as arrays, peaks of all steps, seconds of the last."""
        import keras
        from tf_models import tensor_bytes

        from checkmate.tf2 import measure

        model, optimizer = self.task.build(), keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        step = make(model, optimizer)
        variables = [v.value for v in (*model.variables, *optimizer.variables)]
        fixed = tensor_bytes([*variables, *self.batches[0]])
        peaks, seconds = [], 0.0
        for x, y in self.batches:
            started = time.perf_counter()
            with measure("CPU:0") as seen:
                step(x, y)
            seconds = time.perf_counter() - started
            if seen.added is None:
                sys.exit("TensorFlow counts no memory on this device")
            peaks.append(seen.added + fixed)
        return {"variables": [v.numpy() for v in variables], "peak": max(peaks), "seconds": seconds, "step": step}

    def plain(self) -> dict[str, Any]:
        from tf_models import plain_step

        return self.train(lambda model, optimizer: plain_step(model, self.task.loss, optimizer))

    def planned(self, budget: int | str) -> dict[str, Any]:
        import checkmate.tf2

        x, y = self.batches[0]
        result = self.train(
            lambda model, optimizer: checkmate.tf2.compile(
                model, self.task.loss, optimizer, x, y, budget=budget, time_limit=self.time_limit
            )
        )
        (result["plan"],) = checkmate.tf2.plans(result.pop("step"))
        return result

    def rows(self) -> list[dict[str, Any]]:
        plain, again = self.plain(), self.plain()
        kept = self.planned("200%")
        graph = kept["plan"].graph
        repeats = _equal(plain["variables"], again["variables"])
        same = repeats and _equal(plain["variables"], kept["variables"])
        least = 1.2 * graph.min_working_set
        rows = []
        for level in LEVELS:
            budget = int(least + level * (graph.no_recompute_peak - least))
            result = self.planned(budget)
            plan = result["plan"]
            rows.append(
                {
                    "budget": budget,
                    "predicted_peak": plan.predicted_peak,
                    "measured_peak": result["peak"],
                    "plain_peak": plain["peak"],
                    "overhead": plan.schedule.overhead,
                    "gap": plan.schedule.gap,
                    "mode": plan.mode,
                    "executions": plan.executions,
                    "seconds": result["seconds"],
                    "plain_seconds": plain["seconds"],
                    "plain_repeats_itself": repeats,
                    "compared_with": "plain" if same else "no recomputation",
                    "equal": _equal((plain if same else kept)["variables"], result["variables"]),
                }
            )
            rows[-1]["passed"] = passes(rows[-1])
        return rows


def _equal(one: list[Any], other: list[Any]) -> bool:
    return all((a == b).all() for a, b in zip(one, other, strict=True))


def passes(row: dict[str, Any]) -> bool:
    """Within the budget, close to the prediction, and the same numbers."""
    off = abs(row["measured_peak"] - row["predicted_peak"]) / row["predicted_peak"]
    return bool(row["measured_peak"] <= row["budget"] and off <= CLOSE and row["equal"])


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Text for people; memory in MiB."""
    lines = [f"{name:12} {'plain':>8} {'budget':>8} {'predicted':>9} {'measured':>8}   off  overhead  equal to"]
    for row in rows:
        sizes = [row[key] / MEBI for key in ("plain_peak", "budget", "predicted_peak", "measured_peak")]
        off = row["measured_peak"] / row["predicted_peak"] - 1
        equal = row["compared_with"] if row["equal"] else f"DIFFERS from {row['compared_with']}"
        lines.append(
            f"{'':12} {sizes[0]:8.1f} {sizes[1]:8.1f} {sizes[2]:9.1f} {sizes[3]:8.1f} {off:+5.1%}  {row['overhead']:8.3f}  {equal}"
            f"{'' if row['passed'] else '   FAILS'}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=(*NAMES, "vgg19"), help="one network (default: all but vgg19)")
    parser.add_argument("--size", choices=("small", "real"), default="small", help="small: minutes on two cores (default)")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds for each plan (default: 15)")
    parser.add_argument("--output", type=Path, default=Path("tf_exact.json"), help="JSON file (default: tf_exact.json)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rows = Trainings(options.worker, options.size, options.steps, options.time_limit).rows()
        print(json.dumps(rows))
        return 0
    from tf_models import SEED
    from tf_peers import environment

    results: dict[str, Any] = {}
    for name in options.model or NAMES:
        command = [sys.executable, __file__, "--worker", name, "--size", options.size, "--steps", str(options.steps)]
        command += ["--time-limit", str(options.time_limit)]
        settings = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=settings, check=True)
        results[name] = json.loads(process.stdout.splitlines()[-1])
        print(table(name, results[name]), flush=True)
    settings = {"size": options.size, "steps": options.steps, "seed": SEED, "optimizer": "Adam"}
    data = {"environment": environment(), "settings": settings, "networks": results}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for rows in results.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
