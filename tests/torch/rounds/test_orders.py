"""Rounds whose graphs cannot be foreseen: what is expected of them, and that they keep to the budget."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning, backend
from checkmate.torch.memory.held import Held
from checkmate.torch.rounds.orders import Orders
from checkmate.torch.rounds.rounds import Round
from checkmate.torch.rounds.scripts import Scripts
from torch_models import identical

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # PyTorch looks at what goes from graph to graph

FLOPS = {"cost_model": "flops", "time_limit": 3.0, "gap": 0.02}


def order(name: str) -> Any:
    """Stands for an order: only whether two are equal matters."""
    return ((name, 0, False), (name, 0, True))


def foreseen(names: str, surprising: bool = False) -> tuple[Orders, list[bool]]:
    """Note rounds one by one; for each, whether it was foreseen and could be relied on.

    Args:
        surprising: those that came instead of another began under its plan, and passed the budget.
    """
    orders, known = Orders(), []
    for name in names:
        known.append(orders.certain and orders.expected == order(name))
        orders.note(order(name), surprising and orders.expected not in (None, order(name)))
    return orders, known


@pytest.mark.parametrize("turn", ["a", "ab", "aab", "aaaaab", "aabab", "abcdefgh"])
def test_turns_are_foreseen(turn: str) -> None:
    _, known = foreseen(turn * 12, surprising=True)
    assert all(known[-4 * len(turn) :])


def test_two_that_take_turns_are_relied_on_after_each_has_come_once() -> None:
    _, known = foreseen("ab" * 4)
    assert known == [False, False, False] + [True] * 5


def test_after_a_surprise_nothing_is_relied_on() -> None:
    assert not foreseen("abcbcaacb", surprising=True)[0].certain
    assert foreseen("abcbcaacb")[0].certain  # they kept to the budget


def test_a_long_row_as_foreseen_is_relied_on_again() -> None:
    orders, _ = foreseen("abcabcbca", surprising=True)
    assert not orders.certain
    came = 0
    while not orders.certain:
        orders.note(order("a"), False)
        came += 1
    assert 8 <= came <= 12


def test_a_surprise_that_comes_seldom_is_not_forgotten() -> None:
    rare = "a" * 99 + "b"
    _, known = foreseen(rare * 4, surprising=True)
    assert not any(known[300:])


def test_orders_of_long_ago_are_let_go() -> None:
    class Part:
        """Whose graphs run."""

    orders, first = Orders(), Part()
    gone = weakref.ref(first)
    orders.note(((first, 0, False),), False)  # type: ignore[arg-type]
    del first
    for _ in range(200):
        orders.note(((Part(), 0, False),), False)  # type: ignore[arg-type]
    assert gone() is None


def test_of_many_orders_those_may_come_again_that_have() -> None:
    orders, known = Orders(), []
    for name in "abcdefghijklmnadop":
        orders.note(order(name), False)
        known.append(orders.may_come_again)
    assert known == [name in "abcdefgh" for name in "abcdefghijklmnadop"]


def test_nothing_is_kept_of_rounds_that_have_shown_nothing() -> None:
    class Part:
        """Whose graphs run."""

        runner = None

    scripts, part, round = Scripts(Held()), Part(), Round[Any]()
    gone = weakref.ref(part)
    round.begin(part, ())  # type: ignore[arg-type]
    scripts.note(round)
    del part, round
    gc.collect()
    assert gone() is None


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


def trained(model: nn.Module, step: Callable[[nn.Module], Any], steps: int) -> tuple[list[bytes], list[int]]:
    """Gradients, buffers and a number drawn after each step, outside the memory that counts, and the peaks of the steps, in bytes."""
    values, peaks = [], []
    torch.manual_seed(7)
    for _ in range(steps):
        model.zero_grad()
        gc.collect()
        with checkmate.torch.measure("cpu") as seen:
            step(model)
        peaks.append(seen.peak)
        gradients = (p.grad for p in model.parameters() if p.grad is not None)
        values += [x.numpy().tobytes() for x in itertools.chain(gradients, model.buffers(), [torch.rand(())])]
    return values, peaks


def in_twice(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean() + model(2 * x).square().mean()


@pytest.mark.parametrize("more", [False, True], ids=["plain", "random"])
def test_a_model_that_is_called_twice_keeps_to_the_budget_from_the_first_step_on(more: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Dropout(0.3), nn.BatchNorm1d(32), Block(32)] if more else []
    base, x = nn.Sequential(Block(32), *layers), torch.randn(2048, 32)

    def step(model: nn.Module) -> None:
        in_twice(model, x).backward()

    plain, peaks = trained(copy.deepcopy(base), step, 4)
    model = checkmate.torch.compile(base, budget=int(0.7 * max(peaks)), wait=True, **FLOPS)
    values, peaks = trained(model, step, 4)
    assert values == plain
    plan = checkmate.torch.plans(model)[-1]
    assert max(peaks) <= plan.budget
    assert plan.executions == 3


def test_two_backward_passes_over_a_first_call_that_was_let_go() -> None:
    torch.manual_seed(0)
    base, x = nn.Sequential(Block(32), nn.Dropout(0.3), Block(32)), torch.randn(256, 32)

    def step(model: nn.Module) -> None:
        loss = in_twice(model, x)
        loss.backward(retain_graph=True)
        loss.backward()

    plain, peaks = trained(copy.deepcopy(base), step, 1)
    model = checkmate.torch.compile(base, budget=int(0.8 * max(peaks)), wait=True, **FLOPS)
    assert trained(model, step, 1)[0] == plain


class Shifted(nn.Module):
    """Its gradients need what it has remembered, and of its input at most a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.block = nn.Parameter(torch.randn(32)), Block(32)
        self.seen: Tensor
        self.register_buffer("seen", torch.ones(32))

    def forward(self, x: Tensor, way: str) -> Tensor:
        seen = self.seen
        if way == "it remembers":
            seen = seen.mul_(0.9).add_(x.mean(0)).clone()
        if way == "it copies":
            x = x.clone()
        return self.block((x + self.shift) * seen)


@pytest.mark.parametrize("way", ["its input changes", "it copies", "it remembers"])
def test_a_first_call_is_not_let_go_where_it_could_not_be_had_again(way: str) -> None:
    torch.manual_seed(0)
    base, x = Shifted(), torch.randn(256, 32)

    def step(model: nn.Module) -> None:
        given = x.clone()
        first = model(given, way)
        if way == "its input changes":
            given.mul_(2)
        loss = first.square().mean() + model(given, way).square().mean()
        if way == "it copies":
            given.mul_(2)
        loss.backward()

    plain, peaks = trained(copy.deepcopy(base), step, 2)
    model = checkmate.torch.compile(base, budget=int(0.9 * max(peaks)), wait=True, **FLOPS)
    assert trained(model, step, 2)[0] == plain


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


def test_steps_whose_graphs_are_drawn_among_many_are_not_all_planned() -> None:
    """Where all of them fit, none is a surprise, and each would be planned for nothing."""
    torch.manual_seed(0)
    base, x, ways = Gated(depth=9), torch.randn(64, 32), draws(40, depth=9)
    model = copy.deepcopy(base)
    for block in model.blocks:
        checkmate.torch.compile(block, budget="1GiB", **FLOPS)
    values, _ = train(model, x, ways)
    assert identical(values, train(copy.deepcopy(base), x, ways)[0])
    (group,) = {id(session.group): session.group for session in backend.sessions_of(model.parameters())}.values()
    assert len(group.plans) < len(set(map(tuple, ways))) / 2


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
