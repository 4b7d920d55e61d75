"""The recipes of docs/pytorch.md run as they stand."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate
import checkmate.torch

TEXT = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text()
#: (title of the section, code); those that need other packages, or processes, have a title of their own.
RECIPES = [
    (title, code)
    for title, section in re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    for code in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Adapter(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(16, 2), nn.Linear(2, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.up(self.down(x))
        return out


def test_every_recipe_is_found() -> None:
    assert len(RECIPES) == 11
    needing_more = TEXT.count('```python title="needs ')
    assert TEXT.count("```python") == len(RECIPES) + 2 + needing_more  # the two ways at the top


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch looks, between graphs
@pytest.mark.parametrize(("title", "code"), RECIPES, ids=[title for title, _ in RECIPES])
def test_recipes_run(title: str, code: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, generator, critic = Layers(), Layers(), Layers()
    names: dict[str, Any] = {
        "checkmate": checkmate,
        "torch": torch,
        "copy": copy,
        "model": model,
        "generator": generator,
        "critic": critic,
        "fresh": Layers(),
        "Adapter": Adapter,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "generator_optimizer": torch.optim.AdamW(generator.parameters()),
        "critic_optimizer": torch.optim.AdamW(critic.parameters()),
        "batch": torch.randn(8, 16),
        "batches": [torch.randn(8, 16) for _ in range(2)],
        "device": "cpu",
        "path": tmp_path / "weights.pt",
    }
    if title in ("Microbatches", "Two backward passes over one forward pass"):
        checkmate.torch.compile(model, budget="4GiB")
    exec(compile(code, f"docs/pytorch.md, {title}", "exec"), names)
    if "backward" not in code and title != "The largest batch, the longest sequence":
        names["model"](names["batch"]).square().mean().backward()
    if title == "Copies and files":
        assert torch.equal(names["program"].module()(names["batch"]), model.forward(names["batch"]))
        names["twin"](names["batch"]).square().mean().backward()
        assert checkmate.torch.plans(names["twin"])
    elif title == "The largest batch, the longest sequence":
        assert names["batch"] == 64 == names["batch"].batch
    else:
        trained = (names["generator"], names["critic"]) if title == "Two optimizers" else (names["model"],)
        assert all(checkmate.torch.plans(one) for one in trained)
