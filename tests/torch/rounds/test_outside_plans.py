"""What training does in which no plan has a part is told where it takes more than the budget."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.memory.held import Held
from checkmate.torch.rounds.group import Group

BACKWARD = "a backward pass through no compiled graph"


class Critic(nn.Sequential):
    """Its own loss is inside."""

    def __init__(self) -> None:
        super().__init__(*(layer for _ in range(4) for layer in (nn.Linear(96, 96), nn.Softplus())))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


def penalty(critic: nn.Module, x: Tensor) -> None:
    """On the gradient, around the plan."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(critic.forward(x), x, create_graph=True)
    gradient.square().sum().backward()


def contrast(critic: nn.Module, x: Tensor) -> None:
    """A loss of what was computed without gradients: what autograd saves is as large as for 12 batches."""
    with torch.no_grad():
        critic(x)
    y = x.clone().requires_grad_()
    torch.cat([y] * 4).exp().sin().square().sum().backward()


def of_another_model(critic: nn.Module, x: Tensor) -> None:
    """It has a budget of its own, or none."""
    other = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(96, 96), nn.Softplus())))
    other(x).sum().backward()


def trained(more: Callable[[nn.Module, Tensor], None], factor: float) -> tuple[list[str], int, int]:
    """What is told in steps of a model with more in them, the most that this takes with what training holds, and the budget."""
    torch.manual_seed(0)
    critic = Critic()
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    budget = int(factor * 2**20)
    checkmate.torch.compile(critic, budget=budget, time_limit=1, cost_model="flops")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            x = torch.randn(512, 96)
            critic(x).backward()
            with checkmate.torch.measure() as alone:
                more(critic, x)
            more(critic, x)
            optimizer.step()
            optimizer.zero_grad()
    messages = [str(one.message) for one in seen if isinstance(one.message, BudgetWarning)]
    return messages, alone.peak - alone.base, budget


@pytest.mark.parametrize("more", [penalty, contrast])
def test_a_backward_pass_through_no_compiled_graph_is_told(more: Callable[[nn.Module, Tensor], None]) -> None:
    messages, taken, budget = trained(more, 1.5)
    assert taken > budget  # whatever training holds
    (message,) = messages
    assert message.startswith(BACKWARD)


@pytest.mark.parametrize(("more", "factor"), [(penalty, 16), (contrast, 16), (of_another_model, 1.5)])
def test_one_that_fits_is_not_nor_that_of_another_model(more: Callable[[nn.Module, Tensor], None], factor: float) -> None:
    messages, taken, budget = trained(more, factor)
    assert not messages
    assert (taken > budget) == (more is of_another_model)


def with_sparse_gradients() -> tuple[nn.Embedding, torch.optim.SparseAdam, Held]:
    table = nn.Embedding(1000, 32, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    held = Held()
    held.watch(table.parameters())
    held.look()
    return table, optimizer, held


def test_what_a_step_with_sparse_gradients_takes_is_measured() -> None:
    """It cannot be predicted: how large they are depends on the batch."""
    table, optimizer, held = with_sparse_gradients()
    steps = []
    for number in range(4):
        table(torch.arange(500)).square().sum().backward()
        if number < 3:
            optimizer.step()
        else:
            with checkmate.torch.measure() as seen:
                optimizer.step()
        optimizer.zero_grad()
        steps.append(held.step_peak(torch.device("cpu")))
    assert steps[0] == 0  # it makes the state
    assert steps[1] > 500 * 32 * 4
    assert abs(steps[1] - (seen.peak - seen.base)) < 1000


def test_a_step_that_fails_leaves_nothing_being_measured() -> None:
    table, optimizer, held = with_sparse_gradients()
    for number in range(4):
        table(torch.arange(500)).square().sum().backward()
        if number == 1:
            optimizer.param_groups[0]["lr"] = "none"
            with pytest.raises(TypeError):
                optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        optimizer.zero_grad()
    assert held.step_peak(torch.device("cpu")) > 0
    with checkmate.torch.measure() as seen:
        torch.ones(1000)
    assert seen.peak > seen.base


@pytest.mark.parametrize("optimizers", [1, 2])
def test_graphs_that_one_optimizer_trains_tell_once(optimizers: int) -> None:
    """As blocks that are compiled one by one and do not run in one step."""
    given = {"budget": "1MiB"}
    blocks = [nn.Linear(4, 4) for _ in range(3)]
    groups = [Group(dict(given)) for _ in blocks]
    for group, block in zip(groups, blocks, strict=True):
        group.held.watch_module(block)
    kept = [
        torch.optim.SGD([p for block in blocks[start::optimizers] for p in block.parameters()]) for start in range(optimizers)
    ]
    for group in groups:
        group.held.look()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for group in groups:
            for _ in range(2):
                group._tell("no room", "no plan was found")
    assert len(told) == len(kept)
    with pytest.warns(BudgetWarning, match="something else"):
        groups[2]._tell("order", "something else")
