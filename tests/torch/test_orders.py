"""Rounds whose graphs cannot be foreseen: what is expected of them, and that they keep to the budget."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.orders import Orders
from torch_models import identical

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # PyTorch looks at what goes from graph to graph

FLOPS = {"cost_model": "flops", "time_limit": 3.0, "gap": 0.02}


def order(name: str) -> Any:
    """Stands for an order: only whether two are equal matters."""
    return ((name, 0, False), (name, 0, True))


def foreseen(names: str, begun_as: str | None = None) -> tuple[Orders, list[bool]]:
    """Note rounds one by one; for each, whether it was foreseen and could be relied on.

    Args:
        begun_as: that all of them began under the plan of this order; None: of the one that was expected.
    """
    orders, known = Orders(), []
    for name in names:
        known.append(orders.certain and orders.expected == order(name))
        orders.note(order(name), orders.expected if begun_as is None else order(begun_as))
    return orders, known


@pytest.mark.parametrize("turn", ["a", "ab", "aab", "aaaaab", "aabab", "abcdefgh"])
def test_turns_are_foreseen(turn: str) -> None:
    _, known = foreseen(turn * 12)
    assert all(known[-4 * len(turn) :])


def test_two_that_take_turns_are_relied_on_after_each_has_come_once() -> None:
    _, known = foreseen("ab" * 4, begun_as="a")
    assert known == [False, False, False] + [True] * 5


def test_after_two_surprises_nothing_is_relied_on() -> None:
    assert not foreseen("ab" "c" "bcaacb", begun_as="a")[0].certain  # fmt: skip


def test_a_long_row_as_foreseen_is_relied_on_again() -> None:
    orders, _ = foreseen("abcabcbca", begun_as="a")
    assert not orders.certain
    came = 0
    while not orders.certain:
        orders.note(order("a"), None)
        came += 1
    assert 8 <= came <= 12


def test_a_surprise_that_comes_seldom_is_not_forgotten() -> None:
    rare = "a" * 99 + "b"
    _, known = foreseen(rare * 4)
    assert not any(known[300:])


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Gated(nn.Module):
    """Blocks that are compiled one by one; which of them run is said anew at each call."""

    def __init__(self, depth: int = 5, width: int = 32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x: Tensor, chosen: Sequence[int]) -> Tensor:
        for number in chosen:
            x = self.blocks[number](x)
        return x.square().mean()


def draws(steps: int, depth: int = 5) -> list[list[int]]:
    """Blocks of each step, of which the first always runs: all plans begin with it."""
    rng = random.Random(0)
    return [[0, *(number for number in range(1, depth) if rng.random() < 0.6)] for _ in range(steps)]


def train(model: Gated, x: Tensor, ways: Sequence[Sequence[int]], measured: Sequence[int] = ()) -> tuple[list[Tensor], list[int]]:
    """Losses and parameters, and the peaks of the steps with these numbers, in bytes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, peaks = [], []

    def step(chosen: Sequence[int]) -> None:
        optimizer.zero_grad()
        loss = model(x, chosen)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    for number, chosen in enumerate(ways):
        if number in measured:
            with checkmate.torch.measure("cpu") as seen:
                step(chosen)
            peaks.append(seen.peak)
        else:
            step(chosen)
    return [*losses, *(p.detach() for p in model.parameters())], peaks


def compiled(base: Gated, budget: int) -> Gated:
    model = copy.deepcopy(base)
    for block in model.blocks:
        checkmate.torch.compile(block, budget=budget, wait=True, **FLOPS)
    return model


def test_steps_whose_graphs_are_drawn_keep_to_the_budget() -> None:
    torch.manual_seed(0)
    base, x, ways = Gated(), torch.randn(2048, 32), draws(24)
    plain, peaks = train(copy.deepcopy(base), x, ways, measured=range(1, len(ways)))
    budget = int(0.6 * max(peaks))
    model = compiled(base, budget)
    values, peaks = train(model, x, ways, measured=range(4, len(ways)))
    assert identical(values, plain)
    assert max(peaks) <= budget


def test_a_step_that_takes_more_before_it_is_planned_is_told() -> None:
    torch.manual_seed(0)
    base, x, ways = Gated(), torch.randn(2048, 32), [[0], [0], [0], [0, 1, 2, 3, 4]]
    _, (alone, most) = train(copy.deepcopy(base), x, ways, measured=[2, 3])
    assert most > 2 * alone
    model = compiled(base, alone + alone // 4)
    for block in model.blocks[1:]:  # all have run before
        F.mse_loss(block(x[:8]), x[:8]).backward()
    with pytest.warns(BudgetWarning, match="it was not known which graphs belong to it"):
        train(model, x, ways)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        train(model, x, ways[-1:])
