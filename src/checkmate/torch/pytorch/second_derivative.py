"""A second derivative through a planned graph is refused in one line that says what to do.

PyTorch keeps no graph of the backward pass that a compiler made, and says so in words of its own, long after the mistake.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...errors import CheckmateError

Node = torch.autograd.graph.Node


def refuse_second_derivative(node: Node) -> None:
    """Raise CheckmateError as soon as the gradients of what a graph returned are differentiated once more.

    Args:
        node: of autograd, behind what it returned.
    """
    # A hook that sees gradients keeps them alive until the backward pass has ended: set only where it is recorded.
    node.register_prehook(partial(_before_backward, weakref.ref(node)))


class _Marked(torch.autograd.Function):
    """The same tensors, results of an op that has no derivative.

    It is one of the leaves of its graph, too: a derivative with respect to one of them has to lead here, or PyTorch says that there is none.
    """

    @staticmethod
    def forward(ctx: Any, num_leaves: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors[num_leaves:]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CheckmateError(
            "a second derivative (create_graph=True, then another backward pass) cannot run under a plan: compute what needs it with "
            "the uncompiled model: model.forward(...), or the module that was given to torch.compile"
        )


def _before_backward(node: weakref.ref[Node], gradients: Sequence[Any]) -> None:
    alive = node()
    if torch.is_grad_enabled() and alive is not None:  # create_graph=True
        inputs: list[Any] = [following for following, _ in alive.next_functions]
        alive.register_hook(partial(_mark, [one.variable for one in inputs if hasattr(one, "variable")]))


def _mark(leaves: Sequence[torch.Tensor], made: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients that a graph has made, as ones that cannot be differentiated."""
    places = [i for i, x in enumerate(made) if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]
    leaves = [*leaves, torch.empty(0, requires_grad=True)]  # one that is there even where all inputs are results
    marked = dict(zip(places, _Marked.apply(len(leaves), *leaves, *(made[i] for i in places)), strict=True))
    return tuple(marked.get(i, x) for i, x in enumerate(made))
