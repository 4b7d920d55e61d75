"""How long the first step of a Keras model under a budget is waited for: in a first process, and in a second one with what the first
left on disk.

Each process has nothing but its cache folder in common with the other, and makes the model, compiles it and trains a few steps. Seconds
are wall time: trace (TensorFlow and Keras build the step, and TensorFlow rewrites it), profile (ops are timed), solve (schedules are
sought), rehearse (they are tried out), waited (from `checkmate.tf2.compile` to the end of the first step), step (the quickest of the
others), and beyond (waited, less the trace and one step). Plain training is there to compare with: its trace, and what it waits. The
kernels of the search are compiled beforehand, as that happens once on a machine. A budget that cannot be met is tried first, as people do,
and then the one that the error names: the trace is then that of both.

    python benchmarks/keras_first_step.py [--model DenseNet121] [--batch 16] [--side 64] [--budget 70%] [--output keras_first_step.json]

Exit code 1 if a first process waits more than 60 s for its first step, or a second one more than 5 s beyond tracing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import environment, result_of

APPLICATIONS = ("MobileNetV3Small", "EfficientNetV2B0", "ResNet50V2", "DenseNet121", "ConvNeXtTiny", "VGG19")
SMALL = ("dense", "convolutions", "batch_norm", "lstm", "transformer", "unet")
FIRST_LIMIT, SECOND_LIMIT = 60.0, 5.0
PARTS = ("trace", "profile", "solve", "rehearse")
COLUMNS = (*PARTS, "waited", "step", "beyond")
STEPS = 4


class Stopwatch:
    """Adds up the seconds spent in functions, and how often they were called, by name."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        function = getattr(owner, attribute)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[name] += time.perf_counter() - started
                self.calls[name] += 1

        setattr(owner, attribute, timed)


def network(name: str, batch: int, side: int) -> tuple[Any, Any, Any]:
    """A model, and a batch for it: inputs and labels."""
    import keras
    import tensorflow as tf
    from keras import layers
    from tf_models import conv_net, transformer, unet

    keras.utils.set_random_seed(0)
    pictures = tf.random.stateless_normal((batch, side, side, 3), (1, 2))
    classes = tf.range(batch) % 10
    if name in APPLICATIONS:
        without = {"include_preprocessing": False} if name.startswith(("Mobile", "Efficient", "ConvNeXt")) else {}
        shape = (side, side, 3)
        published = getattr(keras.applications, name)
        return published(weights=None, input_shape=shape, classes=10, classifier_activation=None, **without), pictures, classes
    if name == "transformer":
        words = tf.random.stateless_uniform((batch, 65), (1, 2), 0, 64, tf.int32)
        return transformer(64, count=2, width=64), words[:, :-1], words[:, 1:]
    if name == "lstm":
        words = tf.random.stateless_uniform((batch, 64), (1, 2), 0, 64, tf.int32)
        return (
            keras.Sequential([keras.Input((64,)), layers.Embedding(64, 64), layers.LSTM(128), layers.Dense(10)]),
            words,
            classes,
        )
    if name == "unet":
        return unet(side, channels=8, levels=3), pictures, tf.zeros((batch, side, side), tf.int32)
    if name == "convolutions":
        return conv_net(side, count=6, channels=16), pictures, classes
    middle: list[Any] = [layers.Flatten(), *(layers.Dense(256, activation="relu") for _ in range(3))]
    if name == "batch_norm":
        middle = [
            one for _ in range(4) for one in (layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU())
        ]
        middle.append(layers.GlobalAveragePooling2D())
    return keras.Sequential([keras.Input((side, side, 3)), *middle, layers.Dense(10)]), pictures, classes


def work(name: str, batch: int, side: int, budget: str | None) -> dict[str, Any]:
    """Train a few steps in this process; plainly without a budget."""
    import keras

    model, x, y = network(name, batch, side)
    optimizer = keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    clock = Stopwatch()
    started = time.perf_counter()
    run, about = (
        plain(model, optimizer, loss, x, y, clock) if budget is None else planned(model, optimizer, loss, x, y, budget, clock)
    )
    run(x, y)
    waited = time.perf_counter() - started
    parts = {part: clock.seconds[part] for part in PARTS}
    calls = {f"{part}_calls": clock.calls[part] for part in PARTS}
    steps = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        run(x, y)
        steps.append(time.perf_counter() - begun)
    return {**parts, **calls, "waited": waited, "step": min(steps), "beyond": waited - parts["trace"] - min(steps), **about()}


def plain(model: Any, optimizer: Any, loss: Any, x: Any, y: Any, clock: Stopwatch) -> tuple[Any, Callable[[], dict[str, Any]]]:
    from tf_models import plain_step

    optimizer.build(model.trainable_variables)
    step = plain_step(model, loss, optimizer)
    clock.watch(step, "get_concrete_function", "trace")
    return step.get_concrete_function(x, y), dict


def planned(
    model: Any, optimizer: Any, loss: Any, x: Any, y: Any, budget: str, clock: Stopwatch
) -> tuple[Any, Callable[[], dict[str, Any]]]:
    import checkmate.tf2
    from checkmate.tf2 import execute, step

    for owner, attribute, part in (
        (step, "trace", "trace"),
        (step, "_profile", "profile"),
        (step, "make_plan", "solve"),
        (execute.Executor, "_rehearse", "rehearse"),
    ):
        clock.watch(owner, attribute, part)
    try:
        run = checkmate.tf2.compile(model, loss, optimizer, x, y, budget=budget)
    except checkmate.InfeasibleBudget as error:  # of a small network the weights may well be more
        run = checkmate.tf2.compile(model, loss, optimizer, x, y, budget=error.smallest_found)

    def about() -> dict[str, Any]:
        plan = run.plans[0]
        peaks = {"budget": plan.budget, "rehearsed_peak": plan.rehearsed_peak, "measured_peak": plan.measured_peak}
        return {"ops": plan.graph.num_ops, "overhead": plan.schedule.overhead, "gap": plan.schedule.gap, **peaks}

    return run, about


def compare(name: str, batch: int, side: int, budget: str) -> dict[str, Any]:
    """Two processes with one cache, and plain training."""
    with tempfile.TemporaryDirectory() as cache:
        first, second = (result_of(__file__, [name, batch, side, budget], CHECKMATE_CACHE_DIR=cache) for _ in range(2))
    return row(name, batch, side, first, second, result_of(__file__, [name, batch, side, None]))


def row(name: str, batch: int, side: int, first: dict[str, Any], second: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    passed = first["waited"] <= FIRST_LIMIT and second["beyond"] <= SECOND_LIMIT
    return {"model": name, "batch": batch, "side": side, "plain": plain, "first": first, "second": second, "passed": passed}


def table(row: dict[str, Any]) -> str:
    """Text for people."""
    lines = [f"{row['model']}, batch {row['batch']}, {row['side']} px{'' if row['passed'] else ': FAILS'}"]
    lines.append(" " * 9 + "".join(f"{column:>10}" for column in COLUMNS))
    lines += [
        f"  {kind:7}" + "".join(f"{row[kind][column]:10.2f}" for column in COLUMNS) for kind in ("first", "second", "plain")
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", action="append", choices=(*APPLICATIONS, *SMALL), help="default: all")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=64, help="of the pictures (default: 64)")
    parser.add_argument("--budget", default="70%", help="of the plain peak (default: 70%%)")
    parser.add_argument("--output", type=Path, default=Path("keras_first_step.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(*json.loads(options.worker))))
        return 0
    subprocess.run([sys.executable, "-m", "checkmate.solvers.compile_kernels"], check=True, stdout=subprocess.DEVNULL)
    rows = []
    for name in options.model or (*APPLICATIONS, *SMALL):
        rows.append(compare(name, options.batch, options.side, options.budget))
        print(table(rows[-1]), flush=True)
        data = {"environment": environment(), "seed": 0, "rows": rows}  # written as it grows: all networks take long
        options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
