"""Which order of graphs follows which, as far as the rounds before have shown it.

Scripts take turns (discriminator and generator, a regularization every few steps), which is foreseen from what came before. Where a model
draws which of its blocks run, nothing is: a round that began under the plan of another order may have kept too much for its own.
"""

from __future__ import annotations

from collections import deque

from .rounds import Order

#: So many rounds are remembered, and so many before it are compared to tell what comes next: a turn of up to so many rounds is foreseen.
#: It takes microseconds.
_REMEMBERED, _COMPARED = 64, 8
#: After the second surprise nothing is relied on until so many rounds in a row came as foreseen, and twice as many as ever before that.
_SURPRISES, _IN_A_ROW = 2, 8


class Orders:
    """The orders of the rounds of one group.

    Attributes:
        expected: the order of the next round; None where no round like the last one has been followed by another.
    """

    def __init__(self) -> None:
        self.expected: Order | None = None
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._numbers: dict[Order, int] = {}
        self._surprises = 0
        self._in_a_row = self._before_surprise = 0

    @property
    def certain(self) -> bool:
        """What is expected can be relied on."""
        return self._surprises < _SURPRISES or self._in_a_row >= max(_IN_A_ROW, 2 * self._before_surprise)

    def note(self, order: Order, planned_for: Order | None) -> None:
        """A round has ended.

        Args:
            planned_for: the order of the plan that it began under.
        """
        if self.expected == order:
            self._in_a_row += 1
        else:
            if planned_for not in (None, order) and (self.expected is not None or order not in self._numbers):
                self._surprises += 1
            self._before_surprise = max(self._before_surprise, self._in_a_row)
            self._in_a_row = 0
        self._recent.append(self._numbers.setdefault(order, len(self._numbers)))
        self.expected = self._next()

    def _next(self) -> Order | None:
        recent = list(self._recent)
        longest, found = 0, None
        for place in range(len(recent) - 1, 0, -1):
            alike = 0
            while alike < min(_COMPARED, place) and recent[place - 1 - alike] == recent[-1 - alike]:
                alike += 1
            if alike > longest:
                longest, found = alike, recent[place]
            if alike == _COMPARED:
                break
        return None if found is None else list(self._numbers)[found]
