"""What tf_keras does otherwise than Keras 3: AutoGraph converts what users write, and variables of optimizers are named after these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
tf_keras = pytest.importorskip("tf_keras")

from checkmate.tf2 import compile, plans, prepare  # noqa: E402 - after the check that they are there

layers = tf_keras.layers
OPTIONS: dict[str, Any] = {"budget": "150%", "time_limit": 1.0, "progress": False}
WIDTH = 96


class Folded(layers.Layer):
    """With a branch in the words of Python."""

    def build(self, shape: Any) -> None:
        self.dense = layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        x = self.dense(x)
        if tf.reduce_mean(x) > 0:
            x = tf.tanh(x)
        return x


class Folding(tf_keras.Model):
    """The same, in the model as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Folded(), layers.Dense(1)

    def call(self, x: Any) -> Any:
        x = self.inner(x)
        if tf.reduce_mean(x) < 0:
            x = 2.0 * x
        return self.last(x)


def functional() -> Any:
    start = tf_keras.Input((WIDTH,))
    return tf_keras.Model(start, layers.Dense(1)(Folded()(start)))


def squared(labels: Any, predictions: Any) -> Any:
    error = tf.reduce_mean(tf.square(labels - predictions))
    if error > 1:
        error = tf.sqrt(error)
    return error


def batch() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(512, WIDTH)).astype("float32"), random.normal(size=(512, 1)).astype("float32")


def fresh(build: Any) -> Any:
    tf_keras.utils.set_random_seed(5)
    return build()


@pytest.mark.parametrize("build", [Folding, functional])
def test_branches_in_the_words_of_python(build: Any) -> None:
    found = []
    for prepared in (False, True):
        model = fresh(build)
        model.compile("sgd", squared)
        if prepared:
            prepare(model, **OPTIONS)
        found.append((model.fit(*batch(), batch_size=256, epochs=2, verbose=0).history, model.get_weights()))
        assert not prepared or [plan.executions for plan in plans(model)] == [4]
    (history, weights), (other, others) = found
    assert other["loss"] == pytest.approx(history["loss"], rel=1e-5)
    for one, ours in zip(weights, others, strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-4, atol=1e-6)


def test_branches_in_a_loop_of_ones_own() -> None:
    """The model has no variables yet: they are made by its call."""
    x, y = map(tf.constant, batch())
    plain = fresh(Folding)
    plain(x)
    model = fresh(Folding)
    step = compile(model, "mse", "sgd", x, y, **OPTIONS)
    expected = float(tf.reduce_mean(tf_keras.losses.mse(y, plain(x))))
    assert float(step(x, y)[1]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_legacy_optimizers_in_a_loop_of_ones_own(scaled: bool) -> None:
    """Against fit, which trains with them by itself."""
    x, y = map(tf.constant, batch())
    found = []
    for is_plain in (True, False):
        model = fresh(lambda: tf_keras.Sequential([tf_keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.Dense(1)]))
        optimizer = tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9)
        if scaled:
            optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
        if is_plain:
            model.compile(optimizer, "mse")
            model.fit(x, y, batch_size=len(x), epochs=3, verbose=0)
        else:
            step = compile(model, "mse", optimizer, x, y, **OPTIONS)
            for _ in range(3):
                step(x, y)
        found.append([*model.get_weights(), *(variable.numpy() for variable in optimizer.variables())])
    for one, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, one, rtol=1e-5, atol=1e-6)


def test_two_legacy_optimizers() -> None:
    """Their slots are arguments of the step, on whose devices their updates are to be."""

    class Pair(tf_keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (tf_keras.Sequential([layers.Dense(WIDTH, "relu"), layers.Dense(1)]) for _ in range(2))
            self.optimizers = [tf_keras.optimizers.legacy.Adam(1e-2) for _ in range(2)]

        def train_step(self, data: Any) -> Any:
            x, y = data
            losses = {}
            for name, part, optimizer in zip("ab", (self.one, self.other), self.optimizers, strict=True):
                with tf.GradientTape() as tape:
                    losses[name] = tf.reduce_mean(tf.square(part(x, training=True) - y))
                gradients = tape.gradient(losses[name], part.trainable_weights)
                optimizer.apply_gradients(zip(gradients, part.trainable_weights, strict=True))
            return losses

    found = []
    for prepared in (False, True):
        model = fresh(Pair)
        model.compile()
        if prepared:
            prepare(model, **OPTIONS)
        model.fit(*batch(), batch_size=256, epochs=2, verbose=0)
        found.append(model.get_weights())
    (step,) = model.make_train_function._trainer._steps.values()
    assert [shaped.captured.traced.rewritten for shaped in step._steps.values()] == [True]
    for one, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, one)


def test_names_of_an_optimizers_variables() -> None:
    names = []
    for prepared in (False, True):
        tf_keras.backend.clear_session()
        model = fresh(lambda: tf_keras.Sequential([tf_keras.Input((WIDTH,)), layers.Dense(1)]))
        model.compile(tf_keras.optimizers.Adam(), "mse")
        if prepared:
            prepare(model, **OPTIONS)
        model.train_on_batch(*batch())
        names.append([variable.name for variable in model.optimizer.variables])
    assert names[0] == names[1]
    assert "Adam/m/dense/kernel:0" in names[0]
