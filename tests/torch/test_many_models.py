"""More models of one class than PyTorch compiles of one piece of code by itself: each has its own plan and budget."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import checkmate.torch
from checkmate.torch.backend import Session

#: PyTorch's own limit is 8.
COUNT = 10


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 4)

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


def by_its_method(model: Any, **options: Any) -> Any:
    model.compile(backend="checkmate", options=options)
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch looks, between graphs
@pytest.mark.parametrize("kind", [pytest.param(Net, marks=pytest.mark.slow), Broken])
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("kind", [pytest.param(Net, marks=pytest.mark.slow), Broken])
@pytest.mark.parametrize("compile", [in_place, by_name, by_its_method])
def test_of_models_that_are_gone_no_graph_is_left(compile: Callable[..., Any], kind: type[nn.Module]) -> None:
    """PyTorch keeps what it has compiled; a search over widths must not keep every model's graphs."""

    def train(width: int) -> None:
        compiled = compile(kind(width), budget="1GiB", cost_model="flops")
        compiled(torch.randn(3, 8)).sum().backward()

    def left() -> tuple[int, int]:
        for _ in range(2):  # what holds a node of autograd goes the first time, and what that holds the second
            gc.collect()
        kinds = [type(thing) for thing in gc.get_objects()]
        return kinds.count(Session), kinds.count(fx.Node)

    sessions, _ = left()
    train(10)
    known = left()  # with what PyTorch keeps of any first model
    assert known[0] == sessions
    for width in (20, 30, 40):
        train(width)
        assert left() == known


@pytest.mark.parametrize("compile", [in_place, by_name, by_its_method])
def test_sizes_of_one_model_are_no_changes_of_another(compile: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would trace the second model for sizes that vary, as it saw another batch in the same code before."""
    open_sizes = []
    add = Session.add

    def note(self: Session, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        open_sizes.append([x for x in inputs if isinstance(x, torch.SymInt)])
        return add(self, module, inputs)

    monkeypatch.setattr(Session, "add", note)
    for batch in (3, 5, 7):
        compile(Net(), budget="1GiB", cost_model="flops")(torch.randn(batch, 8)).sum().backward()
    assert open_sizes == [[], [], []]


@pytest.mark.filterwarnings("error::checkmate.errors.BudgetWarning")
@pytest.mark.parametrize("compile", [in_place, by_name, by_its_method])
def test_more_sizes_of_one_model_than_pytorch_compiles_by_itself(compile: Callable[..., Any]) -> None:
    model = Net()
    compiled = compile(model, budget="1GiB", cost_model="flops")
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):  # a graph for each size
        for batch in range(2, COUNT + 2):
            compiled(torch.randn(batch, 8)).sum().backward()
    assert len(checkmate.torch.plans(model)) == COUNT


def test_a_backward_pass_may_come_after_the_model_is_gone() -> None:
    x = torch.randn(3, 8, requires_grad=True)

    def loss() -> Tensor:
        out: Tensor = in_place(Net(), budget="1GiB", cost_model="flops")(x)
        return out.sum()

    left = loss()
    gc.collect()
    left.backward()
    assert x.grad is not None


def test_capture_keeps_no_model() -> None:
    model = Net()
    reference = weakref.ref(model)
    checkmate.torch.capture(model, torch.randn(3, 8), cost_model="flops")
    del model
    gc.collect()
    assert reference() is None
