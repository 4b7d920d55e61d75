"""`model.fit` after `prepare` against plain `model.fit`: the same history and the same variables, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from keras import layers  # noqa: E402 - after the check that it is there

import checkmate  # noqa: E402
from checkmate import CheckmateError  # noqa: E402
from checkmate.tf2 import compile, plans, prepare  # noqa: E402

# Keras saves variables in a way that NumPy 2 asks to be written otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

SIDE, COUNT = 24, 40
BUDGET = "80%"


def pictures(count: int = COUNT) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, count)
    return random.normal(size=(count, SIDE, SIDE, 3)).astype(np.float32) + labels.reshape(-1, 1, 1, 1), labels


def body(x: Any, dropout: float = 0.3) -> Any:
    for normed in (True, False, False, False, True):
        x = layers.Conv2D(16, 3, padding="same", use_bias=not normed)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x) if normed else x)
    return layers.GlobalAveragePooling2D()(layers.Dropout(dropout)(x))


def classifier(**compiling: Any) -> Any:
    """Dropout, batch norm, a regularization loss, a metric."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    inputs = keras.Input((SIDE, SIDE, 3))
    dense = layers.Dense(3, activation="softmax", kernel_regularizer=keras.regularizers.L2(0.01))
    model = keras.Model(inputs, dense(body(inputs)))
    settings = {
        "optimizer": keras.optimizers.SGD(0.01, momentum=0.9),
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    model.compile(**{**settings, **compiling})
    return model


def numbers(model: Any) -> list[Any]:
    found = [*model.variables, *model.optimizer.variables]
    for metric in model.metrics:
        found += metric.variables
    return [np.asarray(variable) for variable in found]


def check_same(build: Callable[[], Any], train: Callable[[Any], Any], shapes: int = 1) -> Any:
    """Train a plain and a prepared model; give the prepared one back."""
    plain = build()
    expected = train(plain), numbers(plain)
    model = build()
    prepare(model, budget=BUDGET, time_limit=2.0, gap=0.05)
    assert plans(model) == []
    result = train(model), numbers(model)
    assert result[0] == expected[0]
    assert len(result[1]) == len(expected[1])
    for one, other in zip(result[1], expected[1], strict=True):
        np.testing.assert_array_equal(one, other)
    made = plans(model)
    assert len(made) == shapes
    first = made[0]
    assert first.schedule.num_recomputations
    assert first.budget < first.graph.no_recompute_peak
    for plan in made:
        assert plan.budget == first.budget
        assert plan.measured_peak is not None
        assert plan.measured_peak <= plan.budget
    return model


def history(model: Any, *arguments: Any, **keywords: Any) -> dict[str, list[float]]:
    return dict(model.fit(*arguments, **{"epochs": 2, "batch_size": 16, "verbose": 0, **keywords}).history)


def test_two_epochs_with_validation_and_a_smaller_last_batch() -> None:
    x, y = pictures()
    model = check_same(
        lambda: classifier(optimizer=keras.optimizers.Adam(0.01)),
        lambda m: history(m, x, y, validation_data=(x[:20], y[:20])),
        shapes=2,
    )
    assert [plan.executions for plan in plans(model)] == [4, 2]
    assert len({plan.budget for plan in plans(model)}) == 1  # a percentage is of what the first batch needs


def test_class_weights_and_steps_per_execution() -> None:
    x, y = pictures()
    check_same(
        lambda: classifier(steps_per_execution=2, weighted_metrics=["accuracy"]),
        lambda m: history(m, x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, validation_split=0.2),
    )


def test_terms_whose_sizes_the_rewriting_does_not_know() -> None:
    """Dense layers reshape sequences. For batches of any size TensorFlow then adds the terms one by one, and for given sizes all at once."""

    def build() -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        x = inputs = keras.Input((32, 16))
        for _ in range(4):
            x = layers.LayerNormalization()(x)
            one, two, three = (layers.Dense(16, activation="tanh")(x) for _ in range(3))
            x = x + one + two + three
        model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
        model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    random = np.random.default_rng(1)
    x, y = random.normal(size=(72, 32, 16)).astype("float32"), random.integers(0, 3, 72)
    plain, model = build(), build()
    prepare(model, budget="150%", cost_model="flops")
    assert history(model, x, y, batch_size=32) == history(plain, x, y, batch_size=32)
    for one, other in zip(numbers(model), numbers(plain), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(plans(model)) == 2


def test_sequences_of_several_lengths_and_weights_that_are_normalized() -> None:
    """Plain Keras traces once with sizes open: attention is computed by other ops then, and a mean over weights, whose sizes are known,
    is divided otherwise than one over the batch."""

    class Standardized(layers.Dense):
        def call(self, inputs: Any) -> Any:
            mean, variance = tf.nn.moments(tf.convert_to_tensor(self.kernel), 0)
            return tf.tanh(inputs @ ((self.kernel - mean) / tf.sqrt(variance + 1e-3)) + self.bias)

    def build() -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        inputs = keras.Input((None,), dtype="int32")
        x = layers.Embedding(50, 24)(inputs)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(3, 8, dropout=0.1)(x, x))
            x = x + Standardized(24)(x)
        model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
        model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    random = np.random.default_rng(1)
    batches = [(random.integers(0, 50, shape), random.integers(0, 3, shape[0])) for shape in [(7, 19), (7, 13), (5, 19), (3, 11)]]

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, number: int) -> Any:
            return batches[number]

    plain, model = build(), build()
    prepare(model, budget="150%", cost_model="flops")
    for epochs in (1, 2):
        assert history(model, Batches(), epochs=epochs, shuffle=False) == history(plain, Batches(), epochs=epochs, shuffle=False)
    for one, other in zip(numbers(model), numbers(plain), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(plans(model)) == 4


def of_unknown_length(x: Any, y: Any) -> Any:
    """Batches of which nobody knows beforehand how many there are, as of records in a file."""
    return tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(16)


#: Keras says so at the end of every epoch.
at_the_end = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")


@at_the_end
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5), weight_decay=0.05),
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_overwrite_frequency=3),
    ],
)
def test_where_the_data_ends_is_not_known(optimizer: Any) -> None:
    """Plain Keras begins one more step at the end of an epoch, which counts, draws seeds and decays weights before it is stopped."""
    x, y = pictures()
    data = of_unknown_length(x, y)
    counted = []

    def train(model: Any) -> Any:
        found = history(model, data, batch_size=None, epochs=3, shuffle=False)
        counted.append(int(model.optimizer.iterations.numpy()))
        return found

    check_same(lambda: classifier(optimizer=optimizer()), train, shapes=2)
    assert counted == [12, 12]  # nine steps and three that were begun


@at_the_end
def test_where_several_steps_are_one_execution_the_end_of_the_data_changes_nothing() -> None:
    x, y = pictures()
    data = of_unknown_length(x, y)
    model = check_same(
        lambda: classifier(steps_per_execution=2), lambda m: history(m, data, batch_size=None, shuffle=False), shapes=2
    )
    assert int(model.optimizer.iterations.numpy()) == 6


def two_heads() -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    inputs = {"picture": keras.Input((SIDE, SIDE, 3), name="picture"), "extra": keras.Input((4,), name="extra")}
    joined = layers.Concatenate()([body(inputs["picture"]), inputs["extra"]])
    outputs = {"kind": layers.Dense(3, name="kind")(joined), "size": layers.Dense(1, name="size")(joined)}
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0),
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.5},
        metrics={"kind": ["accuracy"], "size": ["mae"]},
    )
    return model


def test_several_inputs_and_outputs_with_sample_weights() -> None:
    x, y = pictures(32)
    random = np.random.default_rng(1)
    inputs = {"picture": x, "extra": random.normal(size=(32, 4)).astype(np.float32)}
    labels = {"kind": y, "size": random.normal(size=(32, 1)).astype(np.float32)}
    weights = {"kind": random.uniform(size=32), "size": random.uniform(size=32)}
    check_same(two_heads, lambda m: history(m, inputs, labels, sample_weight=weights))


def test_callbacks_see_the_same(tmp_path: Path) -> None:
    x, y = pictures(32)

    def train(model: Any) -> Any:
        seen: list[Any] = []
        callbacks = [
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: seen.append((batch, {k: float(v) for k, v in logs.items()})),
                on_epoch_end=lambda epoch, logs: seen.append((epoch, dict(logs))),
            ),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
            keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=1e9),  # stops after the second epoch
            keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), save_weights_only=True),
        ]
        return history(model, x, y, callbacks=callbacks, epochs=5), seen

    model = check_same(classifier, train)
    saved = classifier()
    saved.optimizer.build(saved.trainable_variables)
    saved.load_weights(str(tmp_path / "best.weights.h5"))
    for one, other in zip(saved.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


class Careful(keras.Model):
    """A train_step of its own: the loss counts twice, and the size of the gradient is reported."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = 2 * self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "gradient": tf.linalg.global_norm(gradients)}


def test_a_train_step_of_the_user() -> None:
    x, y = pictures(32)

    def build() -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        inputs = keras.Input((SIDE, SIDE, 3))
        model = Careful(inputs, layers.Dense(3, activation="softmax")(body(inputs)))
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    assert set(check_same(build, lambda m: history(m, x, y)).history.history) == {"loss", "gradient"}


def test_mixed_precision() -> None:
    x, y = pictures(32)

    def build() -> Any:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return classifier(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=256.0))
        finally:
            keras.config.set_dtype_policy("float32")

    check_same(build, lambda m: history(m, x, y))


def test_datasets_and_single_batches() -> None:
    x, y = pictures()

    def train(model: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True).repeat()
        first = history(model, data, batch_size=None, steps_per_epoch=3, shuffle=False)
        return first, [float(number) for number in model.train_on_batch(x[:16], y[:16])]

    check_same(classifier, train, shapes=2)  # fit hands on (x, y), train_on_batch (x, y, no weights)


def test_compiling_again_starts_again() -> None:
    x, y = pictures(16)

    def train(model: Any) -> Any:
        first = history(model, x, y)
        model.layers[1].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        return first, history(model, x, y)

    model = check_same(classifier, train)
    assert plans(model)[0].executions == 2


def test_a_model_that_was_trained_before() -> None:
    """Prepared between two fits, at another time in the life of the optimizer."""
    x, y = pictures(16)
    plain, model = classifier(), classifier()
    for one in (plain, model):
        history(one, x, y)
    prepare(model, budget=BUDGET)
    assert history(model, x, y) == history(plain, x, y)
    assert plans(model)[0].executions == 2


def test_saving_and_loading(tmp_path: Path) -> None:
    x, y = pictures(16)
    model = classifier()
    prepare(model, budget=BUDGET)
    history(model, x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    with pytest.raises(CheckmateError, match="has no plans"):
        plans(loaded)  # it trains plainly until it is prepared


def test_what_is_refused() -> None:
    x, y = pictures(16)
    with pytest.raises(CheckmateError, match="takes a Keras model"):
        prepare(lambda: None)
    with pytest.raises(checkmate.UnknownMethod, match="budget"):
        prepare(classifier(), budgets="1GiB")
    with pytest.raises(checkmate.BudgetError):
        prepare(classifier(), budget="much")
    for settings, message in (({"jit_compile": True}, "XLA"), ({"run_eagerly": True}, "run_eagerly")):
        model = classifier(**settings)
        prepare(model, budget=BUDGET)
        with pytest.raises(CheckmateError, match=message):
            history(model, x, y)
    model = classifier()
    prepare(model, budget="1MiB")
    before = numbers(model)[: len(model.variables)]
    with pytest.raises(checkmate.InfeasibleBudget, match="ask for at least"):
        history(model, x, y)
    for one, other in zip(before, numbers(model), strict=False):  # nothing was trained
        np.testing.assert_array_equal(one, other)


def test_nothing_is_left_behind() -> None:
    """The model, its plans and its traces go when the user lets go of it."""
    import weakref

    x, y = pictures(16)
    model = classifier()
    prepare(model, budget="150%")
    history(model, x, y, epochs=1)
    gone = weakref.ref(plans(model)[0])
    keras.utils.clear_session()
    del model
    gc.collect()
    assert gone() is None


def tf_keras_classifier(tf_keras: Any) -> Any:
    """Without dropout: that of tf_keras draws by the number of its op in the graph, so no two ways of tracing agree."""
    tf_keras.utils.set_random_seed(5)
    start = h = tf_keras.Input((SIDE, SIDE, 3))
    for normed in (True, False, False, False, True):
        h = tf_keras.layers.Conv2D(16, 3, padding="same", use_bias=not normed)(h)
        h = tf_keras.layers.ReLU()(tf_keras.layers.BatchNormalization()(h) if normed else h)
    h = tf_keras.layers.Dense(3, activation="softmax")(tf_keras.layers.GlobalAveragePooling2D()(h))
    return tf_keras.Model(start, h)


def test_tf_keras() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    x, y = pictures()
    plain, model = tf_keras_classifier(tf_keras), tf_keras_classifier(tf_keras)
    for one in (plain, model):
        one.compile(tf_keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    prepare(model, budget="80%")
    assert history(model, x, y) == history(plain, x, y)
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [plan.executions for plan in plans(model)] == [4, 2]
    assert len({plan.budget for plan in plans(model)}) == 1  # a percentage is of what the first batch needs


def test_where_the_data_ends_is_not_known_to_tf_keras() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    data = of_unknown_length(*pictures())
    plain, model = tf_keras_classifier(tf_keras), tf_keras_classifier(tf_keras)
    for one in (plain, model):
        one.compile(tf_keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    prepare(model, budget="80%")
    assert history(model, data, batch_size=None) == history(plain, data, batch_size=None)
    for one, other in zip(model.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_step_with_tf_keras() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    x, y = (tf.constant(array[:16]) for array in pictures())
    plain, model = tf_keras_classifier(tf_keras), tf_keras_classifier(tf_keras)
    loss = tf_keras.losses.SparseCategoricalCrossentropy()
    plain_optimizer, optimizer = (tf_keras.optimizers.SGD(0.01, momentum=0.9) for _ in range(2))
    plain_optimizer.build(plain.trainable_variables)

    @tf.function(autograph=False)
    def plain_step() -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, plain(x, training=True))
        gradients = tape.gradient(value, plain.trainable_variables)
        plain_optimizer.apply_gradients(list(zip(gradients, plain.trainable_variables, strict=True)))
        return value

    step = compile(model, loss, optimizer, x, y, budget="80%")
    assert [float(step(x, y)[1]) for _ in range(3)] == [float(plain_step()) for _ in range(3)]
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert plans(step)[0].schedule.num_recomputations > 0


def perceptron(rows: int, width: int) -> tuple[Any, Any]:
    """A model whose batch is as large as each of its activations, and batches of it from a pipeline."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    hidden = [layers.Dense(width, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((width,)), *hidden, layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5 * rows, width)).astype(np.float32), random.integers(0, 3, 5 * rows).astype(np.int32)
    return model, tf.data.Dataset.from_tensor_slices((x, y)).batch(rows)


def test_the_next_batch_of_a_pipeline_is_under_the_budget() -> None:
    rows, width = 1024, 256
    of_batch = 4 * rows * (width + 1)
    model, data = perceptron(rows, width)
    prepare(model, budget="1KiB", time_limit=1)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        model.fit(data, shuffle=False, verbose=0)
    prepare(model, budget=caught.value.smallest_found, time_limit=1)
    model.fit(data, shuffle=False, verbose=0)
    (plan,) = plans(model) or ()
    assert plan.outside == of_batch
    gc.collect()
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]  # with all variables
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    variables = sum(np.prod(one.shape, dtype=int) * 4 for one in (*model.variables, *model.optimizer.variables))
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before + variables
    assert plan.budget // 2 < peak <= plan.budget
    model.train_on_batch(*next(iter(data)))
    assert [plan.outside for plan in plans(model) or ()] == [of_batch, 0]
