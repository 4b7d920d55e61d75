"""The demo's rows as a table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MEBI = 2**20
_KEYS = {
    "model": "model",
    "plain peak": "plain_peak",
    "budget": "budget",
    "predicted": "predicted_peak",
    "measured": "measured_peak",
    "plain s": "plain_seconds",
    "planned s": "planned_seconds",
    "overhead": "predicted_overhead",
    "taken": "measured_overhead",
    "solve s": "solve_seconds",
    "gap": "gap",
    "max diff": "largest_difference",
}
COLUMNS = list(_KEYS)
NOTE = """\
Peaks and budgets are in MiB: all live tensors of the process at once, as predicted and as measured.
overhead: computing, relative to plain training, as planned; taken: time of a step, relative to a plain step, as measured.
gap: how far the plan can be from the least recomputation, proven.
max diff: largest difference of losses, gradients, buffers and parameters from plain training."""


def cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str] | None]:
    """One list of cells for each row, as in `COLUMNS`; None between models."""
    lines: list[list[str] | None] = []
    for number, row in enumerate(rows):
        if number and row["model"] != rows[number - 1]["model"]:
            lines.append(None)
        lines.append([_cell(key, row[key]) for key in _KEYS.values()])
    return lines


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
