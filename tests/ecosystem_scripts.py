"""Scripts of the packages that people train with: each is run plainly and under a budget, and must do the same."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate.torch.memory.measure import live_storages
from torch_models import identical, state

_TEXT = (Path(__file__).parents[1] / "docs" / "pytorch.md").read_text()
#: What the recipes say; here it is replaced by one that is tight.
_BUDGET = '"8GiB"'
#: The first step is left out: PyTorch traces the model in it.
MEASURED = (2, 3)
STEPS = 3


def recipes(package: str) -> list[str]:
    """The recipes of docs/pytorch.md that need a package."""
    return re.findall(rf'^```python title="needs {package}"\n(.*?)^```$', _TEXT, re.MULTILINE | re.DOTALL)


@dataclass
class Watch:
    """What a script does, step by step.

    Attributes:
        budget: in bytes; None: it trains as without this package.
        losses: one or more for each step. peaks: of the measured steps.
    """

    budget: int | None
    losses: list[Tensor] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        gc.collect()
        self._others = sum(storage.nbytes() for storage in live_storages().values())
        self._number = 0
        self._measuring: Any = None

    def begin(self) -> None:
        """A step begins: nothing of it has run."""
        self._number += 1
        if self._number in MEASURED:
            self._measuring = checkmate.torch.measure("cpu")
            self._measured = self._measuring.__enter__()

    def end(self) -> None:
        """The step has ended, that of the optimizer too."""
        if self._measuring is not None:
            self._measuring.__exit__(None, None, None)
            self._measuring = None
            self.peaks.append(self._measured.peak - self._others)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Both."""
        self.begin()
        yield
        self.end()

    @contextmanager
    def environment(self) -> Iterator[None]:
        """The environment that says the budget."""
        with patch.dict(os.environ, {} if self.budget is None else {"CHECKMATE_BUDGET": str(self.budget)}):
            yield

    def run(self, recipe: str, **names: Any) -> dict[str, Any]:
        """Run a recipe as it stands, but for its budget; without one, compiling leaves models as they are.

        Returns:
            All names after it.
        """
        given = {"checkmate": checkmate, "torch": torch, **names}
        if self.budget is None:
            given |= {"checkmate": SimpleNamespace(torch=_Plain()), "torch": _Plain()}
        exec(compile(recipe.replace(_BUDGET, str(self.budget)), "docs/pytorch.md", "exec"), given)
        return given


class _Plain:
    """PyTorch, but for its compiler."""

    def compile(self, model: nn.Module, *arguments: Any, **keywords: Any) -> nn.Module:
        return model

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


#: Trains a model for some steps and returns it.
Script = Callable[[Watch], nn.Module]


def same_under_a_budget(script: Script, share: float = 0.75) -> Any:
    """Run a script plainly and under a share of the peak that it showed: the same losses and weights, within the budget.

    Returns:
        The model that was trained under the budget.
    """
    plain, expected = _trained(script, None)
    budget = int(share * max(plain.peaks))
    watch, model = _trained(script, budget)
    assert identical(watch.losses, plain.losses) and len(watch.losses) >= STEPS
    assert identical(state(model), expected)
    assert len(watch.peaks) == len(MEASURED) and max(watch.peaks) <= budget, (watch.peaks, budget, plain.peaks)
    plans = checkmate.torch.plans(model)
    assert {plan.budget for plan in plans if plan.executions} == {budget}
    assert any(plan.schedule.num_recomputations > 0 for plan in plans)
    return model


def _trained(script: Script, budget: int | None) -> tuple[Watch, Any]:
    watch = Watch(budget)
    torch.manual_seed(0)
    model = script(watch)
    return watch, (model if budget is not None else state(model))


def text(number: int, examples: int = 16, length: int = 64, vocabulary: int = 128) -> Tensor:
    """Tokens."""
    return torch.randint(0, vocabulary, (examples, length), generator=torch.Generator().manual_seed(number))


def pictures(number: int, examples: int = 8, size: int = 64) -> tuple[Tensor, Tensor]:
    """Pictures, and their classes."""
    random = torch.Generator().manual_seed(number)
    return torch.randn(examples, 3, size, size, generator=random), torch.randint(0, 10, (examples,), generator=random)


def gpt2() -> Any:
    """A small one of Hugging Face's, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=64, n_layer=3, n_head=4, n_positions=64, use_cache=False))
