"""The two functions that run a part under a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..schedule import Step
from .capture import Captured
from .emit import Numbers, emit
from .internals import Boxed, boxed


@dataclass(frozen=True)
class Halves:
    """The two functions of one run. The numbers that follow from sizes are the last inputs of each.

    Attributes:
        forward: inputs -> outputs, then what the backward pass needs. backward: that, then gradients of outputs -> gradients.
    """

    forward: Boxed
    backward: Boxed
    forward_numbers: Numbers
    backward_numbers: Numbers


def halves_of(captured: Captured, steps: Sequence[Step]) -> Halves:
    """Emit a schedule of one part."""
    emitted = emit(captured, steps)
    assert emitted.backward is not None
    return Halves(boxed(emitted.forward), boxed(emitted.backward), emitted.forward_numbers, emitted.backward_numbers)
