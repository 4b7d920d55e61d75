"""Small Keras models of the kinds people train, and plain training to compare with, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from checkmate.planning import Options
from checkmate.tf2 import measure
from checkmate.tf2.graphs.capture import Captured
from checkmate.tf2.graphs.trace import trace
from checkmate.tf2.keras.step import build, training_step
from checkmate.tf2.step import capture_step


@dataclass
class Case:
    """A way to make a model, its optimizer, and a batch; every call of `make` gives the same weights."""

    name: str
    build: Callable[[], Any]
    optimizer: Callable[[], Any]
    loss: Any
    x: Any
    y: Any
    policy: str = "float32"

    def make(self) -> Any:
        keras.utils.clear_session()  # layer names, and with them the names of ops, start from 1 again
        keras.utils.set_random_seed(7)
        keras.mixed_precision.set_global_policy(self.policy)
        try:
            return self.build()
        finally:
            keras.mixed_precision.set_global_policy("float32")


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _classes(count: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, count, size=shape)


def conv_net(depth: int = 10, width: int = 16, side: int = 48) -> Any:
    """Plain convolutions with bias."""
    x = inputs = keras.Input((side, side, 3))
    for _ in range(depth):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def unet(width: int = 8, depth: int = 2, side: int = 64) -> Any:
    """Encoder and decoder with skip connections, batch norm and dropout."""

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
            x = layers.Activation("relu")(x)
        return x

    x = inputs = keras.Input((side, side, 3))
    skips = []
    for level in range(depth):
        x = block(x, width * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.2)(block(x, width * 2**depth))
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(width * 2**level, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skips[level]]), width * 2**level)
    return keras.Model(inputs, layers.Conv2D(3, 1)(x))


def residual(blocks: int = 4, width: int = 64, side: int = 16) -> Any:
    """Convolutions with bias before batch norm, as in the ResNet of keras.applications; gradients of kernels take memory."""
    x = inputs = keras.Input((side, side, 3))
    x = layers.Conv2D(width, 3, padding="same")(x)
    for _ in range(blocks):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(y))
        x = layers.ReLU()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def transformer(blocks: int = 2, width: int = 64, length: int | None = 64, words: int = 500) -> Any:
    """Embedding, attention, GELU, layer norm, dropout."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(inputs)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y)])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(width)(y))])
    return keras.Model(inputs, layers.Dense(words)(x))


class Subclassed(keras.Model):
    """Built at its first call; several inputs by name; L2 regularization; a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Conv2D(8, 3, padding="same", kernel_regularizer="l2")
        self.second = layers.Conv2D(8, 3, padding="same", activation="tanh")
        self.head = layers.Dense(5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = self.first(inputs["image"])
        x = tf.cond(tf.reduce_sum(inputs["scale"]) > 0, lambda: x * 2.0, lambda: x)
        for _ in range(4):
            x = self.second(x)
        return self.head(tf.reduce_mean(x, axis=(1, 2)))


def recurrent() -> Any:
    x = inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(300, 32)(x)
    x = layers.LSTM(48, return_sequences=True)(x)
    x = layers.GRU(48)(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def _crossentropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


CASES = {
    "conv": lambda: Case(
        "conv", conv_net, lambda: keras.optimizers.Adam(1e-3), _crossentropy(), _numbers(8, 48, 48, 3), _classes(10, 8)
    ),
    "residual": lambda: Case(
        "residual", residual, lambda: keras.optimizers.SGD(0.05), _crossentropy(), _numbers(16, 16, 16, 3), _classes(10, 16)
    ),
    "unet": lambda: Case(
        "unet",
        unet,
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0),
        _crossentropy(),
        _numbers(8, 64, 64, 3),
        _classes(3, 8, 64, 64),
    ),
    "transformer": lambda: Case(
        "transformer",
        transformer,
        lambda: keras.optimizers.AdamW(1e-3, use_ema=True, ema_momentum=0.9, global_clipnorm=1.0),
        _crossentropy(),
        _classes(500, 16, 64),
        _classes(500, 16, 64),
    ),
    "subclassed": lambda: Case(
        "subclassed",
        Subclassed,
        lambda: keras.optimizers.RMSprop(1e-3),
        "sparse_categorical_crossentropy",
        {"image": _numbers(8, 40, 40, 3), "scale": np.ones(3, np.float32)},
        _classes(5, 8),
    ),
    "recurrent": lambda: Case(
        "recurrent", recurrent, lambda: keras.optimizers.Adam(1e-3), _crossentropy(), _classes(300, 32, 24), _classes(10, 32)
    ),
}


def captured_case(name: str) -> tuple[Case, Any, Captured]:
    """A case, its model, and what its step is made of; costs are in FLOPs."""
    case = CASES[name]()
    model, optimizer = case.make(), case.optimizer()
    build(model, optimizer, tensors(case.x))
    specs = (tensors(case.x), tensors(case.y))
    return case, model, capture_step(trace(training_step(model, case.loss, optimizer), specs), Options(cost_model="flops"))


def plain_step(case: Case, model: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """What a TensorFlow user writes by hand."""
    loss = keras.losses.get(case.loss) if isinstance(case.loss, str) else case.loss

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            prediction = model(x, training=True)
            value = tf.reduce_mean(loss(y, prediction))
            if model.losses:
                value += tf.add_n(model.losses)
            scaled = optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
        return prediction, value

    return step


def tensors(nest: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, nest)


def train_plain(case: Case, steps: int = 5) -> tuple[list[Any], list[float], int]:
    """Variables (of the model and the optimizer), losses, and the bytes that a step added at its peak.

    These are the fewest of all steps: in some, kernels happen to run at the same time, and those for half precision ask for 30 MB each,
    however small the batch is.
    """
    model, optimizer = case.make(), case.optimizer()
    x, y = tensors(case.x), tensors(case.y)
    if not model.built:
        model(x)
    optimizer.build(model.trainable_variables)
    step = plain_step(case, model, optimizer)
    losses, added = [], []
    for _ in range(steps):
        with measure() as seen:
            losses.append(float(step(x, y)[1]))
        added.append(seen.added or 0)
    return state(model, optimizer), losses, min(added)


def state(model: Any, optimizer: Any) -> list[Any]:
    return [np.asarray(variable) for variable in (*model.variables, *optimizer.variables)]


def identical(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))
