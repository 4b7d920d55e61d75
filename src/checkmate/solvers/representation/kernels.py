"""Functions that are compiled to machine code: `@kernel` in place of numba's own decorator, one place for how that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from numba import njit
from numba.core import event

from .compile_clock import search_clock
from .kernel_cache import KernelCache

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Every one whose module is imported.
all_kernels: list[Any] = []


def kernel(*, nogil: bool = False, error_model: Literal["python", "numpy"] = "python") -> Callable[[_Function], _Function]:
    """Compile a function when it is first called; the machine code is kept on disk for the next process, where that can be.

    Args:
        nogil: other Python threads go on meanwhile. error_model: "numpy" makes division by zero infinite instead of an error.
    """

    def decorate(function: _Function) -> _Function:
        compiled: Any = njit(nogil=nogil, error_model=error_model)(function)
        if hasattr(compiled, "_cache"):  # it is the function itself where NUMBA_DISABLE_JIT is set
            compiled._cache = _TimedCache(function)
            all_kernels.append(compiled)
        return compiled

    return decorate


class _TimedCache(KernelCache):
    """The search clock stands still while machine code is read, too."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with search_clock.stopped():
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with search_clock.stopped():
            super().save_overload(sig, data)


class _Compiling(event.Listener):
    """Stops the search clock while a kernel of this package compiles. Other functions of a program are no concern of a search."""

    def on_start(self, event: Any) -> None:
        if _is_kernel(event):
            search_clock.stop()
            search_clock.tell()

    def on_end(self, event: Any) -> None:
        if _is_kernel(event):
            search_clock.go_on()


def _is_kernel(event: Any) -> bool:
    return isinstance(getattr(event.data.get("dispatcher"), "_cache", None), _TimedCache)


event.register("numba:compile", _Compiling())
