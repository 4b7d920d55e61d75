"""Tensors that a script has beside what plans know of: microbatches fetched ahead, the batch after the next state, metrics.

Nobody tells about them. So what lives when training begins is noted, as data sets do, and what has been made since is looked for among
the objects of the process when a backward pass is about to run: it takes a tenth of a second, in the rounds that are recorded only.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Iterator

import torch

from ..pytorch.internals import inside_backward
from ..pytorch.living import instances
from .measure import storages_of
from .optimizer_state import tensors_in

#: Bytes. A data set may be a million small tensors; those of a step that are smaller than this do not matter.
_LEAST = 4096


class Beside:
    """What was there before the first step.

    Args:
        steps: that optimizers have made. gradients: bytes of those that are there.
    """

    def __init__(self, steps: int, gradients: int) -> None:
        self._steps, self._gradients = steps, gradients
        self._before = {key: weakref.ref(storage) for key, storage in _living().items()}

    def later(self, steps: int, gradients: int) -> bool:
        """Another step begins, not just another microbatch of the first: what the script makes for each step has been made since.

        A backward pass may run graphs, and ask for gradients that are not left anywhere.
        """
        return steps > self._steps or (gradients <= self._gradients and not inside_backward())

    def made(self, known: Container[int]) -> dict[int, torch.UntypedStorage]:
        """Storages that were made since, by identity, without those that are known."""
        found = self._made(known)
        if found:
            gc.collect()  # what only waits for it is no part of later steps
        return {key: storage for key, reference in found.items() if (storage := reference()) is not None}

    def _made(self, known: Container[int]) -> dict[int, weakref.ref[torch.UntypedStorage]]:
        before = {key for key, reference in self._before.items() if reference() is not None}
        trained = storages_of(_of_training())
        return {
            key: weakref.ref(storage)
            for key, storage in _living().items()
            if key not in before and key not in known and key not in trained
        }


def _of_training() -> Iterator[torch.Tensor]:
    """Gradients, and the state of optimizers: another model that trains has a budget of its own."""
    for parameter in instances(torch.nn.Parameter):
        if parameter.grad is not None:
            yield parameter.grad
    for optimizer in instances(torch.optim.Optimizer):
        yield from tensors_in(getattr(optimizer, "state", {}))


def _living() -> dict[int, torch.UntypedStorage]:
    """Storages of plain tensors on the CPU, by identity.

    Parameters are for others to count; states of random generators are what plans keep.
    """
    state = torch.get_rng_state().nbytes
    plain = [tensor for tensor in instances(torch.Tensor) if type(tensor) is torch.Tensor]
    storages = storages_of(tensor for tensor in plain if tensor.dtype != torch.uint8 or tensor.nbytes != state)
    return {key: storage for key, storage in storages.items() if storage.nbytes() >= _LEAST}
