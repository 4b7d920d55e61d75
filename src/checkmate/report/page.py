"""One page on a schedule, as a single HTML file: figures, the picture, where the memory goes, what is computed again."""

from __future__ import annotations

import base64
import os
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..errors import CheckmateError
from ..schedule import Schedule
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

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; }
table { border-collapse: collapse; margin: .6rem 0; } caption { text-align: left; font-weight: 600; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #e5e7eb; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; }
.pair { display: flex; flex-wrap: wrap; gap: 0 3rem; } .pair > * { flex: 1 1 24rem; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 0; }
"""

_WORDS = {
    "peak": "the most bytes that are in memory at any moment of the step; parameters, buffers and inputs are included.",
    "overhead": "computing under this schedule over computing every op once; 1.05 means 5% more.",
    "gap": "at most this much of the cost could still be saved by any schedule under this budget; it is proven.",
    "stage": "a part of the schedule that ends with the first computation of one more op. In the picture blue marks are first "
    "computations, orange marks recomputations, and pale blue is the time that a value is in memory.",
}


def write_report(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write the page; it needs no other file.

    Raises:
        CheckmateError: matplotlib is missing, or the file cannot be written.
    """
    picture = base64.b64encode(schedule_png(schedule)).decode("ascii")
    graph = schedule.graph
    plain = without_recomputation(graph)
    title = f"{graph.name}: memory of a training step"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_lead(schedule))}</p>",
        _table("", ("", ""), _figures(schedule)),
        "<h2>Memory over the step, and the schedule</h2>",
        f'<img alt="memory over the step, and the schedule" src="data:image/png;base64,{picture}">',
        "<h2>What is in memory at the peak</h2>",
    ]
    if schedule.num_recomputations:
        first, second = _peak("without recomputation", at_peak(plain)), _peak("under this schedule", at_peak(schedule))
        parts.append(f'<div class="pair"><div>{first}</div><div>{second}</div></div>')
    else:
        parts.append(_peak("", at_peak(schedule)))
    parts += ["<h2>What is computed again</h2>", _again(schedule), "<h2>Words</h2>", _words()]
    body = "\n".join(parts)
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise CheckmateError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from None


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
        rows += [("recomputations", f"{schedule.num_recomputations}"), ("found by", schedule.method)]
    return rows


def _peak(caption: str, peak: Peak) -> str:
    total = sum(one.size for one in peak.holdings)
    kinds: defaultdict[str, int] = defaultdict(int)
    for one in peak.holdings:
        kinds[one.kind] += one.size
    by_kind = [(_KINDS[kind], format_bytes(kinds[kind]), _share(kinds[kind], total)) for kind in _KINDS if kinds[kind]]
    rows = [(one.name, format_bytes(one.size), _share(one.size, total)) for one in peak.holdings[:_ROWS]]
    rest = sum(one.size for one in peak.holdings[_ROWS:])
    if rest:
        rows.append((f"{len(peak.holdings) - _ROWS} more", format_bytes(rest), _share(rest, total)))
    when = f"{caption}, while {peak.op} runs" if caption else f"while {peak.op} runs"
    head = ("", "size", "share")
    return _table(when if peak.op is not None else caption, head, by_kind) + _table("the largest", head, rows)


def _again(schedule: Schedule) -> str:
    found, ideal = recomputed(schedule), schedule.graph.ideal_cost or 1.0
    if not found:
        return "<p>Nothing.</p>"
    rows = [(one.op, f"{one.times}", _percent(one.cost / ideal)) for one in found[:_ROWS]]
    rest = found[_ROWS:]
    if rest:
        more = f"{sum(one.times for one in rest)}"
        rows.append((f"{len(rest)} more", more, _percent(sum(one.cost for one in rest) / ideal)))
    return _table("", ("op", "times", "of the step's computing"), rows)


def _words() -> str:
    return "<dl>" + "".join(f"<dt>{word}</dt><dd>{meaning}</dd>" for word, meaning in _WORDS.items()) + "</dl>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = ["", *[' class="number"'] * (len(cells) - 1)]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True)) + "</tr>"

    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    lines = ([line("th", head)] if any(head) else []) + [line("td", row) for row in rows]
    return f"<table>{top}{''.join(lines)}</table>"


def _share(part: int, total: int) -> str:
    return _percent(part / total if total else 0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < float("inf") else "unknown"
