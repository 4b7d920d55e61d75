"""The networks of torch_peers.py in plain PyTorch. Each returns its loss, and goes through its blocks in one place, so that they can be
checkpointed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CLASSES = 1000
Batch = tuple[Tensor, Tensor]


class Network(nn.Module):
    """What is compared.

    Attributes:
        blocks: what can be checkpointed, in the order in which it runs.
        every: so many blocks are one region of `torch.utils.checkpoint`; 0: none. keywords: of `checkpoint`.
        in_row: each block reads the one before alone, so that regions can have several.
    """

    blocks: nn.ModuleList
    in_row = True

    def __init__(self) -> None:
        super().__init__()
        self.every = 0
        self.keywords: dict[str, Any] = {}

    def call(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """One region."""
        if not self.every:
            return block(*inputs)
        return checkpoint(block, *inputs, use_reentrant=False, **self.keywords)  # type: ignore[no-any-return]

    def through(self, x: Tensor) -> Tensor:
        """All blocks, one after the other."""
        step = max(1, self.every)
        for start in range(0, len(self.blocks), step):
            x = self.call(partial(_in_turn, list(self.blocks[start : start + step])), x)
        return x


def _in_turn(blocks: list[nn.Module], x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


# --- transformers ---


class Attention(nn.Module):
    """With PyTorch's fused op."""

    def __init__(self, width: int, heads: int, causal: bool, rotary: bool = False):
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.given, self.out = nn.Linear(width, 3 * width, bias=not rotary), nn.Linear(width, width, bias=not rotary)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.given(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def _rotated(x: Tensor) -> Tensor:
    powers = torch.arange(0, x.shape[-1], 2, device=x.device).repeat(2) / x.shape[-1]
    angles = torch.arange(x.shape[2], device=x.device)[:, None] / 10000**powers
    left, right = x.chunk(2, -1)
    return x * angles.cos().to(x.dtype) + torch.cat((-right, left), -1) * angles.sin().to(x.dtype)


class Layer(nn.Module):
    """Of GPT-2 and ViT."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.norm1(x)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class GatedLayer(nn.Module):
    """Of Llama."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, causal=True, rotary=True)
        inner = 8 * width // 3 // 64 * 64
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        inner = self.norm2(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Language(Network):
    """Words in, their loss out. The embedding is the head's weight, too, where it is tied."""

    def __init__(self, layer: Callable[[], nn.Module], layers: int, width: int, words: int, length: int, tied: bool):
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        logits = self.head(self.norm(self.through(self.embed(words) + self.places)))
        return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


class Vision(Network):
    """ViT."""

    def __init__(self, layers: int, width: int, heads: int, side: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros((side // 16) ** 2, width))
        self.blocks = nn.ModuleList(Layer(width, heads, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        x = self.through(self.patches(pictures).flatten(2).transpose(1, 2) + self.places)
        return F.cross_entropy(self.head(self.norm(x).mean(1)).float(), labels)


class CrossLayer(nn.Module):
    """Of a decoder that looks at something else only where there is something."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.own, self.norm = Layer(width, heads, causal=True), nn.LayerNorm(width)
        self.across = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is not None:
            x = x + self.across(self.norm(x), context, context, need_weights=False)[0]
        return self.own(x)


class Twice(Network):
    """One stack of blocks that a step goes through twice, without and with a context, as in contrastive captioning."""

    in_row = False

    def __init__(self, layers: int, width: int, heads: int, words: int):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.blocks = nn.ModuleList(CrossLayer(width, heads) for _ in range(layers))

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        context = text = self.embed(words)
        for block in self.blocks:
            text = self.call(block, text)
        described = context
        for block in self.blocks:
            described = self.call(block, described, context)
        first, second = (F.normalize(x.mean(1), dim=-1) for x in (text, described))
        pairs = torch.arange(len(words), device=words.device)
        return F.cross_entropy(first @ second.T, pairs) + F.cross_entropy(self.head(described).flatten(0, 1), following.flatten())


# --- convolutional networks ---


def _conv(given: int, made: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(given, made, size, stride, size // 2, bias=False), nn.BatchNorm2d(made))


class Bottleneck(nn.Module):
    """Of ResNet-50."""

    def __init__(self, given: int, inner: int, stride: int):
        super().__init__()
        self.one, self.two, self.three = _conv(given, inner, 1), _conv(inner, inner, 3, stride), _conv(inner, 4 * inner, 1)
        self.side = _conv(given, 4 * inner, 1, stride) if stride > 1 or given != 4 * inner else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.three(F.relu(self.two(F.relu(self.one(x))))) + self.side(x))


class DenseLayer(nn.Module):
    """Of DenseNet: what it reads and what it makes."""

    def __init__(self, given: int, growth: int):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(given), nn.BatchNorm2d(4 * growth)
        self.one = nn.Conv2d(given, 4 * growth, 1, bias=False)
        self.two = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.two(F.relu(self.norm2(self.one(F.relu(self.norm1(x))))))), 1)


class Classifier(Network):
    """A stem, blocks in a row, and a head."""

    def __init__(self, stem: nn.Module, blocks: Iterator[nn.Module], channels: int):
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), nn.Linear(channels, CLASSES)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.through(self.stem(pictures)).mean((2, 3))).float(), labels)


def _stem() -> nn.Module:
    return nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def _resnet(counts: tuple[int, ...] = (3, 4, 6, 3)) -> Network:
    def blocks() -> Iterator[nn.Module]:
        given = 64
        for stage, count in enumerate(counts):
            for number in range(count):
                yield Bottleneck(given, 64 << stage, 2 if stage and not number else 1)
                given = 256 << stage

    return Classifier(_stem(), blocks(), 256 << (len(counts) - 1))


def _densenet(counts: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> Network:
    made = 64

    def blocks() -> Iterator[nn.Module]:
        nonlocal made
        for stage, count in enumerate(counts):
            for _ in range(count):
                yield DenseLayer(made, growth)
                made += growth
            if stage + 1 < len(counts):
                yield nn.Sequential(nn.BatchNorm2d(made), nn.ReLU(), nn.Conv2d(made, made // 2, 1, bias=False), nn.AvgPool2d(2))
                made //= 2

    found = list(blocks())
    return Classifier(_stem(), iter(found), made)


class UNet(Network):
    """Down and up again, with the way across; the loss is for each pixel."""

    in_row = False

    def __init__(self, width: int, levels: int = 4):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(self._two(3 if i == 0 else widths[i - 1], w) for i, w in enumerate(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.across = nn.ModuleList(self._two(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)
        self.blocks = nn.ModuleList([*self.down, *self.across])

    @staticmethod
    def _two(given: int, made: int) -> nn.Module:
        return nn.Sequential(_conv(given, made), nn.ReLU(), _conv(made, made), nn.ReLU())

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        kept, x = [], pictures
        for level, block in enumerate(self.down):
            x = self.call(block, F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.call(self.across[level], torch.cat((kept[level], self.up[level](x)), 1))
        return F.cross_entropy(self.head(x).float(), labels)


# --- what is trained, and how large ---


@dataclass(frozen=True)
class Task:
    """A network and its batches.

    Attributes:
        build: a new network. batch: from the number of examples to inputs and target, on the CPU.
        examples: in a batch.
    """

    build: Callable[[], Network]
    batch: Callable[[int], Batch]
    examples: int


def _words(words: int, length: int, examples: int) -> Batch:
    text = torch.randint(words, (examples, length + 1), generator=torch.Generator().manual_seed(0))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _pictures(side: int, whole: bool, examples: int) -> Batch:
    made = torch.Generator().manual_seed(0)
    shape = (examples, side, side) if whole else (examples,)
    return torch.randn(examples, 3, side, side, generator=made), torch.randint(2, shape, generator=made)


def _gpt(layers: int, width: int, heads: int, words: int, length: int, examples: int) -> Task:
    layer = partial(Layer, width, heads, causal=True)
    return Task(partial(Language, layer, layers, width, words, length, tied=True), partial(_words, words, length), examples)


def _llama(layers: int, width: int, heads: int, words: int, length: int, examples: int) -> Task:
    layer = partial(GatedLayer, width, heads)
    return Task(partial(Language, layer, layers, width, words, length, tied=False), partial(_words, words, length), examples)


def _twice(layers: int, width: int, heads: int, words: int, length: int, examples: int) -> Task:
    return Task(partial(Twice, layers, width, heads, words), partial(_words, words, length), examples)


def _vit(layers: int, width: int, heads: int, side: int, examples: int) -> Task:
    return Task(partial(Vision, layers, width, heads, side), partial(_pictures, side, False), examples)


def _seen(build: Callable[[], Network], side: int, examples: int, whole: bool = False) -> Task:
    return Task(build, partial(_pictures, side, whole), examples)


#: By scale: "tiny" for tests, "cpu" for two cores and 24 GiB, "full" for 80 GB and more, where plain training is near what fits or beyond;
#: "gpu" for several processes beside each other in 80 GB: plain training takes 7 to 8 GiB in bfloat16, by less depth and fewer words, but
#: its ops are no smaller, so that kernels take longer than it takes to launch them.
TASKS: dict[str, dict[str, Task]] = {
    "tiny": {
        "gpt": _gpt(3, 32, 2, 64, 32, 8),
        "llama": _llama(3, 64, 2, 64, 32, 8),
        "vit": _vit(2, 32, 2, 32, 8),
        "resnet50": _seen(partial(_resnet, (1, 1)), 32, 8),
        "unet": _seen(partial(UNet, 4, 2), 32, 4, True),
        "densenet121": _seen(partial(_densenet, (2, 2), 8), 32, 8),
        "issue-193193": _twice(3, 32, 2, 64, 32, 8),
    },
    "cpu": {
        "tied-gpt": _gpt(8, 256, 8, 4096, 256, 8),
        "gpt2": _gpt(12, 768, 12, 50257, 128, 2),
        "llama": _llama(12, 768, 12, 32000, 128, 2),
        "vit-b": _vit(12, 768, 12, 224, 2),
        "resnet50": _seen(_resnet, 128, 8),
        "unet": _seen(partial(UNet, 32), 128, 4, True),
        "densenet121": _seen(_densenet, 128, 8),
        "issue-197838": _llama(16, 256, 4, 2048, 512, 2),
        "issue-193193": _twice(8, 256, 4, 2048, 128, 8),
        "issue-194696": _seen(partial(_resnet, (2, 2, 2, 2)), 128, 8),
    },
    "gpu": {
        "gpt2-xl": _gpt(12, 1600, 25, 16384, 1024, 8),
        "resnet50": _seen(_resnet, 224, 160),
        "unet": _seen(partial(UNet, 64), 256, 32, True),
        "vit-l": _vit(12, 1024, 16, 224, 96),
    },
    "full": {
        "gpt2-xl": _gpt(48, 1600, 25, 50257, 1024, 32),
        "llama-1b": _llama(16, 2048, 32, 32000, 2048, 16),
        "vit-l": _vit(24, 1024, 16, 224, 512),
        "resnet50": _seen(_resnet, 224, 1024),
        "unet": _seen(partial(UNet, 64), 512, 64, True),
        "densenet121": _seen(_densenet, 224, 512),
    },
}


def square_root(network: Network) -> int:
    """Blocks of a region, of which there are as many."""
    return max(1, round(math.sqrt(len(network.blocks))))
