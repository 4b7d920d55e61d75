"""The commands that search: `solve`, `compare`, `sweep` and `max-batch`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

from ..errors import BudgetError, CheckmateError, Contradiction, InfeasibleBudget, UnknownMethod
from ..float_rounding import summation_error
from ..graph import Graph
from ..schedule import OPTIMAL_GAP
from ..solvers import max_batch_size, methods, solve
from ..text import named
from ..units import format_bytes, parse_bytes
from .checks import check_methods, check_output, check_picture
from .interrupts import Interrupts
from .source import find_source
from .terminal import Live, print_json, show, show_figures, show_schedule, show_searches, show_title, show_written, with_bytes

#: Not among the methods that `compare` takes by default: they need other programs, or are second names.
_NOT_COMPARED = ("milp-cbc", "milp-gurobi", *(name for name in methods() if name.endswith("-ap")))

#: Budgets of a sweep, if none are given.
_BUDGETS = 9


def solve_one(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """A schedule under a budget."""
    for path in (options.output, options.plot):
        check_output(path, options.graph)
    check_picture(options.plot)
    check_methods([options.method])
    live = Live(options.quiet)
    source = find_source(options, interrupts, live, [options.budget])
    graph = source.graph
    interrupts.working()
    with live:
        live.begin(graph)
        schedule = solve(
            graph,
            source.budget(options.budget),
            method=options.method,
            order=options.order,
            time_limit=options.time_limit,
            gap=options.gap,
            seed=options.seed,
            progress=live,
        )
    interrupts.finishing()
    if options.output is not None:
        schedule.save(options.output)
    if options.plot is not None:
        schedule.plot(options.plot)
    if options.json:
        print_json(schedule.summary())
    elif not options.quiet:
        show_schedule(schedule, (options.output, options.plot))
    return True


def compare(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """Several methods at one budget."""
    names = list(dict.fromkeys(options.methods or [name for name in methods() if name not in _NOT_COMPARED]))
    check_methods(names)
    live = Live(options.quiet, len(names))
    source = find_source(options, interrupts, live, [options.budget])
    graph = source.graph
    budget = parse_bytes(source.budget(options.budget), percent_of=graph.no_recompute_peak)
    interrupts.working()
    if budget < graph.min_working_set:
        solve(graph, budget, order=options.order)  # raises the error that names a budget that would do
    rows = _rows(graph, [(name, budget) for name in names], options, interrupts, live)
    # A bound that one method proves holds for the schedules of all.
    best = max(rows, key=lambda row: row["lower_bound"])
    bound = best["lower_bound"]
    for row in rows:
        if row["cost"] is None:
            continue
        if bound > row["cost"] + summation_error(10 * graph.num_ops, row["cost"]):
            raise Contradiction(
                f"{best['method']} says that no schedule costs less than {bound!r}, but {row['method']} found one that costs "
                f"{row['cost']!r}"
            )
        row["gap"] = max(0.0, row["cost"] - bound) / bound if bound else 0.0
        if row["gap"] <= OPTIMAL_GAP:
            row["status"] = "optimal"
    interrupts.finishing()
    if options.json:
        data = {"graph": graph.name, "budget": budget, "lower_bound": bound, "rows": rows}
        print_json(_marked(data, len(rows) < len(names)))
    elif not options.quiet:
        show_title(f"{named(graph.name)}: {graph.num_ops} ops, budget {with_bytes(budget)}")
        show(f"  no schedule costs less than {bound:.6g}: overhead {bound / (graph.ideal_cost or 1.0):.6f}")
        show_searches("method", [(row["method"], row) for row in rows])
        _show_left_out(names[len(rows) :])
    return any(row["cost"] is not None for row in rows)


def sweep(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """One method at several budgets."""
    check_output(options.plot, options.graph)
    check_picture(options.plot)
    check_methods([options.method])
    live = Live(options.quiet, len(options.budgets or range(_BUDGETS)))
    source = find_source(options, interrupts, live, options.budgets or ())
    graph = source.graph
    low, high = graph.min_working_set, graph.no_recompute_peak
    steps = _BUDGETS - 1
    even = sorted({low + round(step * (high - low) / steps) for step in range(_BUDGETS)}, reverse=True)
    asked = [source.budget(budget) for budget in options.budgets] if options.budgets else even
    budgets = [parse_bytes(budget, percent_of=high) for budget in asked]
    interrupts.working()
    rows = _rows(graph, [(options.method, budget) for budget in budgets], options, interrupts, live)
    interrupts.finishing()
    if options.plot is not None:
        _plot_sweep(options, graph, rows)
    if options.json:
        print_json(_marked({"graph": graph.name, "method": options.method, "rows": rows}, len(rows) < len(budgets)))
    elif not options.quiet:
        show_title(f"{named(graph.name)}: {graph.num_ops} ops, method {options.method}")
        show_searches("budget", [(format_bytes(row["budget"]), row) for row in rows])
        _show_left_out(format_bytes(budget) for budget in budgets[len(rows) :])
        show_written([options.plot])
    return any(row["cost"] is not None for row in rows)


def max_batch(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """The largest batch under a budget."""
    live = Live(options.quiet)
    source = find_source(options, interrupts, live, [options.budget])
    step = source.graph if source.at is None else source.at
    limits = options.max_overhead, options.time_limit, options.seed
    interrupts.working()
    with live:
        live.describe("searching")
        found = max_batch_size(step, source.budget(options.budget), *limits, progress=live.say)
    interrupts.finishing()
    if options.json:
        key = "schedule_at_batch_1" if source.at is None else "schedule"
        figures = {"batch": found.batch, "upper_bound": found.upper_bound, "seconds": found.seconds}
        print_json({**figures, key: found.schedule.summary()})
    elif not options.quiet:
        show_figures(
            f"{named(found.schedule.graph.name)}: batch {found.batch} fits; no batch above {found.upper_bound} does (proven)",
            [
                ("overhead", f"{found.schedule.overhead:.6f}, {found.schedule.num_recomputations} recomputations"),
                ("found in", f"{found.seconds:.2f} s"),
            ],
        )
    return True


def _rows(
    graph: Graph, searches: list[tuple[str, int]], options: argparse.Namespace, interrupts: Interrupts, live: Live
) -> list[dict[str, Any]]:
    """One row for each method and budget, up to the one that was asked to stop.

    Raises:
        KeyboardInterrupt: asked to stop before there was a schedule.
    """
    rows: list[dict[str, Any]] = []
    with live:
        for method, budget in searches:
            live.begin(graph, f"{method}, {format_bytes(budget)}")
            try:
                rows.append(_row(graph, method, budget, options, live))
            except KeyboardInterrupt:
                if any(row["cost"] is not None for row in rows):
                    break
                raise
            live.done()
            if interrupts.came():
                break
    if interrupts.came() and all(row["cost"] is None for row in rows):
        raise KeyboardInterrupt
    return rows


def _row(graph: Graph, method: str, budget: int, options: argparse.Namespace, live: Live) -> dict[str, Any]:
    """One search, with what went wrong in place of a schedule."""
    row: dict[str, Any] = {"method": method, "budget": budget, "status": "infeasible", "cost": None, "overhead": None}
    row |= {"lower_bound": graph.ideal_cost, "gap": None, "peak": None, "seconds": None, "note": ""}
    began = time.perf_counter()
    try:
        schedule = solve(graph, budget, method, options.order, options.time_limit, options.gap, options.seed, live)
    except InfeasibleBudget as error:
        row["note"] = "below the proven minimum" if budget < error.proven_minimum else "no schedule found"
    except (BudgetError, Contradiction, UnknownMethod):
        raise
    except CheckmateError as error:  # a solver that is not installed, a graph too large for one: the others go on
        row |= {"status": "failed", "note": str(error)}
    else:
        row |= {key: getattr(schedule, key) for key in ("status", "cost", "overhead", "lower_bound", "gap", "peak")}
    return row | {"seconds": time.perf_counter() - began}


def _plot_sweep(options: argparse.Namespace, graph: Graph, rows: list[dict[str, Any]]) -> None:
    from ..report.plots import plot_curves

    ideal, unit = graph.ideal_cost or 1.0, 2**20
    found = sorted((row["budget"], row["overhead"], row["lower_bound"] / ideal) for row in rows if row["cost"] is not None)
    sizes = [budget / unit for budget, _, _ in found]
    curves = [("proven lower bound", sizes, [bound for _, _, bound in found])]
    curves.append((options.method, sizes, [overhead for _, overhead, _ in found]))
    plot_curves(curves, options.plot, f"{graph.name}: overhead against budget", "budget (MiB)", "overhead")


def _marked(data: dict[str, Any], interrupted: bool) -> dict[str, Any]:
    return {**data, "interrupted": True} if interrupted else data


def _show_left_out(labels: Iterable[str]) -> None:
    left_out = ", ".join(labels)
    if left_out:
        show(f"  interrupted; not searched: {left_out}")
