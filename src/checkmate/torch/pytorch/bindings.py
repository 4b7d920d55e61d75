"""Which functions of PyTorch call an operator with the same arguments, and read them in less time than the operator's own caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BINDINGS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.add.Tensor: torch.add,
    torch.ops.aten.addmm.default: torch.addmm,
    torch.ops.aten.bmm.default: torch.bmm,
    torch.ops.aten.mm.default: torch.mm,
    torch.ops.aten.mul.Tensor: torch.mul,
    torch.ops.aten.native_layer_norm.default: torch.native_layer_norm,
    torch.ops.aten.permute.default: torch.permute,
    torch.ops.aten.t.default: torch.t,
    torch.ops.aten.transpose.int: torch.transpose,
    torch.ops.aten.view.default: torch.Tensor.view,
}
