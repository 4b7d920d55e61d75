"""How long `checkmate.tf2.compile` takes: the first time, and again in a new process with what the first left on disk.

Each network is compiled in a process of its own with an empty cache, then in a second one with the same cache; both take two
training steps. Seconds are wall time: trace (TensorFlow and Keras build the step), profile (ops are timed), solve, emit (the
schedule becomes a graph), rehearse (dry runs, the first of which prepares the graph), compile (everything), and how much
longer the first step took than the second. For comparison: trace and first step of plain training.

    python benchmarks/tf_compile_time.py [--model resnet50] [--batch 16] [--side 224] [--budget 70%] [--output tf_compile_time.json]

Exit code 1 if trace + profile + solve take more than 60 s (VGG19) or 120 s (the others), or if the second process needs more
than 5 s to have the schedule ready beyond tracing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from worker import environment, result_of

NAMES = ("vgg19", "resnet50")
LIMITS = {"vgg19": 60.0}
OTHER_LIMIT, AGAIN_LIMIT = 120.0, 5.0
PARTS = ("trace", "profile", "solve", "emit", "rehearse", "compile")


class Stopwatch:
    """Adds up the seconds spent in functions, by name."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        function = getattr(owner, attribute)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[name] += time.perf_counter() - started

        setattr(owner, attribute, timed)


def work(name: str, batch: int, side: int, budget: str | None) -> dict[str, Any]:
    """Compile and train two steps in this process; plainly without a budget."""
    import keras
    import tensorflow as tf
    from tf_models import application

    import checkmate.tf2
    from checkmate.tf2 import execute, step

    model = application(name, side)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = tf.random.stateless_normal((batch, side, side, 3), (1, 2))
    y = tf.range(batch) % 10
    clock = Stopwatch()
    about: dict[str, Any] = {}
    if budget is None:

        @tf.function(autograph=False)
        def plain(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            optimizer.apply(tape.gradient(value, [v.value for v in model.trainable_variables]), model.trainable_variables)
            return value

        clock.watch(plain, "get_concrete_function", "trace")
        run: Any = plain.get_concrete_function(x, y)
    else:
        for owner, attribute, part in (
            (step, "trace", "trace"),
            (step, "_profile", "profile"),
            (step, "make_plan", "solve"),
            (execute, "emit", "emit"),
            (execute.Executor, "rehearse", "rehearse"),
            (checkmate.tf2, "compile", "compile"),
        ):
            clock.watch(owner, attribute, part)
        run = checkmate.tf2.compile(model, loss, optimizer, x, y, budget=budget)
        before = dict(clock.seconds)
        (plan,) = checkmate.tf2.plans(run)
        about = {"ops": plan.graph.num_ops, "budget": plan.budget, "overhead": plan.schedule.overhead, "gap": plan.schedule.gap}
        clock.seconds.clear()
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        run(x, y)
        seconds.append(time.perf_counter() - started)
    if budget is None:
        return {"trace": clock.seconds["trace"], "step": seconds[1], "first_step_extra": seconds[0] - seconds[1]}
    # Without a rehearsal the first step emits the graph; with one it was emitted for that and once more for the step.
    parts = {part: before.get(part, 0.0) for part in PARTS}
    emitted = clock.seconds["emit"]
    return {**about, **parts, "step": seconds[1], "first_step_extra": seconds[0] - seconds[1], "emit_in_first_step": emitted}


def run(name: str, batch: int, side: int, budget: str | None, cache: str) -> dict[str, Any]:
    """`work` in a process of its own."""
    return result_of(__file__, [name, batch, side, budget], CHECKMATE_CACHE_DIR=cache)


def compare(name: str, batch: int, side: int, budget: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        first, again = (run(name, batch, side, budget, cache) for _ in range(2))
    plan_seconds = first["trace"] + first["profile"] + first["solve"]
    # Everything that has to happen before the schedule can run, wherever it happens.
    again_seconds = again["compile"] - again["trace"] + again["emit_in_first_step"]
    return {
        "model": name,
        "batch": batch,
        "side": side,
        "plain": run(name, batch, side, None, ""),
        "first": first,
        "again": again,
        "trace_profile_solve_seconds": plan_seconds,
        "again_beyond_tracing_seconds": again_seconds,
        "passed": plan_seconds <= LIMITS.get(name, OTHER_LIMIT) and again_seconds <= AGAIN_LIMIT,
    }


def table(row: dict[str, Any]) -> str:
    """Text for people."""
    columns = (*PARTS, "emit_in_first_step", "first_step_extra", "step")
    lines = [f"{row['model']}, batch {row['batch']}, {row['side']} px", " " * 8 + "".join(f"{c[:12]:>13}" for c in columns)]
    for kind in ("first", "again", "plain"):
        figures = [f"{row[kind][c]:13.2f}" if c in row[kind] else f"{'':13}" for c in columns]
        lines.append(f"  {kind:6}" + "".join(figures))
    lines.append(
        f"  trace + profile + solve {row['trace_profile_solve_seconds']:.1f} s; second process, beyond tracing "
        f"{row['again_beyond_tracing_seconds']:.1f} s"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", action="append", choices=("vgg19", "resnet50", "mobilenet"), help="default: vgg19, resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=224, help="of the pictures (default: 224)")
    parser.add_argument("--budget", default="70%", help="of the plain peak (default: 70%%)")
    parser.add_argument("--output", type=Path, default=Path("tf_compile_time.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(*json.loads(options.worker))))
        return 0
    rows = []
    for name in options.model or NAMES:
        rows.append(compare(name, options.batch, options.side, options.budget))
        print(table(rows[-1]), flush=True)
    data = {"environment": environment(), "seed": 0, "rows": rows}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
