"""What the cost of an op depends on besides the op: the processor, its threads, library versions, switches."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

#: Lines of /proc/cpuinfo that tell processors apart: the first on x86, the rest on ARM, which has no names there.
_NAMES = ("model name", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "cpu", "uarch")


def cost_environment(framework: str, version: str, device: str, threads: int, **switches: Any) -> dict[str, Any]:
    """What measured costs are kept for.

    Args:
        framework, version: what runs the ops. device: the name of the accelerator, or "cpu".
        threads: that one op may use. switches: whatever else of the framework changes which kernel runs.
    """
    machine = {"processor": processor_name(), "processors": available_processors()}
    return {"framework": framework, "version": version, "device": device, "threads": threads, **machine, **switches}


@lru_cache(maxsize=1)
def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model of this machine's processor."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = [[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]
    found: dict[str, str] = {}
    for name, value in fields:
        if name in _NAMES:
            found.setdefault(name, value)
    if "model name" in found:
        return found["model name"]
    described = ", ".join(f"{name} {value}" for name, value in found.items())
    return f"{platform.processor() or platform.machine()} {described}".strip()


def available_processors() -> int:
    """Logical processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1
