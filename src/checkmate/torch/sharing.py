"""What graphs of a process hold at the same time, and how the graphs of one model share its budget.

A model that PyTorch cannot compile in one piece becomes several graphs whose steps lie inside each other: forward 1,
forward 2, backward 2, backward 1. While a graph runs, it has the budget less what the others hold. The first graph is
planned before the second is known; if it leaves too little, the second takes what it needs for that one step (and a
warning says so), and from the next step on the earlier graphs leave it a share in proportion to its plain peak.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .planning import Plan

#: Storages of forward passes whose backward pass is still to come: per plan (inputs, what the pass made).
_References = list[weakref.ref[torch.UntypedStorage]]
_pending: weakref.WeakKeyDictionary[Plan, tuple[_References, _References]] = weakref.WeakKeyDictionary()


def storages(tensors: Iterable[Any]) -> dict[int, torch.UntypedStorage]:
    """Storages of plain tensors, by identity."""
    plain = [t for t in tensors if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    return {storage._cdata: storage for storage in (t.untyped_storage() for t in plain)}


def begin(plan: Plan, inputs: dict[int, torch.UntypedStorage], results: Sequence[Any]) -> None:
    """A forward pass has run."""
    made = [storage for key, storage in storages(results).items() if key not in inputs]
    _pending[plan] = ([weakref.ref(s) for s in inputs.values()], [weakref.ref(s) for s in made])


def end(plan: Plan) -> None:
    """Its backward pass has run."""
    _pending.pop(plan, None)


def held(plan: Plan) -> int:
    """Bytes that the last forward pass of a plan made and still holds."""
    return sum(storage.nbytes() for storage in _alive(_pending.get(plan, ([], []))[1]))


def outside(tensors: Iterable[Any], plan: Plan | None, device: torch.device) -> dict[int, int]:
    """What lives on the device next to a graph about to run: sizes of storages by identity.

    Args:
        tensors: parameters and buffers of the whole model.
        plan: the graph's own, left out.
    """
    found = list(storages(tensors).values())
    for other, (inputs, made) in _pending.items():
        alive = _alive(made)
        if other is not plan and alive:
            found += alive + _alive(inputs)
    return {storage._cdata: storage.nbytes() for storage in found if storage.device.type == device.type}


def _alive(references: _References) -> list[torch.UntypedStorage]:
    return [storage for reference in references if (storage := reference()) is not None]
