"""Models and scripts as people write them, prepared: the same history and variables as plain Keras, bit for bit."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from checkmate import CheckmateError
from checkmate.errors import BudgetWarning
from checkmate.tf2 import compile, plans, prepare

# Keras saves variables in a way that NumPy 2 asks to be written otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

COUNT, SIDE = 20, 16
X = np.random.default_rng(0).normal(size=(COUNT, SIDE, SIDE, 3)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, COUNT)

#: What such small networks need is found without running their ops, and nothing has to be computed again.
OPTIONS: dict[str, Any] = {"budget": "150%", "cost_model": "flops", "time_limit": 1.0, "gap": 0.05}


def compiled(model: Any, **settings: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": "adam", "loss": loss, "metrics": ["accuracy"], **settings})
    return model


def numbers(model: Any) -> list[Any]:
    optimizers = [getattr(model, name) for name in ("optimizer", "d_optimizer", "g_optimizer") if hasattr(model, name)]
    owners = [model, *optimizers, *model.metrics]
    return [np.asarray(variable) for owner in owners for variable in owner.variables]


def history(model: Any, x: Any, y: Any = None, **settings: Any) -> dict[str, list[float]]:
    return dict(model.fit(x, y, **{"epochs": 2, "batch_size": 8, "verbose": 0, **settings}).history)


def check_same(build: Callable[[], Any], train: Callable[[Any], Any]) -> Any:
    """Train a plain and a prepared model; give the prepared one back."""
    found = []
    for prepared in (False, True):
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        model = build()
        if prepared:
            prepare(model, **OPTIONS)
        found.append((train(model), numbers(model)))
    (expected, variables), (result, others) = found
    assert result == expected
    assert len(others) == len(variables)
    for one, other in zip(others, variables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert plans(model)
    return model


def sequential(normed: bool = True) -> Any:
    """Not built: its layers do not know what they will be given."""
    norm = [layers.BatchNormalization()] if normed else []
    body = [layers.Conv2D(16, 3, activation="relu"), *norm, layers.Conv2D(16, 3, activation="relu"), layers.Dropout(0.2)]
    return keras.Sequential([*body, layers.GlobalAveragePooling2D(), layers.Dense(3)])


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.body = [layers.Conv2D(16, 3, activation="relu") for _ in range(2)]
        self.norm = layers.BatchNormalization()
        self.head = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.body:
            x = layer(x)
        return self.head(tf.reduce_mean(self.norm(x, training=training), (1, 2)))


def test_a_sequential_without_input() -> None:
    model = check_same(lambda: compiled(sequential()), lambda m: history(m, X, Y))
    assert [plan.executions for plan in plans(model)] == [4, 2]


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")  # Keras says that only a call will build it
def test_a_subclass_that_was_told_its_shape() -> None:
    def build() -> Any:
        model = compiled(Subclassed())
        model.build((None, SIDE, SIDE, 3))
        return model

    check_same(build, lambda m: history(m, X[:16], Y[:16]))


class Adversaries(keras.Model):
    """A generator and a discriminator with an optimizer each; Keras gives the model a third one, which nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [layers.Dense(8 * 8 * 8), layers.Reshape((8, 8, 8)), layers.Conv2DTranspose(3, 4, strides=2, padding="same")]
        )
        self.discriminator = keras.Sequential([layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(1)])
        self.seed = keras.random.SeedGenerator(1)
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def train_step(self, real: Any) -> dict[str, Any]:
        noise = keras.random.normal((tf.shape(real)[0], 16), seed=self.seed)
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            loss = tf.reduce_mean(self.discriminator(fake, training=True) - self.discriminator(real, training=True))
            other = -tf.reduce_mean(self.discriminator(fake, training=True))
        for value, net, optimizer in (
            (loss, self.discriminator, self.d_optimizer),
            (other, self.generator, self.g_optimizer),
        ):
            weights = net.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def test_two_optimizers() -> None:
    def build() -> Any:
        model = Adversaries()
        model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(1e-3))
        return model

    model = check_same(build, lambda m: history(m, X[:16]))
    assert not model.optimizer.built


def test_batches_of_changing_sizes_one_by_one() -> None:
    """Plain Keras traces the first size, and for all others a step with the size left open, which rounds otherwise."""

    def train(model: Any) -> list[Any]:
        return [np.asarray(model.train_on_batch(X[:count], Y[:count])).tolist() for count in (16, 5, 16, 7)]

    model = check_same(lambda: compiled(sequential()), train)
    assert [plan.executions for plan in plans(model)] == [2, 1, 1]


def test_what_was_trainable_at_first_is_trained_until_the_model_is_compiled_again() -> None:
    """Whatever the size of the batch: also one that is planned after the change."""

    def build() -> Any:
        return compiled(keras.Sequential([keras.Input((SIDE, SIDE, 3)), *sequential().layers]), optimizer="sgd")

    def is_trained(model: Any, batch_size: int = 8) -> Any:
        before = np.array(model.layers[0].kernel)
        found = history(model, X, Y, epochs=1, batch_size=batch_size)
        return bool((np.array(model.layers[0].kernel) != before).any()), found

    def train(model: Any) -> Any:
        found = [is_trained(model)]
        model.layers[0].trainable = False
        return [*found, is_trained(model)]

    model = check_same(build, train)
    assert is_trained(model, batch_size=10)[0]
    assert [plan.executions for plan in plans(model)] == [4, 2, 2]
    assert not model.layers[0].trainable
    compiled(model, optimizer="sgd")
    assert not is_trained(model)[0]


def test_the_same_rule_for_a_step_that_was_compiled() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    step = compile(model, "mse", "sgd", tf.ones((4, 4)), tf.ones((4, 2)), **OPTIONS)
    model.layers[0].trainable = False
    for count in (4, 3):
        before = np.array(model.layers[0].kernel)
        step(tf.ones((count, 4)), tf.ones((count, 2)))
        assert (np.array(model.layers[0].kernel) != before).any()
    assert model.layers[0].trainable is False


def test_text_goes_in_as_it_is() -> None:
    """How many words there are is known to no trace; Keras finds the sizes of what follows while the step runs."""
    words = np.array(["a b c", "b c d e", "c", "a a a d"] * 5)

    def build() -> Any:
        vectors = layers.TextVectorization(output_sequence_length=6)
        vectors.adapt(words)
        return compiled(keras.Sequential([vectors, layers.Embedding(20, 16), layers.GlobalAveragePooling1D(), layers.Dense(3)]))

    data = tf.data.Dataset.from_tensor_slices((words, Y)).batch(8)
    with pytest.warns(BudgetWarning, match="sizes of [0-9]+ tensors, .* first, are not known"):
        check_same(build, lambda m: history(m, data, batch_size=None, shuffle=False))


def test_callbacks_and_saving(tmp_path: Path) -> None:
    def train(model: Any) -> Any:
        best = tmp_path / f"{len(list(tmp_path.iterdir()))}.keras"
        callbacks = [
            keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=1e9, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(str(best), monitor="loss", save_best_only=True),
        ]
        found = history(model, X[:16], Y[:16], epochs=4, callbacks=callbacks)
        assert len(found["loss"]) == 2
        return found, [weights.tolist() for weights in keras.models.load_model(best).get_weights()]

    model = check_same(lambda: compiled(sequential(normed=False)), train)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(loaded.serve(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)


def test_a_loop_of_the_users_own_is_said_to_be_outside_of_the_plan() -> None:
    model = compiled(keras.Sequential([keras.Input((4,)), layers.Dropout(0.1), layers.Dense(3)]))
    prepare(model, **OPTIONS)
    x = np.ones((4, 4), np.float32)

    def gradient(**how: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, **how))
        return tape.gradient(loss, model.trainable_variables)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(training=False)  # to see what the network looks at, perhaps
        model(x, training=True)
        model.train_on_batch(x, np.zeros(4, np.int64))
        model.evaluate(x, np.zeros(4, np.int64), verbose=0)
        compile(model, "mse", "sgd", x, tf.zeros((4, 3)), **OPTIONS)
    with pytest.warns(BudgetWarning, match="covers these two only.* what checkmate.tf2.compile returns"):
        gradient(training=True)
    prepare(model, **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(training=True)  # once is enough


def test_the_first_batch_is_not_kept() -> None:
    model = compiled(keras.Sequential([keras.Input((4,)), layers.Dense(3)]))
    prepare(model, **OPTIONS)
    x = tf.ones((4, 4))
    gone = weakref.ref(x)
    model.train_on_batch(x, tf.zeros(4, tf.int64))
    del x
    gc.collect()
    assert gone() is None


def test_lists_of_numbers_are_refused_in_a_line() -> None:
    model = compiled(keras.Sequential([keras.Input((4,)), layers.Dense(3)]))
    prepare(model, **OPTIONS)
    with pytest.raises(CheckmateError, match="holds a Python float where an array is meant") as caught:
        model.train_on_batch(np.ones((500, 4)).tolist(), np.zeros(500))
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_losses_of_single_outputs_where_plain_keras_does_not_know_how_large_a_batch_is() -> None:
    """It weighs batches alike then, also a smaller last one; a model with a loop is traced for each size under a plan."""
    random = np.random.default_rng(2)
    x, labels = random.normal(size=(COUNT, 5, 4)).astype("float32"), np.linspace(0.1, 3, COUNT * 2).reshape(COUNT, 2)
    found = []
    for prepared in (False, True):
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        inputs = keras.Input((5, 4))
        hidden = layers.LSTM(4)(inputs)
        model = keras.Model(inputs, {"one": layers.Dense(2)(hidden), "other": layers.Dense(2)(hidden)})
        model.compile("sgd", "mse")
        if prepared:
            prepare(model, **OPTIONS)
        found.append(history(model, x, {"one": labels, "other": labels}, shuffle=False))
    expected, result = found
    assert set(expected) == {"loss", "one_loss", "other_loss"}
    for name, values in expected.items():
        assert result[name] == pytest.approx(values, rel=1e-5)


def test_variables_of_an_optimizer_that_scales_the_loss_have_the_paths_of_plain_keras() -> None:
    paths = []
    for prepared in (False, True):
        keras.utils.clear_session()
        model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), "mse")
        if prepared:
            prepare(model, **OPTIONS)
        model.train_on_batch(np.ones((8, 4), "float32"), np.ones((8, 2), "float32"))
        paths.append([variable.path for variable in model.optimizer.variables])
    assert paths[0] == paths[1]


def test_a_step_is_counted_after_what_reads_the_count() -> None:
    """What waits for the updates is, in TensorFlow's rewriting, the constant that is added to the count."""

    class Counting(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last, self.steps = (
                layers.Dense(64, activation="relu"),
                layers.Dense(1),
                tf.Variable(0.0, trainable=False),
            )

        def call(self, x: Any) -> Any:
            return self.last(self.hidden(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = [one.value for one in self.trainable_variables]
            pairs = list(zip(weights, tape.gradient(loss, weights), strict=True))
            rate = 0.1 / (self.steps + 1.0)
            with tf.control_dependencies([one.assign_sub(rate * change, read_value=False) for one, change in pairs]):
                self.steps.assign_add(1.0)
            return {"loss": loss}

    x = np.random.default_rng(0).normal(size=(512, 64)).astype("float32")
    found = []
    for prepared in (False, True):
        keras.utils.set_random_seed(3)
        model = Counting()
        model.compile()
        if prepared:
            prepare(model, **OPTIONS)
        found.append((model.fit(x, x[:, :1], batch_size=128, verbose=0).history, model.get_weights()))
    assert found[0][0] == found[1][0]
    for one, ours in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(ours, one)


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights:UserWarning")
def test_a_model_with_nothing_to_train() -> None:
    def build() -> Any:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())  # it makes variables when it is built
        return compiled(keras.Sequential([keras.Input((4,)), layers.Dense(3, trainable=False)]), optimizer=optimizer)

    check_same(
        build,
        lambda model: history(model, np.ones((16, 4), "float32"), np.zeros(16)),
    )


def test_factors_are_multiplied_in_the_order_of_plain_keras() -> None:
    """TensorFlow puts products of several factors in another order, the small ones first, and among equal ones goes by their names."""

    class Gated(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.dense = layers.Dropout(0.3), layers.Dense(16)

        def call(self, inputs: Any, training: bool = False) -> Any:
            x, y = inputs
            return self.dense(tf.constant(scale) * (self.dropout(x, training=training) * y))

    random = np.random.default_rng(3)
    x, y, scale = (random.normal(size=size).astype("float32") for size in ((64, 64), (64, 64), 64))
    check_same(
        lambda: compiled(Gated(), loss="mae", optimizer="sgd"), lambda model: history(model, (x, y), x[:, :16], batch_size=64)
    )
