"""What the commands print: the line that shows how a search goes, tables, figures, JSON."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from ..graph import Graph
from ..schedule import Schedule
from ..solvers import Progress
from ..units import format_bytes


class Live:
    """One line on the terminal that shows where a search stands; usable as `progress` of `solve`."""

    def __init__(self, graph: Graph, enabled: bool, label: str = ""):
        self.ideal = graph.ideal_cost
        self.enabled = enabled
        self.label = label

    def __enter__(self) -> Live:
        self._show(f"{self.label}searching")
        return self

    def __exit__(self, *_: object) -> None:
        self._show("")

    def __call__(self, report: Progress) -> None:
        ideal = self.ideal or 1.0
        cost = "no schedule yet" if report.cost is None else f"overhead {report.cost / ideal:.4f}"
        gap = "" if report.gap is None else f"  gap {percent(report.gap)}"
        self._show(f"{self.label}{report.seconds:6.1f} s  {cost}  bound {report.lower_bound / ideal:.4f}{gap}  {report.note}")

    def _show(self, text: str) -> None:
        if self.enabled:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")  # to the line's start, and clear it
            sys.stderr.flush()


def print_schedule(schedule: Schedule) -> None:
    """The figures of one schedule."""
    graph = schedule.graph
    print(f"{graph.name}: {graph.num_ops} ops, {schedule.num_recomputations} recomputations, {schedule.status}")
    print(f"  budget    {with_bytes(schedule.budget or 0)}")
    print(f"  peak      {with_bytes(schedule.peak)}; {format_bytes(graph.no_recompute_peak)} without recomputation")
    print(f"  overhead  {schedule.overhead:.6f} (cost {schedule.cost:.6g}, {graph.ideal_cost:.6g} without recomputation)")
    scope = " for the given order" if schedule.order == "given" else " for every order"
    print(f"  bound     no schedule costs less than {schedule.lower_bound:.6g}{scope}: gap {percent(schedule.gap)}")
    print(f"  found by  {schedule.method} in {schedule.solve_seconds:.2f} s")


def print_table(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """One line for each search: what was asked for, under `title`, and what was found."""
    width = max(len(title), *(len(label) for label, _ in rows))
    print(f"  {title:<{width}}  {'overhead':>9}  {'gap':>8}  {'peak':>11}  {'seconds':>8}")
    for label, row in rows:
        if row["cost"] is None:
            print(f"  {label:<{width}}  {'-':>9}  {'-':>8}  {'-':>11}  {row['seconds']:8.2f}  {row['note']}")
        else:
            figures = f"{row['overhead']:9.6f}  {percent(row['gap']):>8}  {format_bytes(row['peak']):>11}  {row['seconds']:8.2f}"
            print(f"  {label:<{width}}  {figures}  {row['status']}")


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
