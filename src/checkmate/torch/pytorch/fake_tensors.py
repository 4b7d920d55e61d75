"""Tensors without data, for a model that need not fit this machine.

PyTorch's fake tensors are made for compilers. Code that makes a model also copies modules and converts their parameters, which PyTorch
2.13 refuses for fake ones; here they may. Tensors of the "meta" device have no data either. But they have no bytes for a plan, and
kernels of their own: fake tensors of the CPU stand in for them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from .internals import FakeTensor, FakeTensorMode


class FakeTensors:
    """Where this is active, new tensors have shapes and no data, those for the meta device too. It can be entered again."""

    def __init__(self) -> None:
        self._fake, self._making = FakeTensorMode(allow_non_fake_inputs=True), _Making()
        self._fake.fake_tensor_converter.set_tensor_memo = _forget  # type: ignore[method-assign, assignment]

    def __enter__(self) -> FakeTensors:
        self._fake.__enter__()
        self._making.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._making.__exit__(*raised)
        self._fake.__exit__(*raised)


def _forget(made_from: torch.Tensor, fake: torch.Tensor) -> None:
    """PyTorch notes every fake tensor in a weak reference, never looks it up again, and `module.to(...)` refuses parameters that have one."""


class _Making(TorchFunctionMode):
    """`copy.deepcopy` of a fake tensor without a look at where its data are; and the CPU in place of the meta device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor) and args[0].is_leaf:
            return _copy(*args)
        keywords = dict(kwargs or {})
        if "device" in keywords and keywords["device"] is not None and torch.device(keywords["device"]).type == "meta":
            keywords["device"] = "cpu"
        return func(*args, **keywords)


def _copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(tensor) not in memo:
        copied = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = (
            torch.nn.Parameter(copied, tensor.requires_grad) if is_parameter else copied.requires_grad_(tensor.requires_grad)
        )
    made: torch.Tensor = memo[id(tensor)]
    return made


def without_meta(model: Any, inputs: Any) -> tuple[Any, Any]:
    """A module and its inputs (a tree), or where tensors of the meta device are among them, copies with fake ones of the CPU for those.

    All that has data is in the copies, too, as it is. What another function holds cannot be told: it is left with its inputs.
    """
    if not isinstance(model, torch.nn.Module):
        return model, inputs
    own = list(_tensors_of(model))
    tensors = [*own, *(x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor))]
    meta = [x for x in tensors if x.device.type == "meta" and x.layout is torch.strided]
    if not meta:
        return model, inputs
    with next((x.fake_mode for x in tensors if isinstance(x, FakeTensor)), None) or FakeTensorMode(allow_non_fake_inputs=True):
        stands_for: dict[int, Any] = {id(x): x for x in tensors} | {id(x): _stand_in(x) for x in meta}
    if any(x.device.type == "meta" for x in own):
        model = copy.deepcopy(model, dict(stands_for))
    return model, tree_map(lambda x: stands_for.get(id(x), x), inputs)


def _tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors that are just attributes."""
    for module in model.modules():
        for found in (module._parameters, module._buffers, vars(module)):
            yield from (x for x in found.values() if isinstance(x, torch.Tensor))


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)
