"""The tables and the figure of these pages that show measurements, from the files in benchmarks/results.

    python docs/measured.py

writes them anew, between the marks `<!-- measured: NAME -->` and `<!-- end -->` of the pages and of the README. A test compares
them with the files.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"
MEBI = 2**20
_MARKED = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

#: How the networks are called in the files, and in words.
_TITLES = {
    "VGG16": "VGG16",
    "VGG19": "VGG19",
    "vgg_unet": "U-Net",
    "fcn_8_vgg": "FCN8",
    "segnet": "SegNet",
    "MobileNet": "MobileNet",
    "ResNet50": "ResNet50",
    "transformer12": "GPT-2 small",
    "vgg19": "VGG19",
    "resnet50": "ResNet50",
    "mobilenet": "MobileNet",
    "unet": "U-Net",
    "transformer": "transformer",
    "tied-gpt": "GPT, tied embeddings",
    "gpt2": "GPT-2 small",
    "llama": "Llama-style, 12 layers",
    "vit-b": "ViT-B",
    "densenet121": "DenseNet-121",
    "issue-197838": "issue 197838",
    "issue-193193": "issue 193193",
    "issue-194696": "issue 194696",
}
#: As they are in the benchmark for a GPU.
_GPU_TITLES = {"gpt2-xl": "GPT-2 XL, 12 layers", "resnet50": "ResNet-50", "unet": "U-Net", "vit-l": "ViT-L, 12 layers"}
_METHODS = {
    "auto": "checkmate",
    "greedy": "greedy eviction",
    "lp-rounding": "LP rounding",
    "chen-greedy": "Chen, greedy",
    "chen-sqrt": "Chen, sqrt(n)",
    "griewank": "Griewank",
}


def load(name: str) -> Any:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def largest_batches() -> str:
    """Of the networks of Checkmate's evaluation, at 16 GB and at most one extra forward pass."""
    rows = {row["graph"]: row for row in load("largest_batch")["rows"]}
    lines = []
    for name in ("VGG16", "VGG19", "vgg_unet", "fcn_8_vgg", "segnet", "MobileNet", "ResNet50"):
        row = rows[name]
        times = row["batch"] / row["without_recomputation"]
        lines.append(
            f"| {_TITLES[name]} | {row['without_recomputation']} | {row['batch']} | {row['upper_bound']} | {times:.1f} x "
            f"| {row['overhead']:.3f} | {_seconds(row['seconds'])} |"
        )
    return _table(
        "network | batch, nothing recomputed | batch, planned | proven: none above | larger by | cost | seconds",
        "---|--:|--:|--:|--:|--:|--:",
        lines,
    )


def methods_at_budgets() -> str:
    """Cost of every method on the built-in networks: the least, at two budgets."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in load("solver")["rows"]:
        found.setdefault((row["graph"], row["budget_text"]), {})[row["method"]] = row
    lines = []
    for name in ("VGG16", "VGG19", "vgg_unet", "fcn_8_vgg", "segnet", "MobileNet", "ResNet50", "transformer12"):
        for text in ("90%", "50%", "1.02x"):
            methods = found.get((name, text))
            if methods is None:
                continue
            ours = methods["auto"]
            bound = "-" if not ours["overhead"] else f"{ours['overhead'] / (1 + ours['gap']):.4f}"
            cells = " | ".join(_overhead(methods[method]) for method in _METHODS)
            lines.append(f"| {_TITLES[name]} | {text} | {cells} | {bound} |")
    header = " | ".join(("network", "budget", *_METHODS.values(), "proven bound"))
    return _table(header, "---|---|" + "--:|" * len(_METHODS) + "--:", lines)


def keras_peers() -> str:
    """Measured training steps of TensorFlow, beside checkpointing by hand and RematScope."""
    lines = []
    for name, network in load("tf_peers")["networks"].items():
        rows = {row["title"]: row for row in network["rows"]}
        plain = rows["plain"]
        for other in [row for row in network["rows"] if row["name"] in ("segments", "remat")]:
            ours = next((row for row in network["rows"] if row["against"] == other["title"]), None)
            title = other["title"].replace("segments", "checkpointing, segments:").replace("remat", "RematScope,")
            if other["error"]:
                lines.append(f"| {_TITLES[name]} | {title} | does not train | | | |")
                continue
            if ours is None:
                continue
            lines.append(
                f"| {_TITLES[name]} | {title} | {_share(other, plain, 'peak')} | {_share(other, plain, 'median_seconds')} "
                f"| {_share(ours, plain, 'peak')} | {_share(ours, plain, 'median_seconds')} |"
            )
    return _table("network | way | its peak | its time | checkmate at that budget: peak | time", "---|---|--:|--:|--:|--:", lines)


def torch_peers() -> str:
    """Measured training steps of PyTorch, beside its own ways to save memory: medians of ratios round by round."""
    lines = []
    for name, network in load("torch_peers")["networks"].items():
        plain = network["plain"]["peak"]
        for row in network["rows"]:
            ours, peer = row["ours"], row.get("peer", {})
            cells = [_TITLES[name], row["way"]]
            for said, who in ((peer, "peer"), (ours, "ours")):
                cells += ["-", "-"] if "peak" not in said else [_part(said["peak"], plain), f"{_ratio(row, who, 'plain')[1]:.2f}"]
            beside = "-"
            if "peak" in peer and "peak" in ours:
                first, middle, third = _ratio(row, "ours", "peer")
                beside = f"{middle:.2f} ({first:.2f} to {third:.2f})"
            lines.append("| " + " | ".join([*cells, beside]) + " |")
    return _table(
        "network | way or budget | its peak | its time | checkmate: peak | time | checkmate's time over its (quartiles)",
        "---|---|--:|--:|--:|--:|--:",
        lines,
    )


def gpu_peers() -> str:
    """The same on a GPU, whose memory is counted by its allocator."""
    lines = []
    for name, network in load("gpu")["networks"].items():
        plain = network["plain"]
        for way, peer in network["peers"].items():
            ours = network["ours"][way]
            cells = [_GPU_TITLES[name], way, _part(peer["peak"], plain["peak"]), _rounds(peer, plain)]
            if "peak" in ours:
                cells += [_part(_most(ours), plain["peak"]), _rounds(ours, plain), _rounds(ours, peer)]
            else:
                cells += ["-", "-", "-"]  # what went wrong is in the file
            lines.append(f"| {' | '.join(cells)} |")
    return _table(
        "network | way | its peak | its time | checkmate: peak | time | checkmate's time over its",
        "---|---|--:|--:|--:|--:|--:",
        lines,
    )


def gpu_budgets() -> str:
    """What budgets cost on a GPU, and what steps took of them."""
    lines = []
    for name, network in load("gpu")["networks"].items():
        for share in ("100%", "80%", "60%", "40%"):
            ours, full = network["ours"][share], network["ours"]["100%"]
            planned = f"{ours['overhead'] / full['overhead']:.3f}"
            taken = [_part(ours[what], ours["budget"]) for what in ("first_peak", "later_peak", "reserved")]
            beside = "1" if ours is full else _rounds(ours, full, 3)
            lines.append(
                f"| {_GPU_TITLES[name]} | {share} | {' | '.join(taken)} | {planned} | {beside} | {_rounds(ours, network['plain'])} |"
            )
    return _table(
        "network | budget | first step's peak | later peak | reserved | planned | measured | over plain training",
        "---|--:|--:|--:|--:|--:|--:|--:",
        lines,
    )


def _most(said: dict[str, Any]) -> int:
    return int(max(said["peak"], said.get("later_peak") or 0))


def _part(one: int, other: int) -> str:
    return f"{100 * one / other:.1f}%"


def _rounds(one: dict[str, Any], other: dict[str, Any], digits: int = 2) -> str:
    """Time over time: the median over rounds."""
    ratios = [statistics.fmean(a) / statistics.fmean(b) for a, b in zip(one["rounds"], other["rounds"], strict=False)]
    return f"{statistics.median(ratios):.{digits}f}"


def keras_first_steps() -> str:
    """Seconds to the first step of the networks of keras.applications, and the most of the other models and scripts."""
    rows = load("keras_first_step")["rows"]
    large = {
        "resnet50-v2": "ResNet50V2",
        "densenet121": "DenseNet121",
        "convnext-tiny": "ConvNeXtTiny",
        "efficientnet-v2b0": "EfficientNetV2B0",
        "mobilenet-v3-small": "MobileNetV3Small",
        "vgg19": "VGG19",
    }
    columns = [("first", "waited"), ("first", "trace"), ("second", "waited"), ("second", "trace")]
    found = {large[row["model"]]: [row[process][part] for process, part in columns] for row in rows if row["model"] in large}
    others = [row for row in rows if row["model"] not in large]
    most = f"the most of {len(others)} other models and scripts"
    found[most] = [max(row[process][part] for row in others) for process, part in columns]
    lines = [
        f"| {title} | {' | '.join(f'{seconds:.1f}' for seconds in found[title])} |"
        for title in (*sorted(found.keys() - {most}), most)
    ]
    return _table(
        "network | first process: first step after | of which tracing | second process: after | of which tracing",
        "---|--:|--:|--:|--:",
        lines,
    )


def _ratio(row: dict[str, Any], one: str, other: str) -> list[float]:
    """Quartiles of time over time."""
    ratios = [a / b for a, b in zip(row[one]["seconds"], row[other]["seconds"], strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive")


def pytorch_rows() -> str:
    """What the matrix of PyTorch models and scripts came to."""
    rows, pairs = load("torch_matrix")["rows"], load("torch_named_budgets")["pairs"]
    runs = [run for row in rows for run in row["levels"].values()]
    return _table(
        "what was run | how many | as promised",
        "---|--:|--:",
        [
            f"| models and scripts, each at several budgets: every step within the budget and equal to plain training | {len(rows)} "
            f"| {sum(row['passed'] for row in rows)} |",
            f"| trainings in these, one per budget: losses and weights equal, to the bit | {len(runs)} "
            f"| {sum(bool(run.get('equal')) for run in runs)} |",
            f"| budgets that errors named, tried out: every step within it | {len(pairs)} | {sum(pair['passed'] for pair in pairs)} |",
        ],
    )


def pytorch_steps() -> str:
    """What a PyTorch step takes where nothing is computed again."""
    lines = []
    for row in load("torch_overhead")["plain"]:
        pairs = (("aot_eager", "eager"), ("ours", "eager"), ("ours", "aot_eager"), ("ours", "before"))
        ratios = (row["ratios"][f"{one} / {other}"] for one, other in pairs)
        shown = " | ".join(f"{middle:.3f} ({first:.3f} to {third:.3f})" for first, middle, third in ratios)
        lines.append(f"| {row['network']} | {1e3 * row['ways']['eager']['seconds']:.0f} | {shown} |")
    return _table(
        "network | eager, ms | aot_eager / eager | checkmate / eager | checkmate / aot_eager | checkmate / before",
        "---|--:|--:|--:|--:|--:",
        lines,
    )


def pytorch_planned() -> str:
    """Planned and measured overhead of PyTorch steps."""
    lines = []
    for row in load("torch_overhead")["recomputing"]:
        for budget, planned in row["planned"].items():
            first, middle, third = row["ratios"][f"{budget} / 110%"]
            lines.append(f"| {row['network']} | {budget} | {planned:.3f} | {middle:.3f} ({first:.3f} to {third:.3f}) |")
    return _table("network | budget | planned | measured", "---|--:|--:|--:", lines)


def search_times() -> str:
    """Time and gap against the number of ops."""
    lines = [
        f"| {row['family']} | {row['ops']:,} | {row['budget_text']} | {_seconds(row['seconds'])} | {row['overhead']:.4f} "
        f"| {100 * row['gap']:.2g}% |"
        for row in load("scale")["rows"]
        if row["budget_text"] in ("50%", "30%")
    ]
    return _table("graph | ops | budget | seconds | overhead | proven gap", "---|--:|--:|--:|--:|--:", lines)


def _seconds(number: float) -> str:
    """To two digits, or whole."""
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def near_the_least() -> str:
    """Traced transformers at small multiples of the working set."""
    lines = [
        f"| {row['graph']} | {row['ops']:,} | {row['budget_text']} | {row['overhead']:.3f} | {100 * row['gap']:.2g}% "
        f"| {_seconds(row['seconds'])} |"
        for row in sorted(load("transformers")["rows"], key=lambda row: (row["graph"], row["budget_text"]))
    ]
    return _table(
        "traced model, layers | ops | budget, in working sets | overhead | proven gap | seconds", "---|--:|--:|--:|--:|--:", lines
    )


def of_the_paper(name: str) -> str:
    """A table that benchmarks/paper.py has made."""
    text = (RESULTS / "paper" / "paper.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- table: {name} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None, name
    return found[1]


#: Tables that benchmarks/paper.py makes.
_PAPER = (
    "costs",
    "costs-beside",
    "profiled-costs",
    "batches-once",
    "batches-twice",
    "times",
    "modern",
    "traces",
    "checks",
    "exceptions",
)

TABLES: dict[str, Callable[[], str]] = {
    "largest-batches": largest_batches,
    "methods": methods_at_budgets,
    "keras-peers": keras_peers,
    "torch-peers": torch_peers,
    "gpu-peers": gpu_peers,
    "gpu-budgets": gpu_budgets,
    "keras-first-steps": keras_first_steps,
    "pytorch": pytorch_rows,
    "pytorch-steps": pytorch_steps,
    "pytorch-planned": pytorch_planned,
    "search-times": search_times,
    "near-the-least": near_the_least,
    **{f"paper-{name}": partial(of_the_paper, name) for name in _PAPER},
}


def written(page: str) -> str:
    """The text of a page, with its tables as the results have them."""
    return _MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def pages() -> list[Path]:
    """That have such tables."""
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in candidates if _MARKED.search(path.read_text(encoding="utf-8"))]


def keras_points() -> list[dict[str, Any]]:
    """Points of a figure: peak and time of each way, over those of plain training."""
    points = []
    for name in ("resnet50", "unet", "transformer"):
        rows = load("tf_peers")["networks"][name]["rows"]
        plain = next(row for row in rows if row["name"] == "plain")
        for row in rows:
            if row["peak"] is not None:
                point = {"peak": row["peak"] / plain["peak"], "time": row["median_seconds"] / plain["median_seconds"]}
                points.append({"network": _TITLES[name], "way": row["name"], **point})
    return points


def torch_points() -> list[dict[str, Any]]:
    """The same for PyTorch. Ours on Inductor's kernels is a way of its own."""
    points: list[dict[str, Any]] = []
    for name, network in load("torch_peers")["networks"].items():
        plain = network["plain"]["peak"]
        points.append({"network": _TITLES[name], "way": "plain", "peak": 1.0, "time": 1.0})
        for row in network["rows"]:
            fused = row["way"].startswith("inductor")
            for who, way in (("peer", row["way"].split()[0]), ("ours", "ours, inductor" if fused else "ours")):
                if "peak" in row.get(who, {}):
                    point = {"peak": row[who]["peak"] / plain, "time": _ratio(row, who, "plain")[1]}
                    points.append({"network": _TITLES[name], "way": way, **point})
    return points


#: By file: the points, panels in a row, and of each way its label, marker and colour.
DRAWN: dict[str, tuple[Callable[[], list[dict[str, Any]]], int, tuple[tuple[str, str, str, str], ...]]] = {
    "peers.svg": (
        keras_points,
        3,
        (
            ("segments", "checkpointing by hand", "o", "#d97706"),
            ("remat", "RematScope", "^", "#b91c1c"),
            ("plain", "plain training", "s", "#374151"),
            ("ours", "checkmate", "o", "#2563eb"),
        ),
    ),
    "torch_peers.svg": (
        torch_points,
        3,
        (
            ("checkpoint", "checkpoint", "o", "#d97706"),
            ("selective", "selective checkpointing", "D", "#b45309"),
            ("compiled", "checkpoint, compiled", "v", "#be185d"),
            ("partitioner", "activation_memory_budget", "^", "#b91c1c"),
            ("inductor", "Inductor", "P", "#7c3aed"),
            ("plain", "plain training", "s", "#374151"),
            ("ours", "checkmate", "o", "#2563eb"),
            ("ours, inductor", "checkmate, Inductor", "o", "#0891b2"),
        ),
    ),
}


def digest(file: str) -> str:
    """Of a figure's data: stands in the file, so that an old figure is found out."""
    points = DRAWN[file][0]()
    rounded = [{key: round(x, 4) if isinstance(x, float) else x for key, x in point.items()} for point in points]
    return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).hexdigest()


def draw(file: str) -> None:
    """Peak and time of a training step, planned and by hand."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import PercentFormatter

    matplotlib.rcParams.update({"svg.hashsalt": "checkmate", "svg.fonttype": "none", "font.size": 10})
    found, columns, ways = DRAWN[file]
    points = found()
    names = list(dict.fromkeys(point["network"] for point in points))
    rows = -(-len(names) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(9.5, 3.1 * rows), sharey=rows == 1, squeeze=False)
    panels = list(grid.flat)
    for one, name in zip(panels, names, strict=False):
        for way, label, marker, colour in ways:
            own = sorted((p["peak"], p["time"]) for p in points if p["network"] == name and p["way"] == way)
            style = {"markersize": 4, "linewidth": 1} if way.startswith("ours") else {"markersize": 6, "linewidth": 0}
            one.plot([x for x, _ in own], [y for _, y in own], marker=marker, color=colour, label=label, **style)
        one.set_title(name)
        one.set_xlabel("peak memory, of plain training's")
        one.xaxis.set_major_formatter(PercentFormatter(1, 0))
        one.yaxis.set_major_formatter(PercentFormatter(1, 0))
        one.grid(alpha=0.3)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
    for one in panels[len(names) :]:
        one.set_axis_off()
    for row in grid:
        row[0].set_ylabel("time per step, of plain training's")
    if len(ways) > 4:  # too many for a panel
        figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=9)
    else:
        panels[len(names) - 1].legend(frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.22 / rows if len(ways) > 4 else 0, 1, 1))
    FIGURES.mkdir(exist_ok=True)
    # White behind it: it is shown on dark pages, too.
    path = FIGURES / file
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)
    text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    path.write_text(f"{text}\n<!-- data: {digest(file)} -->\n", encoding="utf-8")


def _overhead(row: dict[str, Any]) -> str:
    return "-" if not row["overhead"] else f"{row['overhead']:.4f}"


def _share(row: dict[str, Any], plain: dict[str, Any], what: str) -> str:
    return f"{100 * row[what] / plain[what]:.0f}%"


def _table(header: str, rule: str, lines: list[str]) -> str:
    return "\n".join((f"| {header} |", f"|{rule.removesuffix('|')}|", *lines))


def main() -> int:
    for path in pages():
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    for file in DRAWN:
        draw(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
