"""A functional Keras model in segments for `tf.recompute_grad`: what a careful user would do by hand.

Segments are runs of layers in their order; a segment may read several tensors (the long skips of a U-Net). Cuts are
chosen by dynamic programming: with at most so many bytes of layer outputs in a segment, the fewest bytes across cuts.
The last segment is not recomputed: its activations are needed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Layered:
    """A functional model as a list of layers.

    Attributes:
        layers: in order, inputs left out. sizes: bytes of each one's outputs.
        crossing: crossing[i] are the tensors made before layer i that layer i or a later one reads.
    """

    model: keras.Model
    layers: list[keras.Layer]
    sizes: list[int]
    crossing: list[list[Any]]

    @classmethod
    def read(cls, model: keras.Model, batch: int) -> Layered:
        layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
        made = {id(tensor): (tensor, -1) for tensor in model.inputs}
        last: dict[int, int] = {}
        for number, layer in enumerate(layers):
            for tensor in tf.nest.flatten(layer.input):
                last[id(tensor)] = number
            for tensor in tf.nest.flatten(layer.output):
                made[id(tensor)] = (tensor, number)
        for tensor in model.outputs:
            last[id(tensor)] = len(layers)
        crossing = [
            [tensor for key, (tensor, maker) in made.items() if maker < cut <= last.get(key, -1)]
            for cut in range(len(layers) + 1)
        ]
        sizes = [sum(_bytes(tensor, batch) for tensor in tf.nest.flatten(layer.output)) for layer in layers]
        return cls(model, layers, sizes, crossing)

    def cuts(self, count: int, batch: int) -> list[int]:
        """Where to cut for about `count` segments: indices into `layers`, the first 0 and the last len(layers)."""
        n = len(self.layers)
        most = max(max(self.sizes), sum(self.sizes) // count)
        least = [0.0] + [float("inf")] * n
        before = [0] * (n + 1)
        for end in range(1, n + 1):
            price = sum(_bytes(tensor, batch) for tensor in self.crossing[end])
            inside = 0
            for begin in range(end - 1, -1, -1):
                inside += self.sizes[begin]
                if inside > most and begin < end - 1:
                    break
                if least[begin] + price < least[end]:
                    least[end], before[end] = least[begin] + price, begin
        found = [n]
        while found[-1]:
            found.append(before[found[-1]])
        return found[::-1]

    def recomputed(self, cuts: list[int]) -> Callable[[Any], Any]:
        """The model as a function in training mode whose segments, but the last, are under `tf.recompute_grad`."""
        pieces = []
        for begin, end in pairwise(cuts):
            inputs = self.crossing[begin]
            outputs = [tensor for tensor in self.crossing[end] if id(tensor) not in {id(x) for x in inputs}]
            piece = keras.Model(inputs, outputs)

            def run(*tensors: tf.Tensor, piece: keras.Model = piece) -> list[tf.Tensor]:
                return tf.nest.flatten(piece(list(tensors), training=True))

            function = run if end == cuts[-1] else tf.recompute_grad(run)
            pieces.append((function, [id(x) for x in inputs], [id(x) for x in outputs]))
        (first,), (final,) = self.model.inputs, self.model.outputs

        def call(x: tf.Tensor) -> tf.Tensor:
            values = {id(first): x}
            for function, inputs, outputs in pieces:
                values.update(zip(outputs, tf.nest.flatten(function(*[values[key] for key in inputs])), strict=True))
            return values[id(final)]

        return call


def _bytes(tensor: Any, batch: int) -> int:
    size = keras.backend.standardize_dtype(tensor.dtype)
    total = tf.dtypes.as_dtype(size).size * batch
    for dimension in tensor.shape[1:]:
        total *= dimension
    return int(total)
