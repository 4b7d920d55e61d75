"""Bytes in and out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import BudgetError, CheckmateError, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("812B", 812),
        (" 2 GiB ", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        (".5MiB", 2**19),
        ("4g", 4 * 2**30),
        ("3K", 3072),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("2e3", 2000),
        ("1e-3GB", 1_000_000),
        ("9007199254740991", 2**53 - 1),
        (2_000_000_000, 2_000_000_000),
        (2**53 - 1, 2**53 - 1),
        (1.5e9, 1_500_000_000),
        (1.9, 1),
        (np.int64(7), 7),
        (np.float32(8.0), 8),
    ],
)
def test_amounts(text: Any, size: int) -> None:
    assert parse_bytes(text) == size
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(("text", "size"), [("50%", 500), ("100 %", 1000), ("12.5%", 125), ("250%", 2500), ("7", 7)])
def test_percentages(text: str, size: int) -> None:
    assert parse_bytes(text, percent_of=1000) == size


def test_hundred_percent_is_exact() -> None:
    assert parse_bytes("100%", percent_of=2**53 - 1) == 2**53 - 1


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        ("abc", "cannot read 'abc'.*2GiB"),
        ("", "cannot read ''"),
        ("-5", "cannot read '-5'"),
        ("1,000", "cannot read"),
        ("5 5", "cannot read"),
        ("GiB", "cannot read"),
        ("2XiB", "unknown unit 'XiB' in '2XiB': use B, KB"),
        ("50%", "percentage, but there is nothing"),
        ("0", "at least one byte"),
        ("0.4", "at least one byte"),
        ("1e999GiB", "finite"),
        (str(2**53), "less than 2..53 bytes"),
        pytest.param(10**5000, "not a number of thousands of digits", id="thousands of digits"),
        ("9" * 5000, "not '999.*…9.*9'$"),
        ("8192TiB", "less than 2..53 bytes"),
        (2**53, "less than 2..53 bytes"),
        (1e17, "less than 2..53 bytes"),
        (0, "at least one byte"),
        (-3, "at least one byte"),
        (float("nan"), "cannot read nan"),
        (float("inf"), "finite"),
        (float("-inf"), "finite"),
        (True, "cannot read True"),
        (None, "cannot read None"),
        ([1], "cannot read"),
        (np.array([1, 2]), "cannot read"),
        (1j, "cannot read"),
    ],
)
def test_refused(amount: Any, message: str) -> None:
    with pytest.raises(BudgetError, match=message) as caught:
        parse_bytes(amount)
    assert isinstance(caught.value, CheckmateError)
    assert isinstance(caught.value, ValueError)


def test_percentage_of_nothing() -> None:
    with pytest.raises(BudgetError, match="at least one byte"):
        parse_bytes("50%", percent_of=0)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1024, "1.00 KiB"),
        (96 * 2**20, "96.0 MiB"),
        (int(1.25 * 2**30), "1.25 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format(size: float, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 2**50))
def test_format_and_parse_agree(size: int) -> None:
    """What is printed reads back as the same size to the digits shown: 3 at least."""
    assert abs(Fraction(parse_bytes(format_bytes(size)), size) - 1) <= Fraction(1, 199)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        size = parse_bytes(text, percent_of=10**9)
    except BudgetError:
        return
    assert size >= 1
