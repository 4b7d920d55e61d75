"""The example of the original Checkmate's README, at 224 pixels: VGG19 trained by `checkmate.tf2.compile` under a budget.

Plain training and ours run in processes of their own, on made-up pictures. The budget is a share of what plain training needs.

    python benchmarks/tf_snippet.py [--batch 16] [--share 0.75] [--steps 3] [--output tf_snippet.json]

Exit code 1 if plain training stays within the budget, or ours does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from worker import environment, result_of

MEBI = 2**20


def train(batch: int, steps: int, budget: int | None) -> dict[str, Any]:
    """Train in this process, plainly without a budget: the peak over all steps, losses, seconds of the last step."""
    import tensorflow as tf

    import checkmate.tf2

    tf.keras.utils.set_random_seed(0)
    model = tf.keras.applications.vgg19.VGG19(weights=None, classes=10, input_shape=(224, 224, 3))
    loss = tf.keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf.keras.optimizers.SGD(learning_rate=1e-3)
    pictures = tf.random.stateless_normal((steps * batch, 224, 224, 3), (1, 2))
    labels = tf.random.stateless_uniform((steps * batch,), (3, 4), maxval=10, dtype=tf.int32)
    train_ds = [(pictures[i : i + batch], labels[i : i + batch]) for i in range(0, steps * batch, batch)]

    if budget is None:
        from tf_models import plain_step

        optimizer.build(model.trainable_variables)
        train_iteration_fn: Any = plain_step(model, loss, optimizer)
    else:
        x0, y0 = train_ds[0]
        train_iteration_fn = checkmate.tf2.compile(model, loss, optimizer, input_spec=x0, label_spec=y0, budget=budget)

    from tf_models import tensor_bytes

    fixed = tensor_bytes([v.value for v in (*model.variables, *optimizer.variables)] + list(train_ds[0]))
    peak, seconds, losses = 0, 0.0, []
    for image, label in train_ds:
        started = time.perf_counter()
        with checkmate.tf2.measure("CPU:0") as seen:
            _, loss_value = train_iteration_fn(image, label)
        seconds = time.perf_counter() - started
        if seen.added is None:
            sys.exit("TensorFlow counts no memory on this device")
        peak = max(peak, seen.added + fixed)
        losses.append(float(loss_value))
    result = {"peak": peak, "seconds": seconds, "losses": losses}
    if budget is not None:
        (plan,) = checkmate.tf2.plans(train_iteration_fn)
        result |= {"predicted_peak": plan.predicted_peak, "overhead": plan.schedule.overhead, "gap": plan.schedule.gap}
    return result


def run(batch: int, steps: int, budget: int | None) -> dict[str, Any]:
    """`train` in a process of its own."""
    return result_of(__file__, [batch, steps, budget])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.75, help="the budget as a share of the plain peak (default: 0.75)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("tf_snippet.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(train(*json.loads(options.worker))))
        return 0
    plain = run(options.batch, options.steps, None)
    budget = int(options.share * plain["peak"])
    planned = run(options.batch, options.steps, budget)
    passed = planned["peak"] <= budget < plain["peak"]
    print(f"{'':8} {'budget MiB':>10} {'peak MiB':>9} {'seconds':>8}  last loss")
    for name, limit, result in (("plain", "", plain), ("planned", f"{budget / MEBI:.1f}", planned)):
        print(f"{name:8} {limit:>10} {result['peak'] / MEBI:9.1f} {result['seconds']:8.2f}  {result['losses'][-1]!r}")
    settings = {"batch": options.batch, "side": 224, "share": options.share, "steps": options.steps, "seed": 0}
    data = {"environment": environment(), "settings": settings, "budget": budget, "plain": plain, "planned": planned}
    options.output.write_text(json.dumps({**data, "passed": passed}, indent=1) + "\n", encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
