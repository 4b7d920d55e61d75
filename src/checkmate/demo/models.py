"""The three networks of the demo, in plain PyTorch, with data made in code.

They are small enough for two CPU cores (a step takes some tenths of a second) and have the memory of real ones:
activations are nine tenths of the peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """One network to train.

    Attributes:
        name: for tables and files.
        title: for people.
        build: a new model; the caller seeds torch's generator first.
        batch: the batch of a step, the same for the same number.
        loss: the loss of the model on a batch.
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]


def workloads(small: bool = False) -> dict[str, Workload]:
    """The demo's networks by name. `small`: the same shapes of graph with tiny tensors, for tests."""
    images, side, blocks = (4, 16, 2) if small else (48, 32, 9)
    scans, pixels = (1, 32) if small else (8, 128)
    rows, context, layers, width = (2, 16, 2, 32) if small else (8, 256, 12, 96)
    made = [
        Workload(
            "resnet",
            f"residual conv net, batch norm, dropout, {blocks} blocks, {images} images of {side}x{side}",
            lambda: ResidualNet(blocks=blocks),
            lambda step: _pictures(step, images, side, classes=10),
            lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        ),
        Workload(
            "unet",
            f"U-Net, batch norm, {scans} images of {pixels}x{pixels}",
            lambda: UNet(),
            lambda step: _masks(step, scans, pixels),
            lambda model, batch: model(*batch),
        ),
        Workload(
            "transformer",
            f"decoder-only transformer, {layers} layers, {rows} rows of {context} tokens",
            lambda: Transformer(layers=layers, width=width, context=context),
            lambda step: _tokens(step, rows, context),
            lambda model, batch: model(*batch),
        ),
    ]
    return {workload.name: workload for workload in made}


# --- networks ---


class ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, dropout: float):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        same = stride == 1 and channels_in == channels
        self.skip = nn.Identity() if same else nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class ResidualNet(nn.Module):
    """He et al., "Deep residual learning" (2016), the CIFAR shape: three groups of blocks, halving the resolution."""

    def __init__(self, blocks: int, channels: int = 32, classes: int = 10, dropout: float = 0.1):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        width = channels
        for index in range(blocks):
            group = 3 * index // blocks
            stride = 2 if group and 3 * (index - 1) // blocks < group else 1
            layers.append(ResidualBlock(width, channels << group, stride, dropout))
            width = channels << group
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).mean((2, 3)))
        return logits


def _double_conv(channels_in: int, channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for count in (channels_in, channels):
        layers += [nn.Conv2d(count, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger et al., "U-Net" (2015): long skips from the way down to the way up. Returns the loss."""

    def __init__(self, channels: int = 16, levels: int = 4, classes: int = 3):
        super().__init__()
        sizes = [channels << level for level in range(levels)]
        self.down = nn.ModuleList(_double_conv(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in sizes[-2::-1])
        self.merge = nn.ModuleList(_double_conv(2 * size, size) for size in sizes[-2::-1])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return F.cross_entropy(self.head(x), y)


class TransformerLayer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.project(mixed.transpose(1, 2).reshape(rows, length, width)))
        x = x + self.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))))
        return x


class Transformer(nn.Module):
    """Decoder-only, as in Radford et al., "Language models are unsupervised multitask learners" (2019). Returns the loss."""

    def __init__(self, layers: int, width: int, context: int, heads: int = 4, tokens: int = 64, dropout: float = 0.1):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.layers = nn.Sequential(*(TransformerLayer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.layers(self.embed(x) + self.position)
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), y.flatten())


# --- data ---


def _pictures(step: int, count: int, side: int, classes: int) -> Batch:
    """Noise with a class-dependent brightness."""
    generator = torch.Generator().manual_seed(1000 + step)
    labels = torch.randint(0, classes, (count,), generator=generator)
    noise = torch.randn(count, 3, side, side, generator=generator)
    return noise + labels.view(-1, 1, 1, 1) / classes, labels


def _masks(step: int, count: int, side: int) -> Batch:
    """Noise with a bright square and a dark one; the label says which a pixel belongs to (0: neither)."""
    generator = torch.Generator().manual_seed(2000 + step)
    images = torch.randn(count, 3, side, side, generator=generator)
    labels = torch.zeros(count, side, side, dtype=torch.long)
    corners = torch.randint(0, side // 2, (count, 2, 2), generator=generator).tolist()
    for index, squares in enumerate(corners):
        for kind, (row, column) in enumerate(squares, start=1):
            place = (slice(row, row + side // 2), slice(column, column + side // 2))
            images[index][(slice(None), *place)] += 3 - 2 * kind
            labels[index][place] = kind
    return images, labels


def _tokens(step: int, rows: int, length: int, tokens: int = 64) -> Batch:
    """Each token is the sum of the two before it, now and then a random one; the label is the next token."""
    generator = torch.Generator().manual_seed(3000 + step)
    text = torch.randint(0, tokens, (rows, length + 1), generator=generator)
    surprise = torch.rand(rows, length + 1, generator=generator) < 0.2
    for at in range(2, length + 1):
        follow = (text[:, at - 1] + text[:, at - 2]) % tokens
        text[:, at] = torch.where(surprise[:, at], text[:, at], follow)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
