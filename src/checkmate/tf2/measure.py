"""The true peak of TensorFlow's memory while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf


@dataclass
class Measurement:
    """Bytes of live tensors on one device.

    Attributes:
        base: when the block began. peak: at the highest point of the block. Both None where TensorFlow does not count
        (on the CPU it counts while oneDNN is on, which is the default on x86).
    """

    base: int | None = None
    peak: int | None = None

    @property
    def added(self) -> int | None:
        """What the block took at its peak beyond what was there before it."""
        return None if self.peak is None or self.base is None else self.peak - self.base


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


def _info(device: str) -> tuple[int, int] | None:
    try:
        info = tf.config.experimental.get_memory_info(device)
    except ValueError:  # this device's allocator keeps no statistics
        return None
    return int(info["current"]), int(info["peak"])
