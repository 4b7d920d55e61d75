"""The options of every command."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import NoReturn

from ..errors import CheckmateError
from ..planning.device_models import DEVICE_MODELS
from ..solvers import methods
from ..version import __version__
from .completion import SHELLS

_EXIT_CODES = """\
exit codes:
  0  done
  1  no schedule was found under a budget that is not proven impossible, the work failed, or it was interrupted
  2  bad usage or bad input; also a budget that is proven to be below what any schedule needs
"""
_INTERRUPTS = """
Ctrl-C and SIGTERM end the search; what it has found so far is written and printed, and the exit code is 0.
If it has not found anything yet, nothing is written, and the exit code is 1.
"""

_MODELS = """
what GRAPH can be:
  graph.json       a file that `checkmate trace` or Graph.save wrote, or its short form with nodes and edges
  resnet50         a network by name, as `checkmate networks` lists them; ./resnet50 is a file of that name
  net.py:make      your own model: a function `make` in net.py, or package.module:make
                   It returns (model, batch) or (model, batch, loss). If it has a parameter `batch`, --batch goes there.
                   PyTorch: the model is called with the batch (a tensor, a tuple of them, or a dictionary of keywords); loss is a
                   function of its output, by default the output if it is a scalar, else the sum of its outputs.
                   Keras: the batch is (x, y); loss is a Keras loss or its name, by default that of model.compile.
                   The step is traced, not run. PyTorch models are made of tensors without data, where that works.
                   The cost of its ops is measured on this machine, or with --device-model worked out for another.
"""
_GRAPH = "graph file, network, or model (see below)"
_BUDGET = (
    "most memory that the step may take at its peak, parameters and inputs included: "
    'bytes (2000000000), with a unit ("2GiB", "500MB"), in percent of the peak without recomputation ("50%%"), or "auto": '
    "the memory of the device model less 10%%"
)
_QUIET = "print nothing but errors (and JSON, if asked for)"
_METHOD_NAMES = ", ".join(methods())


class BadUsage(CheckmateError):
    """The command line itself, or something it needs, is not right: exit code 2."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Names of methods stay in one piece."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """Bad usage in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message} (try `{self.prog} --help`)")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, with the name of the command as `command`.

    Raises:
        BadUsage: the command line cannot be read. SystemExit: it asks for help or for the version, which was printed.
    """
    options = parser().parse_args(arguments)
    for name, value in vars(options).items():
        if value == []:  # what argparse makes of `--budget=--`
            raise BadUsage(f"--{name.replace('_', '-')} needs a value (try `checkmate {options.command} --help`)")
    return options


def parser() -> argparse.ArgumentParser:
    """Reads command lines."""
    whole = _Parser(
        prog="checkmate",
        description="Train networks that do not fit their device: least recomputation under a memory budget.",
        epilog=_EXIT_CODES,
        formatter_class=_Help,
    )
    whole.add_argument("--version", action="version", version=f"checkmate {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)

    def command(name: str, text: str, searches: bool = True, plans: bool = True) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=(_MODELS[1:] + "\n" if plans else "") + _EXIT_CODES + (_INTERRUPTS if searches else ""),
            formatter_class=_Help,
        )

    _info(command("info", "say what a graph costs and how much memory it needs", searches=False))
    _solve(command("solve", "find a schedule with little recomputation under a budget, and prove how little there must be"))
    _report(command("report", "write a page on a schedule: where the memory goes, and what is computed again"))
    _compare(command("compare", "compare methods at one budget"))
    _sweep(command("sweep", "run one method at several budgets"))
    _max_batch(command("max-batch", "find the largest batch that fits a budget (the graph in a file is one of batch 1)"))
    _trace(command("trace", "write the graph of a model or of a network to a file", searches=False))
    _list(command("networks", "list the networks that have names", searches=False, plans=False))
    _list(
        command(
            "devices", "list the devices that can be planned for, and where their rates are from", searches=False, plans=False
        )
    )
    text = "train three PyTorch models under several budgets and compare with plain training"
    _demo(command("demo", text, searches=False, plans=False))
    _completion(command("completion", "print what a shell needs to complete command lines", searches=False, plans=False))
    return whole


def _add_graph(parser: argparse.ArgumentParser, batch: bool = True) -> None:
    parser.add_argument("graph", metavar="GRAPH", help=_GRAPH)
    if batch:
        parser.add_argument(
            "--batch", type=int, metavar="N", help="batch size of a network or of a model (default: 1, or the model's)"
        )
    parser.add_argument(
        "--device-model",
        metavar="NAME",
        help=f"work out the costs of a network or of a model for this device, whether it is here or not: {', '.join(DEVICE_MODELS)} "
        "(`checkmate devices`)",
    )


def _trace(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("graph.json"), metavar="FILE", help="the file (default: graph.json)"
    )
    _add_output(parser)


def _list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=SHELLS,
        help='bash: put eval "$(checkmate completion bash)" into ~/.bashrc; zsh: eval "$(checkmate completion zsh)" into ~/.zshrc, '
        "after compinit",
    )


def _info(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _solve(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    parser.add_argument("--budget", required=True, help=_BUDGET)
    _add_method(parser)
    _add_search(parser, 60.0, "seconds; then the search ends with the best schedule so far")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the schedule to this JSON file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the schedule to this file (.png, .pdf or .svg)")
    _add_output(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--budget", help=f"find a schedule under this budget (default: no recomputation); {_BUDGET}")
    which.add_argument(
        "--schedule", type=Path, metavar="FILE", help="read the schedule from this file, which `checkmate solve -o FILE` wrote"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default: report.html)"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace as well, for ui.perfetto.dev or chrome://tracing")
    parser.add_argument(
        "--curve",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds, at most about, for schedules at a few other budgets, from which the page says what more or less memory would "
        "cost; 0: none (default: 20)",
    )
    search = parser.add_argument_group("the search, with --budget")
    _add_search(search, 60.0, "seconds; then the search ends with the best schedule so far")
    _add_output(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    parser.add_argument("--budget", required=True, help=_BUDGET)
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help=f"any of {_METHOD_NAMES} (default: all but milp-cbc, milp-gurobi, and those in -ap, which are second names)",
    )
    _add_search(parser, 30.0, "seconds for each method")
    _add_output(parser)


def _sweep(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser)
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help="as --budget of `checkmate solve` (default: nine, from the peak without recomputation down to what no schedule peaks "
        "below, as `checkmate info` says)",
    )
    _add_method(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw overhead over budget to this file (.png, .pdf or .svg)")
    _add_search(parser, 30.0, "seconds for each budget")
    _add_output(parser)


def _max_batch(parser: argparse.ArgumentParser) -> None:
    _add_graph(parser, batch=False)
    parser.add_argument(
        "--budget",
        required=True,
        help='most memory that the step may take, parameters and inputs included: bytes, with a unit ("16GB"), or "auto": the memory '
        "of the device model less 10%%",
    )
    parser.add_argument(
        "--max-overhead",
        type=float,
        default=1.33,
        metavar="X",
        help="most computing that is acceptable, relative to computing every op once (default: 1.33)",
    )
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="seconds for all batch sizes (default: 300)")
    _add_seed(parser)
    _add_output(parser)


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="folder for pictures and demo.json (default: demo-output)",
    )
    parser.add_argument("--json", action="store_true", help="print the rows of the table as JSON")
    parser.add_argument("--quiet", action="store_true", help="do not say what is being done; the table is printed")


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="auto", help=f"one of {_METHOD_NAMES} (default: auto)")


def _add_search(parser: argparse._ActionsContainer, seconds: float, limit: str) -> None:
    parser.add_argument(
        "--order",
        default="given",
        help="given: ops run for the first time in the graph's order; any: they may change places, as far as their inputs allow "
        "and forward stays before backward (default: given)",
    )
    parser.add_argument("--time-limit", type=float, default=seconds, metavar="S", help=f"{limit} (default: {seconds:g})")
    parser.add_argument(
        "--gap",
        type=float,
        default=0.001,
        help="stop when the cost is proven to be within this fraction of the least possible (default: 0.001)",
    )
    _add_seed(parser)


def _add_seed(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--seed", type=int, default=0, help="whole number that random choices begin with (default: 0)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help=_QUIET)
