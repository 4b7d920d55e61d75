"""Random PyTorch programs under a budget, against plain training: every number equal, no crash, no peak that is not told.

A program (`torch_fuzz_programs.py`) has views, writes in place, tied and unused parameters, buffers, breaks of the graph, dropout, outputs
that the loss does not use; a script (`torch_fuzz_scripts.py`, `torch_fuzz_steps.py`) trains it: backward passes that run twice, hooks, several models and
optimizers, evaluation between steps, errors that it catches. All outputs, losses, gradients (None, too), parameters, buffers and the next
random number are compared with eager training, to the bit; with `--inner inductor` with plain Inductor, up to rounding. PyTorch's own
`torch.compile(backend="aot_eager")` may change some of them (it draws no random numbers that nothing reads), and so may Inductor where it
compiles other graphs than ours (of `nn.LSTM`, which it runs as eager training does): what ours has in common with either is no failure, nor
is what they cannot train.

    python benchmarks/torch_fuzz.py [--programs 300] [--seed 0] [--inner eager] [--show] [--output torch_fuzz.json]

A program takes some 5 s, with Inductor 30 s. Ctrl-C stops it and writes what was found so far; `--programs 1 --seed SEED --show` prints one
program and what came of it. Exit code 1 if there is any failure.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from fuzz_report import Outcome, imported, options, survey
from torch_fuzz_programs import Program, generate
from torch_fuzz_steps import Found, Training
from torch_lengths import surroundings

import checkmate.torch
from checkmate import InfeasibleBudget

#: Budgets that are tried, each the one that the error before asks for: the first error knows of the first graph alone.
TRIES = 5
TIME_LIMIT = 1.0  # s, of a search
#: What is no failure.
FINE = ("same", "as another", "not trained")
#: By what runs the ops: how far numbers may be apart, as a share of the largest. Inductor adds numbers up in another order.
ROUNDING = {"eager": 0.0, "inductor": 1e-3}
LEAST = 1e-6  # for numbers that are zero but for rounding

#: Lines of the longest program.
LONGEST = {"eager": 28, "inductor": 8}

#: Given a module, and a budget and the like, it returns what is called.
Compile = Callable[..., Any]


def made(program: Program) -> Any:
    """Its module."""
    model = imported(f"program_{program.seed}", program.source()).Model
    torch.manual_seed(program.seed)
    return model()


def train(program: Program, compile: Compile) -> tuple[Found, Any]:
    """Train for some steps. Everything that a script can see is noted; and the module."""
    torch._dynamo.reset()
    model = made(program)
    torch.manual_seed(program.seed + 1)
    training = Training(model, compile, program.script.inputs, random.Random(program.seed))
    return training.run(program.script.plot.steps), model


def _same(one: torch.Tensor | None, other: torch.Tensor | None, rounding: float) -> bool:
    """Whether two values are, up to so much of the largest number."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not rounding or not one.is_floating_point():
        return torch.allclose(one, other, 0.0, 0.0, equal_nan=True)
    one, other = one.double(), other.double()
    largest = float(one.nan_to_num(0, 0, 0).abs().amax()) if one.numel() else 0.0
    return torch.allclose(one, other, 0.0, rounding * largest + LEAST, equal_nan=True)


def _zero(one: Any, other: Any) -> bool:
    """One is None, the other are zeros: aot_eager's gradients where there are none."""
    return (one is None) != (other is None) and not (other if one is None else one).any()


def _apart(one: torch.Tensor | None, other: torch.Tensor | None) -> str:
    if one is None or other is None:
        return "None"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    return f"{float((other.double() - one.double()).abs().max()):.1e} apart"


def difference(expected: Found, found: Found, also: Found | None = None, rounding: float = 0.0) -> str:
    """The first value that is not as expected, nor as in `also`; empty if there is none."""
    names, step = [name for name, _ in expected], ""
    if names != [name for name, _ in found]:
        return "what is seen are other things"
    if also is None or names != [name for name, _ in also]:
        also = None
    for (name, value), (_, ours), (_, other) in zip(expected, found, also or expected, strict=True):
        step = name if name.startswith("step") else step
        like_other = also is not None and (_same(other, ours, rounding) or _zero(other, ours))
        if not _same(value, ours, rounding) and not like_other:
            return f"{name} in {step}: {_apart(value, ours)}"
    return ""


def _eager(program: Program) -> Found | None:
    """What eager training comes to; None if it fails, or differs from run to run."""
    with suppress(RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        first, second = (train(program, lambda model: model)[0] for _ in range(2))
        losses = [value for name, value in first if name == "loss" and value is not None]
        return None if difference(first, second) or not all(map(torch.isfinite, losses)) else first
    return None


def _plain(program: Program, backend: str) -> Found | None:
    """What training under a backend of PyTorch's own comes to."""
    try:
        # Without it a backward pass runs once only.
        with torch._functorch.config.patch(donated_buffer=False):
            return train(program, lambda model: torch.compile(model, backend=backend))[0]
    except Exception:  # noqa: BLE001 - whatever goes wrong in PyTorch
        return None


def _ours(program: Program, inner: str, compile: Compile) -> tuple[Found, Any, list[str]]:
    """What training under the least budget that is not refused comes to, the module, and warnings."""
    script = program.script
    options: dict[str, Any] = {"budget": script.budget, "time_limit": TIME_LIMIT, "wait": script.wait, "inner": inner}

    def compiled(model: Any) -> Any:
        return torch.compile(model, backend="checkmate", options=options) if script.by_name else compile(model, **options)

    for _ in range(TRIES):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found, model = train(program, compiled)
            return found, model, [str(warning.message) for warning in caught if "step" in str(warning.message)]
        except InfeasibleBudget as error:
            options["budget"], refused = error.smallest_found, error
    raise refused


def judge(program: Program, inner: str = "eager", compile: Compile = checkmate.torch.compile) -> tuple[str, str]:
    """What came of a program, and details."""
    eager = _eager(program) if program.loss else None
    if eager is None and program.loss and program.script.sizes:
        program = program.with_one_size()
        eager = _eager(program)
    expected = eager if eager is None or inner == "eager" else _plain(program, inner)
    if expected is None:
        return "not trained", "nothing to train, plain training fails, or it differs from run to run"
    try:
        found, model, told = _ours(program, inner, compile)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        refused = isinstance(error, InfeasibleBudget) or _plain(program, "aot_eager") is None
        return "not trained" if refused else "fails", f"{type(error).__name__}: {error}"
    rounding = ROUNDING[inner]
    if differs := difference(expected, found, rounding=rounding):
        other = _plain(program, "aot_eager") if inner == "eager" else eager
        if other is None or difference(expected, found, other, rounding):
            return "differs", differs
    plans = checkmate.torch.plans(model)
    over = [plan for plan in plans if plan.measured_peak is not None and plan.measured_peak > plan.budget]
    if over and not told:
        return "above the budget", f"{over[0].measured_peak} bytes of {over[0].budget}"
    recomputed = sum(plan.schedule.num_recomputations for plan in plans)
    return "as another" if differs else "same", differs or f"{len(plans)} plans, {recomputed} ops computed again"


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--inner", choices=tuple(ROUNDING), default="eager", help="what runs the ops")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch._logging.set_logs(dynamo=logging.ERROR)
    warnings.simplefilter("ignore")

    def outcome(seed: int) -> Outcome:
        program = generate(seed, LONGEST[args.inner])
        text = f"{program.script}\n{program.script.plot.names()}\n{program.source()}"
        return Outcome(*judge(program, args.inner), text)

    return survey(args, outcome, FINE, surroundings(), {"inner": args.inner, "time_limit": TIME_LIMIT})


if __name__ == "__main__":
    sys.exit(main())
