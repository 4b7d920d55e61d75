"""The tables of `paper.py` in Markdown, from its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paper_published import (
    ARTIFACT_BATCHES,
    BATCH_DIFFERENCES,
    COST_RATIOS,
    METHOD_TITLES,
    PAPER_BATCHES,
    RATIO_DIFFERENCES,
    TITLES,
    TRACES,
)

Summary = dict[str, Any]


def costs(summary: Summary, section: str = "overhead") -> str:
    """Cost over the optimum of every method."""
    ratios = summary["ratios"][section]
    graphs = list(dict.fromkeys(graph for mine in ratios.values() for graph in mine))
    lines = []
    for method, mine in ratios.items():
        title = METHOD_TITLES[method] + (", over the proven bound" if method == "auto" else "")
        lines.append([title, *(_ratio(mine.get(graph)) for graph in graphs)])
    return _table(["method", *(_title(graph) for graph in graphs)], lines)


def _ratio(at: dict[str, Any] | None) -> str:
    if at is None:
        return "-"
    if at["mean"] is None:
        return f"none of {at['tried']}"
    return f"{at['mean']:.3f}, {at['largest']:.3f} ({at['feasible']}/{at['tried']})"


def costs_beside(summary: Summary) -> str:
    """Geometric means beside those that the paper prints."""
    ratios = summary["ratios"]["overhead"]
    graphs = list(COST_RATIOS["chen-sqrt"])
    lines = []
    for method, printed in COST_RATIOS.items():
        mine = ratios.get(method, {})
        cells = []
        for graph in graphs:
            mean = mine.get(graph, {}).get("mean")
            cells.append(
                f"{'-' if mean is None else f'{mean:.2f}'} ({'-' if printed[graph] is None else f'{printed[graph]:.2f}'})"
            )
        lines.append([METHOD_TITLES[method], *cells, RATIO_DIFFERENCES[method]])
    return _table(["method", *(_title(graph) for graph in graphs), "why they differ"], lines, text=1)


def batches(summary: Summary, counted: str) -> str:
    """Largest batches; those of the paper's script in brackets where parameters count twice."""
    methods = ["keep-all", "keep-all-forward", "chen-sqrt", "chen-greedy", "chen-greedy-linear", "griewank", "greedy", "auto"]
    lines = []
    for entry in summary["batches"]:
        if entry["counted"] != counted:
            continue
        printed = ARTIFACT_BATCHES.get(entry["graph"], {}) if counted == "twice" else {}
        cells = []
        for method in methods:
            text = str(entry["largest"].get(method, "-"))
            cells.append(text if method not in printed else f"{text} ({printed[method]})")
        cells += [str(entry.get("upper_bound", "-")), f"{entry['overhead']:.3f}" if "overhead" in entry else "-"]
        if counted == "once":
            cells += [PAPER_BATCHES.get(entry["graph"], "-"), BATCH_DIFFERENCES[entry["graph"]]]
        lines.append([_title(entry["graph"]), *cells])
    heads = ["network", *(METHOD_TITLES[method] for method in methods), "proven: none above", "its cost"]
    return _table(heads + (["the paper", "beside it"] if counted == "once" else []), lines, text=1 if counted == "once" else 0)


def times(summary: Summary) -> str:
    """Seconds by the number of ops."""
    lines = []
    for entry in summary["times"]:
        shown = ", ".join(f"{ops:,}: {seconds:.2g}" for ops, seconds in entry["points"]) or "-"
        failed = "-" if entry["failed"] is None else f"{entry['failed']:,} (limit {entry['limit']:g} s)"
        hour = (
            "beyond all of these" if entry["failed"] is None else "-" if entry["hour"] is None else f"{_rounded(entry['hour'])}"
        )
        lines.append([f"{METHOD_TITLES[entry['method']]}, {entry['family']}", shown, failed, hour])
    return _table(
        ["method, graphs", "ops: seconds to 0.1%", "first not done", "ops in an hour, extrapolated: at most"], lines, text=3
    )


def _rounded(ops: float) -> str:
    """To two digits: it is no better known."""
    return f"{float(f'{ops:.2g}'):,.0f}"


def at_budgets(summary: Summary, section: str) -> str:
    """Ours, the bound, and the best of the others at every budget."""
    lines = []
    for point in summary[section]:
        others = {method: cost for method, cost in point["overheads"].items() if method != "auto"}
        best = min(others, key=lambda method: others[method], default=None)
        ours = point["overheads"].get("auto")
        lines.append(
            [
                f"{_title(point['graph'])}, {point['ops']:,} ops",
                str(point["batch"]),
                f"{point['budget_bytes'] / 1e9:.2f}",
                f"{point['budget_bytes'] / point['plain']:.0%}",
                "-" if ours is None else f"{ours:.4f}",
                f"{point['bound']:.4f}",
                "-" if ours is None else f"{100 * (ours / point['bound'] - 1):.2f}%",
                "-" if best is None else f"{others[best]:.4f}, {METHOD_TITLES[best]}",
            ]
        )
    heads = ["network", "batch", "budget, GB", "of the plain peak", "checkmate", "proven bound", "gap", "best other"]
    return _table(heads, lines)


def traces(summary: Summary) -> str:
    """The graphs of MOCCASIN and FastSA: overhead in percent, beside what was published."""
    lines = []
    for point in summary["traces"]:
        share = point["budget"].partition("%")[0]
        printed = TRACES.get(point["graph"], {})
        place = {"90": 0, "80": 1, "70": 2}.get(share)
        cells = [
            _percent(printed[name][place] if printed and place is not None else None, 1)
            for name in ("MOCCASIN", "FastSA")
            if printed
        ]
        ours = point["overheads"].get("auto")
        either = point["any"]
        lines.append(
            [
                f"{_title(point['graph'])}, {point['ops']:,} ops",
                f"{share}%",
                _percent(None if ours is None else 100 * (ours - 1)),
                _percent(100 * (point["bound"] - 1)),
                "-" if either is None else _percent(100 * (either["overhead"] - 1)),
                "-" if either is None else _percent(100 * (either["bound"] - 1)),
                *(cells or ["-", "-"]),
            ]
        )
    heads = [
        "graph",
        "budget",
        "given order",
        "its bound",
        "any order",
        "its bound",
        "MOCCASIN, given order",
        "FastSA, any order",
    ]
    return _table(heads, lines)


def _percent(number: float | None, digits: int = 2) -> str:
    return "-" if number is None else f"{number:.{digits}f}%"


def checks(summary: Summary) -> str:
    """What the evaluation is to show."""
    lines = [
        [check["title"], f"{check['cells'] - len(check['exceptions'])} of {check['cells']}", str(len(check["exceptions"]))]
        for check in summary["checks"]
    ]
    return _table(["it is to be so that", "holds in", "exceptions"], lines)


def exceptions(summary: Summary) -> str:
    """All of them."""
    parts = [
        f"Not so that {check['title']}:\n\n" + "\n".join(f"- {exception}" for exception in check["exceptions"])
        for check in summary["checks"]
        if check["exceptions"]
    ]
    return "\n\n".join(parts) or "There are no exceptions."


#: name -> table; those of sections without cells are left out.
TABLES: dict[str, Callable[[Summary], str]] = {
    "costs": costs,
    "costs-beside": costs_beside,
    "overhead": lambda summary: at_budgets(summary, "overhead"),
    "profiled-costs": lambda summary: costs(summary, "profiled"),
    "profiled": lambda summary: at_budgets(summary, "profiled"),
    "batches-once": lambda summary: batches(summary, "once"),
    "batches-twice": lambda summary: batches(summary, "twice"),
    "times": times,
    "modern": lambda summary: at_budgets(summary, "modern"),
    "modern-costs": lambda summary: costs(summary, "modern"),
    "traces": traces,
    "checks": checks,
    "exceptions": exceptions,
}


def _title(graph: str) -> str:
    return TITLES.get(graph, graph)


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], text: int = 0) -> str:
    """The first column and the last `text` ones are text, the others numbers."""
    rule = ["---", *["--:"] * (len(heads) - 1 - text), *["---"] * text]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))
