"""Layer lists: what each layer of a network costs and produces, and the training step that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ..graph import Graph

_BYTES = 4  # float32
_LOSS_BYTES = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """The output of layer number `layer` (-1: the network's input), of shape (height, width, channels) per example."""

    layer: int
    height: int
    width: int
    channels: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.height * self.width * self.channels


@dataclass
class Layers:
    """A network in the making: every method adds a layer and returns its output.

    Costs are multiply-adds per example; layers that only move data (pooling, padding, reshaping) cost nothing.

    A dot in the name of a layer is a level, as in `block1.attention.query`: so the ops are grouped in reports. In the names of ops
    it is an underscore.
    """

    name: str
    input: Tensor
    _names: list[str] = field(default_factory=list)
    _cost: list[float] = field(default_factory=list)
    _memory: list[int] = field(default_factory=list)
    _inputs: list[list[int]] = field(default_factory=list)
    _parameters: int = 0

    def _layer(self, name: str, cost: int, shape: tuple[int, int, int], *inputs: Tensor, parameters: int = 0) -> Tensor:
        self._names.append(name)
        self._cost.append(float(cost))
        self._memory.append(_BYTES * math.prod(shape))
        self._inputs.append([tensor.layer for tensor in inputs if tensor.layer >= 0])
        self._parameters += parameters
        return Tensor(len(self._names) - 1, *shape)

    def conv(
        self, name: str, x: Tensor, channels: int, kernel: int = 3, stride: int = 1, same: bool = True, bias: bool = True
    ) -> Tensor:
        """A convolution; `same` keeps height and width / stride, else it shrinks by what the kernel overlaps."""
        side = [size // stride if same else (size - kernel) // stride + 1 for size in (x.height, x.width)]
        weights = kernel * kernel * x.channels * channels
        return self._layer(
            name, weights * side[0] * side[1], (side[0], side[1], channels), x, parameters=weights + channels * bias
        )

    def depthwise(self, name: str, x: Tensor, stride: int = 1) -> Tensor:
        """A 3 x 3 convolution of every channel by itself, without bias; with stride 2 the input has been padded by one."""
        shape = (x.height // stride, x.width // stride, x.channels)
        return self._layer(name, 9 * math.prod(shape), shape, x, parameters=9 * x.channels)

    def transposed(self, name: str, x: Tensor, channels: int, kernel: int, stride: int) -> Tensor:
        """A transposed convolution without bias; its cost counts each output element once per pair of channels."""
        shape = ((x.height - 1) * stride + kernel, (x.width - 1) * stride + kernel, channels)
        cost = math.prod(shape) * x.channels
        return self._layer(name, cost, shape, x, parameters=kernel * kernel * x.channels * channels)

    def dense(self, name: str, x: Tensor, features: int) -> Tensor:
        """A fully connected layer with bias."""
        weights = x.size * features
        return self._layer(name, weights, (1, 1, features), x, parameters=weights + features)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Batch normalisation: four operations per element, four parameters per channel."""
        return self._layer(name, 4 * x.size, (x.height, x.width, x.channels), x, parameters=4 * x.channels)

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """Normalisation of every token: four operations per element, two parameters per channel."""
        return self._layer(name, 4 * x.size, (x.height, x.width, x.channels), x, parameters=2 * x.channels)

    def embedding(self, name: str, x: Tensor, channels: int, vocabulary: int) -> Tensor:
        """A vector for every token, and one for every place in the sequence, added."""
        shape = (x.height, x.width, channels)
        return self._layer(name, math.prod(shape), shape, x, parameters=(vocabulary + x.width) * channels)

    def product(self, name: str, x: Tensor, y: Tensor, shape: tuple[int, int, int], terms: int) -> Tensor:
        """A matrix product of two tensors; every element of the result is a sum of that many terms."""
        return self._layer(name, terms * math.prod(shape), shape, x, y)

    def copy(self, name: str, x: Tensor) -> Tensor:
        """A tensor of the same shape at one operation per element: dropout."""
        return self._layer(name, x.size, (x.height, x.width, x.channels), x)

    def activation(self, name: str, x: Tensor) -> Tensor:
        """One operation per element."""
        return self._layer(name, x.size, (x.height, x.width, x.channels), x)

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """The sum of two tensors."""
        return self._layer(name, 2 * x.size, (x.height, x.width, x.channels), x, y)

    def concat(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Two tensors behind each other in the channels."""
        return self._layer(name, 0, (x.height, x.width, x.channels + y.channels), x, y)

    def upsample(self, name: str, x: Tensor) -> Tensor:
        """Twice as high and as wide."""
        return self._layer(name, 4 * x.size, (2 * x.height, 2 * x.width, x.channels), x)

    def pool(self, name: str, x: Tensor) -> Tensor:
        """Half as high and as wide."""
        return self.reshape(name, x, x.height // 2, x.width // 2)

    def pad(self, name: str, x: Tensor, by: int) -> Tensor:
        """Height and width grow by `by` in all."""
        return self.reshape(name, x, x.height + by, x.width + by)

    def reshape(self, name: str, x: Tensor, height: int, width: int, channels: int | None = None) -> Tensor:
        """Anything without cost: reshaping, cropping, padding, pooling, dropout."""
        return self._layer(name, 0, (height, width, x.channels if channels is None else channels), x)

    def train(self, batch: float) -> Graph:
        """The training step: layers, loss, gradients in reverse order.

        The gradient op of a layer reads the layer's output, and the output and the gradient of every layer that reads it.
        """
        n = len(self._names)
        readers: list[list[int]] = [[] for _ in range(n)]
        edges: list[tuple[int, int]] = []
        for user, inputs in enumerate(self._inputs):
            for origin in sorted(inputs):
                readers[origin].append(user)
                edges.append((origin, user))
        edges.append((n - 1, n))
        readers[-1].append(n)
        for layer in range(n - 1, -1, -1):
            gradients = [2 * n - user for user in readers[layer] if user < n]
            edges += [(origin, 2 * n - layer) for origin in sorted({layer, *readers[layer], *gradients})]
        names = [name.replace(".", "_") for name in self._names]
        graph = Graph.from_arrays(
            [*self._cost, 0.0, *(2 * cost for cost in reversed(self._cost))],
            [*self._memory, _LOSS_BYTES, *reversed(self._memory)],
            edges,
            2 * _BYTES * self._parameters,
            self.name,
            names=[*names, "Loss", *(f"grad_{name}" for name in reversed(names))],
            phases=["forward"] * n + ["loss"] + ["backward"] * n,
            layers=[*self._names, "", *reversed(self._names)],
        )
        return graph if batch == 1 else graph.scaled(batch)


def build(name: str, shape: tuple[int, int, int], batch: float, network: Callable[[Layers], object]) -> Graph:
    """The training step of the network that the function adds to an empty list of layers."""
    layers = Layers(name, Tensor(-1, *shape))
    network(layers)
    return layers.train(batch)
