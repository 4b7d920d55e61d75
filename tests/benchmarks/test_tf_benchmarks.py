"""The TensorFlow benchmarks: segments compute what the network computes, the verdict is fair, and a whole memory-limit run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

FOLDER = Path(__file__).parents[2] / "benchmarks"


def gradients(model: Any, forward: Any, loss: Any, x: Any, y: Any) -> list[Any]:
    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, forward(x))
        return [value, *tape.gradient(value, [v.value for v in model.trainable_variables])]

    return [np.asarray(tf.convert_to_tensor(result)) for result in step(tf.constant(x), tf.constant(y))]


@pytest.mark.parametrize("name", ["unet", "transformer"])
def test_segments_compute_the_same(load: Any, name: str) -> None:
    models, segments = load("tf_models"), load("tf_segments")
    task = models.task(name, batch=1)
    model = task.build()
    x, y = task.batch(0)
    expected = gradients(model, lambda x: model(x, training=True), task.loss, x, y)
    layered = segments.Layered.read(model, 1)
    cuts = layered.cuts(4, 1)
    assert cuts[0] == 0
    assert cuts[-1] == len(layered.layers)
    assert len(cuts) > 3
    for one, other in zip(gradients(model, layered.recomputed(cuts), task.loss, x, y), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def row(title: str, peak: int, seconds: list[float], budget: int | None = None, against: str | None = None) -> dict[str, Any]:
    name, _, setting = title.partition(" ")
    about = {"name": name, "setting": setting, "title": title, "peak": peak, "seconds": seconds, "error": None}
    return {**about, "budget": budget, "against": against, "median_seconds": sorted(seconds)[len(seconds) // 2]}


@pytest.mark.parametrize(
    ("planned", "passed"),
    [
        ([("ours 100", 90, 1.0, 100, "plain"), ("ours 60", 55, 1.2, 60, "segments 3"), ("ours 40", 40, 1.5, 40, None)], True),
        ([("ours 100", 90, 1.0, 100, "plain"), ("ours 60", 55, 1.4, 60, "segments 3"), ("ours 40", 40, 1.5, 40, None)], False),
        ([("ours 100", 90, 1.0, 100, "plain"), ("ours 60", 60, 1.2, 60, "segments 3")], False),  # no lower peak
        ([("ours 100", 90, 1.0, 100, "plain"), ("ours 60", 55, 1.2, 60, "segments 3"), ("ours 40", 41, 1.5, 40, None)], False),
    ],
)
def test_verdict(load: Any, planned: list[Any], passed: bool) -> None:
    peers = load("tf_peers")
    rows = [row("plain", 100, [1.0] * 3), row("segments 3", 60, [1.25] * 3)]
    rows += [row(title, peak, [seconds] * 3, budget, against) for title, peak, seconds, budget, against in planned]
    assert peers.verdict(rows)["passed"] is passed
    assert "segments 3" in peers.table("made up", rows)


def test_a_version_that_passes_a_budget_is_not_compared_there(load: Any) -> None:
    """It would be compared with one that has less memory."""
    rows = [row("plain", 100, [1.0] * 3), row("segments 3", 60, [1.25] * 3)]
    for budget, others_peak in ((80, 81), (50, 50)):
        ours = row(f"ours {budget}", budget, [1.2] * 3, budget)
        rows.append({**ours, "before": row(f"ours before {budget}", others_peak, [1.0] * 3, budget)})
    said = load("tf_peers").verdict(rows)
    assert said["ours_over_before_seconds"] == {50: 1.2}
    assert said["budgets_kept_before"] == 1


@pytest.mark.parametrize("name", ["keras_first_step", "tf_exact", "tf_oom", "tf_peers", "tf_snippet", "tf_ways"])
def test_every_script_has_what_it_imports(load: Any, name: str) -> None:
    assert callable(load(name).main)
    assert load("worker").environment()["tensorflow"] == tf.__version__


def test_a_worker_answers_until_it_is_closed(load: Any, tmp_path: Path) -> None:
    script = tmp_path / "double.py"
    script.write_text(
        "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'twice': 2 * json.loads(line)}), flush=True)\n"
    )
    worker = load("worker").Worker(str(script))
    assert [worker.ask(number) for number in (1, 20)] == [{"twice": 2}, {"twice": 40}]
    worker.close()
    script.write_text("raise SystemExit(3)\n")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"), load("worker").Worker(str(script)) as worker:
        worker.ask(1)


@pytest.mark.parametrize(
    ("changed", "passed"),
    [({}, True), ({"measured_peak": 101}, False), ({"predicted_peak": 90}, False), ({"equal": False}, False)],
)
def test_what_passes_as_exact(load: Any, changed: dict[str, Any], passed: bool) -> None:
    exact = load("tf_exact")
    made = {"plain_peak": 200, "budget": 100, "predicted_peak": 97, "measured_peak": 98, "overhead": 1.1, "equal": True}
    made |= {"compared_with": "plain", **changed}
    assert exact.passes(made) is passed
    assert ("FAILS" in exact.table("made up", [{**made, "passed": passed}])) is not passed


def test_the_meter_counts_blocks_that_are_larger_than_their_variables() -> None:
    """In a process of its own: which blocks the memory pool gives out depends on all that was there before."""
    code = """
import tensorflow as tf
from tf_meter import Meter
from checkmate.tf2 import measure

def in_use():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]

size = 2**20
blocks = [tf.raw_ops.Empty(shape=[count], dtype=tf.uint8, init=False) for count in (3 * size // 2, size) * 2]
del blocks[::2]  # the next two blocks of 1 MiB are these, whole: that of a first value, and that of its copy
before = in_use()
variables = [tf.Variable(tf.zeros([size // 4])) for _ in range(3)]
meter = Meter(variables, [])
with measure("CPU:0") as seen:
    pass
print(meter.peak(seen) == in_use() - before > 3 * size)
with measure("CPU:0") as seen:
    more = tf.zeros([size])
print(meter.peak(seen) == in_use() - before > 7 * size)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=FOLDER)
    assert result.stdout == "True\nTrue\n"


def test_the_clock_adds_up(load: Any) -> None:
    class Owner:
        @staticmethod
        def work(seconds: float) -> float:
            time.sleep(seconds)
            return seconds

    clock = load("keras_first_step").Stopwatch()
    clock.watch(Owner, "work", "part")
    assert [Owner.work(0.02), Owner.work(0.03)] == [0.02, 0.03]
    assert clock.seconds["part"] >= 0.05
    assert clock.calls["part"] == 2


def test_the_clock_stops_after_a_call_that_returns(load: Any) -> None:
    class Owner:
        @staticmethod
        def part() -> None:
            pass

        @staticmethod
        def step(fails: bool) -> None:
            Owner.part()
            if fails:
                raise ValueError("no")

    clock = load("keras_first_step").Stopwatch()
    clock.watch(Owner, "part", "part")
    clock.stop_after(Owner, "step")
    with pytest.raises(ValueError, match="no"):
        Owner.step(True)
    for _ in range(2):
        Owner.step(False)
    assert clock.calls["part"] == 2


@pytest.mark.parametrize(
    ("first", "second", "plain", "problems"),
    [
        (59.0, 15.9, None, 0),
        (61.0, 15.9, None, 1),
        (59.0, 17.0, None, 1),
        (59.0, 17.0, 1.0, 1),
        (59.0, 17.0, 12.1, 0),
        (59.0, 17.1, 12.0, 1),
    ],
)
def test_how_long_a_first_step_may_take(load: Any, first: float, second: float, plain: float | None, problems: int) -> None:
    first_step = load("keras_first_step")
    seconds: Any = dict.fromkeys(first_step.COLUMNS, 100.0) | {"trace": 10.0, "step": 1.0, "error": None}
    other = None if plain is None else {**seconds, "waited": plain}
    made = first_step.judged({**seconds, "waited": first}, {**seconds, "waited": second}, other)
    assert len(made["problems"]) == problems
    assert made["first"]["beyond"] == first - 11
    assert ("FAILS" in first_step.line({"model": "made", "feature": "up", **made})) is bool(problems)


def test_a_first_step_that_fails_is_said(load: Any) -> None:
    first_step = load("keras_first_step")
    seconds: Any = dict.fromkeys(first_step.COLUMNS, 0.0)
    made = first_step.judged({**seconds, "error": "Oh"}, {**seconds, "error": None}, None)
    assert made["problems"] == ["Oh"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")
def test_plain_dies_and_planned_trains(load: Any) -> None:
    result = load("tf_oom").BENCHMARK.compare("unet", 0.5)
    assert result["plain_died_of_the_limit"], result["plain_limited"]
    assert result["planned_completed"], result["planned_limited"]
    assert result["same_losses"]
