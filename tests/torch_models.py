"""Small models of the kinds people train, and eager training to compare with, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checkmate.torch import measure


class ResidualBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(x + self.drop(self.norm2(self.conv2(inner))))


class ResidualNet(nn.Module):
    """Conv net with batch norm and dropout; returns the loss."""

    def __init__(self, width: int = 8, blocks: int = 4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(x)).mean((2, 3))), labels)


def _double_conv(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for c in (channels, width):
        layers += [nn.Conv2d(c, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Encoder and decoder with skip connections; returns a map of logits (the loss is the caller's)."""

    def __init__(self, width: int = 4, depth: int = 2):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.encoders = nn.ModuleList([_double_conv(c, w) for c, w in zip([3, *widths], widths, strict=False)])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in range(depth)])
        self.decoders = nn.ModuleList([_double_conv(2 * widths[i], widths[i]) for i in range(depth)])
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, encoder in enumerate(self.encoders):
            x = encoder(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for level in reversed(range(len(self.ups))):
            x = self.decoders[level](torch.cat([skips[level], self.ups[level](x)], 1))
        logits: Tensor = self.out(x)
        return logits


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropped)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Decoder(nn.Module):
    """Decoder-only transformer with the output layer tied to the embedding; returns the loss of the next token."""

    def __init__(self, width: int = 32, blocks: int = 3, vocabulary: int = 50, length: int = 32, dropout: float = 0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[DecoderBlock(width, 4, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), targets.flatten())


@dataclass
class Case:
    """A model, one batch, and how its loss comes out of it."""

    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Any], Tensor]

    def step(self, model: Callable[..., Any]) -> Tensor:
        loss = self.loss(model(*self.inputs))
        loss.backward()
        return loss.detach()


def case(name: str) -> Case:
    """One of the models, always the same weights and data."""
    torch.manual_seed(0)
    images, ids = torch.randn(4, 3, 32, 32), torch.randint(0, 50, (4, 33))
    if name == "residual":
        return Case(name, ResidualNet(), (images, torch.randint(0, 10, (4,))), lambda loss: loss)
    if name == "unet":
        labels = torch.randint(0, 2, (4, 32, 32))
        return Case(name, UNet(), (images,), lambda logits: F.cross_entropy(logits, labels))
    inputs = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return Case(name, Decoder(dropout=0.0 if name == "decoder without dropout" else 0.1), inputs, lambda loss: loss)


def train(case: Case, model: nn.Module, steps: int = 5) -> list[Tensor]:
    """Losses, last gradients, parameters and buffers after SGD steps from a fixed seed."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(case.step(model))
        optimizer.step()
    return [*losses, *[p.grad.clone() for p in model.parameters() if p.grad is not None], *state(model), torch.get_rng_state()]


def state(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, copied."""
    return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def twin(model: nn.Module) -> nn.Module:
    """A copy with weights of its own."""
    return copy.deepcopy(model)


def identical(first: list[Tensor], second: list[Tensor]) -> bool:
    """The same tensors, bit for bit."""
    return len(first) == len(second) > 0 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def step_peak(case: Case, model: nn.Module) -> int:
    """True peak of one step: parameters, buffers and inputs, and what the step adds to them."""
    model.zero_grad()
    storages = [t.untyped_storage() for t in (*model.parameters(), *model.buffers(), *case.inputs)]
    own = {storage._cdata: storage.nbytes() for storage in storages}
    with measure("cpu") as measured:
        case.step(model)
    return sum(own.values()) + measured.peak - measured.base
