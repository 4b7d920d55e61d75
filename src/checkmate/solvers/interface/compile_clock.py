"""Time for a search, without what is spent once on an installation: kernels compile when they are first called, for many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event


@contextmanager
def clock() -> Iterator[Callable[[], float]]:
    """Gives the seconds since the block began; they stand still while kernels compile."""
    began = time.perf_counter()
    with event.install_listener("numba:compile", event.TimingListener()) as compiling:

        def seconds() -> float:
            compiled = compiling.duration if compiling.done else 0.0
            return time.perf_counter() - began - float(compiled)

        yield seconds
