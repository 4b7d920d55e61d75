"""More models of one class than PyTorch compiles of one piece of code by itself: each has its own plan and budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch

#: PyTorch's own limit is 8.
COUNT = 10


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x)))
        return out


class Broken(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        out: Tensor = self.second(hidden)
        return out


def in_place(model: Any, **options: Any) -> Any:
    return checkmate.torch.compile(model, **options)


def by_name(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="checkmate", options=options)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch looks, between graphs
@pytest.mark.parametrize("kind", [Net, Broken])
@pytest.mark.parametrize("compile", [in_place, by_name])
def test_each_model_has_a_plan_of_its_own(compile: Callable[..., Any], kind: type[nn.Module]) -> None:
    models = []
    for _ in range(COUNT):
        model = kind()
        models.append((model, compile(model, budget="1GiB", cost_model="flops")))
    for _ in range(2):
        for _, compiled in models:
            compiled(torch.randn(3, 8)).sum().backward()
    found = [checkmate.torch.plans(model) for model, _ in models]
    assert all(plans and all(plan.executions for plan in plans[-1:]) for plans in found)
    assert len({id(plan) for plans in found for plan in plans}) == sum(len(plans) for plans in found)
