"""Plans for sizes that are yet to come."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate import CheckmateError, InfeasibleBudget
from checkmate.planning import plan as planning
from checkmate.torch.backend import sessions_of
from checkmate.torch.dry_run import DryRun
from checkmate.torch.rounds import group
from torch_models import identical, state

FLOPS: dict[str, Any] = {"cost_model": "flops", "time_limit": 2.0, "gap": 0.05}


class Net(nn.Module):
    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.BatchNorm1d(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.breaks = breaks

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = torch.tanh(self.wide(self.norm(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        out: Tensor = self.narrow(x).mul(scale).square().mean()
        return out


def step(model: nn.Module, size: int) -> list[Tensor]:
    torch.manual_seed(size)
    model.zero_grad()
    loss = model(torch.randn(size, 16))
    loss.backward()
    return [loss.detach(), *[p.grad for p in model.parameters() if p.grad is not None], *state(model)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch looks, between the graphs
@pytest.mark.parametrize("breaks", [False, True])
def test_one_plan_serves_all_sizes_up_to_those_announced(breaks: bool) -> None:
    torch.manual_seed(0)
    plain = Net(breaks)
    model = checkmate.torch.compile(copy.deepcopy(plain), budget="100%", shapes={"x": (64, 16)}, **FLOPS)
    for size in (8, 8, 64, 32, 64):
        assert identical(step(model, size), step(plain, size))  # running statistics among them
    (plan,) = checkmate.torch.plans(model)
    assert plan.num_graphs == 1 + breaks
    at_once = checkmate.torch.compile(copy.deepcopy(plain), budget="100%", **FLOPS)
    for _ in range(2):
        step(at_once, 64)
    assert plan.budget == checkmate.torch.plans(at_once)[-1].budget


def test_a_budget_that_is_too_small_for_them_is_an_error_at_once() -> None:
    torch.manual_seed(0)
    model = Net(False)
    small = checkmate.torch.compile(copy.deepcopy(model), budget=30_000, **FLOPS)
    step(small, 8)
    announced = checkmate.torch.compile(model, budget=30_000, shapes={"x": (256, 16)}, **FLOPS)
    with pytest.raises(InfeasibleBudget):
        step(announced, 8)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({"y": (8, 16)}, "the tensors of this call are: x"), ({"x": (8,)}, "1 dimensions"), ({"scale": (8,)}, "scale")],
)
def test_names_and_dimensions_are_checked(shapes: Any, message: str) -> None:
    model = checkmate.torch.compile(Net(False), budget="1MiB", shapes=shapes, **FLOPS)
    with pytest.raises(CheckmateError, match=message):
        model(torch.randn(8, 16), 2.0)


class Filled(nn.Module):
    """The shorter a text, the more there is of what it is filled up with, which is a path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.rest = (nn.ModuleList(nn.Linear(32, 32) for _ in range(6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rest = x.new_ones(512 - x.shape[0], 32)
        for given, other in zip(self.given, self.rest, strict=True):
            x, rest = torch.tanh(given(x)), torch.tanh(other(rest))
        return x.square().mean() + rest.square().mean()


@pytest.mark.filterwarnings("ignore:the peak of the first steps was not measured")  # this test measures them
@pytest.mark.parametrize("budget", [540_000, pytest.param(560_000, marks=pytest.mark.slow)])
def test_what_grows_as_inputs_get_smaller_keeps_to_the_budget(budget: int) -> None:
    torch.manual_seed(0)
    plain = Filled()
    planned = checkmate.torch.compile(copy.deepcopy(plain), budget=budget, dynamic=True, **FLOPS)

    def taken(model: nn.Module, size: int) -> int:
        model.zero_grad()
        with checkmate.torch.measure("cpu") as seen:
            model(torch.ones(size, 32)).backward()
        return seen.peak - seen.base + sum(p.nbytes for p in model.parameters())

    for size in (300, 200, 10, 300, 200, 100, 10):
        assert taken(plain, size) > budget >= taken(planned, size)
        assert identical([p.grad for p in planned.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[arg-type]  # all have one


def test_parts_of_batches_of_several_sizes() -> None:
    """A part shows its own sizes, and its storage is the whole batch, whose sizes PyTorch leaves open."""
    torch.manual_seed(0)
    plain = Net(breaks=False)
    model = checkmate.torch.compile(copy.deepcopy(plain), budget="64KiB", **FLOPS)
    for size in (32, 48, 16, 64):
        batch = torch.randn(size, 16)
        for x in batch.chunk(4):
            for one in (plain, model):
                one.zero_grad()
                one(x).backward()
            assert identical([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[misc]  # none is None
    first = checkmate.torch.plans(model)[0].graph.fixed_memory
    assert first >= sum(p.nbytes for p in plain.parameters()) + 32 * 16 * 4, "the whole batch counts"


def test_where_each_size_has_a_graph_they_share_the_search_and_those_not_used_go(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    searches = []
    search = planning.solve_cached

    def counted(*arguments: Any, **keywords: Any) -> Any:
        searches.append(arguments)
        return search(*arguments, **keywords)

    monkeypatch.setattr(planning, "solve_cached", counted)
    monkeypatch.setattr(group, "_KEPT", 2)
    plain = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8)], nn.Linear(16, 1), nn.Flatten(0))
    model = checkmate.torch.compile(copy.deepcopy(plain), budget=82_000, dynamic=False, **FLOPS)
    for size in (128, 120, 128, 112):
        for each in (plain, model):
            each.zero_grad()
            each(torch.ones(size, 16)).sum().backward()
        assert identical([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[arg-type]  # all have one
    first, last = checkmate.torch.plans(model)  # that of 120 ran longest ago
    assert (first.executions, last.executions) == (2, 1)
    assert first.graph.fixed_memory > last.graph.fixed_memory
    assert all(plan.schedule.num_recomputations > 0 for plan in (first, last))
    assert len(searches) == 1
    model(torch.ones(120, 16)).sum().backward()
    assert len(searches) == 1
    assert [plan.executions for plan in checkmate.torch.plans(model)] == [1, 1]


class PartlyOutside(Net):
    """A part of it is not compiled, and draws numbers from three generators."""

    def __init__(self) -> None:
        super().__init__(breaks=False)
        self.inner = nn.BatchNorm1d(64)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = self.narrow(self.outside(torch.tanh(self.wide(x)))).square().mean()
        return out

    @torch.compiler.disable
    def outside(self, x: Tensor) -> Tensor:
        return self.inner(nn.functional.dropout(x)) * (random.random() + np.random.random())


@pytest.mark.filterwarnings("ignore:a part of PartlyOutside runs outside the plan", "ignore:The .grad attribute of a Tensor")
def test_what_is_not_compiled_leaves_no_trace_of_the_announced_sizes() -> None:
    torch.manual_seed(0)
    plain = PartlyOutside()
    model = checkmate.torch.compile(copy.deepcopy(plain), budget="1GiB", shapes={"x": (64, 16)}, **FLOPS)

    def steps(which: nn.Module) -> list[Tensor]:
        random.seed(0)
        np.random.seed(0)
        return [tensor.clone() for size in (8, 16, 8) for tensor in step(which, size)]

    assert identical(steps(model), steps(plain))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_modules_that_are_compiled_one_by_one_have_one_plan_for_what_is_announced_to_each() -> None:
    def blocks(size: int | None = None) -> tuple[list[nn.Module], Callable[[int], None]]:
        layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), Net(breaks=False)]
        made = []
        for layer in layers:
            announced: Any = None if size is None else {next(iter(signature(layer.forward).parameters)): (size, 16)}
            made.append(checkmate.torch.compile(layer, budget="100%", shapes=announced, **FLOPS))

        def step(size: int) -> None:
            x = torch.randn(size, 16)
            for block in made:
                x = block(x)
            x.backward()

        return made, step

    made, step = blocks(256)
    for _ in range(2):
        step(8)
    at_once, step = blocks()
    for _ in range(2):
        step(256)
    expected, plan = checkmate.torch.plans(at_once[0])[-1], checkmate.torch.plans(made[0])[-1]
    assert plan.num_graphs == expected.num_graphs == 3
    assert plan.budget == expected.budget


def test_another_thread_computes_while_one_looks_at_announced_sizes() -> None:
    torch.manual_seed(0)
    plain = Net(breaks=False)
    model = checkmate.torch.compile(copy.deepcopy(plain), budget="1GiB", **FLOPS)
    (session,) = sessions_of([], [model])
    began, over = threading.Event(), threading.Event()

    def look() -> None:
        began.set()
        over.wait()

    with ThreadPoolExecutor(1) as other:
        looking = other.submit(DryRun(session).observe, look)
        began.wait()
        try:
            found = step(model, 8)
        finally:
            over.set()
        looking.result()
    assert identical(found, step(plain, 8))
