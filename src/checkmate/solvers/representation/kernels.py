"""Functions that are compiled to machine code: `@kernel` in place of numba's own decorator, one place for how that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(*, nogil: bool = False, error_model: Literal["python", "numpy"] = "python") -> Callable[[_Function], _Function]:
    """Compile a function when it is first called; the machine code is kept on disk for the next process.

    Args:
        nogil: other Python threads go on meanwhile. error_model: "numpy" makes division by zero infinite instead of an error.
    """
    compiled: Any = njit(cache=True, nogil=nogil, error_model=error_model)
    return compiled
