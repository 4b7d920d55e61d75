"""A second derivative through a planned graph is refused in one line that says what to do.

PyTorch keeps no graph of the backward pass that a compiler made, and says so in words of its own, long after the mistake.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import CheckmateError

Node = torch.autograd.graph.Node


def refuse_second_derivative(results: Any) -> None:
    """Raise CheckmateError as soon as the gradients of what a graph returned are differentiated once more."""
    node = next((x.grad_fn for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.grad_fn is not None), None)
    if node is not None:
        # A hook that sees gradients keeps them alive until the backward pass has ended: set only where it is recorded.
        node.register_prehook(partial(_before_backward, weakref.ref(node)))


def without_graph(function: Callable[[list[Any]], Any], arguments: list[Any]) -> Any:
    """Run a backward pass that PyTorch records, and mark what it gives as differentiable all the same.

    Releases before 2.13 record a pass of which no tensor that they know of requires a gradient: what plans keep they do not know.
    """
    with torch.no_grad():
        results = function(arguments)
    places = [i for i, x in enumerate(results) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    marked = _Marked.apply(torch.empty(0, requires_grad=True), *(results[i] for i in places))
    return [marked[places.index(i)] if i in places else x for i, x in enumerate(results)]


class _Marked(torch.autograd.Function):
    """The same tensors, results of an op that has no derivative."""

    @staticmethod
    def forward(ctx: Any, any_leaf: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _refuse(gradients)


def _before_backward(node: weakref.ref[Node], gradients: Sequence[Any]) -> None:
    alive = node()
    if torch.is_grad_enabled() and alive is not None:  # create_graph=True
        alive.register_hook(_guard)


def _guard(made: Sequence[Any], given: Sequence[Any]) -> None:
    for node in {x.grad_fn for x in made if isinstance(x, torch.Tensor) and x.grad_fn is not None}:
        node.register_prehook(_refuse)


def _refuse(gradients: Sequence[Any]) -> None:
    raise CheckmateError(
        "a second derivative (create_graph=True, then another backward pass) cannot run under a plan: compute what needs it with "
        "the uncompiled model: model.forward(...), or the module that was given to torch.compile"
    )
