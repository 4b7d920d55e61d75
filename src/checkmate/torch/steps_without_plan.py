"""Say so when an optimizer step ends and no plan had a part in it.

It is the only moment that comes also where PyTorch compiled nothing and called nothing of this package: a method of the
script goes around the compiled call, another compiler has taken the place of this one, or only a copy was compiled.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .coverage import Coverage, compiled_models


class _Record:
    """What an optimizer's last step saw."""

    def __init__(self) -> None:
        self.parameters = 0
        #: The models whose parameters it updates, with their counts of calls and runs at its last step.
        self.models: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()
        self.others: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


_records: weakref.WeakKeyDictionary[Optimizer, _Record] = weakref.WeakKeyDictionary()


def install() -> None:
    """Watch the steps of all optimizers from now on."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if torch.compiler.is_dynamo_compiling():
        return  # an optimizer step inside a compiled function is none of this
    record = _records.setdefault(optimizer, _Record())
    groups = [group for group in optimizer.param_groups if not _is_zero(group.get("lr"))]
    count = sum(len(group["params"]) for group in groups)
    if count != record.parameters:
        record.parameters = count
        record.others.clear()
    running, idle = [], []
    for model, coverage in compiled_models():
        if model in record.others:
            continue
        if model not in record.models and not _updates(groups, model):
            record.others.add(model)
            continue
        calls, runs = record.models.get(model, (0, 0))
        record.models[model] = coverage.calls, coverage.runs
        if coverage.runs > runs:
            running.append(model)
        elif any(p.grad is not None for p in model.parameters()):
            idle.append((model, coverage, coverage.calls > calls))
    for model, coverage, called in idle:
        if not any(_is_part(model, other) or _is_part(other, model) for other in running):
            _tell(coverage, called)


def _is_zero(rate: Any) -> bool:
    """Steps that change nothing: scripts take them to fill an optimizer's state before it is loaded."""
    return isinstance(rate, int | float) and rate == 0


def _updates(groups: list[dict[str, Any]], model: torch.nn.Module) -> bool:
    updated = {id(parameter) for group in groups for parameter in group["params"]}
    return any(id(parameter) in updated for parameter in model.parameters())


def _is_part(part: torch.nn.Module, whole: torch.nn.Module) -> bool:
    return any(module is part for module in whole.modules())


def _tell(coverage: Coverage, called: bool) -> None:
    if called:
        coverage.tell_uncovered()
        return
    if coverage.left_out:
        coverage.tell(
            f"this {coverage.name} is a copy of a module that was compiled with Module.compile, which PyTorch leaves out of copies: no part "
            "of it is under the budget, and it trains as without checkmate; compile the copy too"
        )
        return
    coverage.tell(
        f"an optimizer step over the parameters of {coverage.name} has ended without a call of what was compiled, so nothing in it "
        "was under the budget: a method such as training_step may go around the compiled call (compile the module that it calls), "
        "or another torch.compile around this one may have taken its place (leave it out)"
    )
