"""Ops that run graphs of their own: what these hold is under the budget."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import checkmate.torch
from checkmate.errors import BudgetWarning


class Choice(nn.Module):
    """One of two branches, by what the data says; between its ends each holds more than it is given or returns."""

    def __init__(self) -> None:
        super().__init__()
        wide = [nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU()]
        self.body = nn.Sequential(nn.Linear(16, 512), nn.GELU(), *wide, nn.Linear(512, 64))
        self.one, self.other = (nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        result: torch.Tensor = torch.cond(hidden.mean() > 0, lambda h: self.one(h), lambda h: self.other(h), (hidden,))
        return result


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_branches_are_under_the_budget_from_the_first_step_on() -> None:
    torch.manual_seed(0)
    plain = Choice()
    model = Choice()
    model.load_state_dict(plain.state_dict())
    compiled = checkmate.torch.compile(model, budget="80%")
    x = torch.randn(2048, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        for sign in (1, -1):
            for call in (plain, compiled):
                call(sign * x).square().mean().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
    for plan in checkmate.torch.plans(compiled):
        widest = max((op for op in plan.graph.ops if "cond" in op.name), key=lambda op: op.workspace)
        assert widest.workspace >= 2048 * 512 * 4
        assert plan.measured_peak is not None
        assert plan.measured_peak <= plan.budget
