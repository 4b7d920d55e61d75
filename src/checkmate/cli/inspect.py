"""The commands that show: `info`, `report` and `demo`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from ..errors import InvalidSchedule
from ..networks import NETWORKS
from ..planning.device_models import DEVICE_MODELS
from ..schedule import Schedule
from ..solvers import solve
from ..text import named
from ..units import format_bytes
from .checks import check_output
from .completion import script
from .interrupts import Interrupts
from .other_budgets import other_schedules
from .parser import BadUsage, parser
from .source import find_source
from .terminal import Live, print_json, show, show_figures, show_table, show_title, show_written, with_bytes

#: Lines on what is in memory at the peak; the page has more.
_SHOWN = 5


def info(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """What a graph costs and needs."""
    source = find_source(options, interrupts, Live(False))
    graph, unit = source.graph, source.unit
    figures: dict[str, Any] = {
        "name": graph.name,
        "ops": graph.num_ops,
        "values": graph.num_values,
        "kept_values": sum(value.keep for value in graph.values),
        "not_recomputable_ops": sum(not op.recomputable for op in graph.ops),
        "ideal_cost": graph.ideal_cost,
        "cost_unit": unit,
        "fixed_memory": graph.fixed_memory,
        "no_recompute_peak": graph.no_recompute_peak,
        "min_working_set": graph.min_working_set,
    }
    if options.json:
        print_json(figures)
        return True
    rows = [
        ("cost of computing every op once", f"{graph.ideal_cost:.6g} {unit or ''}".rstrip()),
        ("fixed memory", with_bytes(graph.fixed_memory)),
        ("peak without recomputation", with_bytes(graph.no_recompute_peak)),
        ("no schedule peaks below", with_bytes(graph.min_working_set)),
    ]
    if figures["not_recomputable_ops"]:
        rows.insert(0, ("ops that must not be recomputed", f"{figures['not_recomputable_ops']}"))
    show_figures(
        f"{named(graph.name)}: {graph.num_ops} ops, {graph.num_values} values ({figures['kept_values']} kept to the end)", rows
    )
    return True


def report(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """A page on a schedule."""
    from ..report.facts import at_peak, recomputed, without_recomputation
    from ..report.page import write_report

    check_output(options.output, options.graph, options.schedule)
    check_output(options.trace, options.graph, options.schedule)
    if options.trace is not None and options.trace.absolute() == options.output.absolute():
        raise BadUsage("the page and the trace have the same name: give --trace another")
    if not options.curve >= 0:
        raise BadUsage(f"--curve is a number of seconds, not {options.curve:g}; 0 is no curve")
    live = Live(options.quiet)
    source = find_source(options, interrupts, live, [options.budget])
    graph = source.graph
    if options.schedule is not None:
        try:
            schedule = Schedule.load(options.schedule, graph)
        except InvalidSchedule as error:
            raise BadUsage(str(error)) from None
    elif options.budget is not None:
        interrupts.working()
        with live:
            live.begin(graph)
            limits = options.time_limit, options.gap, options.seed
            schedule = solve(graph, source.budget(options.budget), "auto", options.order, *limits, progress=live)
    else:
        schedule = without_recomputation(graph)
    interrupts.working()
    others = other_schedules(schedule, options, interrupts, live) if options.curve else []
    interrupts.finishing()
    write_report(schedule, options.output, others)
    if options.trace is not None:
        schedule.trace_events(options.trace, source.unit)
    peak = at_peak(schedule)
    if options.json:
        rows = [asdict(one) for one in recomputed(schedule)]
        written = {"page": str(options.output)} | ({} if options.trace is None else {"trace": str(options.trace)})
        figures = {**schedule.summary(), "at_peak": asdict(peak), "recomputed": rows}
        print_json({**figures, "others": [one.summary() for one in others], **written})
    elif not options.quiet:
        when = f", while {named(peak.op)} runs; the largest:" if peak.op else ""
        show_figures(
            f"{named(graph.name)}: peak {with_bytes(schedule.peak)}{when}",
            [(f"{format_bytes(one.size):>11}", f"{named(one.name)} ({one.kind})") for one in peak.holdings[:_SHOWN]],
        )
        show_written([options.output] if options.trace is None else [options.output, options.trace])
    return True


def trace(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """A graph as a file."""
    check_output(options.output, options.graph)
    graph = find_source(options, interrupts, Live(options.quiet)).graph
    interrupts.finishing()
    graph.save(options.output)
    if options.json:
        print_json(
            {"name": graph.name, "ops": graph.num_ops, "no_recompute_peak": graph.no_recompute_peak, "graph": str(options.output)}
        )
    elif not options.quiet:
        show_title(f"{named(graph.name)}: {graph.num_ops} ops, peak without recomputation {with_bytes(graph.no_recompute_peak)}")
        show_written([options.output])
    return True


def networks(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """The networks that have names."""
    rows: list[dict[str, Any]] = []
    for name, known in NETWORKS.items():
        graph = known.build(1)
        figures = {"ops": graph.num_ops, "multiply_adds": graph.ideal_cost, "fixed_memory": graph.fixed_memory}
        peaks = {"no_recompute_peak": graph.no_recompute_peak, "min_working_set": graph.min_working_set}
        rows.append({"name": name, "title": known.title, **figures, **peaks})
    if options.json:
        print_json(rows)
        return True
    cells: list[list[str]] = [
        [row["name"], str(row["ops"]), *(format_bytes(row[key]) for key in ("fixed_memory", "no_recompute_peak")), row["title"]]
        for row in rows
    ]
    show_table(["network", "ops", "fixed", "peak", ""], cells, left=[""])
    show("", "A training step at batch 1, float32; peak: without recomputation. transformerN is gpt2 with N layers.")
    return True


def devices(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """The devices that can be planned for."""
    if options.json:
        print_json([{**asdict(one), "latency": one.rates("float32").latency} for one in DEVICE_MODELS.values()])
        return True
    heads = ["device", "memory", "float32", "tf32", "bfloat16", "traffic", "", "source"]
    cells = [
        [
            one.name,
            "" if one.memory is None else f"{one.memory // 10**9} GB",
            *(f"{one.flops[kind] / 1e12:.1f}" if kind in one.flops else "" for kind in ("float32", "tf32", "bfloat16")),
            f"{one.bytes_per_second / 1e9:.0f}",
            one.title,
            one.source,
        ]
        for one in DEVICE_MODELS.values()
    ]
    show_table(heads, cells, left=["", "source"])
    show("", "Published peaks: arithmetic in TFLOP/s without sparsity, memory traffic in GB/s.")
    return True


def completion(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """What a shell needs to complete command lines."""
    print(script(parser(), options.shell), end="")
    return True


def demo(options: argparse.Namespace, interrupts: Interrupts) -> bool:
    """Training under several budgets, beside plain training."""
    for module, extra in (("torch", "torch"), ("matplotlib", "plot")):
        if find_spec(module) is None:
            raise BadUsage(f"the demo needs {module}: run pip install 'checkmate-remat[{extra}]'")
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
        show_table(COLUMNS, cells(rows))
        show("", *NOTE.splitlines())
    return True
