"""Graphs of traced training steps of decoder-only transformers, as input for benchmarks/solver.py.

Models of 12, 24 and 48 layers with the proportions of GPT-2 small, medium and XL (Radford et al., 2019): how vocabulary, tokens per
example and heads relate to the width; the width itself is 64, so that a step is traced and profiled in seconds on a CPU.

    python benchmarks/trace_transformers.py FOLDER [--layers 12 24 48]
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
#: Layers -> vocabulary: GPT-2 has 50257 tokens for widths of 768, 1024 and 1600.
VOCABULARY = {12: 4160, 24: 3136, 48: 2000}


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


class Transformer(nn.Module):
    """Returns the loss of the next token."""

    def __init__(self, layers: int, vocabulary: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.Sequential(*[Layer() for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.layers(self.tokens(ids) + self.positions)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write transformerN.json")
    parser.add_argument("--layers", nargs="+", type=int, choices=list(VOCABULARY), default=list(VOCABULARY))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for layers in arguments.layers:
        ids = torch.randint(0, VOCABULARY[layers], (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
        traced = checkmate.torch.capture(Transformer(layers, VOCABULARY[layers]), ids, ids)
        graph = checkmate.Graph(traced.ops, traced.values, traced.fixed_memory, f"transformer{layers}")
        path = arguments.folder / f"transformer{layers}.json"
        graph.save(path)
        print(
            f"{path}: {graph.num_ops} ops, no-recompute peak {graph.no_recompute_peak}, working set {graph.min_working_set} bytes"
        )


if __name__ == "__main__":
    main()
