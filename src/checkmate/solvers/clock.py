"""Time for a search, without what is spent once on an installation: kernels compile when they are first called, for many seconds."""

from __future__ import annotations

import time
from types import TracebackType

from numba.core import event


class Clock:
    """Runs from its beginning as a context, and stands still while kernels compile."""

    def __enter__(self) -> Clock:
        self._began = time.perf_counter()
        self._compiling = event.TimingListener()
        event.register("numba:compile", self._compiling)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        event.unregister("numba:compile", self._compiling)

    def seconds(self) -> float:
        """Since the beginning."""
        compiled = self._compiling.duration if self._compiling.done else 0.0
        return time.perf_counter() - self._began - float(compiled)
