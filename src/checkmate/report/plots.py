"""Pictures: memory over a schedule, the schedule itself, and measured memory timelines. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckmateError
from ..files import write_file
from ..schedule import Compute, Schedule
from ..text import printable
from ..units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

_PLAN, _PLAIN, _BUDGET, _INK, _GRID = "#2563eb", "#8b95a5", "#d62839", "#1f2937", "#e5e7eb"
_EMPTY, _RETAINED, _FIRST, _AGAIN = "#ffffff", "#d5e3fb", "#1e3a8a", "#f97316"
_TIMELINES = (_PLAIN, _PLAN, "#0f9d75", "#9333ea", "#c2850c")
#: Cells a side of the schedule picture; larger schedules are pooled, so that a single recomputation stays visible.
_MOST_CELLS = 520
_DPI = 150
_SCHEDULE_INCHES = 10.0, 8.6
#: Characters of a name that fit beside the figures of a title, and of a label.
_NAME, _LABEL = 60, 40


def plot_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Draw memory over the schedule, and below it when each op is computed, recomputed and retained.

    Both parts share the horizontal axis: stage t ends with the first computation of op t, and its recomputations are
    spread over the unit before that.

    Args:
        path: an image file; its ending names the format (.png, .pdf, .svg).

    Raises:
        CheckmateError: matplotlib is missing, or the format is not known.
    """
    figure = _figure(path, *_SCHEDULE_INCHES)
    _draw_schedule(figure, schedule)
    _save(figure, path)


def _draw_schedule(figure: Figure, schedule: Schedule) -> None:
    memory, picture = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (1, 1.45)})
    stages = _stages(schedule)
    _draw_memory(memory, schedule, stages)
    _draw_picture(picture, schedule, stages)
    gap = f", gap {100 * schedule.gap:.2g}%" if schedule.status != "optimal" and schedule.gap < float("inf") else ""
    name = printable(schedule.graph.name, _NAME)
    _title(
        memory,
        f"{name}: {schedule.graph.num_ops} ops, {schedule.num_recomputations} recomputations, "
        f"overhead {schedule.overhead:.4f} ({schedule.status}{gap})",
        pad=28,
    )


def plot_timelines(
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    budget: int | None,
    path: str | os.PathLike[str],
    title: str,
    *,
    xlabel: str = "time in the step (s)",
) -> None:
    """Draw memory timelines over each other, with the budget as a line.

    Args:
        curves: (label, xs, bytes); bytes[k] are live from xs[k] to xs[k + 1].
        budget: bytes; None for no line.
        path: an image file; its ending names the format (.png, .pdf, .svg).

    Raises:
        CheckmateError: matplotlib is missing, the format is not known, or a curve has more xs than bytes.
    """
    for label, xs, sizes in curves:
        if len(xs) != len(sizes):
            raise CheckmateError(f"the curve {label!r} has {len(xs)} xs but {len(sizes)} byte counts: give one of each per point")
    figure = _figure(path, 10.0, 4.4)
    axes = figure.subplots()
    top = max((max(sizes, default=0) for _, _, sizes in curves), default=0)
    unit, factor = _unit(max(top, budget or 0))
    for number, (label, xs, sizes) in enumerate(curves):
        color = _TIMELINES[number % len(_TIMELINES)]
        scaled = np.asarray(sizes, dtype=float) / factor
        text = f"{_label(label)} (peak {format_bytes(max(sizes, default=0))})"
        axes.fill_between(xs, scaled, step="post", color=color, alpha=0.10, linewidth=0)
        axes.plot(xs, scaled, drawstyle="steps-post", color=color, linewidth=1.2, label=text)
    if budget is not None:
        _budget_line(axes, budget, factor)
    _style(axes, unit, max(top, budget or 0) / factor)
    axes.set_xlabel(printable(xlabel), color=_INK, parse_math=False)
    axes.margins(x=0)
    _title(axes, title, pad=28)
    _legend(axes)
    _save(figure, path)


def plot_curves(
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    path: str | os.PathLike[str],
    title: str,
    xlabel: str,
    ylabel: str,
    *,
    steps: bool = False,
    log: tuple[bool, bool] = (False, False),
) -> None:
    """Draw curves over each other, each with its own line style.

    Args:
        curves: (label, xs, ys); points that are not finite are left out.
        path: an image file; its ending names the format (.png, .pdf, .svg).
        steps: keep each y until the next x, and mark no points. log: logarithmic x, logarithmic y.

    Raises:
        CheckmateError: matplotlib is missing, or the format is not known.
    """
    figure = _figure(path, 10.0, 5.4)
    axes = figure.subplots()
    for number, (label, xs, ys) in enumerate(curves):
        finite = np.isfinite(np.asarray(xs, dtype=float)) & np.isfinite(np.asarray(ys, dtype=float))
        axes.plot(
            np.asarray(xs, dtype=float)[finite],
            np.asarray(ys, dtype=float)[finite],
            drawstyle="steps-post" if steps else "default",
            color=_TIMELINES[number % len(_TIMELINES)],
            linestyle=("-", "--", ":", "-.")[number // len(_TIMELINES) % 4],
            marker="" if steps else "o",
            markersize=3.5,
            linewidth=1.2,
            label=_label(label),
        )
    for is_log, scale in zip(log, (axes.set_xscale, axes.set_yscale), strict=True):
        if is_log:
            scale("log")
    axes.set_xlabel(printable(xlabel), color=_INK, parse_math=False)
    axes.set_ylabel(printable(ylabel), color=_INK, parse_math=False)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _frame(axes)
    _title(axes, title)
    _as_written(axes.legend(loc="upper right", frameon=False, fontsize=8))
    _save(figure, path)


def check_can_plot(path: str | os.PathLike[str]) -> None:
    """Find out before the work whether a picture can be written to `path`.

    Raises:
        CheckmateError: matplotlib is missing, or the format is not known.
    """
    _figure(path, 1.0, 1.0)


# --- the two parts of the picture of a schedule ---


@dataclass(frozen=True)
class _Stages:
    """Where everything of a schedule lies on the axis of stages.

    Attributes:
        edges: where each computation begins, and the end of the last one: one more than there are computations.
        ops: the op of each computation. first: whether it is that op's first.
        memory: bytes live while each computation runs.
        retained: (op, begin, end) for every time that a value of the op is live, on the same axis.
    """

    edges: NDArray[np.float64]
    ops: NDArray[np.int64]
    first: NDArray[np.bool_]
    memory: NDArray[np.float64]
    retained: list[tuple[int, float, float]]


def _stages(schedule: Schedule) -> _Stages:
    graph, trace = schedule.graph, schedule.trace
    ops: list[int] = []
    memory: list[int] = []
    births: dict[int, int] = {}  # live value -> the computation that made it
    intervals: list[tuple[int, int, int]] = []
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            for value in graph.ops[step.op].outputs:
                births.setdefault(value, len(ops))
            ops.append(step.op)
            memory.append(trace.during[number])
        elif (born := births.pop(step.value)) < len(ops):
            intervals.append((graph.producer[step.value], born, len(ops)))
    intervals += [(graph.producer[value], born, len(ops)) for value, born in births.items()]
    order = np.asarray(ops, dtype=np.int64)
    is_first = np.zeros(len(ops), dtype=bool)
    is_first[np.unique(order, return_index=True)[1]] = True
    # A stage ends with a first computation; recomputations after the last one make a stage of their own.
    stage = np.concatenate([[0], np.cumsum(is_first)[:-1]]) if len(ops) else np.zeros(0)
    edges = np.zeros(len(ops) + 1)
    for t in np.unique(stage):
        members = np.flatnonzero(stage == t)
        edges[members] = t + np.arange(len(members)) / len(members)
        edges[members[-1] + 1] = t + 1
    spans = [(op, float(edges[a]), float(edges[b])) for op, a, b in intervals]
    return _Stages(edges, order, is_first, np.asarray(memory, dtype=float), spans)


def _draw_memory(axes: Axes, schedule: Schedule, stages: _Stages) -> None:
    graph = schedule.graph
    plain_top = graph.no_recompute_peak
    top = max(plain_top, schedule.peak, schedule.budget or 0)
    unit, factor = _unit(top)
    # In stage t the plain step runs the op that stage t ends with (the same op, unless the schedule reorders).
    plain = np.asarray(graph.no_recompute_profile, dtype=float)[stages.ops[stages.first]] / factor
    plain = np.append(plain, plain[-1:])
    axes.plot(
        np.arange(len(plain)),
        plain,
        drawstyle="steps-post",
        color=_PLAIN,
        linewidth=1.1,
        label=f"no recomputation (peak {format_bytes(plain_top)})",
    )
    planned = np.append(stages.memory, stages.memory[-1:]) / factor
    axes.fill_between(stages.edges[: len(planned)], planned, step="post", color=_PLAN, alpha=0.13, linewidth=0)
    axes.plot(
        stages.edges[: len(planned)],
        planned,
        drawstyle="steps-post",
        color=_PLAN,
        linewidth=1.1,
        label=f"schedule (peak {format_bytes(schedule.peak)})",
    )
    if schedule.budget is not None:
        _budget_line(axes, schedule.budget, factor)
    if graph.fixed_memory:
        axes.axhspan(0, graph.fixed_memory / factor, color=_PLAIN, alpha=0.22, linewidth=0)
        text = f"fixed memory {format_bytes(graph.fixed_memory)}"
        axes.plot([], [], color=_PLAIN, alpha=0.4, linewidth=6, label=text)
    _style(axes, unit, top / factor)
    _legend(axes)


def _draw_picture(axes: Axes, schedule: Schedule, stages: _Stages) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    n = max(1, schedule.graph.num_ops)
    width = max(n, int(np.ceil(stages.edges[-1])))
    rows, columns = min(n, _MOST_CELLS), min(width, _MOST_CELLS)
    picture = np.zeros((rows, columns), dtype=np.uint8)
    for op, begin, end in stages.retained:
        left, right = int(begin * columns / width), int(np.ceil(end * columns / width))
        picture[op * rows // n, left : max(right, left + 1)] = 1
    row = stages.ops * rows // n
    column = np.minimum((stages.edges[:-1] * columns / width).astype(int), columns - 1)
    for shift in range(2 if n > _MOST_CELLS else 1):  # a diagonal of single small cells would look dashed
        picture[row[stages.first], np.minimum(column[stages.first] + shift, columns - 1)] = 2
    picture[row[~stages.first], column[~stages.first]] = 3  # last: the rarest must not be hidden by pooling
    axes.imshow(
        picture,
        cmap=ListedColormap([_EMPTY, _RETAINED, _FIRST, _AGAIN]),
        vmin=0,
        vmax=3,
        extent=(0, width, n, 0),
        aspect="auto",
        interpolation="nearest",
    )
    phases = [op.phase for op in schedule.graph.ops]
    if "backward" in phases and schedule.order == "given":
        begin = phases.index("backward")
        for line in (axes.axhline, axes.axvline):
            line(begin, color=_INK, linewidth=0.6, linestyle=(0, (2, 4)))
        axes.annotate(
            "backward",
            (1, begin),
            xycoords=("axes fraction", "data"),
            xytext=(-5, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=_INK,
        )
    axes.set_xlabel("stage (ends with the first computation of one more op)", color=_INK)
    axes.set_ylabel("op", color=_INK)
    _frame(axes)
    handles = [
        Patch(facecolor=_FIRST, label="first computation"),
        Patch(facecolor=_AGAIN, label="recomputation"),
        Patch(facecolor=_RETAINED, label="in memory"),
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1.0), ncols=3, frameon=False, fontsize=9)


# --- look and files ---


def _figure(path: str | os.PathLike[str], width: float, height: float) -> Figure:
    """An empty figure of this many inches that can be written to `path`; pyplot and its global state stay untouched."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise CheckmateError("plots need matplotlib: run pip install 'checkmate-remat[plot]'") from None
    except (KeyError, ValueError) as error:  # its settings are read when it is imported
        raise CheckmateError(f"matplotlib does not start ({error}): check MPLBACKEND and your matplotlibrc") from None
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    formats = FigureCanvasAgg(figure).get_supported_filetypes()
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in formats or ending == "pgf":  # that one needs LaTeX
        raise CheckmateError(f"cannot draw to {printable(path)}: use a file name that ends in .png, .pdf or .svg")
    return figure


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    contents = _rendered(figure, Path(path).suffix.lower().lstrip("."))
    try:
        write_file(path, contents)
    except OSError as error:
        raise CheckmateError(f"cannot write {printable(path)}: {error.strerror or error}") from None


def _rendered(figure: Figure, ending: str) -> bytes:
    """The contents of an image file."""
    contents = io.BytesIO()
    with warnings.catch_warnings():
        # A name in letters that the font does not have is drawn as boxes, and no reason to stop.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(contents, format=ending, dpi=_DPI, facecolor="white")
    return contents.getvalue()


def _unit(size: float) -> tuple[str, float]:
    """The unit that shows `size` as 1 to 1024, and its bytes."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return unit, float(factor)
    return "bytes", 1.0


def _budget_line(axes: Axes, budget: int, factor: float) -> None:
    text = f"budget {format_bytes(budget)}"
    axes.axhline(budget / factor, color=_BUDGET, linewidth=1.2, linestyle=(0, (5, 2)), label=text)


def _style(axes: Axes, unit: str, top: float) -> None:
    axes.set_ylabel(f"memory ({unit})", color=_INK)
    axes.set_ylim(0, 1.05 * top if top else 1)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    _frame(axes)


def _frame(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_PLAIN)
    axes.tick_params(colors=_INK, labelsize=9)


def _legend(axes: Axes) -> None:
    legend = axes.legend(loc="lower left", bbox_to_anchor=(-0.005, 1.0), ncols=4, frameon=False, fontsize=9, columnspacing=1.4)
    _as_written(legend)


def _title(axes: Axes, text: str, pad: float | None = None) -> None:
    axes.set_title(printable(text, 2 * _NAME), loc="left", color=_INK, fontsize=12, parse_math=False, pad=pad)


def _label(text: str) -> str:
    # matplotlib leaves out of a legend what begins with an underscore.
    return printable(f" {text}" if text.startswith("_") else text, _LABEL)


def _as_written(legend: Legend) -> None:
    """A dollar sign in a name is no beginning of a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
