"""The command line: `checkmate info`, `solve`, `report`, `compare`, `sweep`, `max-batch` and `demo`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from .errors import BudgetError, CheckmateError, GraphError, InfeasibleBudget, InvalidSchedule, UnknownMethod
from .graph import Graph
from .report.terminal import Live, print_json, print_schedule, print_table, with_bytes
from .schedule import OPTIMAL_GAP, Schedule
from .solvers import max_batch_size, methods, solve
from .units import format_bytes, parse_bytes
from .version import __version__

DONE, FAILED, USAGE = 0, 1, 2

_EXIT_CODES = """\
exit codes:
  0  done
  1  no schedule was found under a budget that is not proven impossible, or the work failed
  2  bad usage or bad input; also a budget that is proven to be below what any schedule needs
"""
#: Lines on what is in memory at the peak; the page has more.
_SHOWN = 5

_GRAPH_HELP = "JSON file of a graph: ops and values, or nodes and edges"
_BUDGET_HELP = (
    "bytes that the step may have live at its peak, fixed memory included: "
    '2000000000, "2GiB", "500MB", or "50%%" of the no-recompute peak'
)


class _BadUsage(CheckmateError):
    """The command line itself, or something it needs, is not right: exit code 2."""


class _Parser(argparse.ArgumentParser):
    """Bad usage in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise _BadUsage(f"{message} (try `{self.prog} --help`)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 infeasible or failed, 2 bad usage or bad input."""
    try:
        options = _parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except InfeasibleBudget as error:
        return _fail(error, USAGE if error.budget < error.proven_minimum else FAILED)
    except (_BadUsage, BudgetError, GraphError, UnknownMethod) as error:
        return _fail(error, USAGE)
    except CheckmateError as error:
        return _fail(error, FAILED)
    except BrokenPipeError:
        # The reader has left, as in `checkmate info g.json | head -1`. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _fail(f"{error.filename or 'the system'}: {error.strerror or error}", FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted before there was a result", FAILED)
    return code


def _fail(error: object, code: int) -> int:
    print("checkmate: error:", " ".join(str(error).split()), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    text = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="checkmate",
        description="Train networks that do not fit their device: least recomputation under a memory budget.",
        epilog=_EXIT_CODES,
        formatter_class=text,
    )
    parser.add_argument("--version", action="version", version=f"checkmate {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="what a graph costs and needs", epilog=_EXIT_CODES, formatter_class=text)
    info.add_argument("graph", metavar="GRAPH", help=_GRAPH_HELP)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)

    plan = commands.add_parser("solve", help="find a schedule under a budget", epilog=_EXIT_CODES, formatter_class=text)
    plan.add_argument("graph", metavar="GRAPH", help=_GRAPH_HELP)
    plan.add_argument("--budget", required=True, help=_BUDGET_HELP)
    plan.add_argument("--method", default="auto", help=f"one of {', '.join(methods())} (default: auto)")
    plan.add_argument("--order", default="given", help="given: first computations in the graph's order (default: given)")
    plan.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="seconds; then the best so far (default: 60)")
    plan.add_argument("--gap", type=float, default=0.001, help="stop once proven this near to the optimum (default: 0.001)")
    plan.add_argument("--seed", type=int, default=0, help="same input, same seed, same schedule (default: 0)")
    plan.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the schedule to this JSON file")
    plan.add_argument("--plot", type=Path, metavar="FILE", help="draw the schedule to this image file (.png, .pdf, .svg)")
    plan.add_argument("--json", action="store_true", help="print the result as JSON")
    plan.add_argument("--quiet", action="store_true", help="no progress, no text; errors only (and JSON, if asked for)")
    plan.set_defaults(run=_solve)

    report = commands.add_parser(
        "report",
        help="a page on a schedule: where the memory goes, what is computed again",
        epilog=_EXIT_CODES,
        formatter_class=text,
    )
    report.add_argument("graph", metavar="GRAPH", help=_GRAPH_HELP)
    which = report.add_mutually_exclusive_group()
    which.add_argument("--budget", help=f"find a schedule under this budget; {_BUDGET_HELP}")
    which.add_argument(
        "--schedule", type=Path, metavar="FILE", help="the schedule in this file, as `checkmate solve -o` writes it"
    )
    report.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default: report.html)"
    )
    _add_search_options(report, 60.0)
    report.set_defaults(run=_report)

    compare = commands.add_parser("compare", help="several methods at one budget", epilog=_EXIT_CODES, formatter_class=text)
    compare.add_argument("graph", metavar="GRAPH", help=_GRAPH_HELP)
    compare.add_argument("--budget", required=True, help=_BUDGET_HELP)
    compare.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help=f"of {', '.join(methods())} (default: all but the integer program with other solvers, and second names)",
    )
    _add_search_options(compare, 30.0)
    compare.set_defaults(run=_compare)

    sweep = commands.add_parser("sweep", help="one method at several budgets", epilog=_EXIT_CODES, formatter_class=text)
    sweep.add_argument("graph", metavar="GRAPH", help=_GRAPH_HELP)
    sweep.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help="as for solve (default: nine, from the no-recompute peak down to the minimum working set)",
    )
    sweep.add_argument("--method", default="auto", help=f"one of {', '.join(methods())} (default: auto)")
    sweep.add_argument("--plot", type=Path, metavar="FILE", help="draw overhead against budget to this image file")
    _add_search_options(sweep, 30.0)
    sweep.set_defaults(run=_sweep)

    batch = commands.add_parser(
        "max-batch", help="the largest batch that fits a budget", epilog=_EXIT_CODES, formatter_class=text
    )
    batch.add_argument("graph", metavar="GRAPH", help="graph of the step at batch 1, as JSON")
    batch.add_argument("--budget", required=True, help='bytes, or with a unit: "16GB"')
    batch.add_argument("--max-overhead", type=float, default=1.33, help="most cost, relative to computing all once (1.33)")
    batch.add_argument("--time-limit", type=float, default=300.0, help="seconds (300)")
    batch.add_argument("--seed", type=int, default=0, help="seed of the search (0)")
    batch.add_argument("--json", action="store_true", help="print the result as JSON")
    batch.set_defaults(run=_max_batch)

    demo = commands.add_parser(
        "demo",
        help="train three PyTorch models under several budgets and compare with plain training",
        epilog=_EXIT_CODES,
        formatter_class=text,
    )
    demo.add_argument(
        "-o", "--output", type=Path, default=Path("demo-output"), metavar="DIR", help="folder for pictures (default: demo-output)"
    )
    demo.add_argument("--json", action="store_true", help="print the rows as JSON")
    demo.add_argument("--quiet", action="store_true", help="no progress")
    demo.set_defaults(run=_demo)
    return parser


def _add_search_options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """What commands that search more than once share."""
    parser.add_argument(
        "--time-limit", type=float, default=seconds, metavar="S", help=f"seconds for each schedule (default: {seconds:g})"
    )
    parser.add_argument("--gap", type=float, default=0.001, help="stop once proven this near to the optimum (default: 0.001)")
    parser.add_argument("--seed", type=int, default=0, help="same input, same seed, same schedule (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress, no text; errors only (and JSON, if asked for)")


# --- the commands ---


def _info(options: argparse.Namespace) -> int:
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
        return DONE
    print(f"{graph.name}: {graph.num_ops} ops, {graph.num_values} values ({figures['kept_values']} kept to the end)")
    if figures["not_recomputable_ops"]:
        print(f"  {figures['not_recomputable_ops']} ops must not be recomputed")
    print(f"  cost of computing every op once  {graph.ideal_cost:.6g}")
    for label, size in (
        ("fixed memory", graph.fixed_memory),
        ("peak without recomputation", graph.no_recompute_peak),
        ("no schedule peaks below", graph.min_working_set),
    ):
        print(f"  {label:<32} {with_bytes(size)}")
    return DONE


def _solve(options: argparse.Namespace) -> int:
    _check_paths(options.output, options.plot)
    _check_picture(options.plot)
    graph = Graph.load(options.graph)
    with _live(graph, options) as live:
        schedule = solve(
            graph,
            options.budget,
            method=options.method,
            order=options.order,
            time_limit=options.time_limit,
            gap=options.gap,
            seed=options.seed,
            progress=live,
        )
    if options.output is not None:
        schedule.save(options.output)
    if options.plot is not None:
        schedule.plot(options.plot)
    if options.json:
        print_json(schedule.summary())
    elif not options.quiet:
        print_schedule(schedule)
        for path in (options.output, options.plot):
            if path is not None:
                print(f"  wrote {path}")
    return DONE


def _report(options: argparse.Namespace) -> int:
    from .report.facts import at_peak, recomputed, without_recomputation
    from .report.page import write_report

    _check_paths(options.output)
    _check_picture("schedule.png")
    graph = Graph.load(options.graph)
    if options.schedule is not None:
        try:
            schedule = Schedule.load(options.schedule, graph)
        except InvalidSchedule as error:
            raise _BadUsage(str(error)) from None
    elif options.budget is not None:
        with _live(graph, options) as live:
            limits = options.time_limit, options.gap, options.seed
            schedule = solve(graph, options.budget, "auto", "given", *limits, progress=live)
    else:
        schedule = without_recomputation(graph)
    write_report(schedule, options.output)
    peak = at_peak(schedule)
    if options.json:
        rows = [asdict(one) for one in recomputed(schedule)]
        print_json({**schedule.summary(), "at_peak": asdict(peak), "recomputed": rows, "page": str(options.output)})
    elif not options.quiet:
        print(f"{graph.name}: peak {with_bytes(schedule.peak)}" + (f", while {peak.op} runs; the largest:" if peak.op else ""))
        for one in peak.holdings[:_SHOWN]:
            print(f"  {format_bytes(one.size):>11}  {one.name} ({one.kind})")
        print(f"  wrote {options.output}")
    return DONE


def _compare(options: argparse.Namespace) -> int:
    graph = Graph.load(options.graph)
    names = list(dict.fromkeys(options.methods or [name for name in methods() if name not in _NOT_COMPARED]))
    _check_methods(names)
    budget = parse_bytes(options.budget, percent_of=graph.no_recompute_peak)
    if budget < graph.min_working_set:
        solve(graph, budget)  # raises the error that names a budget that would do
    rows = [_row(graph, options, budget, name) for name in names]
    # A bound that one method proves holds for the schedules of all.
    bound = max(row["lower_bound"] for row in rows)
    for row in rows:
        row["gap"] = None if row["cost"] is None else max(0.0, row["cost"] - bound) / bound if bound else 0.0
        if row["gap"] is not None and row["gap"] <= OPTIMAL_GAP:
            row["status"] = "optimal"
    if options.json:
        print_json({"graph": graph.name, "budget": budget, "lower_bound": bound, "rows": rows})
    elif not options.quiet:
        print(f"{graph.name}: {graph.num_ops} ops, budget {with_bytes(budget)}")
        print(f"  no schedule costs less than {bound:.6g}: overhead {bound / (graph.ideal_cost or 1.0):.6f}")
        print_table("method", [(row["method"], row) for row in rows])
    return DONE if any(row["cost"] is not None for row in rows) else FAILED


def _sweep(options: argparse.Namespace) -> int:
    _check_paths(options.plot)
    _check_picture(options.plot)
    _check_methods([options.method])
    graph = Graph.load(options.graph)
    low, high = graph.min_working_set, graph.no_recompute_peak
    budgets = options.budgets or sorted({low + round(step * (high - low) / 8) for step in range(9)}, reverse=True)
    rows = [_row(graph, options, budget, options.method) for budget in budgets]
    if options.plot is not None:
        from .report.plots import plot_curves

        ideal, unit = graph.ideal_cost or 1.0, 2**20
        found = sorted((row["budget"], row["overhead"], row["lower_bound"] / ideal) for row in rows if row["cost"] is not None)
        sizes = [budget / unit for budget, _, _ in found]
        curves = [("proven lower bound", sizes, [bound for _, _, bound in found])]
        curves.append((options.method, sizes, [overhead for _, overhead, _ in found]))
        plot_curves(curves, options.plot, f"{graph.name}: overhead against budget", "budget (MiB)", "overhead")
    if options.json:
        print_json({"graph": graph.name, "method": options.method, "rows": rows})
    elif not options.quiet:
        print(f"{graph.name}: {graph.num_ops} ops, method {options.method}")
        print_table("budget", [(format_bytes(row["budget"]), row) for row in rows])
        if options.plot is not None:
            print(f"  wrote {options.plot}")
    return DONE if any(row["cost"] is not None for row in rows) else FAILED


#: Not among the methods that `compare` takes by default: they need other programs, or are second names.
_NOT_COMPARED = ("milp-cbc", "milp-gurobi", *(name for name in methods() if name.endswith("-ap")))


def _max_batch(options: argparse.Namespace) -> int:
    graph = Graph.load(options.graph)
    found = max_batch_size(
        graph,
        options.budget,
        options.max_overhead,
        options.time_limit,
        options.seed,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if options.json:
        schedule = found.schedule.summary()
        print_json(
            {"batch": found.batch, "upper_bound": found.upper_bound, "seconds": found.seconds, "schedule_at_batch_1": schedule}
        )
        return DONE
    print(f"{graph.name}: batch {found.batch} fits; no batch above {found.upper_bound} does (proven)")
    print(f"  overhead  {found.schedule.overhead:.6f}, {found.schedule.num_recomputations} recomputations")
    print(f"  found in  {found.seconds:.2f} s")
    return DONE


def _row(graph: Graph, options: argparse.Namespace, budget: str | int, method: str) -> dict[str, Any]:
    """One search, with what went wrong in place of a schedule."""
    limit = parse_bytes(budget, percent_of=graph.no_recompute_peak)
    row: dict[str, Any] = {"method": method, "budget": limit, "status": "infeasible", "cost": None, "overhead": None}
    row |= {"lower_bound": graph.ideal_cost, "gap": None, "peak": None, "seconds": None, "note": ""}
    began = time.perf_counter()
    with _live(graph, options, f"{method}, {format_bytes(limit)}: ") as live:
        try:
            schedule = solve(graph, limit, method, "given", options.time_limit, options.gap, options.seed, live)
        except InfeasibleBudget as error:
            row["note"] = "below the proven minimum" if limit < error.proven_minimum else "no schedule found"
        except (BudgetError, UnknownMethod):
            raise
        except CheckmateError as error:  # a solver that is not installed, a graph too large for one: the others go on
            row |= {"status": "failed", "note": str(error)}
        else:
            row |= {key: getattr(schedule, key) for key in ("status", "cost", "overhead", "lower_bound", "gap", "peak")}
    return row | {"seconds": time.perf_counter() - began}


def _live(graph: Graph, options: argparse.Namespace, label: str = "") -> Live:
    """Progress of a search, where somebody looks."""
    return Live(graph, enabled=not options.quiet and sys.stderr.isatty(), label=label)


def _check_paths(*paths: Path | None) -> None:
    """Better to refuse now than to lose the answer of a long search."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise _BadUsage(f"cannot write {path}: {'it is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")


def _check_picture(path: str | Path | None) -> None:
    """As `_check_paths`: can a picture be drawn to a file of this name?"""
    if path is not None:
        from .report.plots import check_can_plot

        try:
            check_can_plot(path)
        except CheckmateError as error:
            raise _BadUsage(str(error)) from None


def _check_methods(names: Sequence[str]) -> None:
    for name in names:
        if name not in methods():
            raise UnknownMethod(f"unknown method {name!r}: choose one of {', '.join(methods())}")


def _demo(options: argparse.Namespace) -> int:
    for module, extra in (("torch", "torch"), ("matplotlib", "plot")):
        if find_spec(module) is None:
            raise _BadUsage(f"the demo needs {module}: run pip install 'checkmate[{extra}]'")
    from .demo import format_rows, run_demo

    def say(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr, flush=True)

    rows = run_demo(options.output, progress=say)
    if options.json:
        print_json(rows)
    else:
        print(format_rows(rows))
    return DONE


if __name__ == "__main__":
    sys.exit(main())
