"""The evaluation of Checkmate (Jain et al., MLSys 2020) once more, and past it: every method, the proven bounds, and networks since.

    python benchmarks/paper.py [--quick] [--jobs N] [--executor processes|dask|MODULE:CALLABLE] [--instances DIR] [--output paper] [--older]
        [--sections overhead ...] [--networks vgg19 ...] [--methods auto ...]

Sections: overhead against budget on the seven networks of the paper, in FLOPs (overhead) and in seconds measured here (profiled, where
PyTorch is installed); the largest batch on 16 GB (batches); solve times by the number of ops (times); networks since then (modern);
the graphs of MOCCASIN and FastSA, if --instances names a folder with them (traces).

It keeps every result in OUTPUT/cells.jsonl as soon as there is one. Stopped, or killed, and started again, it does only the rest; results of
other versions of the code are not used, or, with --older, only where there are none of this one. Of all that is kept it writes paper.json, paper.md, and figures as .png and .svg into OUTPUT.
--quick takes less than ten minutes on two cores.

An executor is any of `concurrent.futures`: of processes of this machine, of a Dask cluster (the package distributed), or what a function
returns that is called with the number of jobs.

Exit code 1 if a cell could not be answered, if a schedule is above its budget, or if one is cheaper, or a batch larger, than proven possible.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import paper_figures
import paper_profiled
import paper_tables
from paper_cells import Cell, version
from paper_plan import BATCHES, METHODS, MODERN_BATCHES, QUICK, SECTIONS, WHOLE, ladders
from paper_run import Kept, Row, executor_maker, run
from paper_summary import summary
from solver import environment

from checkmate import CheckmateError
from checkmate.planning.environment import available_processors

#: Above each table.
_TEXTS = {
    "costs": "## Cost over the optimum\n\nGeometric mean and maximum, over the budgets where the method finds a schedule (how many of how "
    "many), of its cost over the least cost that any method found, which is the optimum to 0.1% where checkmate's is proven; checkmate's "
    "own is over the proven bound. Costs are FLOPs; batches are those of the paper; budgets go from near the least working set to the peak that "
    "keeps the whole forward pass.\n\n![](overhead.svg)",
    "costs-beside": "Geometric means, in brackets those of the paper's Table 2.",
    "overhead": "Every budget:",
    "profiled-costs": "## The same with measured costs\n\nSeconds of every op on this machine, measured by the library on PyTorch models of the "
    "same layers, at the batches in the table below.\n\n![](profiled.svg)",
    "profiled": "Every budget:",
    "batches-once": "## The largest batch on 16 GB\n\nAt the cost of at most one more forward pass. Activations and costs grow with the batch, "
    "parameters and their gradients do not.\n\n![](batches.svg)",
    "batches-twice": "With parameters counted twice, as the paper's script does; what it gives is in brackets. On VGG19, MobileNet, U-Net and "
    "SegNet all are equal. On ResNet50 the schedules at articulation points need less memory here than the script's, and on FCN8 the greedy "
    "segments end elsewhere (a few more, linearized a few less); why has not been traced further.",
    "times": "## Solve times\n\nTo within 0.1%, at the middle of the budgets; the integer programs to within 0.1% of the optimum of their own class. "
    "A size is tried where the one below was done.\n\n![](times.svg)",
    "modern-costs": "## Networks since then\n\n![](modern.svg)",
    "modern": "Every budget:",
    "traces": "## The graphs of MOCCASIN and FastSA\n\nOverhead at a share of the peak without recomputation, and as published.",
    "checks": "## What is to be so",
    "exceptions": "",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer budgets and shorter limits: less than ten minutes on two cores"
    )
    parser.add_argument("--jobs", type=int, default=available_processors(), help="cells at a time (default: one per core)")
    parser.add_argument("--executor", default="processes", help="processes (default), dask, or MODULE:CALLABLE")
    parser.add_argument("--instances", type=Path, help="folder of traced graphs")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--networks", nargs="+", choices=[*BATCHES, *MODERN_BATCHES], help="default: all; leaves other graphs alone"
    )
    parser.add_argument("--methods", nargs="+", choices=(*METHODS, "keep-all"), help="default: all")
    parser.add_argument(
        "--older",
        action="store_true",
        help="show results of other versions where there are none of this one, if the graph is the same",
    )
    parser.add_argument("--output", type=Path, help="folder (default: paper, or paper-quick)")
    options = parser.parse_args()
    output = options.output or Path("paper-quick" if options.quick else "paper")
    kept = Kept(output / "cells.jsonl")
    profiled = output / "profiled"
    if "profiled" in options.sections:
        paper_profiled.measure(_chosen_networks(options), profiled, options.quick)
    whole = list(ladders(QUICK if options.quick else WHOLE, options.instances, profiled))
    chosen = [ladder for ladder in whole if _is_chosen(ladder[0], options)]
    began, cells = time.perf_counter(), sum(map(len, chosen))
    missing = sum(cell.key not in kept.rows for ladder in chosen for cell in ladder)
    print(f"version {version()}: {cells} cells, {missing} of them still to do, {options.jobs} at a time", flush=True)
    try:
        failures = run(chosen, kept, executor_maker(options.executor, options.jobs), options.jobs, say)
    except CheckmateError as error:
        print(f"paper.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; what is done is in {kept.path}: the same command does the rest", file=sys.stderr)
        return 130
    keys = {cell.key for ladder in whole for cell in ladder}
    rows = [row for ladder in whole for cell in ladder if (row := kept.find(cell, options.older)) is not None]
    print(f"{len(rows)} of at most {len(keys)} cells are there, after {time.perf_counter() - began:.0f} s")
    data = summary(rows, [cell for ladder in whole for cell in ladder])
    sound = report(data, output)
    for failure in failures:
        print(f"not answered: {failure}", file=sys.stderr)
    return 0 if sound and not failures else 1


def _chosen_networks(options: argparse.Namespace) -> list[str]:
    return [name for name in BATCHES if not options.networks or name in options.networks]


def _is_chosen(cell: Cell, options: argparse.Namespace) -> bool:
    if cell.section not in options.sections or (options.methods and cell.method not in options.methods):
        return False
    return not options.networks or cell.section in ("times", "traces") or cell.name in options.networks


def say(row: Row) -> None:
    """A line for a new result."""
    where = f"{row['section']:9} {row['graph']:22} {row['budget']:15} {row['method']:22} {row['order']:5}"
    if row["section"] == "batches":
        what = f"{row['largest']:9}"
    else:
        what = "        -" if row["overhead"] is None else f"{row['overhead']:9.5f}"
    print(f"{where} {what} {row.get('took', 0):8.2f}", flush=True)


def report(data: dict[str, Any], output: Path) -> bool:
    """Writes paper.json, paper.md and the figures; returns whether nothing contradicts what is proven."""
    output.mkdir(parents=True, exist_ok=True)
    data = {"environment": environment(), "version": version(), **data}
    (output / "paper.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    drawn = paper_figures.draw(data, output)
    parts = [
        "# The evaluation of Checkmate, and past it",
        f"Made by `benchmarks/paper.py` from {data['cells']['there']} results of at most {data['cells']['wanted']}, on "
        f"{data['environment']['processor']}, {data['environment']['cores']} cores. {_of_older(data)}Sections without results are left out. Solvers are free "
        "ones; nothing here was run with Gurobi.",
    ]
    for name, table in paper_tables.TABLES.items():
        section = name.partition("-")[0].replace("costs", "overhead")
        if section in data and not data[section]:
            continue
        text = _TEXTS[name]
        if "![](" in text and text.partition("![](")[2].removesuffix(".svg)") not in drawn:
            text = text.partition("\n\n![](")[0]
        parts += [text, f"<!-- table: {name} -->\n{table(data)}\n<!-- end -->"]
    (output / "paper.md").write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    print(f"\n{paper_tables.checks(data)}\n\n{paper_tables.exceptions(data)}\n\n{output / 'paper.md'}")
    return not any(check["exceptions"] for check in data["checks"][-2:])


def _of_older(data: dict[str, Any]) -> str:
    older = data["cells"]["older"]
    return f"{older} of them are of an earlier version of the code. " if older else ""


if __name__ == "__main__":
    sys.exit(main())
