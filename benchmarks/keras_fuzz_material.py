"""What `keras_fuzz.py` makes random programs of: layers of one's own, lines of a model, layers, optimizers, losses, metrics."""

from __future__ import annotations

HEADER = """\
from types import SimpleNamespace

import keras
import tensorflow as tf
from keras import layers, ops


@tf.custom_gradient
def scaled(a):
    b = tf.tanh(a)
    return a * b, lambda gradient: gradient * (b + 0.5)


@tf.recompute_grad
def region(a):
    return tf.sin(a) * tf.tanh(a * 0.5) + a


@tf.function
def inner(a):
    return tf.nn.softplus(a) - a * 0.1


class Count(layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(name="count", initializer="zeros", trainable=False)
        self.average = self.add_weight(name="average", shape=(shape[-1],), initializer="ones", trainable=False)

    def call(self, a, training=None):
        if training:
            self.count.assign_add(1.0)
            mean = ops.mean(ops.cast(a, "float32"), axis=tuple(range(len(a.shape) - 1)))
            self.average.assign(0.9 * ops.convert_to_tensor(self.average, "float32") + 0.1 * mean)
        return a * ops.cast(self.average, a.dtype)


class Penalty(layers.Layer):
    def call(self, a):
        self.add_loss(1e-2 * ops.mean(ops.square(ops.cast(a, "float32"))))
        return a


class Watched(layers.Layer):
    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name=f"watched_{self.name}")

    def call(self, a):
        self.mean.update_state(ops.mean(ops.cast(a, "float32")))
        return a


class Noise(layers.Layer):
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(7)

    def call(self, a, training=None):
        if not training:
            return a
        return a + 0.1 * keras.random.normal(ops.shape(a), seed=self.generator, dtype=a.dtype)


class Scale(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones", constraint="non_neg")
        self.unused = self.add_weight(name="unused", shape=(3,), initializer="ones")

    def call(self, a):
        return a * self.scale


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.first = layers.Dense(width, activation="gelu")
        self.drop = layers.Dropout(0.1)
        self.norm = layers.LayerNormalization()
        self.second = None

    def build(self, shape):
        self.second = layers.Dense(shape[-1])
        super().build(shape)

    def call(self, a, training=None):
        return self.norm(a + self.drop(self.second(self.first(a)), training=training))


class Tied(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 24), initializer="glorot_uniform")

    def call(self, a):
        hidden = ops.tanh(ops.matmul(a, self.kernel))
        return ops.matmul(hidden, ops.transpose(self.kernel))

"""

#: Lines for all models: of `keras.ops`.
OPS = {
    3: ("ops.sin({a})", "ops.tanh({a})", "ops.gelu({a})", "{a} + {b}", "{a} * {b}"),
    2: ("ops.relu({a})", "{a} - {b}", "ops.concatenate([{a}, {b}], axis=-1)", "ops.swapaxes({a}, 1, -1)"),
    1: (
        *("ops.silu({a})", "ops.softmax({a}, axis=-1)", "ops.log_softmax({a}, axis=-1)", "ops.cumsum({a}, axis=-1) * 0.1"),
        *("ops.sigmoid({a})", "ops.log(ops.abs({a}) + 0.1)", "ops.stop_gradient({a}) * {b}", "ops.flip({a}, axis=-1)"),
        *("ops.roll({a}, 1, axis=-1)", "ops.sort({a}, axis=-1)", "ops.max({a}, axis=-1, keepdims=True)", "{a}[..., ::2]"),
        *("{a}[..., 1:]", "ops.logsumexp({a}, axis=-1, keepdims=True)", "ops.expand_dims({a}, 1)", "ops.squeeze({a}, 1)"),
        *(
            "ops.reshape({a}, (-1, {n}))",
            "ops.where({a} > 0, {a}, {b})",
            "ops.maximum({a}, {b})",
            "ops.stack([{a}, {b}], axis=1)",
        ),
        *("{a} / (ops.abs({b}) + 1)", "ops.cast(ops.cast({a}, 'bfloat16'), {a}.dtype)", "ops.mean({a}, axis=1)", "ops.tril({a})"),
        *("ops.var({a}, axis=-1, keepdims=True)", "ops.take({a}, [0, 1, 1, 0], axis=-1)", "ops.clip({a}, -1, 1)", "{a}[:, 0]"),
        *("ops.matmul({a}, ops.swapaxes({b}, -1, -2)) * 0.1", "ops.einsum('...i,...j->...ij', {a}[..., :4], {b}[..., :4])"),
        *("ops.top_k({a}, 3)[0]", "ops.repeat({a}, 2, axis=1)", "ops.pad({a}, [[0, 0]] * (len({a}.shape) - 1) + [[1, 1]])"),
        *("ops.normalize({a}, axis=-1)", "ops.one_hot(ops.argmax({a}, axis=-1), {d}) * {a}", "ops.split({a}, 2, axis=-1)[0]"),
        *(
            "ops.square({a}) * 0.1",
            "ops.sqrt(ops.abs({a}) + 1e-3)",
            "ops.exp(-ops.abs({a}))",
            "ops.sum({a}, axis=-1, keepdims=True) * 0.1",
        ),
        *("ops.cast({a} > 0, {a}.dtype) * {b}", "ops.prod(ops.tanh({a}), axis=-1, keepdims=True)", "ops.minimum({a}, 0.5 * {b})"),
    ),
}
#: Lines for subclassed models: of TensorFlow.
TENSORFLOW = {
    2: ("region({a})", "scaled({a})", "tf.nn.dropout({a}, 0.2) if training else {a}"),
    1: (
        *(
            "inner({a})",
            "tf.stop_gradient({a}) + {b}",
            "tf.gather({a}, tf.argsort({a}, axis=-1), axis=-1, batch_dims=len({a}.shape) - 1)",
        ),
        *("tf.where({a} > 0, {a}, 0.1 * {b})", "tf.transpose({a}, [0, *range(len({a}.shape) - 1, 0, -1)])", "tf.identity({a})"),
        *(
            "tf.reshape({a}, [tf.shape({a})[0], -1])",
            "tf.unstack({a}, axis=-1)[0]",
            "tf.math.reduce_std({a}, axis=-1, keepdims=True)",
        ),
        *(
            "tf.random.normal(tf.shape({a}), dtype={a}.dtype) * 0.1 + {a}",
            "{a} * tf.cast(tf.random.uniform(tf.shape({a})) > 0.3, {a}.dtype)",
        ),
        *("tf.random.normal([{d}], seed=5, dtype={a}.dtype) * {a}", "tf.math.segment_sum({a}, tf.range(tf.shape({a})[0]) // 2)"),
        *(
            "tf.tensor_scatter_nd_update({a}, [[0]], {b}[1:2])",
            "tf.scatter_nd(tf.range(tf.shape({a})[0])[:, None], {a}, tf.shape({a}))",
        ),
        *("tf.cond(tf.reduce_mean({a}) > 0, lambda: {a} * 2.0, lambda: tf.tanh({a}))", "tf.cumsum({a}, axis=1) * 0.1"),
        *(
            "tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, tf.tanh(z + {a})), (0, {a}))[1]",
            "tf.nn.l2_normalize({a}, axis=-1)",
        ),
        *("tf.map_fn(lambda z: tf.sin(z), {a})", "tf.linalg.matmul({a}, {b}, transpose_b=True) * 0.1"),
        *(
            "tf.concat([{a}, tf.zeros_like({b})], axis=-1)",
            "tf.grad_pass_through(tf.round)({a})",
            "tf.nn.moments({a}, axes=[-1], keepdims=True)[1]",
        ),
        *(
            "tf.signal.rfft(tf.cast({a}, tf.float32)) * 0 + 1",
            "tf.abs(tf.signal.rfft(tf.cast({a}, tf.float32)))",
            "tf.roll({a}, 1, axis=0)",
            "tf.reverse({a}, [0])",
        ),
        *(
            "tf.clip_by_norm({a}, 5.0)",
            "tf.nn.embedding_lookup({a}[0], tokens % 2) if len({a}.shape) == 3 else {a}",
            "tf.unique(tf.reshape(tokens, [-1]))[0][:1, None] * 0.0",
        ),
        *("tf.switch_case(tf.constant(1), [lambda: {a}, lambda: {b} * 2.0])",),
        *(
            "tf.ensure_shape({a}, {a}.shape)",
            "tf.debugging.check_numerics({a}, 'no')",
            "tf.broadcast_to({a}[:, :1], tf.shape({a}))",
            "tf.norm({a}, axis=-1, keepdims=True)",
        ),
    ),
}
#: Layers, and what is computed with them; {d} is the last dimension of {a}, {k} is a width. By the rank of {a}, 0 for any.
LAYERS: dict[int, tuple[tuple[str, str], ...]] = {
    0: (
        *(("layers.Dense({k})", "self.{m}({a})"),) * 4,
        ("layers.Dense({k}, activation='relu', kernel_regularizer='l2')", "self.{m}({a})"),
        ("layers.Dense({k}, use_bias=False, kernel_constraint='max_norm')", "self.{m}({a})"),
        ("layers.Dense({k}, activation='softmax', activity_regularizer=keras.regularizers.L1(1e-4))", "self.{m}({a})"),
        *(("layers.BatchNormalization()", "self.{m}({a})"),) * 2,
        ("layers.LayerNormalization()", "self.{m}({a})"),
        ("layers.RMSNormalization()", "self.{m}({a})"),
        ("layers.UnitNormalization()", "self.{m}({a})"),
        ("layers.GroupNormalization(2)", "self.{m}({a})"),
        *(("layers.Dropout(0.3)", "self.{m}({a})"),) * 2,
        ("layers.GaussianNoise(0.1)", "self.{m}({a})"),
        ("layers.GaussianDropout(0.1)", "self.{m}({a})"),
        ("layers.AlphaDropout(0.1, seed=3)", "self.{m}({a})"),
        ("layers.PReLU()", "self.{m}({a})"),
        ("layers.LeakyReLU()", "self.{m}({a})"),
        ("layers.ActivityRegularization(l2=1e-4)", "self.{m}({a})"),
        ("layers.Embedding(16, {k})", "self.{m}(ops.cast(ops.clip(ops.abs({a}), 0, 15), 'int32'))"),
        *(("layers.Embedding(50, {k})", "self.{m}(tokens)"),) * 2,
        ("layers.Embedding(50, {k}, mask_zero=True)", "self.{m}(tokens)"),
        ("layers.Add()", "self.{m}([{a}, {b}])"),
        ("layers.Concatenate()", "self.{m}([{a}, {b}])"),
        ("layers.Flatten()", "self.{m}({a})"),
        ("layers.SpectralNormalization(layers.Dense({k}))", "self.{m}({a})"),
        ("layers.Lambda(lambda z: tf.sin(z))", "self.{m}({a})"),
        ("layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], output_mode='one_hot')", "ops.cast(self.{m}({a}), 'float32')"),
        ("keras.Sequential([layers.Dense({k}), layers.BatchNormalization(), layers.ReLU()])", "self.{m}({a})"),
        ("Count()", "self.{m}({a})"),
        ("Penalty()", "self.{m}({a})"),
        ("Watched()", "self.{m}({a})"),
        ("Noise()", "self.{m}({a})"),
        ("Scale()", "self.{m}({a})"),
        ("Block({k})", "self.{m}({a})"),
        ("Tied()", "self.{m}({a})"),
        ("layers.Dense({k}, trainable=False)", "self.{m}({a})"),
        ("layers.BatchNormalization(trainable=False)", "self.{m}({a})"),
        ("layers.Dense({k}, dtype='float32')", "self.{m}({a})"),
        ("layers.EinsumDense('b...i,ij->b...j', output_shape=(None, {k}), bias_axes='j')", "self.{m}({a})"),
    ),
    3: (
        *(("layers.Conv1D({k}, 3, padding='same')", "self.{m}({a})"),) * 2,
        ("layers.Conv1D({k}, 3, padding='causal', dilation_rate=2)", "self.{m}({a})"),
        ("layers.SeparableConv1D({k}, 3, padding='same')", "self.{m}({a})"),
        ("layers.Conv1DTranspose({k}, 3, strides=2)", "self.{m}({a})"),
        *(("layers.MultiHeadAttention(2, 8, dropout=0.1)", "self.{m}({a}, {a})"),) * 2,
        ("layers.MultiHeadAttention(2, 8)", "self.{m}({a}, {a}, use_causal_mask=True)"),
        ("layers.GroupQueryAttention(8, 4, 2)", "self.{m}({a}, {a})"),
        ("layers.Attention(dropout=0.1)", "self.{m}([{a}, {a}])"),
        ("layers.AdditiveAttention()", "self.{m}([{a}, {a}])"),
        ("layers.MaxPooling1D(2)", "self.{m}({a})"),
        ("layers.AveragePooling1D(2)", "self.{m}({a})"),
        ("layers.GlobalAveragePooling1D()", "self.{m}({a})"),
        ("layers.GlobalMaxPooling1D()", "self.{m}({a})"),
        ("layers.SpatialDropout1D(0.2)", "self.{m}({a})"),
        ("layers.UpSampling1D(2)", "self.{m}({a})"),
        ("layers.Permute((2, 1))", "self.{m}({a})"),
        ("layers.TimeDistributed(layers.Dense({k}))", "self.{m}({a})"),
        ("layers.GRU(8, return_sequences=True)", "self.{m}({a})"),
        ("layers.LSTM(8)", "self.{m}({a})"),
        ("layers.Bidirectional(layers.SimpleRNN(8, unroll=True))", "self.{m}({a})"),
        ("layers.Masking(0.0)", "self.{m}({a})"),
        ("layers.Cropping1D(1)", "self.{m}({a})"),
    ),
    4: (
        *(("layers.Conv2D({k}, 3, padding='same')", "self.{m}({a})"),) * 3,
        ("layers.Conv2D({k}, 3, strides=2, activation='relu')", "self.{m}({a})"),
        ("layers.Conv2D({k}, 1, groups=2)", "self.{m}({a})"),
        ("layers.DepthwiseConv2D(3, padding='same')", "self.{m}({a})"),
        ("layers.SeparableConv2D({k}, 3, padding='same')", "self.{m}({a})"),
        ("layers.Conv2DTranspose({k}, 2, strides=2)", "self.{m}({a})"),
        ("layers.MaxPooling2D()", "self.{m}({a})"),
        ("layers.AveragePooling2D()", "self.{m}({a})"),
        ("layers.GlobalAveragePooling2D()", "self.{m}({a})"),
        ("layers.SpatialDropout2D(0.2)", "self.{m}({a})"),
        ("layers.UpSampling2D(interpolation='bilinear')", "self.{m}({a})"),
        ("layers.ZeroPadding2D(1)", "self.{m}({a})"),
        ("layers.Resizing(8, 8)", "self.{m}({a})"),
        ("layers.RandomFlip()", "self.{m}({a})"),
        ("layers.RandomContrast(0.2)", "self.{m}({a})"),
        ("layers.Rescaling(0.5)", "self.{m}({a})"),
    ),
}
WIDTHS = (8, 16, 16, 32)
#: In the text of a line: nothing of {a} has a gradient.
BREAKING = ("argmax", "int32", "cast({a} >", "stop_gradient({a})", "one_hot", "unique")
#: Of their text: plain training and a plan may differ in their last bits (docs/keras.md).
LOOSE = ("SpectralNormalization(", "GRU(", "LSTM(", "tf.cond(", "tf.while_loop(", "tf.map_fn(", "tf.switch_case(")

RATES = (
    "1e-3",
    "1e-3",
    "1e-2",
    "keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.9)",
    "keras.optimizers.schedules.CosineDecay(1e-3, 6, warmup_steps=2, warmup_target=1e-2)",
    "keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [1e-2, 1e-3, 1e-4])",
    "keras.optimizers.schedules.CosineDecayRestarts(1e-2, 2)",
)
OPTIMIZERS = (
    *("SGD({rate})", "SGD({rate}, momentum=0.9)", "SGD({rate}, momentum=0.9, nesterov=True)", "Adam({rate})", "Adam({rate})"),
    *("Adam({rate}, amsgrad=True)", "AdamW({rate}, weight_decay=0.01)", "RMSprop({rate})", "RMSprop({rate}, momentum=0.5)"),
    *("RMSprop({rate}, centered=True)", "Adagrad({rate})", "Adadelta({rate})", "Adamax({rate})", "Nadam({rate})", "Lion({rate})"),
    *("Ftrl({rate})", "Adafactor({rate})", "Lamb({rate})", "Muon({rate})"),
)
#: Settings of optimizers; one of each tuple at most.
SETTINGS = (
    ("clipnorm=1.0", "global_clipnorm=0.5", "clipvalue=0.1"),
    ("weight_decay=0.004",),
    ("use_ema=True", "use_ema=True, ema_overwrite_frequency=2"),
    ("gradient_accumulation_steps=2",),
    ("loss_scale_factor=8.0",),
)
LOSSES = (
    *("'mse'", "'mae'", "keras.losses.Huber()", "keras.losses.LogCosh()", "keras.losses.CosineSimilarity()"),
    "lambda t, p: ops.mean(ops.square(t - p), axis=-1)",
    "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    "keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)",
)
METRICS = ("'mae'", "'mse'", "keras.metrics.RootMeanSquaredError()", "keras.metrics.MeanAbsoluteError(name='other')")
#: A model's own.
TRAIN_STEP = [
    "    def train_step(self, data):",
    "        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)",
    "        with tf.GradientTape() as tape:",
    "            prediction = self(x, training=True)",
    "            loss = self.compute_loss(x=x, y=y, y_pred=prediction, sample_weight=weight, training=True)",
    "            scaled = self.optimizer.scale_loss(loss)",
    "        gradients = tape.gradient(scaled, [one.value for one in self.trainable_variables])",
    "        self.optimizer.apply(gradients, self.trainable_variables)",
    "        norm = tf.linalg.global_norm([one for one in gradients if one is not None])",
    "        return {**self.compute_metrics(x, y, prediction, weight), 'loss': loss, 'norm': norm}",
]
