"""What the script runs outside of planned graphs, such as a loss, by the nodes of autograd behind its tensors."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..pytorch.autograd_nodes import is_of_a_graph, nodes_behind
from .measure import storages_of

#: Bytes of a number at most. Plans leave more than that for each run of a graph, and the like.
_NUMBER = 16


def nodes_outside(roots: Sequence[Any]) -> tuple[str, ...]:
    """Names of the autograd nodes behind these tensors, down to those of planned graphs: what a loss outside of the graphs consists of."""
    return tuple(node.name() for node in nodes_behind(roots, is_of_a_graph) if not is_of_a_graph(node))


def leaves_behind(roots: Sequence[Any]) -> list[torch.Tensor] | None:
    """The tensors that gradients of these are left in; None if a planned graph lies between."""
    leaves = []
    for node in nodes_behind(roots):
        if is_of_a_graph(node):
            return None
        if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
            leaves.append(leaf)
    return leaves


def saved_outside(
    roots: Sequence[Any], counted: Container[int]
) -> tuple[dict[int, torch.UntypedStorage], dict[int, torch.UntypedStorage]]:
    """Storages on the CPU, by identity, that these tensors and the nodes behind them hold and no planned graph knows.

    The number that `F.mse_loss` returns has a storage as large as its inputs, and the script has it while the backward pass runs.

    Args:
        counted: identities of storages to leave out.

    Returns:
        Those of nodes made before the last planned graph ran, and the others.
    """
    nodes = set(nodes_behind(roots))
    planned = {node for node in nodes if is_of_a_graph(node)}
    last = max((node._sequence_nr() for node in planned), default=-1)
    early: dict[int, torch.UntypedStorage] = {}
    late = {key: storage for key, storage in storages_of(roots).items() if storage.nbytes() > _NUMBER and key not in counted}
    for node in nodes - planned:
        saved = storages_of(_saved_by(node)).items()
        (early if node._sequence_nr() < last else late).update((key, one) for key, one in saved if key not in counted)
    return early, {key: storage for key, storage in late.items() if key not in early}


def _saved_by(node: Any) -> Iterator[object]:
    """What it holds: of what hooks have put away that, for to ask them for it again has effects (`torch.utils.checkpoint` computes
    it each time anew, and keeps it)."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            with suppress(Exception):  # it is gone
                yield from tree_leaves([saved.data for saved in tree_leaves(getattr(node, name))])
