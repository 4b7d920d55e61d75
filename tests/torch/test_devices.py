"""The promises on every device at hand: the same tests on the CPU and, where there is one, on a GPU.

PyTorch's kernels on a GPU repeat themselves only where they are told to: results are compared under deterministic algorithms.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.plan import allocated_bytes
from torch_models import Case, case, identical

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def on(device: str, name: str) -> tuple[Case, nn.Module, tuple[Tensor, ...]]:
    which = case(name)
    return which, copy.deepcopy(which.model).to(device), tuple(tensor.to(device) for tensor in which.inputs)


def trained(which: Case, model: nn.Module, inputs: tuple[Tensor, ...], steps: int = 3) -> list[Tensor]:
    """Losses and parameters."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(*inputs)
        loss = output if output.dim() == 0 else output.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["residual", "decoder"])
def test_training_is_the_same_and_within_the_budget(device: str, name: str) -> None:
    which, model, inputs = on(device, name)
    plain = copy.deepcopy(model)
    others = allocated_bytes(torch.device(device)) - sum(x.nbytes for x in (*model.parameters(), *model.buffers(), *inputs))
    planned = checkmate.torch.compile(model, "75%", reserved=max(0, others), time_limit=5.0, wait=True)
    assert identical(trained(which, planned, inputs), trained(which, plain, inputs))
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.device.type == device
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


@pytest.mark.parametrize("device", DEVICES)
def test_a_budget_below_the_minimum_names_one_that_works(device: str) -> None:
    which, model, inputs = on(device, "decoder")
    refused = checkmate.torch.compile(copy.deepcopy(model), 1000, time_limit=5.0)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        trained(which, refused, inputs, 1)
    named = caught.value.smallest_found
    del refused, caught
    planned = checkmate.torch.compile(model, named, time_limit=5.0)
    trained(which, planned, inputs, 2)
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.measured_peak is not None
    assert plan.measured_peak <= named


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_budget_can_be_on_what_the_allocator_reserves() -> None:
    which, model, inputs = on("cuda", "residual")
    planned = checkmate.torch.compile(model, "2GiB", of="reserved", time_limit=5.0)
    trained(which, planned, inputs)
    plan = checkmate.torch.plans(planned)[-1]
    assert plan.measured_peak is not None
    assert torch.cuda.max_memory_reserved() <= plan.budget


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_counters_of_the_device_never_pass_the_budget() -> None:
    """From the first step on, profiling included."""
    which, model, inputs = on("cuda", "decoder")
    trained(which, copy.deepcopy(model), inputs, 1)  # libraries take their workspace once
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        trained(which, checkmate.torch.compile(copy.deepcopy(model), 1, time_limit=5.0), inputs, 1)
    budget = int(1.2 * caught.value.smallest_found)
    del caught
    torch.cuda.reset_peak_memory_stats()
    try:
        trained(which, checkmate.torch.compile(model, budget, time_limit=5.0), inputs, 4)
    except BudgetWarning as warning:
        pytest.fail(f"{warning} ({before} bytes were allocated before)")
    assert torch.cuda.max_memory_allocated() <= budget
