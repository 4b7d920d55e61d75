"""Models of users, for the tests of the command line: what a file like this one gives to `checkmate solve user_models.py:small`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def small(batch: int = 4) -> tuple[Any, Any, Any]:
    """A model, a batch and a loss. It says so, as scripts do."""
    print("made a small model")
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
    labels = torch.randint(0, 4, (batch,))
    return nn.Sequential(*layers), torch.randn(batch, 8), lambda output: nn.functional.cross_entropy(output, labels)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.linear(left) * right).mean()


def keywords() -> tuple[Any, Any]:
    return Pair(), {"right": torch.randn(2, 8), "left": torch.randn(2, 8)}


def several() -> tuple[Any, Any]:
    return Pair(), (torch.randn(2, 8), torch.randn(2, 8))


def huge(batch: int) -> tuple[Any, Any]:
    """A terabyte of parameters."""
    return nn.Sequential(nn.Linear(8, 500_000, bias=False), nn.Linear(500_000, 500_000, bias=False)), torch.randn(batch, 8)


def converted() -> tuple[Any, Any]:
    """A terabyte, of a type that is said after it was made."""
    model = nn.Linear(500_000, 500_000, bias=False)
    return model.half().to(torch.bfloat16), torch.randn(2, 500_000).to(torch.bfloat16)


def needs_data() -> tuple[Any, Any]:
    """How wide it is follows from what is in a tensor."""
    return nn.Linear(int(torch.full((3,), 2.0).sum().item()), 4), torch.randn(2, 6)


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def fails_in_its_forward_pass() -> tuple[Any, Any]:
    return Fails(), torch.randn(2, 5)


def raises() -> tuple[Any, Any]:
    raise LookupError("no such \x1b[31mlayer\nand more")


def ends() -> tuple[Any, Any]:
    raise SystemExit(3)


def frozen() -> tuple[Any, Any]:
    return nn.Linear(3, 4).requires_grad_(False), torch.randn(2, 3)


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def branches() -> tuple[Any, Any]:
    return Branches(3, 4), torch.randn(2, 3)


def returns_a_model() -> Any:
    return nn.Linear(3, 4)


def returns_no_model() -> tuple[Any, Any]:
    return 3, torch.randn(2, 3)


def needs_more(width: int, batch: int = 1) -> tuple[Any, Any]:
    return nn.Linear(width, 4), torch.randn(batch, width)


def without_batch() -> tuple[Any, Any]:
    return nn.Linear(3, 4), torch.randn(2, 3)


not_a_function = 3
