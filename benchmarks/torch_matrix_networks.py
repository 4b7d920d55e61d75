"""Small networks of many kinds in plain PyTorch, for torch_matrix.py: the shapes of well-known architectures, few channels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, HEADS, LENGTH, SIDE = 128, 64, 4, 64, 32
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        build: a new network; most have `blocks`, and those of language `embed` and `head`.
        batch: (number, examples, length) -> inputs and, last, the target. The same for the same number.
        loss: of the network's output and the target; None where the network takes `labels` and returns its loss.
        examples, length: the largest batch.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int, int, int], Batch]
    loss: Callable[[Any, Tensor], Tensor] | None
    examples: int = 8
    length: int = LENGTH


# --- language ---


class Attention(nn.Module):
    """Written out with dropout, or by PyTorch's fused op; of a context where one is given; with rotary positions or without."""

    def __init__(self, causal: bool, fused: bool = False, rotary: bool = False, dropout: float = 0.1):
        super().__init__()
        self.causal, self.fused, self.rotary, self.dropout = causal, fused, rotary, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            part.view(part.shape[0], part.shape[1], HEADS, -1).transpose(1, 2)
            for part in (self.query(x), self.key(source), self.value(source))
        )
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
            if self.causal:
                hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, -math.inf)
            mixed = F.dropout(scores.softmax(3), self.dropout, self.training) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def _rotated(x: Tensor) -> Tensor:
    size = x.shape[-1]
    powers = torch.arange(0, size, 2, device=x.device).repeat(2) / size
    angles = torch.arange(x.shape[2], device=x.device)[:, None] / 10000**powers
    left, right = x.chunk(2, -1)
    return x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


class Layer(nn.Module):
    """Attention and feed-forward network, each behind a norm: of GPT, BERT, ViT, and with a context the decoder of T5."""

    def __init__(self, causal: bool, cross: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(causal)
        self.cross = Attention(causal=False) if cross else None
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x))
        if self.cross is not None:
            x = x + self.cross(x, context)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class GatedLayer(nn.Module):
    """Of Llama; with several experts, of which each token takes two, of Mixtral.

    Args:
        sorted: tokens are sorted by expert, so that shapes depend on what the router says; else every expert sees all of them.
    """

    def __init__(self, experts: int = 0, sorted: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention(causal=True, fused=True, rotary=True)
        self.router, self.sorted = nn.Linear(WIDTH, experts) if experts else None, sorted
        self.gates, self.ups, self.downs = (
            nn.ModuleList(nn.Linear(*sizes, bias=False) for _ in range(max(1, experts)))
            for sizes in ((WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))
        )

    def expert(self, number: int, x: Tensor) -> Tensor:
        return self.downs[number](F.silu(self.gates[number](x)) * self.ups[number](x))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        inner = self.norm2(x)
        if self.router is None:
            return x + self.expert(0, inner)
        tokens = inner.reshape(-1, WIDTH)
        weights, chosen = self.router(tokens).softmax(1).topk(2, 1)
        mixed = torch.zeros_like(tokens)
        for number in range(len(self.gates)):
            if self.sorted:
                rows, places = torch.where(chosen == number)
                mixed = mixed.index_add(0, rows, self.expert(number, tokens[rows]) * weights[rows, places, None])
            else:
                mixed = mixed + self.expert(number, tokens) * (weights * (chosen == number)).sum(1, keepdim=True)
        return x + mixed.view(x.shape)


class MambaLayer(nn.Module):
    """A selective state space (Gu and Dao, 2023), scanned step by step."""

    def __init__(self, states: int = 4):
        super().__init__()
        self.norm, self.inner = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.select, self.out = nn.Linear(WIDTH, WIDTH + 2 * states), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.inner(self.norm(x)).chunk(2, -1)
        value = F.silu(self.mix(value.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2))
        states = self.decay.shape[1]
        step, read, write = self.select(value).split((WIDTH, states, states), -1)
        step = F.softplus(step)
        keep = torch.exp(-step[..., None] * self.decay.exp())
        new = (step * value)[..., None] * write[:, :, None, :]
        state, outputs = torch.zeros_like(new[:, 0]), []
        for position in range(x.shape[1]):
            state = keep[:, position] * state + new[:, position]
            outputs.append((state * read[:, position, None, :]).sum(-1))
        return x + self.out(torch.stack(outputs, 1) * F.silu(gate))


class Language(nn.Module):
    """Embeddings, layers, and a score for each word of the vocabulary."""

    def __init__(self, make: Callable[[], nn.Module], layers: int, positions: bool = True, sparse: bool = False):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.positions = nn.Embedding(LENGTH, WIDTH) if positions else None
        self.blocks = nn.ModuleList(make() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Translator(nn.Module):
    """Encoder and decoder, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.encoder = nn.ModuleList(Layer(causal=False) for _ in range(2))
        self.blocks = nn.ModuleList(Layer(causal=True, cross=True) for _ in range(2))

    def forward(self, source: Tensor, ids: Tensor) -> Tensor:
        context, x = self.embed(source), self.embed(ids)
        for layer in self.encoder:
            context = layer(context)
        for block in self.blocks:
            x = block(x, context)
        return self.head(x)


class Recurrent(nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * WIDTH, WORDS)
        self.inner = nn.LSTM(WIDTH, 2 * WIDTH, num_layers=2, batch_first=True, dropout=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(self.embed(ids))[0])


# --- pictures ---


def _conv(channels_in: int, channels: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    layers = [nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(channels)]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


class Bottleneck(nn.Module):
    """Of ResNet-50."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1):
        super().__init__()
        narrow = channels // 4
        self.body = nn.Sequential(
            _conv(channels_in, narrow, 1), _conv(narrow, narrow, 3, stride), _conv(narrow, channels, 1, act=False)
        )
        self.skip = nn.Identity() if channels_in == channels else _conv(channels_in, channels, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Squeezed(nn.Module):
    """The inverted bottleneck with squeeze and excitation of EfficientNet."""

    def __init__(self, channels: int):
        super().__init__()
        wide = 4 * channels
        self.widen, self.depth = _conv(channels, wide, 1), _conv(wide, wide, 3, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, channels // 4, 1), nn.Conv2d(channels // 4, wide, 1)
        self.narrow = _conv(wide, channels, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.depth(self.widen(x))
        scale = self.excite(F.silu(self.squeeze(inner.mean((2, 3), keepdim=True)))).sigmoid()
        return x + self.narrow(inner * scale)


class NextLayer(nn.Module):
    """Of ConvNeXt: a wide depthwise convolution, then a feed-forward network over channels that come last."""

    def __init__(self, channels: int):
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.up, self.down = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.down(F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1)))))
        return x + (self.scale * inner).permute(0, 3, 1, 2)


class Dense(nn.Module):
    """Of DenseNet: what a layer adds is joined to its input."""

    def __init__(self, channels: int, growth: int):
        super().__init__()
        self.norm, self.narrow = nn.BatchNorm2d(channels), nn.Conv2d(channels, 2 * growth, 1, bias=False)
        self.conv = nn.Sequential(nn.BatchNorm2d(2 * growth), nn.ReLU(), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.conv(self.narrow(F.relu(self.norm(x))))), 1)


class Windowed(nn.Module):
    """Of Swin: attention within windows, shifted in every second layer."""

    def __init__(self, shift: int, window: int = 4):
        super().__init__()
        self.shift, self.window, self.layer = shift, window, Layer(causal=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(x, (-self.shift, -self.shift), (2, 3))
        count, channels, height, width = x.shape
        rows, columns, size = height // self.window, width // self.window, self.window
        parts = x.view(count, channels, rows, size, columns, size).permute(0, 2, 4, 3, 5, 1)
        parts = self.layer(parts.reshape(-1, size * size, channels))
        x = parts.view(count, rows, columns, size, size, channels).permute(0, 5, 1, 3, 2, 4)
        return torch.roll(x.reshape(count, channels, height, width), (self.shift, self.shift), (2, 3))


class Patched(nn.Module):
    """A vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, 10)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 65, WIDTH))
        self.blocks = nn.ModuleList(Layer(causal=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Pictures(nn.Module):
    """A stem, blocks, and a score for each class."""

    def __init__(self, channels: int, blocks: list[nn.Module], last: int):
        super().__init__()
        self.stem, self.blocks, self.head = _conv(3, channels, 3, 2), nn.ModuleList(blocks), nn.Linear(last, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Denoiser(nn.Module):
    """The U-Net of a diffusion model: group norms, an embedding of the time, long skips."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 2 * channels), nn.SiLU(), nn.Linear(2 * channels, 2 * channels))
        self.stem, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        self.down = nn.ModuleList([self._half(channels, channels), self._half(channels, 2 * channels)])
        self.middle = self._half(2 * channels, 2 * channels)
        self.up = nn.ModuleList([self._half(4 * channels, channels), self._half(2 * channels, channels)])

    @staticmethod
    def _half(channels_in: int, channels: int) -> nn.Module:
        layers = [nn.GroupNorm(4, channels_in), nn.SiLU(), nn.Conv2d(channels_in, channels, 3, padding=1)]
        return nn.Sequential(*layers, nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        angles = when[:, None] * torch.arange(8, device=x.device).exp()
        shift = self.time(torch.cat((angles.sin(), angles.cos()), 1))[:, :, None, None]
        x, skips = self.stem(x), []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x + shift)
        for layer in self.up:
            x = layer(torch.cat((F.interpolate(x, scale_factor=2.0), skips.pop()), 1))
        return self.last(x)


class Adversaries(nn.Module):
    """Generator and discriminator of a GAN; each is compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        widen = [nn.Linear(16, 64 * 16), nn.Unflatten(1, (64, 4, 4))]
        for channels_in, channels in ((64, 32), (32, 16)):
            widen += [nn.Upsample(scale_factor=2), _conv(channels_in, channels)]
        self.generator = nn.Sequential(*widen, nn.Conv2d(16, 3, 3, padding=1), nn.Tanh())
        narrow = [nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*narrow, nn.Flatten(), nn.Linear(32 * 16, 1))


# --- data ---


def _random(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + number)


def _text(number: int, examples: int, length: int) -> Batch:
    ids = torch.randint(0, WORDS, (examples, length + 1), generator=_random(number))
    return ids[:, :-1].clone(), ids[:, 1:].clone()


def _pairs(number: int, examples: int, length: int) -> Batch:
    source = torch.randint(0, WORDS, (examples, length), generator=_random(number))
    return source, *_text(number + 500, examples, length)


def _pictures(number: int, examples: int, length: int, side: int = SIDE) -> Batch:
    random = _random(number)
    return torch.randn(examples, 3, side, side, generator=random), torch.randint(0, 10, (examples,), generator=random)


def _noisy(number: int, examples: int, length: int) -> Batch:
    random = _random(number)
    noise = torch.randn(examples, 3, SIDE, SIDE, generator=random)
    return noise * 0.5 + 0.1, torch.rand(examples, generator=random), noise


def _words(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def _language(make: Callable[[], nn.Module], layers: int = 2, **more: Any) -> Task:
    return Task(lambda: Language(make, layers, **more), _text, _words)


def _pictured(channels: int, blocks: Callable[[], list[nn.Module]], last: int) -> Task:
    return Task(lambda: Pictures(channels, blocks(), last), _pictures, F.cross_entropy)


def _dense() -> list[nn.Module]:
    first = [Dense(16 + 8 * i, 8) for i in range(6)]
    return [*first, _conv(64, 32, 1), nn.AvgPool2d(2), *(Dense(32 + 8 * i, 8) for i in range(6))]


TASKS: dict[str, Task] = {
    "gpt": _language(lambda: Layer(causal=True)),
    "sparse": _language(lambda: Layer(causal=True), sparse=True),
    "llama": _language(GatedLayer, positions=False),
    "bert": _language(lambda: Layer(causal=False)),
    "t5": Task(Translator, _pairs, _words),
    "mixtral": _language(lambda: GatedLayer(experts=4), 1, positions=False),
    "routed": _language(lambda: GatedLayer(experts=4, sorted=True), 1, positions=False),
    "mamba": replace(_language(MambaLayer, 1, positions=False), length=16),
    "lstm": Task(Recurrent, _text, _words),
    "vit": Task(Patched, _pictures, F.cross_entropy),
    "resnet50": _pictured(16, lambda: [Bottleneck(16, 64), *(Bottleneck(64, 64) for _ in range(3)), Bottleneck(64, 128, 2)], 128),
    "convnext": _pictured(24, lambda: [NextLayer(24) for _ in range(3)], 24),
    "efficientnet": _pictured(16, lambda: [Squeezed(16) for _ in range(3)], 16),
    "densenet121": _pictured(16, _dense, 80),
    "swin": _pictured(WIDTH, lambda: [Windowed(2 * i) for i in range(2)], WIDTH),
    "unet": Task(Denoiser, _noisy, F.mse_loss),
    "gan": Task(Adversaries, lambda number, examples, length: _pictures(number, examples, length, 16), None, examples=16),
}
