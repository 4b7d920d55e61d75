"""What a plan is made from, and plans that are found again at another batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import checkmate
import checkmate.tf2
from checkmate import Graph
from checkmate.planning import Allowance, Options, environment, memory
from checkmate.planning import plan as planning
from checkmate.planning.cost_cache import close_cost_caches
from checkmate.planning.environment import processor_name
from checkmate.tf2 import profile
from checkmate.tf2.execution.plan import make_plan
from checkmate.tf2.graphs.trace import trace
from checkmate.tf2.keras.step import build, training_step
from checkmate.tf2.profile import profile_ops
from checkmate.tf2.step import capture_step
from tf2_models import CASES, tensors, transformer


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_variable_is_updated_as_soon_as_its_gradient_is_there() -> None:
    """Keras passes all gradients through one op on their way to the optimizer; they must not wait for each other."""
    model = keras.Sequential([keras.Input((256,)), *[keras.layers.Dense(256, activation="relu") for _ in range(6)]])
    x = tf.zeros((2, 256))
    graph = checkmate.tf2.capture(model, "mse", x, x, keras.optimizers.SGD(0.1), cost_model="flops")
    kernel = 256 * 256 * 4
    gradients = [number for number, value in enumerate(graph.values) if value.size == kernel]
    assert len(gradients) <= 6  # what is not here is used up in the op that makes it
    assert all(graph.last_use[number] - graph.producer[number] <= 3 for number in gradients)
    assert graph.no_recompute_peak - graph.fixed_memory < 3 * kernel


def test_what_is_made_large_from_small_things_is_made_late() -> None:
    """The gradient of batch norm adds up tensors, two of which are a number per channel written out: not all are there at once."""
    layers = [keras.layers.Conv2D(32, 3, padding="same", use_bias=False), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((32, 32, 3)), *layers, keras.layers.GlobalAveragePooling2D()])
    x, y = tf.zeros((8, 32, 32, 3)), tf.zeros((8, 32))
    graph = checkmate.tf2.capture(model, "mse", x, y, keras.optimizers.SGD(0.1), cost_model="flops")
    activation = 8 * 32 * 32 * 32 * 4
    assert max(value.size for value in graph.values) == activation
    assert graph.min_working_set - graph.fixed_memory < 3.1 * activation


def test_what_a_kernel_writes_over_needs_no_second_buffer(directory: Path) -> None:
    """Sums along the blocks of a transformer take the place of one of the two that are added up; the replay of TensorFlow's kernels knows."""
    case = CASES["transformer"]()
    graph = checkmate.tf2.capture(case.make(), case.loss, case.x, case.y, optimizer=case.optimizer(), cost_model="flops")
    over = [op for op in graph.ops if op.reuses is not None]
    assert over
    assert all(sum(op.reuses in other.inputs for other in graph.ops) == 1 for op in over)
    step = checkmate.tf2.compile(
        case.make(), case.loss, case.optimizer(), case.x, case.y, budget="200%", time_limit=1, cost_model="flops"
    )
    (plan,) = step.plans
    assert plan.schedule.num_recomputations == 0
    assert plan.modelled_peak == pytest.approx(graph.no_recompute_peak, rel=0.001)
    without = Graph([replace(op, reuses=None) for op in graph.ops], graph.values, graph.fixed_memory)
    assert without.no_recompute_peak > 1.05 * graph.no_recompute_peak


def test_a_workspace_does_not_depend_on_the_memory_pool(directory: Path) -> None:
    """The pool gives out a free block whole that is less than twice as large as asked for; that is no workspace of the op."""
    mebi = 2**20
    function = tf.function(lambda x: tf.raw_ops.Tanh(x=x), autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([2 * mebi // 4 + 64])).graph
    (op,) = [op for op in graph.get_operations() if op.type == "Tanh"]
    pieces = [tf.raw_ops.Empty(shape=[3 * mebi], dtype=tf.uint8, init=False) for _ in range(20)]
    del pieces[::2]
    close_cost_caches()
    try:
        (cost,) = profile_ops([op]).values()
    finally:
        close_cost_caches()
    assert len(pieces) == 10
    assert cost.workspace == 0


@pytest.mark.parametrize("changed", ["batch", pytest.param("length", marks=pytest.mark.slow)])
def test_a_plan_is_ported_to_another_batch_size_and_length(
    changed: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["conv" if changed == "batch" else "transformer"]()
    if changed == "length":
        case.build = lambda: transformer(length=None)
    model, optimizer = case.make(), case.optimizer()
    x, y = tensors(case.x), tensors(case.y)
    build(model, optimizer, x)
    step = training_step(model, case.loss, optimizer)
    options = Options(cost_model="flops", time_limit=3, gap=0.02)
    large = capture_step(trace(step, (x, y)), options)
    small = capture_step(trace(step, (x[:7], y[:7]) if changed == "batch" else (x[:, :56], y[:, :56])), options)
    allowance = Allowance(int((0.5 if changed == "batch" else 0.7) * large.graph.no_recompute_peak))
    first = make_plan(large, options, allowance)
    assert first.schedule.num_recomputations > 0
    monkeypatch.setattr(planning, "solve_cached", None)  # must not be needed
    ported = make_plan(small, options, allowance, others=[first])
    assert ported.schedule.steps == first.schedule.steps
    assert ported.predicted_peak < first.predicted_peak
    assert ported.schedule.lower_bound <= ported.schedule.cost


def test_auto_is_resolved_once_and_everything_says_the_same(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = iter([5 * 2**30, 2**20])  # the second time the model's own memory is taken
    monkeypatch.setattr(memory, "available_memory", lambda: next(amounts))
    case = CASES["conv"]()
    step = checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, cost_model="flops")
    step(case.x[:5], case.y[:5])
    assert len(step.plans) == 2
    for plan in step.plans:
        assert plan.budget == plan.schedule.budget == 4 * 2**30


def test_costs_are_kept_for_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    here = profile.tf_environment("CPU:0")
    assert here["processor"] == processor_name()
    assert here["threads"] >= 1
    monkeypatch.setattr(environment, "processor_name", lambda: "another processor")
    assert profile.tf_environment("CPU:0") != here
