"""Nodes of autograd: which of them stands for the backward pass of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def is_of_a_graph(node: Any) -> bool:
    """A node of autograd stands for the backward pass of a graph that AOT autograd has traced."""
    return type(node).__name__.startswith("CompiledFunction")


def graph_behind(results: Iterable[torch.Tensor], arguments: Iterable[Any]) -> Any:
    """The node that stands for the backward pass of the graph that has made these results; None where it has none.

    A result that is a view of another one, or of an argument, is made outside of the graph: such a node comes first.
    """
    ends = {x.grad_fn for x in arguments if isinstance(x, torch.Tensor)}
    for result in results:
        node: Any = result.grad_fn
        while node is not None and node not in ends and not is_of_a_graph(node):
            node = node.next_functions[0][0] if node.next_functions else None
        if node is not None and node not in ends:
            return node
    return None
