"""Ops that do more than compute their outputs: `torch.linalg` checks what it has found, in the order of the user's calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from torch_models import twin

SIDE = 96
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "inverse": torch.linalg.inv,
    "solve": lambda matrix: torch.linalg.solve(matrix, torch.linalg.solve(matrix, torch.eye(SIDE))),
}


class Kernel(nn.Module):
    """The covariance of what a network makes of its inputs."""

    def __init__(self, operation: Callable[[Tensor], Tensor], jitter: float = 1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(SIDE, SIDE), nn.Tanh())))
        self.operation, self.jitter = operation, jitter

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        return self.operation(features.T @ features / len(x) + self.jitter * torch.eye(SIDE)).square().mean()


@pytest.mark.parametrize("name", OPERATIONS)
def test_linear_algebra_trains_as_without_a_plan(name: str) -> None:
    torch.manual_seed(0)
    plain = Kernel(OPERATIONS[name])
    model = twin(plain)
    checkmate.torch.compile(model, budget="70%", time_limit=2)
    x = torch.randn(20 * SIDE, SIDE)
    for _ in range(2):
        losses = []
        for each in (plain, model):
            each.zero_grad()
            losses.append(each(x))
            losses[-1].backward()
        assert torch.equal(*losses)
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    (plan,) = checkmate.torch.plans(model)
    assert plan.schedule.num_recomputations > 0
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget


# PyTorch imports modules of its own that are deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_errors_of_linear_algebra_reach_the_user(inner: str) -> None:
    model, x = Kernel(torch.linalg.cholesky, jitter=-10.0), torch.randn(SIDE, SIDE)
    try:
        torch.compile(twin(model), backend="aot_eager")(x)
    except torch.linalg.LinAlgError:
        pass
    else:
        pytest.skip("this release of PyTorch leaves the check out of what it compiles")
    checkmate.torch.compile(model, budget="1GiB", inner=inner)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        model(x)
