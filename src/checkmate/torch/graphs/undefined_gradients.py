"""Gradients that do not exist stay None, as in eager training.

Where the loss does not use an output, autograd has no gradient of it, and parameters that lead to that output alone keep None: their
optimizer leaves them as they are. AOT autograd computes with zeros, and gives such parameters zeros, which weight decay and momentum then
move: the heads of a model that learns several tasks in turn, for one.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from ..ops.nodes import reached_from
from ..ops.outputs import outputs_of
from ..ops.sizes import Concrete, Number
from ..pytorch.autograd_nodes import is_of_a_graph

#: Inputs of a forward pass by the places of their gradients; its backward pass keeps none of them alive.
Inputs: TypeAlias = Mapping[int, weakref.ref[torch.Tensor]]


def may_go_without(arguments: Iterable[Any]) -> Inputs:
    """Those of the inputs of a forward pass that may have no gradient: parameters, and what another graph has made.

    Args:
        arguments: for each gradient that the backward pass returns what it is of.
    """
    return {
        i: weakref.ref(x)
        for i, x in enumerate(arguments)
        if isinstance(x, torch.Tensor) and x.requires_grad and (x.is_leaf or is_of_a_graph(x.grad_fn)) and not _is_watched(x)
    }


def zeros_of(tangent: fx.Node, number: Number) -> torch.Tensor:
    """What stands for the gradient of an output that has none."""
    known = Concrete.of(tangent.meta["val"], number)
    return torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device=known.device).zero_()


def without_undefined(
    gradients: Sequence[Any],
    module: fx.GraphModule,
    num_outputs: int,
    defined: Collection[fx.Node],
    inputs: Inputs,
) -> Sequence[Any]:
    """The gradients of a backward pass, without those of inputs that lead to no output that has a gradient.

    Args:
        gradients: of the inputs of the forward pass. module: the joint graph. num_outputs: of its forward pass.
        defined: the placeholders of the gradients that there are. inputs: of `may_go_without`.
    """
    if _in_several_processes():
        return gradients  # DistributedDataParallel and the like wait for that of every parameter that the graph reads
    needed = reached_from(defined)
    unneeded = [isinstance(node, fx.Node) and node not in needed for node in outputs_of(module, num_outputs).gradients]
    left_out = {i for i, reference in inputs.items() if unneeded[i] and not _is_watched(reference())}
    return [None if i in left_out else gradient for i, gradient in enumerate(gradients)]


def _in_several_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _is_watched(tensor: torch.Tensor | None) -> bool:
    """The script has hooks called with its gradient, which eager training would not call, and which may not know None."""
    return tensor is not None and bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks or tensor.retains_grad)
