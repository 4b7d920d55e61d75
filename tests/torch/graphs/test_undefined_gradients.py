"""Parameters that lead to no output that the loss uses have no gradient, as in eager training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import checkmate.torch
from checkmate.torch.graphs import undefined_gradients
from checkmate.torch.graphs.undefined_gradients import zeros_of


class TwoTasks(nn.Module):
    """A body and two heads, of which a batch trains one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.first = nn.Linear(64, 3)
        self.second = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.body(x)
        return self.first(hidden), self.second(hidden)


class WithStatistics(TwoTasks):
    """The graph writes into its inputs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body.append(nn.BatchNorm1d(64))


class WithViews(TwoTasks):
    """The first output is a view of the third: PyTorch makes it outside of the graph."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = super().forward(x)
        return first[:, 1:], second, first


class WithChecks(TwoTasks):
    """`torch.linalg` looks at what it has found: the graph has inputs that have no gradients, for the order of that."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Parameter(torch.eye(64) * 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.body(x)
        return self.first(hidden @ torch.linalg.inv(self.square)), self.second(hidden)


class InTwoGraphs(TwoTasks):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = super().forward(x)
        torch._dynamo.graph_break()
        return first.sin(), second.sin()


def made(kind: type[TwoTasks] = TwoTasks) -> TwoTasks:
    torch.manual_seed(0)
    return kind()


def trained(model: nn.Module, call: Callable[..., Any], sizes: tuple[int, ...]) -> list[Any]:
    """Losses, which parameters have a gradient after each step, and all parameters in the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    found: list[Any] = []
    for step, size in enumerate(sizes):
        x = torch.randn(size, 16, generator=generator)
        used = [(0,), (1,), (0, 1)][step % 3]
        outputs = call(x)
        loss = sum(outputs[task].square().mean() for task in used)
        optimizer.zero_grad()
        loss.backward()
        found.append((loss.item(), [name for name, p in model.named_parameters() if p.grad is None]))
        optimizer.step()
    return [*found, *(value.detach().clone() for value in model.state_dict().values())]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (TwoTasks, (512,) * 6),
        (TwoTasks, (512, 384, 256, 512, 128, 384)),
        (WithStatistics, (512,) * 6),
        (WithViews, (512,) * 6),
        (WithChecks, (512,) * 6),
        (InTwoGraphs, (512,) * 6),
    ],
    ids=["one size", "several sizes", "batch norm", "views", "checks", "two graphs"],
)
def test_a_head_that_is_not_used_stays_as_it_is(kind: type[TwoTasks], sizes: tuple[int, ...]) -> None:
    plain = made(kind)
    expected = trained(plain, plain, sizes)
    model = made(kind)
    result = trained(model, checkmate.torch.compile(model, budget="80%"), sizes)
    assert expected[0][1] == ["second.weight", "second.bias"]
    assert result[: len(sizes)] == expected[: len(sizes)]
    for one, other in zip(result[len(sizes) :], expected[len(sizes) :], strict=True):
        assert torch.equal(one, other)


def test_hooks_are_called_with_tensors() -> None:
    model = made()
    seen = []
    model.second.weight.register_hook(lambda gradient: seen.append(float(gradient.abs().sum())))
    compiled = checkmate.torch.compile(model, budget="100%")
    compiled(torch.randn(64, 16))[0].sum().backward()
    assert seen == [0.0]
    assert model.second.weight.grad is not None
    assert model.second.bias.grad is None


def test_several_processes_get_every_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for all of them."""
    model = made()
    compiled = checkmate.torch.compile(model, budget="100%")
    outputs = compiled(torch.randn(64, 16))
    monkeypatch.setattr(undefined_gradients, "_in_several_processes", lambda: True)
    outputs[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_zeros_lie_as_the_gradient_would() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("tangents_1")
    node.meta["val"] = torch.empty(3, 4).t()
    made = zeros_of(node, int)
    assert (made.shape, made.stride()) == ((4, 3), (1, 4))
    assert not made.any()
