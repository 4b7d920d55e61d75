"""One page on a schedule, as a single HTML file: figures, the picture, where the memory goes, what is computed again."""

from __future__ import annotations

import base64
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..errors import CheckmateError
from ..files import write_file
from ..schedule import Schedule
from ..text import named, printable
from ..units import format_bytes
from .facts import Peak, at_peak, recomputed, without_recomputation
from .plots import schedule_png

#: Rows of a table; what is left is summed up in one more.
_ROWS = 15

_KINDS = {
    "fixed": "parameters, buffers, inputs",
    "forward": "values of the forward pass",
    "backward": "gradients and other values of the backward pass",
    "workspace": "workspace of the op that runs",
}

_WORDS = {
    "peak": "the most bytes that are in memory at any moment of the step; parameters, buffers and inputs are included.",
    "overhead": "computing under this schedule over computing every op once; 1.05 means 5% more.",
    "gap": "at most this much of the cost could still be saved by any schedule under this budget; it is proven.",
    "stage": "a part of the schedule that ends with the first computation of one more op. In the picture blue marks are first "
    "computations, orange marks recomputations, and pale blue is the time that a value is in memory.",
}


_PAGE = "page.html.jinja"


def write_report(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all; it needs no other file.

    Raises:
        CheckmateError: matplotlib is missing, or the file cannot be written.
    """
    graph = schedule.graph
    if schedule.num_recomputations:
        plain = at_peak(without_recomputation(graph))
        peaks = [_held("without recomputation", plain), _held("under this schedule", at_peak(schedule))]
    else:
        peaks = [_held("", at_peak(schedule))]
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    page = templates.get_template(_PAGE).render(
        title=f"{named(graph.name)}: memory of a training step",
        lead=_lead(schedule),
        figures=_figures(schedule),
        picture=base64.b64encode(schedule_png(schedule)).decode("ascii"),
        peaks=peaks,
        again=_again(schedule),
        words=_WORDS,
    )
    try:
        write_file(path, page)
    except OSError as error:
        raise CheckmateError(f"cannot write {printable(path)}: {error.strerror or error}") from None


def _lead(schedule: Schedule) -> str:
    plain = f"Without recomputation the step needs {format_bytes(schedule.graph.no_recompute_peak)} at its peak."
    if not schedule.num_recomputations:
        return plain
    return f"{plain} Under this schedule it needs {format_bytes(schedule.peak)}, for {_percent(schedule.overhead - 1)} more computing."


def _figures(schedule: Schedule) -> list[tuple[str, str]]:
    graph = schedule.graph
    rows = [("ops", f"{graph.num_ops}"), ("peak without recomputation", format_bytes(graph.no_recompute_peak))]
    rows.append(("no schedule peaks below", format_bytes(graph.min_working_set)))
    if schedule.budget is not None:
        rows += [("budget", format_bytes(schedule.budget)), ("peak under this schedule", format_bytes(schedule.peak))]
        rows += [("overhead", f"{schedule.overhead:.4f}"), ("gap", _percent(schedule.gap))]
        rows += [("recomputations", f"{schedule.num_recomputations}"), ("found by", printable(schedule.method))]
    return rows


@dataclass(frozen=True)
class _Held:
    """What is in memory at a peak, as rows of text."""

    caption: str
    by_kind: list[tuple[str, str, str]]
    largest: list[tuple[str, str, str]]


def _held(caption: str, peak: Peak) -> _Held:
    total = sum(one.size for one in peak.holdings)
    kinds: defaultdict[str, int] = defaultdict(int)
    for one in peak.holdings:
        kinds[one.kind] += one.size
    by_kind = [(_KINDS[kind], format_bytes(kinds[kind]), _share(kinds[kind], total)) for kind in _KINDS if kinds[kind]]
    rows = [(named(one.name), format_bytes(one.size), _share(one.size, total)) for one in peak.holdings[:_ROWS]]
    rest = sum(one.size for one in peak.holdings[_ROWS:])
    if rest:
        rows.append((f"{len(peak.holdings) - _ROWS} more", format_bytes(rest), _share(rest, total)))
    parts = [caption] if caption else []
    if peak.op is not None:
        parts.append(f"while {named(peak.op)} runs")
    return _Held(", ".join(parts), by_kind, rows)


def _again(schedule: Schedule) -> list[tuple[str, str, str]]:
    found, ideal = recomputed(schedule), schedule.graph.ideal_cost or 1.0
    rows = [(named(one.op), f"{one.times}", _percent(one.cost / ideal)) for one in found[:_ROWS]]
    rest = found[_ROWS:]
    if rest:
        more = f"{sum(one.times for one in rest)}"
        rows.append((f"{len(rest)} more", more, _percent(sum(one.cost for one in rest) / ideal)))
    return rows


def _share(part: int, total: int) -> str:
    return _percent(part / total if total else 0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < float("inf") else "unknown"
