"""Regions that a script has PyTorch compile once are planned in the places where they are called."""

from __future__ import annotations

import torch
from torch import nn

import checkmate.torch


class Inner(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(self.norm(x))
        return nn.functional.gelu(y), torch.tanh(y)


class Block(nn.Module):
    """A region in a region."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.drop = Inner(width), nn.Dropout(0.1)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.inner(x)
        return x + self.drop(one * other)


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(64) for _ in range(5)), nn.Linear(64, 3))


def test_training_is_identical_and_within_the_budget() -> None:
    plain, model = made(), made()
    compiled = checkmate.torch.compile(model, budget="60%")
    x = torch.randn(2048, 64)
    for one, call in ((plain, plain), (model, compiled)):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(one.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    (plan,) = checkmate.torch.plans(compiled)
    assert plan.schedule.num_recomputations
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert "0.inner.linear" in {op.layer for op in plan.graph.ops}
    plain.eval()
    model.eval()
    with torch.no_grad():
        assert torch.equal(compiled(x), plain(x))
