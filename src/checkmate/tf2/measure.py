"""The true peak of TensorFlow's memory while a block runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import tensorflow as tf

from .internals import onednn_is_on


@dataclass
class Measurement:
    """Bytes of live tensors on one device.

    Attributes:
        base: when the block began. peak: at the highest point of the block. Both None where TensorFlow does not count.
    """

    base: int | None = None
    peak: int | None = None

    @property
    def added(self) -> int | None:
        """What the block took at its peak beyond what was there before it."""
        return None if self.peak is None or self.base is None else self.peak - self.base


def count_on_cpu() -> None:
    """Have TensorFlow count memory on the CPU, if it has made no device yet.

    With oneDNN, the default on recent processors of Intel and AMD, it always does; without, only its pooling allocator counts,
    which is chosen here unless the environment says otherwise. The pool may take all of the machine's memory.
    """
    if not onednn_is_on() and os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1") == "1":
        with suppress(ValueError, OSError, AttributeError):  # not known on this system: TensorFlow's own limit is 64 GiB
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(memory >> 20))


def default_device() -> str:
    """Where ops run unless the script says otherwise."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


@contextmanager
def measure(device: str | None = None) -> Iterator[Measurement]:
    """Measure a block: `with measure() as m: step()`, then `m.peak`. Resets TensorFlow's own peak statistics.

    Args:
        device: "CPU:0", "GPU:0"; by default where ops run.
    """
    device = device or default_device()
    seen = Measurement()
    before = _info(device)
    if before is not None:
        tf.config.experimental.reset_memory_stats(device)
        seen.base = before[0]
    yield seen
    after = _info(device)
    if after is not None and seen.base is not None:
        seen.peak = after[1]


def counts_memory(device: str) -> bool:
    """TensorFlow counts the bytes of this device."""
    return _info(device) is not None


def _info(device: str) -> tuple[int, int] | None:
    try:
        info = tf.config.experimental.get_memory_info(device)
    except ValueError:  # this device's allocator keeps no statistics
        return None
    return int(info["current"]), int(info["peak"])
