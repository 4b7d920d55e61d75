"""A decoder-only transformer of any depth, as in GPT-2, with every tensor of the attention in memory."""

from __future__ import annotations

from ..graph import Graph
from .layers import Layers, Tensor, build


def transformer(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    length: int = 1024,
    vocabulary: int = 50257,
    batch: float = 1,
    name: str | None = None,
) -> Graph:
    """GPT-2 (Radford et al., 2019) by default: 34 ops per layer, forward and backward, and 11 around them.

    Args:
        layers: blocks of attention and feed-forward network; 588 of them make a graph of 20,003 ops.
        width: features of a token. heads: of the attention. length: tokens per example. vocabulary: kinds of tokens.
        name: of the graph; by default transformer and the number of layers.
    """
    return build(
        name or f"transformer{layers}", (1, length, 1), batch, lambda net: _transformer(net, layers, width, heads, vocabulary)
    )


def _transformer(net: Layers, layers: int, width: int, heads: int, vocabulary: int) -> None:
    x = net.embedding("embedding", net.input, width, vocabulary)
    x = net.copy("embedding_dropout", x)
    for number in range(1, layers + 1):
        x = net.add(f"block{number}.attention.add", x, _attention(net, f"block{number}.attention", x, width, heads))
        x = net.add(f"block{number}.mlp.add", x, _mlp(net, f"block{number}.mlp", x, width))
    x = net.conv("head", net.layer_norm("norm", x), vocabulary, kernel=1, bias=False)
    net.activation("softmax", x)


def _attention(net: Layers, name: str, x: Tensor, width: int, heads: int) -> Tensor:
    x = net.layer_norm(f"{name}.norm", x)
    query, key, value = (net.conv(f"{name}.{kind}", x, width, kernel=1) for kind in ("query", "key", "value"))
    scores = net.product(f"{name}.scores", query, key, (x.width, x.width, heads), width // heads)
    scores = net.copy(f"{name}.scores_dropout", net.activation(f"{name}.softmax", scores))
    x = net.product(f"{name}.context", scores, value, (1, x.width, width), x.width)
    return net.copy(f"{name}.dropout", net.conv(f"{name}.projection", x, width, kernel=1))


def _mlp(net: Layers, name: str, x: Tensor, width: int) -> Tensor:
    x = net.conv(f"{name}.up", net.layer_norm(f"{name}.norm", x), 4 * width, kernel=1)
    x = net.conv(f"{name}.down", net.activation(f"{name}.gelu", x), width, kernel=1)
    return net.copy(f"{name}.dropout", x)
