"""Keras networks and data for the TensorFlow benchmarks: sizes for two CPU cores ("small") and of the papers ("real").

The networks are functional Keras models without dropout, so that every way to train them computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SEED = 0
CLASSES = 10
TOKENS = 64


@dataclass(frozen=True)
class Task:
    """One network to train.

    Attributes:
        build: a new model with the same weights every time.
        batch: the batch of a step (inputs, labels) as arrays, the same for the same number.
        loss: from labels and predictions to a scalar.
    """

    name: str
    build: Callable[[], keras.Model]
    batch: Callable[[int], tuple[np.ndarray, np.ndarray]]
    loss: Callable[[Any, Any], Any]


#: name -> (batch, side of the pictures) or (batch, length of the text)
SIZES: dict[str, dict[str, tuple[int, int]]] = {
    "small": {
        "conv24": (8, 96),
        "vgg19": (16, 64),
        "resnet50": (16, 96),
        "mobilenet": (32, 96),
        "unet": (8, 128),
        "transformer": (8, 192),
    },
    "real": {
        "conv24": (32, 224),
        "vgg19": (32, 224),
        "resnet50": (32, 224),
        "mobilenet": (64, 224),
        "unet": (8, 416),
        "transformer": (16, 512),
    },
}
NAMES = tuple(SIZES["small"])


def task(name: str, size: str = "small", batch: int | None = None) -> Task:
    """The task of this name; `batch` replaces the size's own."""
    count, side = SIZES[size][name]
    count = batch or count
    real = size == "real"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    builders: dict[str, Callable[[], keras.Model]] = {
        "conv24": lambda: conv_net(side, count=24, channels=64 if real else 32),
        "vgg19": lambda: _classifier(keras.applications.VGG19, side),
        "resnet50": lambda: _classifier(keras.applications.ResNet50, side),
        "mobilenet": lambda: _classifier(keras.applications.MobileNet, side),
        "unet": lambda: unet(side, channels=64 if real else 16),
        "transformer": lambda: transformer(side, count=12 if real else 6, width=768 if real else 128),
    }
    batches = {"unet": lambda number: masks(number, count, side), "transformer": lambda number: tokens(number, count, side)}

    def build() -> keras.Model:
        keras.utils.set_random_seed(SEED)
        return builders[name]()

    return Task(name, build, batches.get(name, lambda number: pictures(number, count, side)), loss)


def _classifier(published: Callable[..., keras.Model], side: int) -> keras.Model:
    """A network of keras.applications up to its global pooling, and one dense layer for a few classes."""
    base = published(weights=None, include_top=False, pooling="avg", input_shape=(side, side, 3))
    return keras.Model(base.inputs, layers.Dense(CLASSES)(base.outputs[0]), name=base.name)


def conv_net(side: int, count: int, channels: int) -> keras.Model:
    """Nothing but convolutions of one size: all activations weigh the same."""
    x = start = keras.Input((side, side, 3))
    for _ in range(count):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
    return keras.Model(start, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)), name=f"conv{count}")


def unet(side: int, channels: int, levels: int = 4, classes: int = 3) -> keras.Model:
    """Ronneberger et al., "U-Net" (2015), with batch norm and same-size convolutions."""

    def double_conv(x: Any, count: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(count, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = start = keras.Input((side, side, 3))
    skips = []
    for level in range(levels):
        x = double_conv(layers.MaxPooling2D()(x) if level else x, channels << level)
        skips.append(x)
    skips.pop()
    for level in reversed(range(levels - 1)):
        up = layers.Conv2DTranspose(channels << level, 2, strides=2)(x)
        x = double_conv(layers.Concatenate()([skips.pop(), up]), channels << level)
    return keras.Model(start, layers.Conv2D(classes, 1)(x), name="unet")


def transformer(length: int, count: int, width: int, heads: int = 4) -> keras.Model:
    """Decoder-only, as in Radford et al., "Language models are unsupervised multitask learners" (2019)."""
    start = keras.Input((length,), dtype="int32")
    x = layers.Embedding(TOKENS, width)(start)
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(start, layers.Dense(TOKENS)(layers.LayerNormalization()(x)), name="transformer")


def plain_step(model: keras.Model, loss: Any, optimizer: Any, forward: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """What a TensorFlow user writes: `step(x, y) -> (prediction, loss)`.

    Args:
        forward: the model in training mode, computed in another way.
    """

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            prediction = model(x, training=True) if forward is None else forward(x)
            value = loss(y, prediction)
        optimizer.apply(tape.gradient(value, [v.value for v in model.trainable_variables]), model.trainable_variables)
        return prediction, value

    return step


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Of tensors and TensorFlow variables."""
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)


def pictures(number: int, count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a class-dependent brightness."""
    random = np.random.default_rng(1000 + number)
    labels = random.integers(0, CLASSES, count)
    noise = random.normal(size=(count, side, side, 3))
    return (noise + labels.reshape(-1, 1, 1, 1) / CLASSES).astype(np.float32), labels.astype(np.int32)


def masks(number: int, count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright square and a dark one; the label says which a pixel belongs to (0: neither)."""
    random = np.random.default_rng(2000 + number)
    images = random.normal(size=(count, side, side, 3)).astype(np.float32)
    labels = np.zeros((count, side, side), np.int32)
    for image, label in zip(images, labels, strict=True):
        for kind in (1, 2):
            row, column = random.integers(0, side // 2, 2)
            place = (slice(row, row + side // 2), slice(column, column + side // 2))
            image[place] += 3 - 2 * kind
            label[place] = kind
    return images, labels


def tokens(number: int, count: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Each token is the sum of the two before it, now and then a random one; the label is the next token."""
    random = np.random.default_rng(3000 + number)
    text = random.integers(0, TOKENS, (count, length + 1)).astype(np.int32)
    for at in range(2, length + 1):
        follow = (text[:, at - 1] + text[:, at - 2]) % TOKENS
        text[:, at] = np.where(random.random(count) < 0.2, text[:, at], follow)
    return text[:, :-1], text[:, 1:]
