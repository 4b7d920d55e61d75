"""What users were told, so that they are told once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from ..memory.held import Held
from .watch import warn


class Told:
    """Of the graphs of one group.

    Several groups may be of one model, such as blocks that are compiled one by one and run by turns in the backward pass of a
    `torch.autograd.Function`: their options are equal, and one optimizer trains them. The first of them tells.
    """

    _all: ClassVar[weakref.WeakSet[Told]] = weakref.WeakSet()

    def __init__(self, given: Mapping[str, Any], held: Held) -> None:
        self._given, self._held = given, held
        self._kinds: set[str] = set()
        self._all.add(self)

    def tell(self, kind: str, message: str) -> None:
        """Warn, if nothing of this kind was told before."""
        if not any(kind in told._kinds for told in list(self._all) if told is self or self._is_of_one_model(told)):
            warn(message)
        self._kinds.add(kind)

    def _is_of_one_model(self, other: Told) -> bool:
        return self._given == other._given and not self._held.optimizers().isdisjoint(other._held.optimizers())
