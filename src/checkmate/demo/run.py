"""One demo run: plain training, then training under budgets, of each model; figures, pictures and a JSON file."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..errors import CheckmateError, InfeasibleBudget, UnknownMethod
from ..files import write_file
from ..graph import Graph
from ..report.plots import check_can_plot, plot_schedule, plot_timelines
from ..solvers import solve
from ..text import printable
from ..torch import compile as compile_under_budget
from ..torch import measure, plans
from ..torch.memory.measure import Measurement
from ..units import format_bytes
from ..version import __version__
from .models import Workload, workloads

SEED = 0
STEPS = 5  #: optimizer steps that are compared
_TIMED = 7  # pairs of plain and planned steps
_SOLVE_SECONDS = 8.0
_ROOM = 1.1  # the first budget over the plain peak
_TIGHT = 1.2  # the last budget over the smallest for which a schedule is found
_BETWEEN = (0.5, 0.2)  # budgets between the tight one (0) and the plain peak (1)


@dataclass
class _Trained:
    """What training left behind. Arrays, not tensors: they must not count as tensor memory."""

    losses: list[float] = field(default_factory=list)
    arrays: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    peak: int = 0
    timeline: list[tuple[float, int]] = field(default_factory=list)


def run_models(output: Path, progress: Callable[[str], None], names: Sequence[str] | None, small: bool) -> list[dict[str, Any]]:
    """See `checkmate.demo.run_demo`."""
    known = workloads(small)
    for name in names or ():
        if name not in known:
            raise UnknownMethod(f"unknown model {name!r}: choose among {', '.join(known)}")
    check_can_plot(output / "memory.png")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckmateError(f"cannot make the folder {printable(output)}: {error.strerror or error}") from None
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name in names or list(known):
        rows += _run_model(known[name], output, progress)
    seconds = time.perf_counter() - started
    data = {"environment": environment(), "seed": SEED, "steps": STEPS, "seconds": seconds, "rows": rows}
    try:
        write_file(output / "demo.json", json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise CheckmateError(f"cannot write {printable(output / 'demo.json')}: {error.strerror or error}") from None
    progress(f"done in {seconds:.0f} s; pictures and demo.json are in {printable(output)}")
    return rows


def environment() -> dict[str, Any]:
    """Versions and machine, for files with figures."""
    return {
        "checkmate": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _run_model(workload: Workload, output: Path, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    name = workload.name
    progress(f"{name}: {workload.title}")
    model = _new_model(workload)
    plain = _train(workload, model)
    del model
    progress(f"{name}: plain training peaks at {format_bytes(plain.peak)}")
    rows: list[dict[str, Any]] = []
    budgets = [int(_ROOM * plain.peak)]
    for number in range(2 + len(_BETWEEN)):
        budget = budgets[number]
        progress(f"{name}: compiling and planning for {format_bytes(budget)}")
        _forget_everything()
        options: dict[str, Any] = {"budget": budget, "time_limit": _SOLVE_SECONDS, "seed": SEED}
        model = compile_under_budget(_new_model(workload), **options, wait=True)  # a search beside the steps would slow them down
        planned = _train(workload, model)
        (plan,) = plans(model)
        plain_seconds, planned_seconds = _interleaved_seconds(workload, model)
        row = {
            "model": name,
            "plain_peak": plain.peak,
            "budget": budget,
            "predicted_peak": plan.predicted_peak,
            "measured_peak": planned.peak,
            "plain_seconds": plain_seconds,
            "planned_seconds": planned_seconds,
            "predicted_overhead": plan.schedule.overhead,
            "measured_overhead": planned_seconds / plain_seconds,
            "solve_seconds": plan.schedule.solve_seconds,
            "gap": plan.schedule.gap,
            "recomputations": plan.schedule.num_recomputations,
            "ops": plan.graph.num_ops,
            "largest_difference": _largest_difference(plain, planned),
        }
        rows.append(row)
        progress(
            f"{name}: measured peak {format_bytes(planned.peak)} of {format_bytes(budget)}, "
            f"overhead {plan.schedule.overhead:.3f} planned, {row['measured_overhead']:.3f} measured, "
            f"largest difference {row['largest_difference']:g}"
        )
        if number == 0:
            progress(f"{name}: looking for the smallest budget")
            smallest = _smallest_budget(plan.graph)
            tight = min(int(_TIGHT * smallest), (smallest + plain.peak) // 2)
            budgets += [int(tight + share * (plain.peak - tight)) for share in (*_BETWEEN, 0.0)]
        del model
    plot_schedule(plan.schedule, output / f"{name}-schedule.png")
    curves = [("plain", plain), (f"planned for {format_bytes(budgets[-1])}", planned)]
    plot_timelines(
        [(label, [when for when, _ in run.timeline], [live for _, live in run.timeline]) for label, run in curves],
        budgets[-1],
        output / f"{name}-memory.png",
        f"{name}: live tensor bytes in one training step",
    )
    return rows


def _smallest_budget(graph: Graph) -> int:
    """The least budget, in bytes, for which the solver finds a schedule quickly."""
    try:
        return solve(graph, graph.min_working_set, method="greedy").peak
    except InfeasibleBudget as error:
        return error.smallest_found


def _new_model(workload: Workload) -> nn.Module:
    torch.manual_seed(SEED)
    return workload.build()


def _forget_everything() -> None:
    """So that what is measured next is not what an earlier row left behind."""
    torch.compiler.reset()
    gc.collect()


def _step(workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    optimizer.zero_grad(set_to_none=True)
    loss = workload.loss(model, workload.batch(number))
    loss.backward()
    optimizer.step()
    return loss.item()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def _train(workload: Workload, model: nn.Module) -> _Trained:
    """Some optimizer steps from the same start; the memory of all but the first, which compiles, is measured."""
    optimizer, result = _optimizer(model), _Trained()
    torch.manual_seed(SEED + 1)
    gc.collect()
    for number in range(STEPS):
        if number == 0:
            loss = _step(workload, model, optimizer, number)
        else:
            with measure("cpu") as measured:
                loss = _step(workload, model, optimizer, number)
            _note(result, measured)
        result.losses.append(loss)
        result.arrays.append(_arrays({f"gradient of {name}": p.grad for name, p in model.named_parameters()}))
        result.arrays.append(_arrays(dict(model.named_buffers())))
    result.arrays.append(_arrays(dict(model.named_parameters())))
    return result


def _arrays(tensors: dict[str, torch.Tensor | None]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items() if tensor is not None}


def _note(result: _Trained, measured: Measurement) -> None:
    if measured.peak >= result.peak:
        result.peak, result.timeline = measured.peak, measured.timeline


def _interleaved_seconds(workload: Workload, planned: nn.Module) -> tuple[float, float]:
    """Median seconds of a plain and of a planned step, taken in turns so that other work on the machine hits both."""
    pairs = [(model, _optimizer(model)) for model in (_new_model(workload), planned)]
    seconds: list[list[float]] = [[], []]
    for number in range(1 + _TIMED):
        for which, (model, optimizer) in enumerate(pairs):
            started = time.perf_counter()
            _step(workload, model, optimizer, number)
            if number:  # the first warms up
                seconds[which].append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _largest_difference(plain: _Trained, planned: _Trained) -> float:
    """Of losses, gradients, buffers and final parameters over all steps; infinite if anything is not a number."""
    largest = max(abs(a - b) for a, b in zip(plain.losses, planned.losses, strict=True))
    for one, other in zip(plain.arrays, planned.arrays, strict=True):
        if one.keys() != other.keys():
            return float("inf")
        for name, array in one.items():
            gap = np.abs(array.astype(np.float64) - other[name].astype(np.float64)).max(initial=0.0)
            largest = max(largest, float(gap) if np.isfinite(gap) else float("inf"))
    return largest if np.isfinite(largest) else float("inf")
