"""What steps under a plan are measured to take."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate.errors import BudgetWarning

FLOPS: dict[str, Any] = {"cost_model": "flops", "time_limit": 2.0, "gap": 0.05}


class Net(nn.Module):
    def __init__(self, last: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.wide, self.narrow, self.last = nn.Linear(16, 64), nn.Linear(64, 16), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.narrow(torch.tanh(self.wide(x)))).square().mean()


@torch.library.custom_op("checkmate_tests::hungry", mutates_args=())
def hungry(x: Tensor) -> Tensor:
    """It takes four times its input besides, which only a run can show."""
    return torch.empty(4, *x.shape).copy_(x)[0].clone()


@hungry.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


hungry.register_autograd(lambda ctx, gradient: gradient)


def test_a_later_step_at_larger_sizes_that_takes_more_than_the_budget_is_told() -> None:
    torch.manual_seed(0)
    model = checkmate.torch.compile(Net(hungry), budget="100%", shapes={"x": (256, 16)}, **FLOPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        for size in (8, 4, 8):
            model(torch.randn(size, 16)).backward()
    with pytest.warns(BudgetWarning, match="the last step peaked at"):
        model(torch.randn(256, 16)).backward()


def test_a_step_that_fails_halfway_is_not_what_steps_take() -> None:
    torch.manual_seed(0)
    model = checkmate.torch.compile(Net(), budget="1GiB", **FLOPS)

    def fail(parameter: Tensor) -> None:
        raise ArithmeticError

    hook = model.wide.weight.register_post_accumulate_grad_hook(fail)
    with pytest.raises(ArithmeticError):
        model(torch.randn(256, 16)).backward()
    hook.remove()
    for _ in range(2):
        model(torch.randn(256, 16)).backward()
    undisturbed = checkmate.torch.compile(Net(), budget="1GiB", **FLOPS)
    for _ in range(2):
        undisturbed(torch.randn(256, 16)).backward()
    (plan,), (expected,) = checkmate.torch.plans(model), checkmate.torch.plans(undisturbed)
    assert plan.measured_peak is not None and expected.measured_peak is not None
    assert plan.measured_peak >= expected.measured_peak
