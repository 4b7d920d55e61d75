"""Small scripts of many kinds: every graph that PyTorch hands over is planned, and whatever else ran was told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch
from checkmate.torch import BudgetWarning
from checkmate.torch.backend import Session

Compile = Callable[[Any], Any]


def net(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))


def batch(examples: int = 4) -> Tensor:
    return torch.ones(examples, 8)


class Net(nn.Module):
    """Two layers, and between them what the script of this name wants."""

    def __init__(self, between: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(8, 16), nn.Linear(16, 8), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x).tanh())).square().mean()  # type: ignore[no-any-return]  # modules return Any


def train(model: nn.Module, run: Callable[[int], Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        run(number).backward()
        optimizer.step()


def one_graph(compiled: Compile) -> None:
    model = compiled(Net(torch.relu))
    train(model, lambda _: model(batch()))


def loss_outside(compiled: Compile) -> None:
    model = compiled(net())
    train(model, lambda _: F.mse_loss(model(batch()), batch()))


def sizes_that_change(compiled: Compile) -> None:
    model = compiled(Net(torch.relu))
    train(model, lambda number: model(batch(4 + number)))


def graph_break(compiled: Compile) -> None:
    def between(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.exp()

    model = compiled(Net(between))
    train(model, lambda _: model(batch()))


def break_in_a_loop(compiled: Compile) -> None:
    def between(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x.exp()
            torch._dynamo.graph_break()
        return x

    model = compiled(Net(between))
    train(model, lambda _: model(batch()))


def left_to_plain_training(compiled: Compile) -> None:
    model = compiled(Net(torch.compiler.disable(torch.exp)))
    train(model, lambda _: model(batch()))


def two_forward_passes(compiled: Compile) -> None:
    model = compiled(Net(torch.relu))
    train(model, lambda _: model(batch()) + model(2 * batch()))


def blocks(compiled: Compile) -> None:
    model = nn.Sequential(*(compiled(net()) for _ in range(2)))
    train(model, lambda _: model(batch()).square().mean())


def two_models(compiled: Compile) -> None:
    maker, judge = compiled(net()), compiled(net(4))
    both = nn.ModuleList([maker, judge])
    train(both, lambda _: judge(maker(batch())).square().mean())
    train(judge, lambda _: judge(maker(batch()).detach()).square().mean())


def evaluation(compiled: Compile) -> None:
    model = compiled(Net(torch.relu))

    def run(_: int) -> Tensor:
        with torch.no_grad():
            model(batch())
        loss: Tensor = model(batch())
        return loss

    train(model, run)


def a_function(compiled: Compile) -> None:
    model = net()
    step = compiled(lambda x: model(x).square().mean())
    train(model, lambda _: step(batch()))


def frozen_in_the_middle(compiled: Compile) -> None:
    model = compiled(Net(torch.relu))

    def run(number: int) -> Tensor:
        model.first.requires_grad_(number < 2)
        loss: Tensor = model(batch())
        return loss

    train(model, run)


SCRIPTS = [
    *(one_graph, loss_outside, sizes_that_change, graph_break, break_in_a_loop, left_to_plain_training, two_forward_passes),
    *(blocks, two_models, evaluation, a_function, frozen_in_the_middle),
]
#: In these, something runs outside: PyTorch compiles no loop with a break in it, nor what it is told to leave alone.
TOLD = {break_in_a_loop, left_to_plain_training}


@pytest.mark.parametrize("by_name", [False, True], ids=["function", "name"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_graph_is_planned_and_the_rest_is_told(
    script: Callable[[Compile], None], by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: dict[int, Session] = {}
    add = Session.add

    def taken(self: Session, *given: Any) -> Any:
        sessions[id(self)] = self
        return add(self, *given)

    monkeypatch.setattr(Session, "add", taken)
    options: dict[str, Any] = {"budget": "1GiB", "cost_model": "flops"}

    def compiled(model: Any) -> Any:
        if by_name:
            return torch.compile(model, backend="checkmate", options=options)
        return checkmate.torch.compile(model, **options)

    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        script(compiled)
    given = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    told = [str(one.message) for one in caught if issubclass(one.category, BudgetWarning)]
    groups = {id(session.group): session.group for session in sessions.values()}.values()
    parts = {part for group in groups for part in group.parts}
    planned = {one.part for group in groups for plan in group.plans for one in plan.passes}
    planned |= {part for part in parts if not part.trains}
    assert given == len(parts) > 0
    assert planned == parts
    outside = [message for message in told if "outside the plan" in message or "under the budget" in message]
    assert len(outside) == (script in TOLD), told


def test_a_model_that_gives_no_graph_is_told() -> None:
    model = checkmate.torch.compile(Net(torch.relu), budget="1GiB")
    with torch.compiler.set_stance("force_eager"), pytest.warns(BudgetWarning, match="no part of Net is under the budget"):
        train(model, lambda _: model(batch()))
