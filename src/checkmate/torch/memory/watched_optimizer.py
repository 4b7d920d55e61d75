"""An optimizer whose state and steps are part of what training holds and takes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ...errors import CheckmateError
from .measure import Recording, passing
from .optimizer_state import Prediction, predict, tensors_in

#: So many steps are measured that cannot be predicted: sparse gradients differ from batch to batch.
_MEASURED = 4


class WatchedOptimizer:
    """An optimizer of known parameters.

    Attributes:
        steps: that it has made. measured: bytes that some of them took on the CPU, besides its state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, forget: Callable[[int], None]) -> None:
        key = id(optimizer)
        self.optimizer = weakref.ref(optimizer, lambda _: forget(key))
        self.steps = self.measured = 0
        self._prediction: tuple[Any, Prediction] | None = None
        self._recording: Recording | None = None

    def begins(self) -> None:
        """A step begins: what it takes is measured where it cannot be predicted, as with sparse gradients. The first makes the state."""
        optimizer, recording, self._recording = self.optimizer(), self._recording, None
        if recording is not None:
            recording.stop()  # of a step that has failed
        if optimizer is None or not 0 < self.steps <= _MEASURED or self.prediction().complete:
            return
        if all(tensor.device.type == "cpu" for tensor in tensors_in(optimizer.param_groups)):
            with suppress(CheckmateError):  # the script measures or profiles itself
                self._recording = Recording()

    def ended(self) -> None:
        """The step has ended."""
        self.steps += 1
        recording, self._recording = self._recording, None
        if recording is not None:
            self.measured = max(self.measured, passing(recording.stop()))

    def parameters(self) -> frozenset[int]:
        optimizer = self.optimizer()
        return frozenset(map(id, tensors_in(optimizer.param_groups)) if optimizer is not None else ())

    def prediction(self) -> Prediction:
        """Made once for what the optimizer holds now; and anew when it is given parameters, or some are unfrozen or frozen."""
        optimizer = self.optimizer()
        if optimizer is None:
            return Prediction()
        groups = optimizer.param_groups
        trained = [(len(group["params"]), sum(p.requires_grad for p in group["params"])) for group in groups]
        key = trained, 0 if self.steps else len(optimizer.state)  # its steps make the state that was foreseen
        if self._prediction is None or self._prediction[0] != key:
            self._prediction = key, predict(optimizer)
        return self._prediction[1]
