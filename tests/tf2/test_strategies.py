"""Strategies of `tf.distribute`: with one device a step is that of no strategy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate.tf2
from checkmate import CheckmateError

SIDE = 16


def classifier(kind: Any = None) -> Any:
    keras.utils.set_random_seed(5)
    strategy = None
    if kind is not None:
        cpu = tf.config.list_logical_devices("CPU")[0].name
        strategy = kind(cpu if kind is tf.distribute.OneDeviceStrategy else [cpu])
    with nullcontext() if strategy is None else strategy.scope():
        x = start = keras.Input((SIDE, SIDE, 3))
        for _ in range(4):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(24, 3, padding="same")(x)))
        model = keras.Model(start, layers.Dense(3)(layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def trained(model: Any) -> list[Any]:
    """What there is after two epochs of data whose end nobody knows, with a smaller last batch."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, SIDE, SIDE, 3)).astype("float32"), random.integers(0, 3, 40)

    def batches() -> Any:
        for first in range(0, len(x), 16):
            yield x[first : first + 16], y[first : first + 16]

    signature = (tf.TensorSpec((None, SIDE, SIDE, 3)), tf.TensorSpec((None,), tf.int64))
    losses = model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=signature), epochs=2, shuffle=False, verbose=0
    ).history
    return [losses["loss"], *(np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables))]


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("kind", [tf.distribute.OneDeviceStrategy, tf.distribute.MirroredStrategy])
def test_a_strategy_of_one_device_changes_nothing(kind: Any) -> None:
    expected = trained(classifier())
    model = classifier(kind)
    checkmate.tf2.prepare(model, budget="80%", time_limit=2, gap=0.05)
    for one, other in zip(trained(model), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    plans = checkmate.tf2.plans(model)
    assert len(plans) == 2
    assert all(plan.measured_peak is not None and plan.measured_peak <= plan.budget for plan in plans)


def test_loops_of_ones_own_know_no_strategy() -> None:
    model = classifier(tf.distribute.OneDeviceStrategy)
    with pytest.raises(CheckmateError, match="strategy"):
        checkmate.tf2.compile(model, "mse", "sgd", tf.zeros((2, SIDE, SIDE, 3)), tf.zeros((2, 3)), budget="80%")


def test_tf_keras_knows_no_strategy() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    with tf.distribute.OneDeviceStrategy(tf.config.list_logical_devices("CPU")[0].name).scope():
        model = tf_keras.Sequential([tf_keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    with pytest.raises(CheckmateError, match="strategy"):
        checkmate.tf2.prepare(model, budget="80%")


def test_a_model_of_tf_keras_need_not_be_built() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    model = tf_keras.Sequential([tf_keras.layers.Dense(2)])
    checkmate.tf2.prepare(model, budget="1GiB", time_limit=1)
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert len(checkmate.tf2.plans(model)) == 1
