"""What the commands print: figures, tables, JSON, and the line that shows how a search goes."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from ..graph import Graph
from ..live import LiveLine
from ..schedule import Schedule
from ..solvers import Progress
from ..text import named, printable
from ..units import format_bytes
from .tables import fold, table_lines

#: Columns that a line is set in under the one that it belongs to.
_INDENT = 2


def show(*lines: str, bold: bool = False, indent: int = 0) -> None:
    """Print to standard output: to a terminal in its width, elsewhere lines of any length. No character of them does anything to a terminal."""
    width = _width(indent)
    before, after = ("\x1b[1m", "\x1b[0m") if bold and _has_styles() else ("", "")
    for line in lines:
        text = printable(line)
        for part in [text] if width is None else fold(text, width):
            print(f"{' ' * indent}{before}{part}{after}")


def show_title(title: str) -> None:
    """The line above figures and tables."""
    show(title, bold=True)


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str] | None], left: Sequence[str] = (), indent: int = 0) -> None:
    """A table without lines between its cells; see `table_lines`."""
    head, body = table_lines(heads, rows, left, _width(indent))
    show(*head, bold=True, indent=indent)
    show(*body, indent=indent)


def show_figures(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A line of title, and below it labels and what they stand for."""
    _, lines = table_lines(("", ""), rows, left=("",), width=_width(_INDENT))
    show_title(title)
    show(*lines, indent=_INDENT)


def show_schedule(schedule: Schedule, written: Iterable[object] = ()) -> None:
    """The figures of one schedule, and the files that it was written to."""
    graph = schedule.graph
    scope = "for the given order" if schedule.order == "given" else "for every order"
    plain = format_bytes(graph.no_recompute_peak)
    show_figures(
        f"{named(graph.name)}: {graph.num_ops} ops, {schedule.num_recomputations} recomputations, {schedule.status}",
        [
            ("budget", with_bytes(schedule.budget or 0)),
            ("peak", f"{with_bytes(schedule.peak)}; {plain} without recomputation"),
            ("overhead", f"{schedule.overhead:.6f} (cost {schedule.cost:.6g}, {graph.ideal_cost:.6g} without recomputation)"),
            ("bound", f"no schedule costs less than {schedule.lower_bound:.6g} {scope}: gap {percent(schedule.gap)}"),
            ("found by", f"{schedule.method} in {schedule.solve_seconds:.2f} s"),
        ],
    )
    show_written(written)


def show_searches(title: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """One line for each search: what was asked for, under `title`, and what was found."""
    table = [
        [label, "-", "-", "-", f"{row['seconds']:.2f}", row["note"]]
        if row["cost"] is None
        else [
            label,
            f"{row['overhead']:.6f}",
            percent(row["gap"]),
            format_bytes(row["peak"]),
            f"{row['seconds']:.2f}",
            row["status"],
        ]
        for label, row in rows
    ]
    show_table([title, "overhead", "gap", "peak", "seconds", ""], table, left=[""], indent=_INDENT)


def show_written(paths: Iterable[object]) -> None:
    """The files that were written."""
    for path in paths:
        if path is not None:
            show(f"  wrote {printable(path)}")


class Live:
    """Where a search, or a row of searches, stands: a line at the foot of the terminal for as long as it takes.

    Usable as `progress` of `solve`. Where standard error is no terminal only what is said is printed, a plain line each.

    Args:
        quiet: show and say nothing. searches: how many there will be.
    """

    def __init__(self, quiet: bool, searches: int = 1):
        self._quiet, self._searches = quiet, searches
        self._label, self._ideal = "", 1.0
        self._open = ExitStack()
        self._line: LiveLine | None = None
        self._depth = 0

    def __enter__(self) -> Live:
        """Show the line, until the outermost `with` ends."""
        if self._depth == 0 and not self._quiet and sys.stderr.isatty():
            self._line = self._open.enter_context(LiveLine(sys.stderr, "starting", self._searches))
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._line = None
            self._open.close()

    def describe(self, text: str) -> None:
        """What is being done."""
        if self._line is not None:
            self._line.describe(text)

    def begin(self, graph: Graph, label: str = "") -> None:
        """The next search."""
        self._label, self._ideal = f"{label}: " if label else "", graph.ideal_cost or 1.0
        self.describe(f"{self._label}searching")

    def __call__(self, report: Progress) -> None:
        cost = "no schedule yet" if report.cost is None else f"overhead {report.cost / self._ideal:.4f}"
        gap = "" if report.gap is None else f"  gap {percent(report.gap)}"
        self.describe(f"{self._label}{cost}  bound {report.lower_bound / self._ideal:.4f}{gap}  {report.note}")

    def done(self) -> None:
        """A search has ended."""
        if self._line is not None:
            self._line.advance()

    def say(self, line: str) -> None:
        """Print a line to standard error."""
        if self._line is not None:
            self._line.print(line)
        elif not self._quiet:
            print(printable(line), file=sys.stderr, flush=True)


def with_bytes(size: int) -> str:
    """A size for people, and exactly."""
    return format_bytes(size) if size < 1024 else f"{format_bytes(size)} ({size} bytes)"


def percent(gap: float) -> str:
    """A gap; "unknown" where it is infinite."""
    return "0%" if gap == 0 else f"{100 * gap:.2g}%" if math.isfinite(gap) else "unknown"


def print_json(data: Any) -> None:
    """Plain data as JSON."""
    print(json.dumps(_plain(data), indent=2))


def _plain(data: Any) -> Any:
    """The same data with null for numbers that JSON has no word for (an infinite gap)."""
    if isinstance(data, dict):
        return {str(key): _plain(entry) for key, entry in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(entry) for entry in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def _width(indent: int = 0) -> int | None:
    """Columns of the terminal that standard output is, right of so many spaces; None if it is none."""
    return max(1, shutil.get_terminal_size().columns - indent) if _is_terminal() else None


def _is_terminal() -> bool:
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _has_styles() -> bool:
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
