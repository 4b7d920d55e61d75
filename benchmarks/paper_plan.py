"""What `paper.py` evaluates: the cells of every section, whole and quick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import solver_scale
from paper_cells import Cell, file_digest
from paper_run import Ladder

from checkmate import Graph

#: The paper draws VGG16, MobileNet and U-Net at these batches; the others get those of their kind.
BATCHES = {"vgg16": 256, "vgg19": 256, "mobilenet": 512, "resnet50": 256, "unet": 32, "fcn8": 32, "segnet": 32}
MODERN_BATCHES = {
    "densenet161": 64,
    "gpt2": 8,
    "gpt2-medium": 8,
    "gpt2-large": 8,
    "gpt2-xl": 8,
    "vit-l": 128,
    "llama-1b": 4,
    "diffusion-unet": 16,
}
SECTIONS = ("overhead", "profiled", "batches", "times", "modern", "traces")
QUICK_METHODS = ("greedy", "chen-sqrt", "chen-greedy", "chen-sqrt-linear", "chen-greedy-linear", "griewank", "keep-all-forward")
LP_METHODS = ("lp-rounding", "lp-rounding-randomized")
INTEGER_METHODS = ("milp", "milp-cbc")
METHODS = ("auto", *QUICK_METHODS, *LP_METHODS, *INTEGER_METHODS)


@dataclass(frozen=True)
class Scale:
    """How much is evaluated.

    Attributes:
        shares: budgets, as percent of the way (see `Cell.budget`). slow_shares: for integer programs, and for linear ones of large graphs.
        seconds: of a search by the default method. cheap_seconds, slow_seconds: of a baseline, and of one that solves programs.
        lp_ops, random_ops, integer_ops: largest graphs that LP rounding, randomized rounding and integer programs get. lp_slow_ops:
            linear programs get all budgets up to here.
        profiled_shares: budgets where costs are measured ones.
        batch_seconds: for each largest batch. batch_lp: whether LP rounding is asked for it, too.
        sizes: of graphs whose solve time is measured; time_seconds: at most.
        modern: names. modern_shares: budgets. modern_seconds: of a search by the default method, of them, of traces
            and with measured costs.
        trace_shares: of the peak without recomputation.
    """

    shares: Sequence[int]
    slow_shares: Sequence[int]
    seconds: float
    cheap_seconds: float
    slow_seconds: float
    lp_ops: int
    random_ops: int
    lp_slow_ops: int
    integer_ops: int
    profiled_shares: Sequence[int]
    batch_seconds: float
    batch_lp: bool
    sizes: Sequence[int]
    time_seconds: float
    modern: Sequence[str]
    modern_shares: Sequence[int]
    modern_seconds: float
    trace_shares: Sequence[int]


WHOLE = Scale(
    shares=(5, 10, 15, 20, 30, 40, 50, 60, 80, 100),
    slow_shares=(5, 20, 50, 80),
    seconds=90.0,
    cheap_seconds=5.0,
    slow_seconds=30.0,
    lp_ops=400,
    random_ops=100,
    lp_slow_ops=60,
    integer_ops=100,
    profiled_shares=(10, 20, 50),
    batch_seconds=300.0,
    batch_lp=True,
    sizes=(17, 31, 45, 73, 101, 143, 199, 297, 493, 997, 1991, 5003),
    time_seconds=60.0,
    modern=tuple(MODERN_BATCHES),
    modern_shares=(5, 20, 50),
    modern_seconds=20.0,
    trace_shares=(90, 80, 70),
)
QUICK = Scale(
    shares=(5, 20, 50, 80),
    slow_shares=(20, 80),
    seconds=5.0,
    cheap_seconds=2.0,
    slow_seconds=10.0,
    lp_ops=80,
    random_ops=80,
    lp_slow_ops=80,
    integer_ops=60,
    profiled_shares=(20, 50),
    batch_seconds=20.0,
    batch_lp=False,
    sizes=(17, 31, 45, 101, 297, 997, 5003),
    time_seconds=10.0,
    modern=("densenet161", "gpt2", "gpt2-xl", "vit-l", "llama-1b", "diffusion-unet"),
    modern_shares=(10, 50),
    modern_seconds=5.0,
    trace_shares=(90, 70),
)
#: Families of graphs whose solve time is measured: of `solver_scale`.
FAMILIES = ("residual", "transformer")
TIMED_METHODS = ("milp", "milp-cbc", "lp-rounding", "auto")
_OPS = {"vgg16": 45, "vgg19": 51, "mobilenet": 185, "resnet50": 353, "unet": 71, "fcn8": 73, "segnet": 77}


def ladders(scale: Scale, instances: Path | None = None, profiled: Path | None = None) -> Iterator[Ladder]:
    """All cells. instances: a folder of traces. profiled: a folder of graphs with measured costs."""
    for name in BATCHES:
        for cell in _at_budgets("overhead", f"network:{name}", BATCHES[name], _OPS[name], scale):
            yield (cell,)
    for path in _files(profiled):
        small = Graph.load(path).num_ops <= scale.integer_ops
        for share in scale.profiled_shares:
            for method in ("auto", *QUICK_METHODS, *(["milp"] if small else [])):
                seconds = {"auto": scale.modern_seconds, "milp": scale.slow_seconds}.get(method, QUICK.cheap_seconds)
                yield (Cell("profiled", f"file:{path}", 1, _way(share), method, seconds=seconds, contents=file_digest(path)),)
    yield from _batches(scale)
    yield from _times(scale)
    for name in scale.modern:
        for share in scale.modern_shares:
            for method in ("auto", *QUICK_METHODS):
                seconds = scale.modern_seconds if method == "auto" else scale.cheap_seconds
                yield (Cell("modern", f"modern:{name}", MODERN_BATCHES[name], _way(share), method, seconds=seconds),)
    yield from _traces(scale, instances)


def _way(share: int) -> str:
    return f"{share}% of the way"


def _at_budgets(section: str, graph: str, batch: int, ops: int, scale: Scale) -> Iterator[Cell]:
    """Every method at the budgets that it gets."""
    for share in scale.shares:
        for method in METHODS:
            seconds, few = scale.cheap_seconds, False
            if method == "auto":
                seconds = scale.seconds
            elif method in LP_METHODS:
                seconds, few = scale.slow_seconds, ops > scale.lp_slow_ops
                if ops > (scale.lp_ops if method == "lp-rounding" else scale.random_ops):
                    continue
            elif method in INTEGER_METHODS:
                seconds, few = scale.slow_seconds, True
                if ops > scale.integer_ops:
                    continue
            if not few or share in scale.slow_shares:
                yield Cell(section, graph, batch, _way(share), method, seconds=seconds)


def _batches(scale: Scale) -> Iterator[Ladder]:
    for name in BATCHES:
        methods = ["auto", "keep-all", *QUICK_METHODS]
        if scale.batch_lp and _OPS[name] <= scale.lp_slow_ops:
            methods.append("lp-rounding")
        for counted in ("once", "twice"):
            for method in methods:
                seconds = scale.batch_seconds if method == "auto" else scale.cheap_seconds
                yield (Cell("batches", f"network:{name}", 1, counted, method, seconds=seconds),)


def _times(scale: Scale) -> Iterator[Ladder]:
    """A size is tried where the one below was done in time."""
    for family in FAMILIES:
        sizes = dict.fromkeys(_rounded(family, ops) for ops in scale.sizes)
        for method in TIMED_METHODS:
            yield [Cell("times", f"{family}:{ops}", 1, _way(50), method, seconds=scale.time_seconds) for ops in sizes]


def _rounded(family: str, ops: int) -> int:
    """The size of the graph that the family has for it."""
    _, per_layer, others = solver_scale.FAMILIES[family]
    return others + per_layer * max(1, round((ops - others) / per_layer))


def _traces(scale: Scale, folder: Path | None) -> Iterator[Ladder]:
    for path in _files(folder):
        for share in scale.trace_shares:
            for method, order in (("auto", "given"), ("auto", "any"), ("greedy", "given")):
                budget, contents, seconds = f"{share}% of the peak", file_digest(path), scale.modern_seconds
                yield (Cell("traces", f"file:{path}", 1, budget, method, order, seconds=seconds, contents=contents),)


def _files(folder: Path | None) -> list[Path]:
    return [] if folder is None else sorted(folder.resolve().glob("*.json"))
