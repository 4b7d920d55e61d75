"""Batch norm with cuDNN's kernels, which PyTorch's own stand for where there is no GPU."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import checkmate.torch
from checkmate.schedule import Compute, Schedule
from checkmate.torch.ops import batch_norm
from torch_models import Case, identical, train

aten = torch.ops.aten
#: Bytes of a reserve that the backward kernel checks.
RESERVE = 24
_called: list[str] = []


def _forward(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float) -> Any:
    _called.append("forward" if mean is not None else "again")
    results = torch.native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps)
    return (*results, torch.full((RESERVE,), 7, dtype=torch.uint8))


def _backward(x: Any, gradient: Any, weight: Any, mean: Any, variance: Any, m: Any, rstd: Any, eps: float, reserve: Any) -> Any:
    _called.append("backward")
    assert reserve.tolist() == [7] * RESERVE
    return aten.native_batch_norm_backward(gradient, x, weight, None, None, m, rstd, True, eps, [True] * 3)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """CPU kernels under the names of cuDNN's, and what was called."""
    _called.clear()
    monkeypatch.setattr(batch_norm, "_on_cudnn", lambda given, training: given[1] is not None)
    monkeypatch.setattr(batch_norm, "_reserve_bytes", lambda x: RESERVE)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("cudnn_batch_norm", _forward, "CPU")
        library.impl("cudnn_batch_norm_backward", _backward, "CPU")
        yield _called


def network(statistics: bool = True) -> nn.Module:
    def block(given: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(given, 16, 3, padding=1), nn.BatchNorm2d(16, track_running_stats=statistics), nn.ReLU(), nn.Tanh()
        )

    return nn.Sequential(*(block(3 if not i else 16) for i in range(6)), nn.Flatten(), nn.Linear(16 * 64, 4))


def repeated(schedule: Schedule) -> list[int]:
    """Ops that run again."""
    runs = Counter(step.op for step in schedule.steps if isinstance(step, Compute))
    return [op for op, count in runs.items() if count > 1]


@pytest.mark.parametrize("statistics", [True, False])
def test_training_is_the_same_where_batch_norms_run_again(kernels: list[str], statistics: bool) -> None:
    torch.manual_seed(0)
    model = network(statistics)
    which = Case("norms", model, (torch.randn(8, 3, 8, 8),), lambda out: out.square().mean())
    plain = copy.deepcopy(model)
    planned = checkmate.torch.compile(model, "60%", time_limit=5.0, wait=True)
    assert identical(train(which, planned, 3), train(which, plain, 3))
    plan = checkmate.torch.plans(planned)[-1]
    assert "again" in kernels
    assert kernels.count("backward") >= 3 * 6
    if statistics:  # the profile's runs and the steps' have them
        assert any("batch_norm" in plan.graph.ops[op].name for op in repeated(plan.schedule))
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
