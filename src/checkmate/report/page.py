"""One page on a schedule, as a single HTML file: where the memory goes, what is computed again, what other budgets would cost.

Figures and tables are plain HTML. The pictures are drawn by the scripts of the folder `static`, which the page contains, from the
data of `page_data`.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..errors import CheckmateError
from ..files import write_file
from ..schedule import Schedule
from ..text import named, printable
from ..units import format_bytes
from .facts import Peak, Recomputed, at_peak, recomputed, without_recomputation
from .page_data import Point, page_data, points

#: Rows of a table; what is left is summed up in one more.
_ROWS = 15
#: In a table, where there is no number.
_NOTHING = "\N{EN DASH}"
#: A budget so many times the peaks is not drawn; the same number is in static/memory.js.
_FLAT = 1.5

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
    "computation": "one run of one op. A schedule is a list of them, some ops more than once.",
    "stage": "a part of the schedule that ends with the first computation of one more op.",
}

_STATIC = Path(__file__).parent / "static"
_PAGE, _STYLE = "page.html.jinja", "page.css"
_SCRIPTS = ("page.js", "memory.js", "schedule.js", "tables.js", "curve.js", "main.js")


def write_report(schedule: Schedule, path: str | os.PathLike[str], others: Iterable[Schedule] = ()) -> None:
    """Write the page, whole or not at all; it needs no other file.

    Args:
        others: schedules of the same graph under other budgets, for the curve of overhead against budget.

    Raises:
        CheckmateError: a schedule in `others` is one of another graph, or the file cannot be written.
    """
    try:
        write_file(path, page(schedule, _checked(schedule, others)))
    except OSError as error:
        raise CheckmateError(f"cannot write {printable(path)}: {error.strerror or error}") from None


def _checked(schedule: Schedule, others: Iterable[Schedule]) -> list[Schedule]:
    found = list(others)
    for number, one in enumerate(found):
        if one.graph is not schedule.graph and one.graph != schedule.graph:
            raise CheckmateError(
                f"others[{number}] is a schedule of graph {named(one.graph.name)!r}, which is not the one of this schedule: give "
                "schedules of the same graph under other budgets"
            )
    return found


def page(schedule: Schedule, others: Sequence[Schedule] = ()) -> str:
    """The text of the page."""
    graph = schedule.graph
    found = page_data(schedule, others)
    has_plain = found["plain"] is not None
    if has_plain:
        plain = at_peak(without_recomputation(graph))
        peaks = [_held("without recomputation", plain), _held("under this schedule", at_peak(schedule))]
    else:
        peaks = [_held("", at_peak(schedule))]
    templates = Environment(loader=FileSystemLoader(_STATIC), autoescape=True, undefined=StrictUndefined)
    # Inside a script element nothing is escaped; it ends at the first "</script".
    data = json.dumps(found, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    scripts = "\n".join((_STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return templates.get_template(_PAGE).render(
        name=named(graph.name),
        lead=_lead(schedule),
        tiles=_tiles(schedule),
        figures=_figures(schedule),
        peaks=peaks,
        has_plain=has_plain,
        has_ops=bool(graph.num_ops),
        backward=any(op.phase == "backward" for op in graph.ops),
        budget=_budget(schedule),
        peak=format_bytes(schedule.peak),
        plain_peak=format_bytes(graph.no_recompute_peak),
        fixed=format_bytes(graph.fixed_memory) if graph.fixed_memory else None,
        again=_again(schedule),
        why=_why(schedule),
        curve=_curve(points(schedule, others)),
        more=_more(points(schedule, others)),
        least=format_bytes(graph.min_working_set),
        has_others=bool(others),
        words=_WORDS,
        style=Markup((_STATIC / _STYLE).read_text(encoding="utf-8")),
        data=Markup(data),
        script=Markup(scripts),
    )


# --- sentences and figures ---


def _lead(schedule: Schedule) -> str:
    plain = f"Without recomputation the step needs {format_bytes(schedule.graph.no_recompute_peak)} at its peak."
    if not schedule.num_recomputations:
        return plain
    return f"{plain} Under this schedule it needs {format_bytes(schedule.peak)}, for {_percent(schedule.overhead - 1)} more computing."


def _tiles(schedule: Schedule) -> list[tuple[str, str, str]]:
    """The figures that matter most: what, how much, and a remark."""
    graph = schedule.graph
    plain = ("peak without recomputation", format_bytes(graph.no_recompute_peak), f"{graph.num_ops:,} ops")
    if not _is_planned(schedule):
        return [
            plain,
            ("no schedule peaks below", format_bytes(graph.min_working_set), "what the largest op needs, or what is kept"),
        ]
    less = f"{100 * (1 - schedule.peak / graph.no_recompute_peak if graph.no_recompute_peak else 0.0):.1f}% less"
    budget = "" if schedule.budget is None else f"; budget {format_bytes(schedule.budget)}"
    again = f"{schedule.num_recomputations:,} computations beyond the {graph.num_ops:,} of plain training"
    if schedule.status == "optimal":
        proof = ("optimal", "no schedule under this budget computes less")
    elif schedule.gap < math.inf:
        proof = (f"\N{LESS-THAN OR EQUAL TO} {_fine(schedule.gap)}", "proven: no more could be saved")
    else:
        proof = ("unknown", "nothing is proven about this schedule")
    return [
        plain,
        ("peak under this schedule", format_bytes(schedule.peak), f"{less}{budget}"),
        ("more computing", _percent(schedule.overhead - 1), again),
        ("from the optimum", *proof),
    ]


def _figures(schedule: Schedule) -> list[tuple[str, str]]:
    graph = schedule.graph
    rows = [("ops", f"{graph.num_ops}"), ("peak without recomputation", format_bytes(graph.no_recompute_peak))]
    rows.append(("no schedule peaks below", format_bytes(graph.min_working_set)))
    if schedule.budget is not None:
        rows.append(("budget", format_bytes(schedule.budget)))
    if _is_planned(schedule):
        rows += [("peak under this schedule", format_bytes(schedule.peak))]
        rows += [("overhead", f"{schedule.overhead:.4f}"), ("gap", _fine(schedule.gap))]
        rows += [("recomputations", f"{schedule.num_recomputations}"), ("found by", printable(schedule.method))]
    return rows


def _is_planned(schedule: Schedule) -> bool:
    """It is no plain step that was looked at for itself."""
    return schedule.budget is not None or schedule.num_recomputations > 0


def _budget(schedule: Schedule) -> str | None:
    """For the legend; the scripts leave out a line that would make all the rest flat."""
    if schedule.budget is None:
        return None
    above = schedule.budget > _FLAT * max(schedule.peak, schedule.graph.no_recompute_peak)
    return format_bytes(schedule.budget) + (", above the picture" if above else "")


# --- tables ---


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


def _again(schedule: Schedule) -> list[tuple[str, str, str, str, str, str, str]]:
    found, ideal = recomputed(schedule), schedule.graph.ideal_cost or 1.0
    rows = [
        (named(one.op), named(one.layer), f"{one.times}", _percent(one.cost / ideal), format_bytes(one.size), *_worth(one))
        for one in found[:_ROWS]
    ]
    rest = found[_ROWS:]
    if rest:
        size, saved = (format_bytes(sum(getattr(one, what) for one in rest)) for what in ("size", "saved"))
        cost = _percent(sum(one.cost for one in rest) / ideal)
        rows.append((f"{len(rest)} more", "", f"{sum(one.times for one in rest)}", cost, size, saved, ""))
    return rows


def _worth(one: Recomputed) -> tuple[str, str]:
    return format_bytes(one.saved) if one.saved else _NOTHING, f"{one.away:,}" if one.away else _NOTHING


def _why(schedule: Schedule) -> str:
    """What all that is computed again is good for."""
    found = recomputed(schedule)
    saved, cost = sum(one.saved for one in found), _percent(schedule.overhead - 1)
    return (
        f"{len(found):,} ops run again, which costs {cost} of the step. Where plain training peaks, {format_bytes(saved)} of their "
        "values are not in memory. An op that frees nothing there is computed again because others need its values to be computed "
        "again, or because another moment is tight."
    )


def _curve(found: Sequence[Point]) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            format_bytes(point.budget),
            format_bytes(point.peak),
            _percent(point.overhead - 1),
            _NOTHING if point.bound is None else _percent(point.bound - 1),
            "" if point.kind == "other" else point.label,
        )
        for point in found
    ]


def _more(found: Sequence[Point]) -> str:
    """What the next larger budget would buy."""
    this = next((point for point in found if point.kind == "this"), None)
    larger = [] if this is None else [point for point in found if point.budget > this.budget]
    if this is None or not larger:
        return ""
    best = min(larger, key=lambda point: point.budget)
    return (
        f"{format_bytes(best.budget - this.budget)} more memory would bring {_percent(this.overhead - 1)} more computing down to "
        f"{_percent(best.overhead - 1)}."
    )


def _share(part: int, total: int) -> str:
    return f"{100 * part / (total or 1):.1f}%"


def _percent(share: float) -> str:
    """As the scripts write it."""
    return f"{100 * share:.{2 if abs(share) < 0.0995 else 1}f}%" if share else "0%"


def _fine(gap: float) -> str:
    """A gap, which is small where the search went well."""
    return f"{100 * gap:.2g}%" if gap < float("inf") else "unknown"
