"""Numbers that tune a method: frozen dataclasses whose fields say what they are, and that refuse values which make no sense."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import TuningError


def number(default: Any, unit: str, why: str, shown_by: str, least: float = 0.0, most: float = math.inf) -> Any:
    """A field of a `Numbers` class.

    Args:
        default: a number, or a tuple of numbers (and of tuples of them), none empty.
        unit: of it. why: what it is for, and why it is about that large.
        shown_by: the command whose figures get worse with another value.
        least, most: limits of every number in it.
    """
    return field(default=default, metadata={"unit": unit, "why": why, "shown_by": shown_by, "least": least, "most": most})


@dataclass(frozen=True)
class Numbers:
    """Base of such dataclasses: all fields are made by `number`, or are `Numbers` themselves.

    Raises:
        TuningError: a value is of another kind than its default, or beyond its limits.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            value, name = getattr(self, one.name), f"{type(self).__name__}.{one.name}"
            if "unit" in one.metadata:
                _check(name, value, one.default, one.metadata["least"], one.metadata["most"])
            elif type(value) is not type(one.default):
                raise TuningError(f"{name} must be {_kind(one.default)}, not {value!r}")


def _check(name: str, value: Any, default: Any, least: float, most: float) -> None:
    if isinstance(default, tuple):
        if not isinstance(value, tuple) or not value:
            raise TuningError(f"{name} must be a tuple with at least one entry, not {value!r}")
        for entry in value:
            if isinstance(default[0], tuple) and len(entry if isinstance(entry, tuple) else ()) != len(default[0]):
                raise TuningError(f"{name} must have entries like {default[0]!r}, not {entry!r}")
            # Entries that are tuples have a kind for each place; plain ones are all of one kind.
            for part, like in zip(entry, default[0], strict=True) if isinstance(default[0], tuple) else [(entry, default[0])]:
                _check(name, part, like, least, most)
        return
    fits = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
    if not fits or isinstance(value, bool) is not isinstance(default, bool):
        raise TuningError(f"{name} must be {_kind(default)}, not {value!r}")
    if not least <= value <= most:
        raise TuningError(f"{name} must be between {least:g} and {most:g}, not {value!r}")


def _kind(default: Any) -> str:
    known = {bool: "True or False", int: "a whole number", float: "a number"}
    return known.get(type(default), f"a {type(default).__name__}")
