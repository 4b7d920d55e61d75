"""The promises on every device at hand: the same tests on the CPU and, where there is one, on a GPU.

PyTorch's kernels on a GPU repeat themselves only where they are told to: results are compared under deterministic algorithms.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import checkmate
import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.plan import allocated_bytes
from torch_models import Case, case, identical, train

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def on(device: str, name: str) -> Case:
    which = case(name)
    return replace(which, model=which.model.to(device), inputs=tuple(tensor.to(device) for tensor in which.inputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["residual", pytest.param("decoder", marks=pytest.mark.slow)])
def test_training_is_the_same_and_within_the_budget(device: str, name: str) -> None:
    which = on(device, name)
    plain = copy.deepcopy(which.model)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        train(which, checkmate.torch.compile(copy.deepcopy(which.model), 1, time_limit=2.0), 1)
    least = caught.value.smallest_found
    del caught
    budget = least + (least - allocated_bytes(torch.device(device))) // 10  # libraries keep more than these models take
    planned = checkmate.torch.compile(which.model, budget, time_limit=2.0, wait=True)
    assert identical(train(which, planned, 3), train(which, plain, 3))
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.device.type == device
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


@pytest.mark.parametrize("device", DEVICES)
def test_a_budget_below_the_minimum_names_one_that_works(device: str) -> None:
    which = on(device, "decoder")
    refused = checkmate.torch.compile(copy.deepcopy(which.model), 1000, time_limit=2.0)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        train(which, refused, 1)
    named = caught.value.smallest_found
    del refused, caught
    planned = checkmate.torch.compile(which.model, named, time_limit=2.0)
    train(which, planned, 2)
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.measured_peak is not None
    assert plan.measured_peak <= named


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_budget_can_be_on_what_the_allocator_reserves() -> None:
    which = on("cuda", "residual")
    planned = checkmate.torch.compile(which.model, "2GiB", of="reserved", time_limit=2.0)
    train(which, planned, 3)
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.measured_peak is not None
    assert torch.cuda.max_memory_reserved() <= plan.budget


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_counters_of_the_device_never_pass_the_budget() -> None:
    """From the first step on, profiling included."""
    which = on("cuda", "decoder")
    train(which, copy.deepcopy(which.model), 1)  # libraries take their workspace once
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        train(which, checkmate.torch.compile(copy.deepcopy(which.model), 1, time_limit=2.0), 1)
    budget = int(1.2 * caught.value.smallest_found)
    del caught
    torch.cuda.reset_peak_memory_stats()
    try:
        train(which, checkmate.torch.compile(which.model, budget, time_limit=2.0), 4)
    except BudgetWarning as warning:
        pytest.fail(f"{warning} ({before} bytes were allocated before)")
    assert torch.cuda.max_memory_allocated() <= budget
