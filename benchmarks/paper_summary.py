"""From rows of `paper.py` to what its tables and figures show: a dictionary of plain data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import paper_profiled
from paper_cells import Cell, version
from paper_plan import METHODS
from paper_run import Row

from checkmate.float_rounding import summation_error

#: Ours is called proven within this share of the bound.
PROVEN = 0.001
HOUR = 3600.0
#: Sections whose cells are one graph at one budget each.
COMPARED = ("overhead", "profiled", "modern", "traces")


def summary(rows: Sequence[Row], wanted: Sequence[Cell]) -> dict[str, Any]:
    """Of all rows; `wanted` are the cells of the whole evaluation."""
    by_section: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_section[row["section"]].append(row)
    points = {section: _points(by_section[section]) for section in COMPARED}
    return {
        "cells": {"there": len(rows), "wanted": len(wanted), "older": sum(row.get("version") != version() for row in rows)},
        **points,
        "ratios": {section: _ratios(points[section]) for section in ("overhead", "profiled", "modern") if points[section]},
        "batches": _batches(by_section["batches"]),
        "times": _times(by_section["times"]),
        "checks": _checks([point for section in COMPARED for point in points[section]], rows),
    }


def _points(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Graphs at budgets: what each method came to, and what is proven."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["graph"], row["budget"]].append(row)
    return [_point(mine) for mine in found.values()]


def _point(rows: list[Row]) -> dict[str, Any]:
    first, ideal = rows[0], rows[0]["ideal"]
    bounds = {
        order: max((row["proven"] for row in rows if row["order"] in (order, "any")), default=ideal) for order in ("given", "any")
    }
    costs = {(row["method"], row["order"]): row["cost"] for row in rows}
    given = {method: cost / ideal for (method, order), cost in costs.items() if order == "given" and cost is not None}
    any_cost = costs.get(("auto", "any"))
    shown = {key: first[key] for key in ("section", "graph", "batch", "ops", "budget", "budget_bytes", "fixed", "least", "plain")}
    if first["section"] == "profiled":  # the file is of that batch
        shown["batch"] = paper_profiled.BATCHES.get(first["graph"], 1)
    return {
        **shown,
        "bound": bounds["given"] / ideal,
        "tried": [method for method, order in costs if order == "given"],
        "overheads": given,
        "took": {row["method"]: row["took"] for row in rows if row["order"] == "given"},
        "any": None if any_cost is None else {"overhead": any_cost / ideal, "bound": bounds["any"] / ideal},
        "unsound": [_unsound(row, bounds[row["order"]]) for row in rows if _unsound(row, bounds[row["order"]])],
    }


def _unsound(row: Row, bound: float) -> str:
    """What would be a defect of the package."""
    if row["contradicted"]:
        return f"{row['method']}: {row['note']}"
    if row["cost"] is None:
        return ""
    if row["peak"] > row["budget_bytes"]:
        return f"{row['method']}: the peak is above the budget"
    if bound > row["cost"] + summation_error(10 * row["ops"], row["cost"]):
        return f"{row['method']}: its cost is below the proven bound"
    return ""


def _ratios(points: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per method and graph: cost over the least that any method found, over the budgets where the method found something.

    Ours is held against the proven bound instead.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for method in METHODS:
        for graph in dict.fromkeys(point["graph"] for point in points):
            mine = [point for point in points if point["graph"] == graph and method in point["tried"]]
            if not mine:
                continue
            over = [
                point["overheads"][method] / (point["bound"] if method == "auto" else min(point["overheads"].values()))
                for point in mine
                if method in point["overheads"]
            ]
            mean = math.exp(sum(map(math.log, over)) / len(over)) if over else None
            at = {"mean": mean, "largest": max(over, default=None), "feasible": len(over), "tried": len(mine)}
            found.setdefault(method, {})[graph] = at
    return found


def _batches(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Largest batches by network and by how parameters are counted."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        entry = found.setdefault((row["graph"], row["budget"]), {"graph": row["graph"], "counted": row["budget"], "largest": {}})
        entry["largest"][row["method"]] = row["largest"]
        if row["method"] == "auto":
            entry |= {key: row[key] for key in ("upper_bound", "overhead", "took")}
    return list(found.values())


def _times(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Per family and method: seconds by ops, and where an hour would be."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["graph"].partition(":")[0], row["method"]].append(row)
    result = []
    for (family, method), mine in found.items():
        mine = sorted(mine, key=lambda row: row["ops"])
        done = [(row["ops"], row["took"]) for row in mine if row["done"]]
        failed = next((row["ops"] for row in mine if not row["done"]), None)
        limit = mine[0]["seconds"]
        hour = None if failed is None else hour_at(done, failed, limit)
        result.append({"family": family, "method": method, "points": done, "failed": failed, "limit": limit, "hour": hour})
    return result


def hour_at(points: Sequence[tuple[int, float]], failed: int, limit: float) -> float | None:
    """Ops at which an hour is reached at most, if seconds grow on as a power of ops; None where too little is known.

    The power is that between the last two sizes, or that to the first one that was not done within the limit: the larger one.
    """
    if not points:
        return None
    ops, seconds = points[-1]
    powers = [math.log(limit / seconds) / math.log(failed / ops)]
    if len(points) > 1:
        before, shorter = points[-2]
        powers.append(math.log(seconds / shorter) / math.log(ops / before))
    return ops * (HOUR / seconds) ** (1 / max(powers)) if max(powers) > 0 else None


def _checks(points: list[dict[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What the evaluation is to show, with every exception."""
    named = [(f"{point['section']}: {point['graph']} at {point['budget']}", point) for point in points]
    checks = []
    for title, others in (
        ("within 0.1% of proven wherever another method finds a schedule", lambda point: set(point["overheads"]) - {"auto"}),
        (
            "within 0.1% of proven wherever a method of the paper finds one (all but greedy eviction)",
            lambda point: set(point["overheads"]) - {"auto", "greedy"},
        ),
    ):
        cells = [(name, point) for name, point in named if "auto" in point["tried"] and others(point)]
        exceptions = [f"{name}: {_gap(point)}" for name, point in cells if not _proven(point)]
        checks.append({"title": f"checkmate is {title}", "cells": len(cells), "exceptions": exceptions})
    compared = [(name, point) for name, point in named if "auto" in point["overheads"]]
    cheaper = [
        f"{name}: {method} costs {cost:.6f}, checkmate {point['overheads']['auto']:.6f}"
        for name, point in compared
        for method, cost in point["overheads"].items()
        if cost < point["overheads"]["auto"] * (1 - 1e-9)
    ]
    checks.append(
        {
            "title": "no method finds a cheaper schedule than checkmate (which stops once it is within 0.1%)",
            "cells": len(compared),
            "exceptions": cheaper,
        }
    )
    unsound = [f"{name}: {fault}" for name, point in named for fault in point["unsound"]]
    searches = sum(row["section"] in COMPARED for row in rows)
    title = "no schedule is cheaper than the proven bound, or above its budget"
    checks.append({"title": title, "cells": searches, "exceptions": unsound})
    batches = [row for row in rows if row["section"] == "batches"]
    above = [
        f"{row['graph']}, parameters {row['budget']}: {row['method']} has {row['largest']}, at most {ours['upper_bound']} proven"
        for ours in batches
        if ours["method"] == "auto"
        for row in batches
        if (row["graph"], row["budget"]) == (ours["graph"], ours["budget"]) and row["largest"] > ours["upper_bound"]
    ]
    checks.append({"title": "no batch is larger than the proven largest", "cells": len(batches), "exceptions": above})
    return checks


def _proven(point: dict[str, Any]) -> bool:
    return "auto" in point["overheads"] and point["overheads"]["auto"] <= point["bound"] * (1 + PROVEN)


def _gap(point: dict[str, Any]) -> str:
    if "auto" not in point["overheads"]:
        return "checkmate found none"
    return f"{100 * (point['overheads']['auto'] / point['bound'] - 1):.2f}% (checkmate {point['overheads']['auto']:.4f}, bound {point['bound']:.4f})"
