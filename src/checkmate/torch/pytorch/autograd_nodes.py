"""Nodes of autograd: what is behind tensors, and which of them stands for the backward pass of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch


def is_of_a_graph(node: Any) -> bool:
    """A node of autograd stands for the backward pass of a graph that AOT autograd has traced."""
    return type(node).__name__.startswith("CompiledFunction")


def nodes_behind(roots: Sequence[Any], is_last: Callable[[Any], bool] = lambda node: False) -> Iterator[Any]:
    """The autograd nodes behind these tensors, or edges of the graph, each once.

    Args:
        is_last: what is behind such a node is left out.
    """
    stack, seen = [root.grad_fn if isinstance(root, torch.Tensor) else getattr(root, "node", None) for root in roots], set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            if not is_last(node):
                stack.extend(following for following, _ in node.next_functions)


def graph_behind(results: Sequence[torch.Tensor], arguments: Iterable[Any]) -> Any:
    """The node that stands for the backward pass of the graph that has made these results; None where it has none.

    A result that is a view of another one, or of an argument, is made outside of the graph: its own node comes first.
    """
    ends = {x.grad_fn for x in arguments if isinstance(x, torch.Tensor)}
    nodes = nodes_behind(results, lambda node: node in ends or is_of_a_graph(node))
    return next((node for node in nodes if is_of_a_graph(node) and node not in ends), None)
