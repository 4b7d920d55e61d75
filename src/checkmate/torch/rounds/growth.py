"""Plans that are made anew because training holds more than before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import InfeasibleBudget

_T = TypeVar("_T")

#: So many are made for what training holds; then with room for as much again as that has grown by, or at least this part of it, so
#: that they get rarer.
_GROWTHS = 8


def with_room(make: Callable[[int], _T], growths: list[int], outside: int) -> _T:
    """One more, which leaves room for more.

    Args:
        make: from bytes of room to what is wanted. growths: bytes that training held each time; this one is added.
        outside: bytes that it holds now.

    Raises:
        InfeasibleBudget: there is none, not even without room.
    """
    growths.append(outside)
    grown = outside - growths[0] if len(growths) > _GROWTHS else 0
    more = grown
    while more > grown // _GROWTHS:
        try:
            return make(more)
        except InfeasibleBudget as error:
            more = min(more // 2, more - (error.smallest_found - error.budget))
    if grown:
        growths.clear()
    return make(0)
