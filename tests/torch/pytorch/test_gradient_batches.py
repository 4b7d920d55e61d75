"""Backward passes for many gradients at a time: against one pass for each in plain training."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch._vmap_internals import _vmap

import checkmate.torch
from checkmate.torch import BudgetWarning
from torch_models import identical


class Heads(nn.Module):
    """Two outputs, of which one may have no gradient; and dropout, which a plan draws again."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2))))
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return x, self.head(x).sin()


def planned(model: nn.Module, **options: object) -> nn.Module:
    options = {"budget": "60%", "time_limit": 1, "gap": 0.02, **options}
    return checkmate.torch.compile(copy.deepcopy(model), **options)


# What several passes take, and the gradients of all, are more than the budget.
@pytest.mark.filterwarnings("ignore::checkmate.errors.BudgetWarning")
@pytest.mark.parametrize("place", [0, 1])
def test_one_pass_for_each_gradient(place: int) -> None:
    torch.manual_seed(0)
    plain, x = Heads(), torch.randn(512, 32, requires_grad=True)
    model, many = planned(plain), torch.randn(3, 512, (32, 4)[place])
    for _ in range(3):
        found = []
        for each in (plain, model):
            torch.manual_seed(1)
            result, wanted = each(x)[place], [x, *each.trunk.parameters()]
            if each is plain:
                rows = [torch.autograd.grad(result, wanted, one, retain_graph=True) for one in many]
                found.append([torch.stack(column) for column in zip(*rows, strict=True)])
            else:
                found.append(list(torch.autograd.grad(result, wanted, many, is_grads_batched=True)))
        assert identical(*found)
    (plan, *_) = checkmate.torch.plans(model)
    assert plan.schedule.num_recomputations


# PyTorch imports modules of its own that are deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_jacobian_at_once(inner: str) -> None:
    torch.manual_seed(0)
    plain, x = Heads().eval(), torch.randn(2, 32)
    model = planned(plain, budget="1GiB", inner=inner)
    expected, found = (torch.autograd.functional.jacobian(each, x, vectorize=True) for each in (plain, model))
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(expected, found, strict=True))


def test_batches_inside_each_other() -> None:
    torch.manual_seed(0)
    plain, x = Heads().eval(), torch.randn(2, 32, requires_grad=True)
    many, more = torch.randn(3, 2, 32), torch.randn(5, 2, 4)
    found = []
    for each in (plain, planned(plain, budget="1GiB")):
        both = each(x)

        def of(one: Tensor, other: Tensor, both: tuple[Tensor, ...] = both) -> Tensor:
            return torch.autograd.grad(both, x, (one, other), retain_graph=True)[0]

        found.append(_vmap(lambda one, of=of: _vmap(lambda other: of(one, other))(more))(many))  # type: ignore[misc]
    assert found[0].shape == (3, 5, 2, 32)
    assert torch.allclose(*found, atol=1e-6)


def test_what_is_told_of_a_step_without_room_is_above_the_budget() -> None:
    """The gradients of the pass before are a part of what the next one takes."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Dropout(0.2), nn.Tanh())))
    checkmate.torch.compile(model, budget=169_088, time_limit=1, wait=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", BudgetWarning)
        for _ in range(3):
            x = torch.randn(4, 64, requires_grad=True)
            y = model(x)
            gradients = torch.autograd.grad(y, [x, *model.parameters()], torch.randn(3, 4, 64), is_grads_batched=True)
            assert len(gradients) == 7
    (message,) = [text for one in told if "no plan was found that takes less" in (text := str(one.message))]
    assert int(message.partition(" bytes)")[0].rpartition("(")[2]) > 169_088
