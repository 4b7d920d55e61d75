"""Bytes in and out: "2GiB", "500MB", "50%"."""

from __future__ import annotations

import math
import re
from typing import SupportsInt

from .errors import BudgetError
from .text import format_bytes as format_bytes
from .text import printable

Budget = int | float | str

#: Byte counts are below this (8 PiB): so many are exact also as floating-point numbers, in which some methods count.
BYTES_LIMIT = 2**53

_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
# A bare letter is binary, as in `docker -m 4g` and batch schedulers.
_LETTER = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS = {"": 1, "B": 1, **_DECIMAL, **_BINARY, **_LETTER}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)\s*")
_EXAMPLES = 'give bytes (2000000000), a string with a unit ("2GiB", "500MB") or a percentage ("50%")'


def parse_bytes(amount: Budget, *, percent_of: SupportsInt | None = None) -> int:
    """Read an amount of memory as whole bytes.

    Args:
        amount: bytes as a number, or a string with a unit. KB/MB/GB/TB are powers of 1000; KiB/MiB/GiB/TiB and the
            bare letters K/M/G/T are powers of 1024. "50%" is half of `percent_of`.
        percent_of: what a percentage refers to, in bytes; without it percentages are refused.

    Raises:
        BudgetError: the amount cannot be read, is less than one byte, or is 2**53 bytes or more.
    """
    if isinstance(amount, str):
        match = _NUMBER.fullmatch(amount)
        if match is None:
            raise BudgetError(f"cannot read {shown(amount)} as an amount of memory: {_EXAMPLES}")
        # Whole numbers stay exact, so that a percentage of a large amount does.
        number = int(match[1]) if match[1].isdigit() and len(match[1]) < 40 else float(match[1])
        unit = match[2].upper()
        if unit == "%":
            if percent_of is None:
                raise BudgetError(f"{shown(amount)} is a percentage, but there is nothing here for it to refer to: {_EXAMPLES}")
            share = number * int(percent_of)
            size = share // 100 if isinstance(share, int) else share / 100
        elif unit in _UNITS:
            size = number * _UNITS[unit]
        else:
            raise BudgetError(
                f"unknown unit {shown(match[2])} in {shown(amount)}: use B, KB, MB, GB, TB, KiB, MiB, GiB, TiB or %"
            )
    else:
        try:
            size = amount.__index__() if hasattr(amount, "__index__") else float(amount)
        except (TypeError, ValueError):
            size = math.nan
        if isinstance(amount, bool) or size != size:  # only NaN differs from itself
            raise BudgetError(f"cannot read {shown(amount)} as an amount of memory: {_EXAMPLES}")
    if size == math.inf or size < 1:
        raise BudgetError(f"an amount of memory must be at least one byte and finite, not {shown(amount)}")
    if size >= BYTES_LIMIT:
        raise BudgetError(f"an amount of memory must be less than 2**53 bytes (8 PiB), not {shown(amount)}")
    return int(size)


def shown(amount: object) -> str:
    """What was given, for a message; short also where it is not."""
    try:
        return printable(repr(amount), 60)
    except ValueError:  # Python does not write whole numbers of thousands of digits
        return "a number of thousands of digits"
