"""Bytes that one call takes beyond what it returns: allocation events of a profiler that can run inside another one.

`torch.profiler` allows one session in a process, and compilation, where ops are profiled, happens inside whatever the
user is doing: inside `measure()` or a profiler of their own. The older autograd profiler keeps its state per thread, so
that it works there too, in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

__all__ = ["allocation_peak"]


def allocation_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Run `call` without gradients and return its result and the most CPU tensor bytes it had allocated at any moment.

    Bytes of the result count. Releases of tensors that existed before do not.
    """
    autograd: Any = torch.autograd  # these names are untyped
    if autograd._profiler_enabled():
        with ThreadPoolExecutor(1) as own_thread:
            return own_thread.submit(_recorded, call).result()
    return _recorded(call)


def _recorded(call: Callable[[], Any]) -> tuple[Any, int]:
    autograd: Any = torch.autograd
    options = torch._C._profiler._ExperimentalConfig()
    state = autograd.ProfilerState.CPU
    autograd._enable_profiler_legacy(autograd.ProfilerConfig(state, False, True, False, False, False, options))
    try:
        with torch.no_grad():  # a new thread starts with gradients on
            result = call()
    finally:
        threads = autograd._disable_profiler_legacy()
    live = peak = 0
    for event in (event for events in threads for event in events):
        if event.kind() == "memory_alloc":
            live += event.cpu_memory_usage()
            peak = max(peak, live)
    return result, peak
