"""Random PyTorch programs under a budget, against eager training: every number equal to the bit, no crash, no peak that is not told.

A program (`torch_fuzz_programs.py`) has views, writes in place, tied and unused parameters, buffers, breaks of the graph, dropout, outputs
that the loss does not use; a script trains it for five steps, with batches of several sizes, microbatches, evaluation between steps,
frozen parameters. All outputs, losses, gradients (None, too), parameters, buffers and the next random number are compared. PyTorch's
own `torch.compile(backend="aot_eager")` may change some of them (it draws no random numbers that nothing reads): what ours has in common
with it is no failure, nor is what it cannot train either.

    python benchmarks/torch_fuzz.py [--programs 300] [--seed 0] [--show] [--output torch_fuzz.json]

A program takes some 5 s. Ctrl-C stops it and writes what was found so far; `--programs 1 --seed SEED --show` prints one program and what
came of it. Exit code 1 if there is any failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch_fuzz_programs import Program, generate
from torch_lengths import surroundings

import checkmate.torch
from checkmate import InfeasibleBudget

STEPS = 5
#: Budgets that are tried, each the one that the error before asks for: the first error knows of the first graph alone.
TRIES = 5
TIME_LIMIT = 1.0  # s, of a search
#: What is no failure.
FINE = ("same", "as aot_eager", "not trained")

#: Given a module and a budget it returns what is called.
Compile = Callable[..., Any]
#: What training came to: names and values.
Found = list[tuple[str, torch.Tensor | None]]


def made(program: Program) -> Any:
    """Its module. The source is a file, as PyTorch compiles nothing else."""
    name = f"program_{program.seed}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(program.source(), encoding="utf-8")
        sys.path.insert(0, folder)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        try:
            model = importlib.import_module(name).Model
        finally:
            sys.path.remove(folder)
    torch.manual_seed(program.seed)
    return model()


def train(program: Program, model: Any, call: Callable[..., Any]) -> Found:
    """Train for some steps. Everything a script can see is noted."""
    script, found, parameters = program.script, [], list(model.parameters())
    torch.manual_seed(program.seed + 1)
    optimizer = getattr(torch.optim, script.optimizer)(parameters, lr=1e-3)
    for step in range(STEPS):
        size = script.size(step)
        optimizer.zero_grad(set_to_none=script.to_none)
        if script.freezes and step == 2:
            parameters[-1].requires_grad_(False)
        for turn in range(script.micro):
            found += _backward(program, model, call, size, 2 * step + turn)
        found += [(f"gradient of {name}", _copy(parameter.grad)) for name, parameter in model.named_parameters()]
        optimizer.step()
        if script.evaluates and step % 2 == 0:
            model.eval()
            with torch.no_grad():
                found += [("evaluated", _copy(x)) for x in _flat(call(*script.inputs(99, size)))]
            model.train()
        found.append(("step", None))
    found += [(name, _copy(value)) for name, value in model.state_dict().items()]
    return [*found, ("next random number", torch.rand(1))]


def _backward(program: Program, model: Any, call: Callable[..., Any], size: int, seed: int) -> Found:
    x, y = program.script.inputs(seed, size)
    outputs = call(x, y)
    loss = model.loss(outputs)
    if program.script.twice:
        loss = loss + model.loss(call(y.clone(), x.detach().clone()))
    loss.backward()
    named = [("loss", loss), *((f"output {i}", output) for i, output in enumerate(_flat(outputs)))]
    return [*((name, _copy(value)) for name, value in named), ("x", _copy(x)), ("gradient of x", _copy(x.grad))]


def _flat(outputs: Any) -> list[Any]:
    return list(outputs.values() if isinstance(outputs, dict) else outputs)


def _copy(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().clone()


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


def _zero(one: Any, other: Any) -> bool:
    """One is None, the other are zeros: aot_eager's gradients where there are none."""
    return (one is None) != (other is None) and not (other if one is None else one).any()


def difference(expected: Found, found: Found, also: Found | None = None) -> str:
    """The first value that is not as expected, nor as in `also`; empty if there is none."""
    step = 0
    for (name, value), (_, ours), (_, other) in zip(expected, found, also or expected, strict=True):
        step += name == "step"
        if not _same(value, ours) and not _same(other, ours) and not (also and _zero(other, ours)):
            apart = (
                "None" if ours is None or value is None else f"{float((ours.double() - value.double()).abs().max()):.1e} apart"
            )
            return f"{name} in step {step}: {apart}"
    return ""


def _eager(program: Program) -> Found | None:
    """What eager training comes to; None if it fails, or differs from run to run."""
    with suppress(RuntimeError, ValueError, IndexError):
        first, second = (train(program, model, model) for model in (made(program), made(program)))
        losses = [value for name, value in first if name == "loss"]
        return None if difference(first, second) or not all(map(torch.isfinite, losses)) else first
    return None


def _aot_eager(program: Program) -> Found | None:
    torch._dynamo.reset()
    model = made(program)
    try:
        return train(program, model, torch.compile(model, backend="aot_eager"))
    except Exception:  # noqa: BLE001 - whatever goes wrong in PyTorch
        return None


def _ours(program: Program, compile: Compile) -> tuple[Found, Any, list[str]]:
    """What training under the least budget that is not refused comes to, the module, and warnings."""
    budget: str | int = program.script.budget
    for _ in range(TRIES):
        torch._dynamo.reset()
        model = made(program)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = train(program, model, compile(model, budget=budget, time_limit=TIME_LIMIT, wait=program.script.wait))
            return found, model, [str(warning.message) for warning in caught if "step" in str(warning.message)]
        except InfeasibleBudget as error:
            budget, refused = error.smallest_found, error
    raise refused


def judge(program: Program, compile: Compile = checkmate.torch.compile) -> tuple[str, str]:
    """What came of a program, and details."""
    expected = _eager(program) if program.loss else None
    if expected is None and program.loss and program.script.sizes:
        program = program.with_one_size()
        expected = _eager(program)
    if expected is None:
        return "not trained", "nothing to train, eager training fails, or it differs from run to run"
    try:
        found, model, told = _ours(program, compile)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        refused = isinstance(error, InfeasibleBudget) or _aot_eager(program) is None
        return "not trained" if refused else "fails", f"{type(error).__name__}: {error}"
    if differs := difference(expected, found):
        other = _aot_eager(program)
        if other is None or difference(expected, found, other):
            return "differs", differs
    plans = checkmate.torch.plans(model)
    over = [plan for plan in plans if plan.measured_peak is not None and plan.measured_peak > plan.budget]
    if over and not told:
        return "above the budget", f"{over[0].measured_peak} bytes of {over[0].budget}"
    recomputed = sum(plan.schedule.num_recomputations for plan in plans)
    return "as aot_eager" if differs else "same", differs or f"{len(plans)} plans, {recomputed} ops computed again"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print programs and details")
    parser.add_argument("--output", type=Path, help="a JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch._logging.set_logs(dynamo=logging.ERROR)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    begin = time.monotonic()
    with suppress(KeyboardInterrupt):
        for number, seed in enumerate(range(args.seed, args.seed + args.programs), 1):
            program = generate(seed)
            kind, detail = judge(program)
            counts[kind] += 1
            if kind not in FINE:
                failures.append({"seed": seed, "kind": kind, "detail": detail[:1000]})
                print(f"seed {seed}: {kind}: {detail}", flush=True)
            if args.show:
                print(f"{program.script}\n{program.source()}\n{kind}: {detail}")
            if number % 20 == 0:
                print(f"{number} programs, {len(failures)} failures: {dict(counts)}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{counts.total()} programs in {seconds:.0f} s: {dict(counts)}, {len(failures)} failures")
    if args.output:
        settings = {"programs": args.programs, "seed": args.seed, "steps": STEPS, "time_limit": TIME_LIMIT}
        report = {"environment": surroundings(), "settings": settings, "seconds": seconds, "counts": counts, "failures": failures}
        args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
