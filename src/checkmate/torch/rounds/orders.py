"""Which order of graphs follows which, as far as the rounds before have shown it.

Scripts take turns (discriminator and generator, a regularization every few steps), which is foreseen from what came before. Where a model
draws which of its blocks run, nothing is: a round that began under the plan of another order may have kept too much for its own.

A round has ended when nothing waits for a backward pass. What a forward pass left for one that never comes (that of scores which are
not in the loss) may be part of a reference cycle, as in what Hugging Face's models return through Accelerate, and waits for Python's
collector.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from typing import Any

from .rounds import Order, Round, Run

#: So many rounds are remembered, and so many before it are compared to tell what comes next: a turn of up to so many rounds is foreseen.
#: It takes 0.02 to 0.2 ms a round. Of more orders than a turn has, those are planned that come again.
_REMEMBERED, _COMPARED = 64, 8
#: After a surprise nothing is relied on until so many rounds in a row came as foreseen, and twice as many as ever before.
_IN_A_ROW = 8
#: Python's collector is called for so many rounds of an order that is not planned yet; it takes a tenth of a second where objects are many.
_COLLECTED = 8


class Orders:
    """The orders of the rounds of one group.

    Attributes:
        expected: the order of the next round; None where no round like the last one has been followed by another.
    """

    def __init__(self) -> None:
        self.expected: Order | None = None
        self._recent: deque[Order] = deque(maxlen=_REMEMBERED)
        self._known: dict[Order, Order] = {}  # one object for equal ones
        self._surprised = False
        self._in_a_row = self._most_in_a_row = 0

    @property
    def certain(self) -> bool:
        """What is expected can be relied on."""
        return not self._surprised or self._in_a_row >= max(_IN_A_ROW, 2 * self._most_in_a_row)

    def note(self, order: Order, surprising: bool) -> None:
        """A round has ended.

        Args:
            surprising: it began under the plan of another order, and may have passed the budget for that.
        """
        if self.expected == order:
            self._in_a_row += 1
        else:
            self._surprised |= surprising and bool(self._known)  # of a first round a part is planned before anything is known
            self._most_in_a_row = max(self._most_in_a_row, self._in_a_row)
            self._in_a_row = 0
        self._recent.append(self._known.setdefault(order, order))
        if len(self._known) > 2 * _REMEMBERED:
            self._known = {known: known for known in self._recent}
        self.expected = self._next()

    @property
    def may_come_again(self) -> bool:
        """The order of the last round is one of few, or has come before: where orders are drawn among many, most come once."""
        times = Counter(map(id, self._recent))
        return len(times) <= _COMPARED or times[id(self._recent[-1])] > 1

    def _next(self) -> Order | None:
        recent = list(self._recent)
        longest = 0
        found: Order | None = None
        for place in range(len(recent) - 1, 0, -1):
            alike = 0
            while alike < min(_COMPARED, place) and recent[place - 1 - alike] is recent[-1 - alike]:
                alike += 1
            if alike > longest:
                longest, found = alike, recent[place]
            if alike == _COMPARED:
                break
        return found


class Endings:
    """Says of the rounds of one group whether they are over."""

    def __init__(self) -> None:
        self._collected = 0
        self._go_on: set[Order] = set()  # after some rounds that had come so far, there was another backward pass

    def is_over(self, round: Round[Any], run: Run, planned: Order | None) -> bool:
        """No backward pass follows.

        Args:
            run: whose backward pass has just run. planned: the order that the round runs under.
        """
        if not round.waiting:
            return True
        if planned is not None:
            return len(planned) == len(round.events) and planned == round.order and planned not in self._go_on
        if run.number or self._collected == _COLLECTED:  # after that of the first, others seldom follow
            return False
        self._collected += 1
        gc.collect()
        return not round.waiting

    def note_late(self, round: Round[Any]) -> None:
        """A backward pass of a round comes that was taken for one that is over."""
        self._go_on.add(round.order)
