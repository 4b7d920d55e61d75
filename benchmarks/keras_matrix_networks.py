"""Keras models of many kinds, as people write them, small, with their data: for keras_matrix.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CLASSES, WORDS, SIDE, LENGTH = 10, 64, 32, 32
CROSS_ENTROPY = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Task:
    """One model to train.

    Attributes:
        build: a new model, built or not. batch: from a seed and a count of examples to inputs and labels.
        loss: as `model.compile` takes it; None for a model that computes its own.
        examples: in a batch.
    """

    build: Callable[[], Any]
    batch: Callable[[int, int], tuple[Any, Any]]
    loss: Any = CROSS_ENTROPY
    examples: int = 16


# --- data ---


def pictures(side: int = SIDE) -> Callable[[int, int], tuple[Any, Any]]:
    """Noise, and a class for each picture."""

    def batch(seed: int, count: int) -> tuple[Any, Any]:
        random = np.random.default_rng(seed)
        return random.normal(size=(count, side, side, 3)).astype("float32"), random.integers(0, CLASSES, count).astype("int32")

    return batch


def masks(seed: int, count: int) -> tuple[Any, Any]:
    """Noise, and a class for each pixel."""
    x, _ = pictures()(seed, count)
    return x, (x[..., 0] > 0).astype("int32")


def sentences(seed: int, count: int) -> tuple[Any, Any]:
    """Words, and a class for each sentence."""
    random = np.random.default_rng(seed)
    return random.integers(1, WORDS, (count, LENGTH)).astype("int32"), random.integers(0, CLASSES, count).astype("int32")


def next_words(seed: int, count: int) -> tuple[Any, Any]:
    """Words, and for each the one that follows."""
    words = np.random.default_rng(seed).integers(1, WORDS, (count, LENGTH + 1)).astype("int32")
    return words[:, :-1], words[:, 1:]


def series(seed: int, count: int) -> tuple[Any, Any]:
    """Sequences of numbers, and a class for each."""
    random = np.random.default_rng(seed)
    return random.normal(size=(count, LENGTH, 64)).astype("float32"), random.integers(0, CLASSES, count).astype("int32")


def vectors(seed: int, count: int) -> tuple[Any, Any]:
    """Numbers, and a class for each example."""
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 256)).astype("float32"), random.integers(0, CLASSES, count).astype("int32")


def two_labels(seed: int, count: int) -> tuple[Any, Any]:
    """Pictures with a class and a number, by name."""
    x, y = pictures()(seed, count)
    return {"picture": x}, {"kind": y, "size": x.mean((1, 2, 3))[:, None]}


def pairs(seed: int, count: int) -> tuple[Any, Any]:
    """Pairs of pictures, and whether they are of one kind."""
    (a, first), (b, second) = pictures()(seed, count), pictures()(seed + 1000, count)
    return (a, b), (first == second).astype("float32")[:, None]


def copies(seed: int, count: int) -> tuple[Any, Any]:
    """Pictures that are to be made again."""
    x, _ = pictures()(seed, count)
    return x, x


# --- convolutions ---


def classifier(x: Any) -> Any:
    """Probabilities from a picture's features."""
    return layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling2D()(x))


def conv_stack(x: Any, count: int = 6, width: int = 32) -> Any:
    """Convolutions of one size with batch norm."""
    for _ in range(count):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def conv() -> Any:
    """A functional model with batch norm and dropout."""
    start = keras.Input((SIDE, SIDE, 3))
    return keras.Model(start, classifier(layers.Dropout(0.1)(conv_stack(start))))


def conv_bias() -> Any:
    """Convolutions with bias, each with its activation."""
    x = start = keras.Input((SIDE, SIDE, 3))
    for _ in range(8):
        x = layers.Conv2D(24, 3, padding="same", activation="relu")(x)
    return keras.Model(start, classifier(x))


def sequential() -> Any:
    """Without an Input: it is built by the first batch."""
    return keras.Sequential(
        [
            *(layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(6)),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


class Residual(keras.Model):
    """Residual blocks; it is built by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Conv2D(32, 3, padding="same")
        self.convs = [layers.Conv2D(32, 3, padding="same", use_bias=False) for _ in range(6)]
        self.norms = [layers.BatchNormalization() for _ in self.convs]
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(CLASSES, activation="softmax")

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.first(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + tf.nn.relu(norm(conv(x), training=training))
        return self.head(self.pool(x))


def residual_built() -> Any:
    """As `Residual`, after `model.build`."""
    model = Residual()
    model.build((None, SIDE, SIDE, 3))
    return model


def augmented() -> Any:
    """Preprocessing layers inside of the model."""
    x = start = keras.Input((SIDE, SIDE, 3))
    for layer in (layers.Rescaling(0.5), layers.RandomFlip(seed=1), layers.RandomTranslation(0.1, 0.1, seed=2)):
        x = layer(x)
    x = layers.RandomContrast(0.2, value_range=(-3, 3), seed=3)(x)
    return keras.Model(start, classifier(conv_stack(x)))


def normalized() -> Any:
    """A layer that was adapted to the data."""
    norm = layers.Normalization()
    norm.adapt(pictures()(99, 8)[0])
    start = keras.Input((SIDE, SIDE, 3))
    return keras.Model(start, classifier(conv_stack(layers.RandomRotation(0.1, seed=4)(norm(start)))))


def unet(width: int = 16) -> Any:
    """Encoder and decoder with skip connections."""

    def twice(x: Any, count: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(count, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = start = keras.Input((SIDE, SIDE, 3))
    skips = []
    for level in range(3):
        x = twice(layers.MaxPooling2D()(x) if level else x, width << level)
        skips.append(x)
    skips.pop()
    for level in (1, 0):
        up = layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = twice(layers.Concatenate()([skips.pop(), up]), width << level)
    return keras.Model(start, layers.Conv2D(2, 1, activation="softmax")(x))


def dense_blocks() -> Any:
    """Every layer reads all before it."""
    x = start = keras.Input((SIDE, SIDE, 3))
    for _ in range(8):
        y = layers.Conv2D(12, 3, padding="same", activation="relu")(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, y])
    return keras.Model(start, classifier(x))


def separable() -> Any:
    """Depthwise convolutions with squeeze and excitation."""
    x = start = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(32, 3, padding="same")(x)
    for _ in range(4):
        y = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(x))
        y = layers.Conv2D(32, 1, activation="swish")(y)
        weight = layers.Dense(32, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(y))
        x = layers.Add()([x, layers.Multiply()([y, weight])])
    return keras.Model(start, classifier(x))


def two_heads() -> Any:
    """Inputs and outputs by name."""
    start = keras.Input((SIDE, SIDE, 3), name="picture")
    x = layers.GlobalAveragePooling2D()(conv_stack(start))
    outputs = {"kind": layers.Dense(CLASSES, activation="softmax", name="kind")(x), "size": layers.Dense(1, name="size")(x)}
    return keras.Model({"picture": start}, outputs)


def twins() -> Any:
    """One network for both of two pictures."""
    start = keras.Input((SIDE, SIDE, 3))
    shared = keras.Model(start, layers.GlobalAveragePooling2D()(conv_stack(start, 4)))
    a, b = keras.Input((SIDE, SIDE, 3)), keras.Input((SIDE, SIDE, 3))
    apart = layers.Subtract()([shared(a), shared(b)])
    return keras.Model((a, b), layers.Dense(1, activation="sigmoid")(apart))


def autoencoder() -> Any:
    """Down to few numbers and up again."""
    x = start = keras.Input((SIDE, SIDE, 3))
    for width in (32, 48):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(layers.Conv2D(width, 3, padding="same")(x))
    x = layers.Reshape((8, 8, 48))(layers.Dense(8 * 8 * 48, activation="relu")(layers.Dense(32)(layers.Flatten()(x))))
    for width in (48, 32):
        x = layers.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(start, layers.Conv2D(3, 3, padding="same")(x))


def perceptron() -> Any:
    """Wide dense layers with regularization."""
    x = start = keras.Input((256,))
    for _ in range(6):
        x = layers.Dense(256, activation="gelu", kernel_regularizer=keras.regularizers.L2(1e-4))(x)
        x = layers.Dropout(0.1)(layers.LayerNormalization()(x))
    return keras.Model(start, layers.Dense(CLASSES, activation="softmax")(x))


# --- sequences ---


def reader(*middle: Any, mask: bool = False) -> Any:
    """Words into a class, by the layers in between."""
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(WORDS, 64, mask_zero=mask),
            *middle,
            layers.Dense(CLASSES, "softmax"),
        ]
    )


def transformer(count: int = 3, width: int = 64) -> Any:
    """Decoder-only, with multi-head attention."""
    start = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, width)(start)
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(start, layers.Dense(WORDS, activation="softmax")(layers.LayerNormalization()(x)))


class Repeated(layers.Layer):
    """The same dense layer again and again, in a loop of TensorFlow."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.dense = layers.Dense(64, activation="tanh")

    def build(self, shape: Any) -> None:
        self.dense.build((shape[0], 64))
        self.built = True

    def call(self, x: Any) -> Any:
        if self.kind == "while":
            return tf.while_loop(lambda i, y: i < 8, lambda i, y: (i + 1, y + self.dense(y)), (tf.constant(0), x))[1]
        if self.kind == "scan":
            return tf.transpose(tf.scan(lambda a, e: self.dense(a) + e, tf.transpose(x, [1, 0, 2])), [1, 0, 2])
        return tf.cond(tf.reduce_sum(x) > 0, lambda: self.dense(x), lambda: tf.tanh(self.dense(x)) * 0.5)


def with_loop(kind: str, count: int = 2) -> Any:
    """Layers with a loop or a branch between dense ones."""
    x = start = keras.Input((LENGTH, 64))
    for _ in range(count):
        x = Repeated(kind)(layers.Dense(64, activation="relu")(x))
    x = layers.GlobalAveragePooling1D()(layers.Dense(128, activation="relu")(x))
    return keras.Model(start, layers.Dense(CLASSES, activation="softmax")(x))


# --- models with a train_step of their own ---


class Adversaries(keras.Model):
    """A GAN: two networks, two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((16,)),
                layers.Dense(8 * 8 * 32),
                layers.Reshape((8, 8, 32)),
                *(layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu") for _ in range(2)),
                layers.Conv2D(3, 3, padding="same"),
            ]
        )
        steps = [layers.Conv2D(32, 3, strides=2, padding="same", activation="leaky_relu") for _ in range(3)]
        self.discriminator = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *steps, layers.Flatten(), layers.Dense(1)])
        self.noise = keras.random.SeedGenerator(5)
        self.made, self.judged = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)

    def train_step(self, data: Any) -> Any:
        real = data[0]
        noise = keras.random.normal((real.shape[0], 16), seed=self.noise)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            scores, others = self.discriminator(real, training=True), self.discriminator(self.generator(noise), training=True)
            judged = loss(tf.ones_like(scores), scores) + loss(tf.zeros_like(others), others)
        learning = self.discriminator.trainable_variables
        self.judged.apply_gradients(zip(tape.gradient(judged, [v.value for v in learning]), learning, strict=True))
        with tf.GradientTape() as tape:
            others = self.discriminator(self.generator(noise, training=True))
            fooled = loss(tf.ones_like(others), others)
        learning = self.generator.trainable_variables
        self.made.apply_gradients(zip(tape.gradient(fooled, [v.value for v in learning]), learning, strict=True))
        return {"judged": judged, "fooled": fooled}

    @property
    def optimizers(self) -> list[Any]:
        return [self.made, self.judged]


class Variational(keras.Model):
    """A variational autoencoder: it adds a loss of its own and draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = [layers.Conv2D(32, 3, strides=2, padding="same", activation="relu") for _ in range(2)]
        self.mean, self.spread = layers.Conv2D(8, 1), layers.Conv2D(8, 1)
        self.back = [layers.Conv2DTranspose(32, 4, strides=2, padding="same", activation="relu") for _ in range(2)]
        self.last = layers.Conv2D(3, 3, padding="same")
        self.noise = keras.random.SeedGenerator(6)

    def call(self, x: Any) -> Any:
        for layer in self.body:
            x = layer(x)
        mean, spread = self.mean(x), self.spread(x)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(mean) + tf.exp(spread) - spread - 1))
        x = mean + tf.exp(0.5 * spread) * keras.random.normal(tf.shape(mean), seed=self.noise)
        for layer in self.back:
            x = layer(x)
        return self.last(x)


class Penalized(keras.Model):
    """A gradient in the gradient: that of the loss by the inputs is to be small."""

    def __init__(self) -> None:
        super().__init__()
        start = keras.Input((SIDE, SIDE, 3))
        x = start
        for _ in range(4):
            x = layers.Conv2D(24, 3, padding="same", activation="tanh")(x)
        self.net = keras.Model(start, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x, training=training)

    def train_step(self, data: Any) -> Any:
        x, y, *_ = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = self.loss_of(y, self.net(x, training=True))
            loss += tf.reduce_mean(tf.square(inner.gradient(loss, x)))
        learning = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, [v.value for v in learning]), learning, strict=True))
        return {"loss": loss}


def application(name: str, side: int) -> Any:
    """A network of keras.applications up to its pooling, for few classes."""
    base = getattr(keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(side, side, 3))
    return keras.Model(base.inputs, layers.Dense(CLASSES, activation="softmax")(base.outputs[0]))


def weighted_cross_entropy(labels: Any, predictions: Any) -> Any:
    """A loss of the user's own."""
    there = tf.one_hot(tf.cast(labels, tf.int32), CLASSES)
    return -tf.reduce_sum(there * tf.math.log(predictions + 1e-6) * tf.square(1 - predictions), axis=-1)


def _application(name: str, side: int, examples: int = 8) -> Task:
    return Task(lambda: application(name, side), pictures(side), examples=examples)


TASKS: dict[str, Task] = {
    "mobilenet-v3-small": _application("MobileNetV3Small", 64, 16),
    "efficientnet-v2b0": _application("EfficientNetV2B0", 64),
    "resnet50-v2": _application("ResNet50V2", 64, 16),
    "densenet121": _application("DenseNet121", 64),
    "convnext-tiny": _application("ConvNeXtTiny", 64, 4),
    "vgg19": _application("VGG19", 32, 16),
    "conv": Task(conv, pictures()),
    "conv-focal": Task(conv, pictures(), weighted_cross_entropy),
    "conv-bias": Task(conv_bias, pictures()),
    "sequential": Task(sequential, pictures()),
    "subclass": Task(Residual, pictures()),
    "subclass-built": Task(residual_built, pictures()),
    "augmented": Task(augmented, pictures()),
    "normalized": Task(normalized, pictures()),
    "unet": Task(unet, masks),
    "dense-blocks": Task(dense_blocks, pictures()),
    "separable": Task(separable, pictures()),
    "two-heads": Task(two_heads, two_labels, {"kind": CROSS_ENTROPY, "size": "mse"}),
    "twins": Task(twins, pairs, "binary_crossentropy"),
    "autoencoder": Task(autoencoder, copies, "mse", 32),
    "perceptron": Task(perceptron, vectors, examples=512),
    "lstm": Task(lambda: reader(layers.LSTM(64)), sentences, examples=64),
    "lstm-unrolled": Task(lambda: reader(layers.LSTM(64, unroll=True)), sentences, examples=64),
    "gru": Task(lambda: reader(layers.GRU(64, return_sequences=True), layers.GRU(64)), sentences, examples=64),
    "bidirectional": Task(lambda: reader(layers.Bidirectional(layers.LSTM(48)), mask=True), sentences, examples=64),
    "rnn": Task(lambda: reader(layers.SimpleRNN(64, return_sequences=True), layers.SimpleRNN(64)), sentences, examples=64),
    "conv1d": Task(
        lambda: reader(*(layers.Conv1D(64, 5, padding="same", activation="relu") for _ in range(4)), layers.GlobalMaxPooling1D()),
        sentences,
        examples=64,
    ),
    "transformer": Task(transformer, next_words, examples=64),
    "while-loop": Task(lambda: with_loop("while"), series, examples=64),
    "scan": Task(lambda: with_loop("scan", 1), series, examples=64),
    "cond": Task(lambda: with_loop("cond", 3), series, examples=64),
    "gan": Task(Adversaries, pictures(), None, 64),
    "variational": Task(Variational, copies, "mse", 64),
    "gradient-penalty": Task(Penalized, pictures(), None),
}
