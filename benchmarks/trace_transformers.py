"""Graphs of traced training steps of decoder-only transformers, as input for benchmarks/solver.py.

gptN: N layers with the proportions of GPT-2 small (Radford et al., 2019): how vocabulary, tokens per example and heads relate to
the width. medium24, xl48: those of GPT-2 medium and XL; with their smaller vocabularies for the width the least budget leaves less
room. llamaN: rotary positions, gated feed-forward networks and norms written out (Touvron et al., 2023), with the proportions of
Llama 3.2 1B: twice as many ops. The width itself is 64, so that a step is traced and profiled in seconds on a CPU.

    python benchmarks/trace_transformers.py FOLDER [--models NAME ...]
    python benchmarks/solver.py FOLDER --networks --methods auto --budgets 70% 50% 1.3x 1.2x 1.1x 1.02x
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate
import checkmate.torch

WIDTH, HEADS, LENGTH, BATCH = 64, 4, 256, 32


class Layer(nn.Module):
    """Attention and feed-forward network, each behind a layer norm, with dropout as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(2, 3) / math.sqrt(width // HEADS)).masked_fill(self.mask, -math.inf)
        mixed = (F.dropout(scores.softmax(3), 0.1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(mixed), 0.1)
        inner = F.gelu(self.up(self.norm2(x)))
        return x + F.dropout(self.down(inner), 0.1)


class Norm(nn.Module):
    """Root mean square layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaLayer(nn.Module):
    """Attention with rotary positions and a gated feed-forward network, each behind a norm, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        size = WIDTH // HEADS
        angles = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, size, 2).repeat(2) / size)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -math.inf).triu(1))

    def rotate(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos + torch.cat((-right, left), -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        inner = self.norm1(x)
        q, k, v = (part(inner).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = self.rotate(q) @ self.rotate(k).transpose(2, 3) / math.sqrt(width // HEADS) + self.mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
        inner = self.norm2(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Transformer(nn.Module):
    """Returns the loss of the next token."""

    def __init__(self, layer: type[nn.Module], layers: int, vocabulary: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH)) if layer is Layer else None
        self.layers = nn.Sequential(*[layer() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH) if layer is Layer else Norm()
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = self.layers(x if self.positions is None else x + self.positions)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


#: Name -> kind of layer, number of layers, vocabulary. GPT-2 has 50257 tokens for widths of 768, 1024 and 1600, Llama 3.2 1B has
#: 128256 for 2048.
MODELS: dict[str, tuple[type[nn.Module], int, int]] = {
    **{f"gpt{layers}": (Layer, layers, 4160) for layers in (12, 24, 48)},
    "medium24": (Layer, 24, 3136),
    "xl48": (Layer, 48, 2000),
    **{f"llama{layers}": (LlamaLayer, layers, 4008) for layers in (12, 24, 48)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write NAME.json")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="default: all")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        layer, layers, vocabulary = MODELS[name]
        ids = torch.randint(0, vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
        traced = checkmate.torch.capture(Transformer(layer, layers, vocabulary), ids, ids)
        graph = checkmate.Graph(traced.ops, traced.values, traced.fixed_memory, name)
        path = arguments.folder / f"{name}.json"
        graph.save(path)
        print(
            f"{path}: {graph.num_ops} ops, no-recompute peak {graph.no_recompute_peak}, working set {graph.min_working_set} bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
