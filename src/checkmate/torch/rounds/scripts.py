"""What is known of the memory that the script takes in rounds of each order, and when it is looked at again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch

from ..graphs.capture import Captured
from ..memory.beside import Beside
from ..memory.held import Held
from ..memory.script_memory import NOTHING, Script, ScriptMemory
from ..ops.sizes import Bindings
from .rounds import Order, Round

#: What the script takes between passes is recorded in so many rounds at most: it takes time.
_RECORDED = 64
#: What it holds is looked for in so many rounds of later steps, then in the 8th, the 16th and so on up to this one.
_EACH, _LAST = 4, 64


class Scripts:
    """By order of rounds, what the script takes.

    Args:
        held: what training holds.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        self._known: dict[Order, Script] = {}
        self._at: dict[Order, list[Bindings]] = {}  # sizes of the first passes of the rounds that showed them
        self._cover: set[tuple[Order, Bindings]] = set()  # sizes that are no larger
        self._losses: dict[Order, set[tuple[str, ...]]] = {}  # outside of the graphs, that were recorded
        self._later: Counter[Order] = Counter()  # rounds in later steps than the first
        self._again: Counter[Order] = Counter()  # runs of the engine over what a round had left
        self._beside: Beside | None = None
        self._recorded = 0

    def of(self, order: Order) -> Script:
        """What is known of rounds of this order."""
        return self._known.get(order, NOTHING)

    def begin(self, round: Round[Any], captured: Captured, gradients: int, returned: Sequence[weakref.ref[Any]]) -> None:
        """The first pass of a round is about to run: look at the script's memory, if it is not known.

        Args:
            captured: the part that runs. gradients: bytes of those that are there.
            returned: storages that earlier rounds gave to the script.
        """
        if captured.device.type != "cpu" or self._recorded == _RECORDED:
            return
        round.later = self._beside is not None and self._beside.later(self._held.steps, gradients)
        if self._beside is None:
            self._beside = Beside(self._held.steps, gradients)
        losses: Collection[tuple[str, ...]] = ()
        last = 0
        if round.plan is not None:
            last = self._again[round.plan.order]
            if not (round.later and self._is_due(round.plan.order)):
                losses = self._known_losses(round.plan.order, captured, round.runs[0].sizes)
        found = partial(self._found, round, self._beside, returned)
        round.script = ScriptMemory(partial(self._counted, round), losses, found, last)

    def note(self, round: Round[Any]) -> bool:
        """A round has ended. True if its script was recorded."""
        order, known = round.order, self.of(round.order)
        if round.plan is not None:
            self._later[order] += round.later
        script = round.script if round.script is not None and round.script.recorded else None
        if script is not None:
            self._recorded += 1
            self._losses.setdefault(order, set()).update(script.losses)
            self._at.setdefault(order, []).append(round.runs[0].sizes)
            known = script.seen.joined(known)
        if (known := round.with_beside(known)) != NOTHING:  # orders may be drawn among very many
            self._known[order] = known
        return script is not None

    def count_again(self, round: Round[Any]) -> None:
        """A backward pass of a round that is over runs once more."""
        if round.script is not None:
            self._again[round.order] = max(self._again[round.order], round.script.runs_again)

    def note_again(self, round: Round[Any]) -> int:
        """A backward pass of a round that is over has run once more, and was recorded: bytes that the script had besides then."""
        order, script = round.order, round.script
        assert script is not None
        self._recorded += 1
        self._losses.setdefault(order, set()).update(script.losses)
        return max(0, script.again - self.of(order).during)

    def _is_due(self, order: Order) -> bool:
        """What the script holds is looked for in this round, if it is one of a later step.

        It may be more in the last round of a step than in the first, as where outputs are collected, and more in later steps.
        """
        number = self._later[order] + 1
        return number <= _EACH or (number <= _LAST and number.bit_count() == 1)

    def _counted(self, round: Round[Any]) -> set[int]:
        """Identities of the storages that are known in a round."""
        return round.storages() | self._held.storages()

    def between(self) -> dict[int, torch.UntypedStorage]:
        """What the script holds between rounds, by identity; nothing where other threads may train models of their own."""
        return self._made(self._beside, set())

    def _found(self, round: Round[Any], beside: Beside, returned: Sequence[weakref.ref[Any]]) -> dict[int, torch.UntypedStorage]:
        """What it holds beside a round."""
        left = {storage._cdata for reference in returned if (storage := reference()) is not None}
        return self._made(beside, set(round.kept()) | left)

    def _made(self, beside: Beside | None, known: set[int]) -> dict[int, torch.UntypedStorage]:
        if beside is None or any(t is not threading.current_thread() and not t.daemon for t in threading.enumerate()):
            return {}
        return beside.made(self._held.storages() | known)

    def _known_losses(self, order: Order, captured: Captured, sizes: Bindings) -> Collection[tuple[str, ...]]:
        """Losses outside of the graphs that were seen in rounds of this order, if one began at these sizes, or larger ones."""
        key = order, sizes
        if key not in self._cover and any(captured.covers(sizes, by=seen) for seen in self._at.get(order, ())):
            self._cover.add(key)
        return self._losses[order] if key in self._cover else ()
