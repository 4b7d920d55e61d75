"""The demo's rows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MEBI = 2**20
_COLUMNS = (
    ("model", "model"),
    ("plain peak", "plain_peak"),
    ("budget", "budget"),
    ("predicted", "predicted_peak"),
    ("measured", "measured_peak"),
    ("plain s", "plain_seconds"),
    ("planned s", "planned_seconds"),
    ("overhead", "predicted_overhead"),
    ("measured", "measured_overhead"),
    ("solve s", "solve_seconds"),
    ("gap", "gap"),
    ("max diff", "largest_difference"),
)
_NOTE = (
    "Peaks and budgets in MiB: all live tensors of the process. overhead: step time over plain step time, as planned and\n"
    "as measured. gap: how far the plan can be from the least recomputation, proven. max diff: largest difference of\n"
    "losses, gradients and buffers from plain training."
)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row, then what the columns mean."""
    cells = [[title for title, _ in _COLUMNS]]
    cells += [[_cell(key, row[key]) for _, key in _COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = []
    for number, line in enumerate(cells):
        padded = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        lines.append("  ".join(padded).rstrip())
        if number == 0:
            lines.append("-" * len(lines[0]))
        elif number < len(rows) and rows[number]["model"] != rows[number - 1]["model"]:
            lines.append("")
    return "\n".join([*lines, "", _NOTE])


def _cell(key: str, value: Any) -> str:
    if key == "model":
        return str(value)
    if key in ("plain_peak", "budget", "predicted_peak", "measured_peak"):
        return f"{value / _MEBI:.1f}"
    if key == "gap":
        return "proven 0" if value <= 1e-6 else f"{100 * value:.2f}%"
    if key == "largest_difference":
        return "0" if value == 0 else f"{value:.1e}"
    if key == "solve_seconds":
        return f"{value:.1f}"
    return f"{value:.3f}"
