"""The commands that show: `info`, `report` and `demo`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from ..errors import InvalidSchedule
from ..graph import Graph
from ..report.tables import text_table
from ..schedule import Schedule
from ..solvers import solve
from ..text import printable
from ..units import format_bytes
from .checks import check_output, check_picture
from .interrupts import Interrupts
from .parser import BadUsage
from .terminal import Live, print_json, show, show_figures, show_written, with_bytes

#: Lines on what is in memory at the peak; the page has more.
_SHOWN = 5


def info(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """What a graph costs and needs."""
    graph = Graph.load(options.graph)
    figures: dict[str, Any] = {
        "name": graph.name,
        "ops": graph.num_ops,
        "values": graph.num_values,
        "kept_values": sum(value.keep for value in graph.values),
        "not_recomputable_ops": sum(not op.recomputable for op in graph.ops),
        "ideal_cost": graph.ideal_cost,
        "fixed_memory": graph.fixed_memory,
        "no_recompute_peak": graph.no_recompute_peak,
        "min_working_set": graph.min_working_set,
    }
    if options.json:
        print_json(figures)
        return True
    rows = [
        ("cost of computing every op once", f"{graph.ideal_cost:.6g}"),
        ("fixed memory", with_bytes(graph.fixed_memory)),
        ("peak without recomputation", with_bytes(graph.no_recompute_peak)),
        ("no schedule peaks below", with_bytes(graph.min_working_set)),
    ]
    if figures["not_recomputable_ops"]:
        rows.insert(0, ("ops that must not be recomputed", f"{figures['not_recomputable_ops']}"))
    show_figures(f"{graph.name}: {graph.num_ops} ops, {graph.num_values} values ({figures['kept_values']} kept to the end)", rows)
    return True


def report(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """A page on a schedule."""
    from ..report.facts import at_peak, recomputed, without_recomputation
    from ..report.page import write_report

    check_output(options.output, options.graph, options.schedule)
    check_picture("schedule.png")
    graph = Graph.load(options.graph)
    if options.schedule is not None:
        try:
            schedule = Schedule.load(options.schedule, graph)
        except InvalidSchedule as error:
            raise BadUsage(str(error)) from None
    elif options.budget is not None:
        interrupts.working()
        with Live(options.quiet) as live:
            live.begin(graph)
            limits = options.time_limit, options.gap, options.seed
            schedule = solve(graph, options.budget, "auto", options.order, *limits, progress=live)
    else:
        schedule = without_recomputation(graph)
    interrupts.finishing()
    write_report(schedule, options.output)
    peak = at_peak(schedule)
    if options.json:
        rows = [asdict(one) for one in recomputed(schedule)]
        print_json({**schedule.summary(), "at_peak": asdict(peak), "recomputed": rows, "page": str(options.output)})
    elif not options.quiet:
        when = f", while {printable(peak.op)} runs; the largest:" if peak.op else ""
        show_figures(
            f"{graph.name}: peak {with_bytes(schedule.peak)}{when}",
            [(f"{format_bytes(one.size):>11}", f"{one.name} ({one.kind})") for one in peak.holdings[:_SHOWN]],
        )
        show_written([options.output])
    return True


def demo(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """Training under several budgets, beside plain training."""
    for module, extra in (("torch", "torch"), ("matplotlib", "plot")):
        if find_spec(module) is None:
            raise BadUsage(f"the demo needs {module}: run pip install 'checkmate[{extra}]'")
    from ..demo import COLUMNS, NOTE, cells, run_demo

    interrupts.working()
    with Live(options.quiet) as live:

        def say(line: str) -> None:
            if interrupts.came():  # a search may have caught it
                raise KeyboardInterrupt
            live.say(line)

        rows = run_demo(options.output, progress=say)
    interrupts.finishing()
    if options.json:
        print_json(rows)
    else:
        show(text_table(COLUMNS, cells(rows)), "", *NOTE.splitlines())
    return True
