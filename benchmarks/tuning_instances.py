"""Training steps to tune the default method on: none of them is among the instances that the figures in benchmarks/results are of.

Chains, residual networks, U-Nets and transformers in turn, of random depth, width and resolution (every seed makes its own); a third
of them have the noise of measured costs, which makes equal layers nearly equal. Numbers of `solvers/default/tuning.py` are chosen on
these; the built-in networks and the committed rows in benchmarks/results judge.

    python benchmarks/tuning_instances.py FOLDER [--count 24] [--seed 0]

writes one graph file each, for the other benchmarks to read:

    python benchmarks/solver.py FOLDER --networks --methods auto
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from checkmate import Graph
from checkmate.networks.layers import Layers, Tensor, build

#: A network: adds its layers, drawn by the generator, to an empty list.
Network = Callable[[Layers, random.Random], None]


def _chain(net: Layers, rng: random.Random) -> None:
    """Convolutions one after the other, with pooling in between."""
    x, channels = net.input, rng.choice([12, 20, 28, 40])
    for number in range(rng.randint(5, 24)):
        x = net.activation(f"relu{number}", net.conv(f"conv{number}", x, channels, kernel=rng.choice([1, 3, 5])))
        if rng.random() < 0.25 and x.height >= 8:
            x, channels = net.pool(f"pool{number}", x), channels + rng.choice([4, 12, 28])
    net.dense("classes", x, 10)


def _residual(net: Layers, rng: random.Random) -> None:
    """Blocks of two or three convolutions with normalisation, each around a sum."""
    channels = rng.choice([12, 20, 28])
    x, deep = net.conv("stem", net.input, channels), rng.random() < 0.5
    for number in range(rng.randint(4, 14)):
        if number and rng.random() < 0.3 and x.height >= 8:
            channels += rng.choice([8, 20])
            x = net.conv(f"down{number}", x, channels, stride=2)
        y = x
        for part in range(3 if deep else 2):
            y = net.norm(f"block{number}_norm{part}", net.conv(f"block{number}_conv{part}", y, channels))
            y = net.activation(f"block{number}_relu{part}", y)
        x = net.add(f"block{number}_sum", x, y)
    net.dense("classes", x, 10)


def _unet(net: Layers, rng: random.Random) -> None:
    """Down and up again, with what was on the way down beside it."""
    x, channels, skips = net.input, rng.choice([6, 10, 14]), list[Tensor]()
    for level in range(rng.randint(2, 4)):
        for part in range(rng.randint(1, 3)):
            x = net.activation(f"down{level}_relu{part}", net.conv(f"down{level}_conv{part}", x, channels))
        skips.append(x)
        x, channels = net.pool(f"down{level}_pool", x), 2 * channels
    for level, skip in reversed(list(enumerate(skips))):
        x = net.concat(f"up{level}_concat", net.upsample(f"up{level}", x), skip)
        for part in range(rng.randint(1, 3)):
            x = net.activation(f"up{level}_relu{part}", net.conv(f"up{level}_conv{part}", x, skip.channels))
    net.conv("classes", x, 5, kernel=1)


def _transformer(net: Layers, rng: random.Random) -> None:
    """Attention (sometimes with its scores in memory, sometimes fused) and feed-forward blocks of a width of their own."""
    width, heads, fused = rng.choice([80, 112, 176]), rng.choice([2, 4, 8]), rng.random() < 0.5
    wide = rng.choice([2, 3, 5]) * width
    x = net.embedding("embedding", net.input, width, 997)
    for number in range(rng.randint(2, 9)):
        name = f"block{number}"
        y = net.layer_norm(f"{name}_norm1", x)
        query, key, value = (net.conv(f"{name}_{kind}", y, width, kernel=1) for kind in ("query", "key", "value"))
        if fused:
            y = net.product(f"{name}_attention", net.add(f"{name}_pair", query, key), value, (1, y.width, width), 2 * y.width)
        else:
            scores = net.product(f"{name}_scores", query, key, (y.width, y.width, heads), width // heads)
            y = net.product(f"{name}_mix", net.activation(f"{name}_softmax", scores), value, (1, y.width, width), y.width)
        x = net.add(f"{name}_sum1", x, net.conv(f"{name}_out", y, width, kernel=1))
        y = net.conv(f"{name}_up", net.layer_norm(f"{name}_norm2", x), wide, kernel=1)
        y = net.conv(f"{name}_down", net.activation(f"{name}_gelu", y), width, kernel=1)
        x = net.add(f"{name}_sum2", x, y)
    net.conv("head", net.layer_norm("norm", x), 997, kernel=1)


#: name -> what it is, and the shapes of inputs it is drawn for: sides of an image, or lengths of a sequence.
FAMILIES: dict[str, tuple[Network, tuple[int, ...]]] = {
    "chain": (_chain, (24, 40, 56)),
    "residual": (_residual, (24, 40, 56)),
    "unet": (_unet, (32, 48, 80)),
    "transformer": (_transformer, (72, 144, 300)),
}


def noisy(graph: Graph, rng: random.Random) -> Graph:
    """Costs as if measured: a few percent off, and never zero."""
    typical = graph.ideal_cost / graph.num_ops
    ops = [replace(op, cost=(op.cost + 0.01 * typical) * rng.uniform(0.95, 1.05)) for op in graph.ops]
    return Graph(ops, graph.values, graph.fixed_memory, f"{graph.name}-noisy")


def tuning_instance(family: str, seed: int) -> Graph:
    """The graph of a family that belongs to this seed."""
    network, sides = FAMILIES[family]
    rng = random.Random(f"{family} {seed}")
    side = rng.choice(sides)
    shape = (1, side, 1) if family == "transformer" else (side, side, 3)
    graph = build(f"tuning-{family}-{seed}", shape, rng.choice([1, 3, 12]), lambda net: network(net, rng))
    return noisy(graph, rng) if rng.random() < 1 / 3 else graph


def tuning_instances(count: int, seed: int = 0) -> list[Graph]:
    """So many graphs, of all families in turn."""
    families = list(FAMILIES)
    return [tuning_instance(families[i % len(families)], seed + i // len(families)) for i in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=24, help="graphs (default: 24)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for graph in tuning_instances(options.count, options.seed):
        graph.save(options.folder / f"{graph.name}.json")
        peak, least = graph.no_recompute_peak, graph.min_working_set
        print(f"{graph.name:28} {graph.num_ops:5} ops, peak {peak / 2**20:9.1f} MiB, at least {least / 2**20:9.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
