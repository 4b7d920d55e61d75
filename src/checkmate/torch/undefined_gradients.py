"""Gradients that do not exist stay None, as in eager training.

Where the loss does not use an output, autograd has no gradient of it, and parameters that lead to that output alone keep None: their
optimizer leaves them as they are. AOT autograd computes with zeros, and gives such parameters zeros, which weight decay and momentum then
move: the heads of a model that learns several tasks in turn, for one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from .nodes import reached_from
from .outputs import flat_outputs
from .sizes import Number


def parameters_among(arguments: Iterable[Any]) -> dict[int, torch.Tensor]:
    """Those of the inputs of a forward pass that gradients are kept of, by their places."""
    return {i: x for i, x in enumerate(arguments) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf}


def zeros_of(tangent: fx.Node, number: Number) -> torch.Tensor:
    """What stands for the gradient of an output that has none."""
    value = tangent.meta["val"]
    sizes, strides = ([number(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device).zero_()


def without_undefined(
    gradients: Sequence[Any],
    module: fx.GraphModule,
    num_outputs: int,
    defined: Collection[fx.Node],
    parameters: dict[int, torch.Tensor],
) -> Sequence[Any]:
    """The gradients of a backward pass, without those of parameters that lead to no output that has a gradient.

    Args:
        gradients: of the inputs of the forward pass. module: the joint graph. num_outputs: of its forward pass.
        defined: the placeholders of the gradients that there are. parameters: of `parameters_among`.
    """
    if _in_several_processes():
        return gradients  # DistributedDataParallel and the like wait for that of every parameter that the graph reads
    needed = reached_from(defined, module)
    return [
        None
        if i in parameters and not _is_watched(parameters[i]) and isinstance(node, fx.Node) and node not in needed
        else gradient
        for i, (gradient, node) in enumerate(zip(gradients, flat_outputs(module)[num_outputs:], strict=True))
    ]


def _in_several_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_watched(parameter: torch.Tensor) -> bool:
    """The script has hooks called with its gradient, which eager training would not call, and which may not know None."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
