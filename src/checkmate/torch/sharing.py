"""What the graphs of one model hold at the same time, and how they share its budget.

A model that PyTorch cannot compile in one piece becomes several graphs whose steps lie inside each other: forward 1,
forward 2, backward 2, backward 1. While a graph runs, it has the budget less what the others hold. The first graph is
planned before the second is known; if it leaves too little, the second takes what it needs for that one step (and a
warning says so), and from the next step on the earlier graphs leave it a share in proportion to its plain peak.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .measure import same_device
from .plan import Plan

_References = list[weakref.ref[torch.UntypedStorage]]


class Holdings:
    """What forward passes of one model hold for backward passes that are still to come; other models have their own.

    Passes of one model may run in several threads: each method is one step that no other interrupts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Per plan: storages of the forward pass's inputs, and those that it made.
        self._pending: weakref.WeakKeyDictionary[Plan, tuple[_References, _References]] = weakref.WeakKeyDictionary()

    def begin(self, plan: Plan, inputs: dict[int, torch.UntypedStorage], results: Sequence[Any]) -> None:
        """A forward pass has run."""
        made = [storage for key, storage in storages(results).items() if key not in inputs]
        references = [weakref.ref(s) for s in inputs.values()], [weakref.ref(s) for s in made]
        with self._lock:
            self._pending[plan] = references

    def end(self, plan: Plan) -> None:
        """Its backward pass has run."""
        with self._lock:
            self._pending.pop(plan, None)

    def held(self, plan: Plan) -> int:
        """Bytes that the last forward pass of a plan made and still holds."""
        with self._lock:
            _, made = self._pending.get(plan, ([], []))
        return sum(storage.nbytes() for storage in _alive(made))

    def outside(self, tensors: Iterable[Any], plan: Plan | None, device: torch.device) -> dict[int, int]:
        """What lives on the device next to a graph about to run: sizes of storages by identity.

        Args:
            tensors: parameters and buffers of the whole model.
            plan: the graph's own, left out.
        """
        found = list(storages(tensors).values())
        with self._lock:
            others = [references for other, references in self._pending.items() if other is not plan]
        for inputs, made in others:
            if alive := _alive(made):
                found += alive + _alive(inputs)
        return {storage._cdata: storage.nbytes() for storage in found if same_device(storage.device, device)}


def storages(tensors: Iterable[Any]) -> dict[int, torch.UntypedStorage]:
    """Storages of plain tensors, by identity."""
    plain = [t for t in tensors if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    return {storage._cdata: storage for storage in (t.untyped_storage() for t in plain)}


def _alive(references: _References) -> list[torch.UntypedStorage]:
    return [storage for reference in references if (storage := reference()) is not None]
