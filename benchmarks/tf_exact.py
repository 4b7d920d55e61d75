"""TensorFlow training under budgets: are the variables those of plain training, and does the peak stay where it should?

For each network, every training in a process of its own: plain for some steps, twice (to see whether it repeats itself), the
planned step without recomputation, and the planned step under three budgets. All start from the same weights and see the same
batches. The table says for each budget

- measured: the highest peak over all steps, by TensorFlow's allocator: variables, a batch and all that training adds to them;
- predicted: what the plan promised before the first step;
- equal: whether all variables of the model and the optimizer are, bit for bit, those of plain training; or, where plain
  training runs other kernels or does not repeat itself, those of the planned step without recomputation.

    python benchmarks/tf_exact.py [--model unet] [--size small|real] [--steps 5] [--output tf_exact.json]

Exit code 1 if a peak passes its budget or is more than 5% off its prediction, or if variables differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from worker import environment, result_of

NAMES = ("conv24", "resnet50", "mobilenet", "unet", "transformer")
MEBI = 2**20
#: Budgets between 1.2 x the least that any schedule could need (0) and the plain peak (1).
LEVELS = (0.7, 0.4, 0.15)
CLOSE = 0.05


def train(name: str, size: str, steps: int, budget: int | str | None, time_limit: float, output: Path) -> dict[str, Any]:
    """Train from the start, plain where `budget` is None: peak of all steps, seconds of the last, the plan.

    Args:
        output: file for the variables at the end.
    """
    import keras
    import numpy as np
    import tensorflow as tf
    from tf_meter import Meter
    from tf_models import plain_step, task

    import checkmate.tf2

    work = task(name, size)
    batches = [tuple(tf.constant(array) for array in work.batch(number)) for number in range(steps)]
    model, optimizer = work.build(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    variables = [v.value for v in (*model.variables, *optimizer.variables)]
    meter = Meter(variables, batches[0])
    if budget is None:
        step: Any = plain_step(model, work.loss, optimizer)
    else:
        x, y = batches[0]
        step = checkmate.tf2.compile(model, work.loss, optimizer, x, y, budget=budget, time_limit=time_limit)
    peaks, seconds = [], 0.0
    for x, y in batches:
        started = time.perf_counter()
        with checkmate.tf2.measure("CPU:0") as seen:
            step(x, y)
        seconds = time.perf_counter() - started
        peaks.append(meter.peak(seen))
    np.savez(output, *[v.numpy() for v in variables])
    result: dict[str, Any] = {"measured_peak": max(peaks), "seconds": seconds}
    if budget is not None:
        (plan,) = checkmate.tf2.plans(step)
        result |= {
            "predicted_peak": plan.predicted_peak,
            "overhead": plan.schedule.overhead,
            "gap": plan.schedule.gap,
            "mode": plan.mode,
            "executions": plan.executions,
            "no_recompute_peak": plan.graph.no_recompute_peak,
            "min_working_set": plan.graph.min_working_set,
        }
    return result


def compare(name: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All trainings of one network: a row for each budget. Variables go through files in `folder`."""

    def run(label: str, budget: int | str | None) -> dict[str, Any]:
        output = str(folder / f"{label}.npz")
        return result_of(__file__, [name, options.size, options.steps, budget, options.time_limit, output])

    def equal(one: str, other: str) -> bool:
        return _equal(folder / f"{one}.npz", folder / f"{other}.npz")

    plain, _ = run("plain", None), run("again", None)
    kept = run("kept", "200%")
    repeats = equal("plain", "again")
    reference = "plain" if repeats and equal("plain", "kept") else "kept"
    least = 1.2 * kept["min_working_set"]
    rows = []
    for number, level in enumerate(LEVELS):
        budget = int(least + level * (kept["no_recompute_peak"] - least))
        row = {"budget": budget, **run(str(number), budget)}
        row |= {
            "plain_peak": plain["measured_peak"],
            "plain_seconds": plain["seconds"],
            "plain_repeats_itself": repeats,
            "compared_with": "plain" if reference == "plain" else "no recomputation",
            "equal": equal(reference, str(number)),
        }
        rows.append({**row, "passed": passes(row)})
    return rows


def _equal(one: Path, other: Path) -> bool:
    """Bit for bit."""
    import numpy as np

    with np.load(one) as a, np.load(other) as b:
        return len(a.files) == len(b.files) and all(a[key].tobytes() == b[key].tobytes() for key in a.files)


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
        *work, output = json.loads(options.worker)
        print(json.dumps(train(*work, Path(output))))
        return 0
    from tf_models import SEED

    results: dict[str, Any] = {}
    for name in options.model or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = compare(name, options, Path(folder))
        print(table(name, results[name]), flush=True)
    settings = {"size": options.size, "steps": options.steps, "seed": SEED, "optimizer": "Adam"}
    data = {"environment": environment(), "settings": settings, "networks": results}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for rows in results.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
