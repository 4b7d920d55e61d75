"""The figures of `paper.py`, as PNG and SVG, from its summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paper_published import METHOD_TITLES, PAPER_BATCHES, TITLES

Summary = dict[str, Any]
_COLOURS = {
    "auto": "#2563eb",
    "greedy": "#0f9d75",
    "lp-rounding": "#9333ea",
    "lp-rounding-randomized": "#c084fc",
    "chen-sqrt": "#d97706",
    "chen-greedy": "#b91c1c",
    "chen-sqrt-linear": "#fbbf24",
    "chen-greedy-linear": "#f87171",
    "griewank": "#6b7280",
    "milp": "#111827",
    "milp-cbc": "#0e7490",
    "keep-all-forward": "#9ca3af",
}
#: What is dearer is left out: Griewank's schedules cost several times as much.
_TOP = 1.6


def draw(summary: Summary, folder: Path) -> list[str]:
    """Writes all figures that there are rows for; returns their names."""
    import matplotlib

    matplotlib.rcParams.update({"svg.hashsalt": "checkmate", "font.size": 9})
    drawn = []
    for section in ("overhead", "profiled", "modern"):
        if summary[section]:
            _overheads(summary[section], folder / section)
            drawn.append(section)
    if any(entry["counted"] == "once" and "upper_bound" in entry for entry in summary["batches"]):
        _batches([entry for entry in summary["batches"] if entry["counted"] == "once"], folder / "batches")
        drawn.append("batches")
    if summary["times"]:
        _times(summary["times"], folder / "times")
        drawn.append("times")
    return drawn


def _overheads(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Overhead against budget, one part for each network; ours with its bound as a band."""
    graphs = list(dict.fromkeys(point["graph"] for point in points))
    columns = min(4, len(graphs) + 1)
    rows = math.ceil((len(graphs) + 1) / columns)
    figure = _figure(3.0 * columns, 2.5 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    handles: dict[str, Any] = {}
    for one, graph in zip(axes, graphs, strict=False):
        mine = sorted((point for point in points if point["graph"] == graph), key=lambda point: point["budget_bytes"])
        for method, colour in _COLOURS.items():
            found = [(p["budget_bytes"] / 1e9, p["overheads"][method]) for p in mine if p["overheads"].get(method, 9) <= _TOP]
            if not found:
                continue
            ours = method == "auto"
            (line,) = one.plot(
                *zip(*found, strict=True),
                color=colour,
                marker="o" if ours else ".",
                markersize=3.5 if ours else 3,
                linewidth=1.8 if ours else 0.8,
                linestyle="--" if method.endswith("linear") else "-",
                zorder=5 if ours else 3,
            )
            handles.setdefault(METHOD_TITLES[method], line)
        band = [(p["budget_bytes"] / 1e9, p["bound"], p["overheads"]["auto"]) for p in mine if "auto" in p["overheads"]]
        if band:
            x, low, high = zip(*band, strict=True)
            filled = one.fill_between(x, low, high, color=_COLOURS["auto"], alpha=0.3, linewidth=0, zorder=2)
            handles.setdefault("between checkmate and its proven bound", filled)
        for where, label, colour in (
            ("least", "least working set", "#d62839"),
            ("plain", "peak without recomputation", "#374151"),
        ):
            line = one.axvline(mine[0][where] / 1e9, color=colour, linewidth=0.8, linestyle=":")
            handles.setdefault(label, line)
        one.set_title(f"{TITLES.get(graph, graph)}, batch {mine[0]['batch']}", loc="left", fontsize=9)
        one.set_ylim(0.99, _TOP)
        one.set_xlabel("budget (GB)")
    for one in axes[::columns]:
        one.set_ylabel("cost / computing all once")
    for one in axes:
        _plain(one)
    for one in axes[len(graphs) :]:
        one.axis("off")
    legend = axes[len(graphs)] if len(graphs) < len(axes) else figure
    legend.legend(handles.values(), handles.keys(), loc="center", fontsize=7.5, frameon=False)
    _save(figure, path)


def _batches(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """The largest batch: keep all, best heuristic, the paper, ours and its bound."""
    figure = _figure(9.5, 3.4)
    axes = figure.subplots()
    heuristics = ("chen-sqrt", "chen-greedy", "chen-sqrt-linear", "chen-greedy-linear", "griewank")
    groups = [
        ("keep all", "#9ca3af", [entry["largest"].get("keep-all-forward", 0) for entry in entries]),
        (
            "best of Chen and Griewank",
            "#d97706",
            [max(entry["largest"].get(name, 0) for name in heuristics) for entry in entries],
        ),
        ("the paper, as printed", "#9333ea", [_printed(entry["graph"]) for entry in entries]),
        ("checkmate", "#2563eb", [entry["largest"].get("auto", 0) for entry in entries]),
    ]
    for number, (label, colour, heights) in enumerate(groups):
        places = [place + 0.2 * (number - 1.5) for place in range(len(entries))]
        bars = axes.bar(places, heights, width=0.19, color=colour, label=label)
        axes.bar_label(bars, labels=[str(height) if height else "" for height in heights], fontsize=7)
    for place, entry in enumerate(entries):
        if "upper_bound" in entry:
            label = "proven: none above" if place == 0 else None
            axes.plot([place + 0.2, place + 0.4], [entry["upper_bound"]] * 2, color="#d62839", linewidth=1.5, label=label)
    axes.set_yscale("log")
    axes.set_ylim(10, 3000)
    axes.set_ylabel("largest batch, 16 GB")
    axes.set_xticks(range(len(entries)), [TITLES.get(entry["graph"], entry["graph"]) for entry in entries])
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="upper left")
    _plain(axes)
    _save(figure, path)


def _printed(graph: str) -> int:
    """The largest that the paper prints; 0: nothing."""
    digits = [int(part) for part in PAPER_BATCHES.get(graph, "").replace(">=", "").split("-") if part.strip()]
    return max(digits, default=0)


def _times(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds to 0.1% against ops; dotted on to an hour where a method was not done."""
    figure = _figure(9.5, 4.2)
    axes = figure.subplots()
    for entry in entries:
        if not entry["points"]:
            continue
        ops, seconds = zip(*entry["points"], strict=True)
        style = "-" if entry["family"] == "residual" else "--"
        label, colour = f"{METHOD_TITLES[entry['method']]}, {entry['family']}", _COLOURS[entry["method"]]
        axes.plot(ops, seconds, style, marker="o", markersize=3, color=colour, label=label)
        if entry["hour"] is not None:
            axes.plot([ops[-1], entry["hour"]], [seconds[-1], 3600], ":", color=colour)
    axes.axhline(3600, color="#d62839", linewidth=0.8)
    axes.annotate("one hour, the paper's limit", (0.01, 3600), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ops")
    axes.set_ylabel("seconds")
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    _plain(axes)
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Any) -> None:
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), facecolor="white", metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), facecolor="white", metadata={"Date": None})
    lines = path.with_suffix(".svg").read_text(encoding="utf-8").splitlines()
    path.with_suffix(".svg").write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
