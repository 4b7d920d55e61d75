"""The callback for Lightning, under a stand-in for Lightning: what it compiles, and when it is there."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate.torch
from checkmate import UnknownMethod
from checkmate.torch import BudgetWarning

NAME = "checkmate.torch.lightning"


class Callback:
    """What Lightning's own does where nothing is overridden: nothing."""

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None: ...


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the callback, imported beside a stand-in."""
    stand_in = ModuleType(request.param)
    stand_in.Callback = Callback  # type: ignore[attr-defined]
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if "." in request.param:
        monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, request.param, stand_in)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


class Task(nn.Module):
    """A LightningModule that is trained through `training_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.loss = nn.MSELoss()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        x = self.stem(self.frozen(batch))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        loss: Tensor = self.loss(x, batch)
        return loss


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:a part of Linear runs outside the plan")  # tanh
def test_the_modules_inside_are_compiled_once_when_training_begins(lightning: Any) -> None:
    callback = lightning.MemoryBudget("1MiB", cost_model="flops")
    assert isinstance(callback, Callback)
    task = Task()
    keys = list(task.state_dict())
    callback.setup(None, task, "validate")
    assert task.stem._compiled_call_impl is None
    callback.setup(None, task, "fit")
    calls = [module._compiled_call_impl for module in (task.stem, *task.layers)]
    assert all(calls) and task.frozen._compiled_call_impl is None and task.loss._compiled_call_impl is None
    callback.setup(None, task, "fit")
    assert [module._compiled_call_impl for module in (task.stem, *task.layers)] == calls
    assert list(task.state_dict()) == keys
    for index in range(2):
        task.zero_grad()
        task.training_step(torch.randn(4, 8), index).backward()
    plan = checkmate.torch.plans(task.stem)[-1]
    assert plan.num_graphs == 3 and plan.executions > 0 and plan.budget == 1 << 20


def test_a_module_without_modules_is_told(lightning: Any) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    with pytest.warns(BudgetWarning, match="Bare is not under the budget"):
        lightning.MemoryBudget("1MiB").setup(None, Bare(), "fit")
    with pytest.raises(UnknownMethod, match="unknown option"):
        lightning.MemoryBudget("1MiB", budgt="1MiB")


def test_the_environment_adds_it_to_every_trainer(lightning: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHECKMATE_BUDGET", raising=False)
    assert lightning.callbacks() == []
    monkeypatch.setenv("CHECKMATE_BUDGET", "1MiB")
    (callback,) = lightning.callbacks()
    assert isinstance(callback, lightning.MemoryBudget)
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory"):
        name, attribute = settings[group]["checkmate"].split(":")
        assert name == NAME and getattr(lightning, attribute)() != []
