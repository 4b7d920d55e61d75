"""What the commands print: figures, tables, JSON, and the line that shows how a search goes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from ..graph import Graph
from ..report.tables import as_text, text_table
from ..schedule import Schedule
from ..solvers import Progress
from ..text import named, printable
from ..units import format_bytes


def show(*parts: RenderableType) -> None:
    """Print to standard output: to a terminal in its width and with some colour, elsewhere plain lines of any length.

    rich's markup means nothing in strings, and no character of them does anything to a terminal.
    """
    screen = _console(sys.stdout)
    for part in parts:
        what = Text(printable(part)) if isinstance(part, str) else part
        if screen.is_terminal:
            screen.print(what)
        else:
            sys.stdout.write(as_text(what))


def show_title(title: str) -> None:
    """The line above figures and tables."""
    show(Text(printable(title), "bold"))


def show_figures(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A line of title, and below it labels and what they stand for."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, figure in rows:
        table.add_row(Text(label), Text(printable(figure)))
    show_title(title)
    show(_indented(table))


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
    show(_indented(text_table([title, "overhead", "gap", "peak", "seconds", ""], table, left=[""])))


def show_written(paths: Iterable[object]) -> None:
    """The files that were written."""
    for path in paths:
        if path is not None:
            show(f"  wrote {printable(path)}")


def _indented(table: Table) -> Padding:
    """Under the line that it belongs to."""
    return Padding(table, (0, 0, 0, 2), expand=False)


class Live:
    """Where a search, or a row of searches, stands: a line at the foot of the terminal for as long as it takes.

    Usable as `progress` of `solve`. Where standard error is no terminal only what is said is printed, a plain line each.

    Args:
        quiet: show and say nothing. searches: how many there will be.
    """

    def __init__(self, quiet: bool, searches: int = 1):
        self._quiet = quiet
        self._screen = _console(sys.stderr)
        self._label, self._ideal = "", 1.0
        # Where the terminal has no other letters the line moves with these.
        columns: list[ProgressColumn] = [SpinnerColumn("line" if self._screen.options.ascii_only else "dots")]
        if searches > 1:
            columns += [BarColumn(20), MofNCompleteColumn()]
        columns.append(
            TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        )
        columns.append(TimeElapsedColumn())
        hidden = quiet or not self._screen.is_terminal
        self._bars = Bars(
            *columns,
            console=self._screen,
            transient=True,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=hidden,
        )
        self._task = self._bars.add_task("starting", total=searches)
        self._depth = 0

    def __enter__(self) -> Live:
        """Show the line, until the outermost `with` ends."""
        if self._depth == 0:
            self._bars.reset(self._task)
            self._bars.start()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._bars.stop()

    def describe(self, text: str) -> None:
        """What is being done."""
        self._bars.update(self._task, description=printable(text))

    def begin(self, graph: Graph, label: str = "") -> None:
        """The next search."""
        self._label, self._ideal = f"{label}: " if label else "", graph.ideal_cost or 1.0
        self.describe(f"{self._label}searching")

    def __call__(self, report: Progress) -> None:
        cost = "no schedule yet" if report.cost is None else f"overhead {report.cost / self._ideal:.4f}"
        gap = "" if report.gap is None else f"  gap {percent(report.gap)}"
        text = f"{self._label}{cost}  bound {report.lower_bound / self._ideal:.4f}{gap}  {report.note}"
        self.describe(text)

    def done(self) -> None:
        """A search has ended."""
        self._bars.advance(self._task)

    def say(self, line: str) -> None:
        """Print a line to standard error."""
        if self._quiet:
            return
        if self._screen.is_terminal:
            self._screen.print(Text(printable(line)))
        else:
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


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, markup=False, emoji=False)
