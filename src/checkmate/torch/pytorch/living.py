"""The objects of the process, by class."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any


def instances(*kinds: type) -> Iterator[Any]:
    """Every living object of these classes and theirs below.

    An object refers to its class: asking who refers to it finds the objects without touching any other, which may belong to
    threads that are just making them.
    """
    wanted = with_subclasses(*kinds)
    return (thing for thing in gc.get_referrers(*wanted) if type(thing) in wanted)


def with_subclasses(*kinds: type) -> set[type]:
    """These classes and all below them."""
    waiting, found = list(kinds), set(kinds)
    for kind in waiting:  # it grows
        below: set[type] = set(type.__subclasses__(kind)) - found
        found |= below
        waiting += below
    return found
