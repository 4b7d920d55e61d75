"""A backward pass for many gradients at a time: `torch.autograd.grad(..., is_grads_batched=True)`, as for Jacobians (`vectorize=True`).

A plan has room for one gradient, kernels that write into given tensors know of no batch, nor do Inductor's: here the pass runs for one
gradient after the other. (`torch.vmap` around a compiled backward pass is refused by PyTorch itself.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Pass = Callable[[list[Any]], Sequence[Any]]


class _More(threading.local):
    """Of a thread: the pass that runs is not the last one of its batch."""

    follows = False


_more = _More()


def keeps_graph() -> bool:
    """The backward pass that is running may run again: autograd keeps its graph (retain_graph=True), or more of a batch is to come."""
    return _more.follows or bool(torch._C._autograd._get_current_graph_task_keep_graph())


def one_by_one(backward: Pass, gradients: list[Any]) -> Sequence[Any]:
    """Run a backward pass, and for each one of a batch of gradients if they are one.

    Args:
        gradients: of what the forward pass returned; emptied.
    """
    batched = [isinstance(x, torch.Tensor) and _is_batched(x) for x in gradients]
    if not any(batched):
        return backward(gradients)
    rows: list[list[Any]] = []
    with _outside_batch() as level:
        # Batches lie inside each other: what is in another one alone comes out as a batch of one, for all.
        taken = [_remove_level(x, level, 1, 0) if is_batch else x for x, is_batch in zip(gradients, batched, strict=True)]
        gradients.clear()
        number = max(len(x) for x, is_batch in zip(taken, batched, strict=True) if is_batch)
        for index in range(number):
            given = [x[index % len(x)] if is_batch else x for x, is_batch in zip(taken, batched, strict=True)]
            with _more_follows(_more.follows or index + 1 < number):
                rows.append(list(one_by_one(backward, given)))
        made = [_joined(rows, place) for place in range(len(rows[0]))]
    return [None if x is None else _add_level(x, 0, level) for x in made]


_is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
_add_level: Any = torch._add_batch_dim
_remove_level: Any = torch._remove_batch_dim


def _joined(rows: Sequence[list[Any]], place: int) -> torch.Tensor | None:
    """What the passes made in one place, which they let go of."""
    found = [row[place] for row in rows]
    for row in rows:
        row[place] = None
    return None if any(x is None for x in found) else torch.stack(found)


@contextmanager
def _more_follows(follows: bool) -> Iterator[None]:
    before, _more.follows = _more.follows, follows
    try:
        yield
    finally:
        _more.follows = before


@contextmanager
def _outside_batch() -> Iterator[int]:
    """Not in the innermost batch, whose level is told. Autograd's threads for GPUs know of none: there it is the outermost."""
    inside = torch._C._vmapmode_increment_nesting() > 1
    torch._C._vmapmode_decrement_nesting()
    level = torch._C._vmapmode_decrement_nesting() + 1 if inside else 1
    try:
        yield level
    finally:
        if inside:
            torch._C._vmapmode_increment_nesting()
