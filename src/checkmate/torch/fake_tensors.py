"""Tensors without data, for a model that need not fit this machine.

PyTorch's fake tensors are made for compilers. Code that makes a model also copies modules and converts their parameters, which PyTorch
2.13 refuses for fake ones; here they may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .internals import FakeTensor, FakeTensorMode


class FakeTensors:
    """Where this is active, new tensors have shapes and no data. It can be entered again."""

    def __init__(self) -> None:
        self._fake, self._copying = FakeTensorMode(allow_non_fake_inputs=True), _Copying()
        self._fake.fake_tensor_converter.set_tensor_memo = _forget  # type: ignore[method-assign, assignment]

    def __enter__(self) -> FakeTensors:
        self._fake.__enter__()
        self._copying.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._copying.__exit__(*raised)
        self._fake.__exit__(*raised)


def _forget(made_from: torch.Tensor, fake: torch.Tensor) -> None:
    """PyTorch notes every fake tensor in a weak reference, never looks it up again, and `module.to(...)` refuses parameters that have one."""


class _Copying(TorchFunctionMode):
    """`copy.deepcopy` of a fake tensor without a look at where its data are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor) and args[0].is_leaf:
            return _copy(*args)
        return func(*args, **(kwargs or {}))


def _copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = (
            torch.nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy.requires_grad_(tensor.requires_grad)
        )
    made: torch.Tensor = memo[id(tensor)]
    return made
