"""TensorFlow's own random ops draw what they draw in plain training, whatever sizes batches have and whichever plan comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from checkmate.tf2 import plans, prepare
from checkmate.tf2.graphs.trace import Trace, Traced
from checkmate.tf2.internals import captured_in, without_graph_rewriting
from checkmate.tf2.options import Options
from checkmate.tf2.step import PlannedStep

#: Of what draws: numbers that kernels draw in one go and in many, none, and one.
SIZES = (7, 1000, 0, 100_003, 1, 1000)

KINDS = {"RandomUniform", "RandomStandardNormal", "TruncatedNormal"}
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
DRAWN = [*((kind, dtype) for kind in sorted(KINDS) for dtype in FLOATS), *(("RandomUniformInt", d) for d in (tf.int32, tf.int64))]


def run(traced: Traced, x: Any) -> list[Any]:
    """The graph of a trace, as it is."""
    definition = traced.graph.as_graph_def()
    names = [tensor.name for tensor in traced.outputs]

    def step(given: Any) -> Any:
        inputs = [given, *map(captured_in, traced.captured)]
        read = {name for node in definition.node for name in node.input}
        places = {tensor.name: one for tensor, one in zip(traced.inputs, inputs, strict=True) if tensor.op.name in read}
        return tf.graph_util.import_graph_def(definition, places, names)

    with without_graph_rewriting():
        return list(tf.function(step, autograph=False)(x))


@pytest.mark.parametrize(("kind", "dtype"), DRAWN)
def test_what_replaces_an_op_draws_what_its_kernel_draws(kind: str, dtype: tf.DType) -> None:
    """Call for call, with other sizes in turn."""

    def step(x: Any) -> Any:
        bounds = {"minval": -3, "maxval": 1_000_003} if dtype.is_integer else {}
        more = {name: tf.constant(bound, dtype) for name, bound in bounds.items()} or {"dtype": dtype}
        draw = getattr(tf.raw_ops, kind)
        return [draw(shape=tf.shape(x), seed=seed, seed2=2**31 - 2, **more) for seed in (-5, 0)]

    spec = tf.TensorSpec((None,))
    plain = tf.function(step, autograph=False).get_concrete_function(spec)
    trace = Trace(step, [spec])
    for size in SIZES:
        x = tf.zeros(size)
        found = trace.at([tf.TensorSpec(x.shape)])
        assert kind not in {op.type for op in found.ops}
        for result, wanted in zip(run(found, x), plain(x), strict=True):
            assert result.shape == wanted.shape
            np.testing.assert_array_equal(result, wanted)


def test_other_random_ops_are_left_as_they_are() -> None:
    def step(x: Any) -> Any:
        never_the_same = tf.raw_ops.RandomUniform(shape=tf.shape(x), dtype=tf.float32)
        return never_the_same, tf.random.gamma((3,), 1.0, seed=2), tf.random.shuffle(x, seed=3)

    found = Trace(step, [tf.TensorSpec((None, 3))]).at([tf.TensorSpec((4, 3))])
    assert {"RandomUniform", "RandomGamma", "RandomShuffle"} <= {op.type for op in found.ops}
    assert len(found.captured) == 0


def noisy(x: Any) -> Any:
    """Draws that other ops read, that others only wait for, that go out as they are, and whose size only the step tells."""
    noise = tf.random.normal(tf.shape(x), seed=1)
    y = tf.nn.dropout(tf.nn.relu(x + noise), 0.3, seed=2)
    with tf.control_dependencies([tf.random.uniform(tf.shape(x), seed=3)]):
        y = tf.exp(y * 0.01)
    chosen = tf.boolean_mask(y, y[:, 0] > 1.001)
    return y, tf.random.truncated_normal(tf.shape(x), seed=4), chosen + tf.random.normal(tf.shape(chosen), seed=5)


def noisy_with_a_loop(x: Any) -> Any:
    """TensorFlow's rewriting is not repeated for such a step: each size has a trace of its own."""
    y = noisy(x)
    return (*y, tf.while_loop(lambda i, _: i < 3, lambda i, z: (i + 1, z * 1.5), (0, y[0]))[1])


def planned(function: Callable[[Any], Any]) -> PlannedStep:
    """With batches of several sizes, and memory for all: draws do not depend on each other, and some may run at the same time by chance."""
    options = Options.read({"budget": "300%", "time_limit": 2.0, "cost_model": "flops"})
    return PlannedStep(function, options, traced_as=[tf.TensorSpec((None, 300))])


def same(results: Any, expected: Any) -> bool:
    pairs = zip(tf.nest.flatten(results), tf.nest.flatten(expected), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def batch(size: int) -> Any:
    return tf.random.stateless_normal((size, 300), (1, size))


@pytest.mark.filterwarnings("ignore:the sizes of:checkmate.errors.BudgetWarning")
@pytest.mark.parametrize("function", [noisy, noisy_with_a_loop])
def test_batches_of_several_sizes_go_on_from_each_other(function: Callable[[Any], Any]) -> None:
    plain = tf.function(function, autograph=False, input_signature=[tf.TensorSpec((None, 300))])
    step = planned(function)
    for size in (400, 400, 200, 300, 400):
        assert same(step(batch(size)), plain(batch(size)))
    assert len(step.plans) == 3


@pytest.mark.filterwarnings("ignore:the sizes of:checkmate.errors.BudgetWarning")
def test_another_plan_goes_on() -> None:
    plain = tf.function(noisy, autograph=False, input_signature=[tf.TensorSpec((None, 300))])
    step = planned(noisy)
    for number in range(4):
        assert same(step(batch(400)), plain(batch(400)))
        if number % 2:
            (shaped,) = step._steps.values()
            shaped._go_on_under(shaped.make(shaped.plan.budget, number, again=True))


@pytest.mark.filterwarnings("ignore:the sizes of:checkmate.errors.BudgetWarning")
@pytest.mark.parametrize("reset", [lambda: tf.random.set_seed(9), keras.utils.clear_session])
def test_where_kernels_begin_anew_so_do_states(reset: Callable[[], None]) -> None:
    plain = tf.function(noisy, autograph=False, input_signature=[tf.TensorSpec((None, 300))])
    steps = [planned(noisy), planned(noisy)]
    found = []
    for size in (200, 200, 100):
        found.append(plain(batch(size)))
        for step in steps:
            assert same(step(batch(size)), found[-1])
        if len(found) == 1:
            reset()
    assert same(found[0], found[1])


@pytest.mark.filterwarnings("ignore:the sizes of:checkmate.errors.BudgetWarning")
def test_inside_of_a_function_every_place_draws_by_itself() -> None:
    plain = tf.function(noisy, autograph=False)
    step = planned(noisy)
    step.prepare(tf.TensorSpec((200, 300)))
    twice, planned_twice = (tf.function(lambda x, f=f: (f(x), f(x)), autograph=False) for f in (plain, step))
    for _ in range(2):
        step(batch(200))
        assert same(planned_twice(batch(200)), twice(batch(200)))


class Noise(layers.Layer):  # type: ignore[misc]
    """As many numbers as the batch has, for some of its samples, and as many as a sample has, for which no batch is needed."""

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        return tf.nn.dropout(x + tf.random.normal(tf.shape(x)), 0.2) + tf.random.uniform(x.shape[1:], seed=7)


def model() -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    x = inputs = keras.Input((24, 24, 3))
    for _ in range(4):
        x = Noise()(layers.Conv2D(16, 3, padding="same", activation="relu")(x))
    made = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    made.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return made


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("length_is_known", [True, False])
def test_fit_with_a_smaller_last_batch(length_is_known: bool) -> None:
    """And at the end of data of unknown length, where plain Keras draws for a batch that does not come."""
    x = np.random.default_rng(0).normal(size=(40, 24, 24, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, 0, 0])).batch(16)
    if not length_is_known:
        data = data.filter(lambda *_: True)
    found = []
    for budget in (None, "70%"):
        trained = model()
        if budget is not None:
            prepare(trained, budget=budget, time_limit=2.0, gap=0.05)
        losses = trained.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
        found.append([losses, *map(np.asarray, trained.variables)])
    assert found[0][0] == found[1][0]
    assert same(*found)
    assert [plan.executions for plan in plans(trained)] == [6, 3]
    assert plans(trained)[0].schedule.num_recomputations
