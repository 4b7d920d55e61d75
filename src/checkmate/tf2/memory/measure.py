"""The true peak of TensorFlow's memory while a block runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import tensorflow as tf

from ..internals import onednn_is_on
from ..ops.op_kinds import SMALL, SMALL_BLOCK

#: Bytes: what TensorFlow asks of the address of a tensor.
_ALIGNED = 64

#: Bytes: few blocks are larger than a power of two by no more than this.
ODD = 4096

#: Bytes: the pool gives out multiples of this.
UNIT = 256

#: So many free blocks are taken away at most.
MOST_HOLES = 10_000

#: The pool has room for so many times what a step may take. With the same, plans for the least budgets of the small U-Net and the dense blocks
#: in `benchmarks/keras_named_budgets.py` took 6.6 to 8.6 and 24 to 33 MiB in steps, up to a third more than in the trials of another
#: process; with 1.25 times that 4 of 6 still differed, with 1.5 times one step of one did, and with twice none by more than 0.2%.
#: TensorFlow's own notes on the room take a thirty-second part of it.
_ROOM = 2


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
        memory = _machine_bytes()
        if memory is not None:  # else TensorFlow's own limit is 64 GiB
            os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(memory >> 20))


def _machine_bytes() -> int | None:
    """Of the machine's memory; None where the system does not tell."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def default_device() -> str:
    """Where ops run unless the script says otherwise."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def make_room(amount: int) -> None:
    """Have the memory pool of the CPU hold one free block with ample room for a step of so many bytes. Nothing writes to it yet.

    The pool gives out a free block whole unless it is twice as large as asked for, and all of it counts as used. What is left over where
    a pool grew step by step makes the peak of one and the same step differ by 10% and more from process to process; one block, from
    which exact ones are cut, keeps that to a few percent. Where the system refuses such a block it is as large as the step at least, and
    where that is refused nothing is done.
    """
    if default_device() != "CPU:0":
        return
    ample = max(amount, min(_ROOM * amount, _machine_bytes() or amount))
    for size in dict.fromkeys((ample, amount)):  # what is refused takes ten seconds
        with suppress(tf.errors.ResourceExhaustedError):
            empty(size)
            return


def empty(size: int) -> tf.Tensor:
    """A block of so many bytes, or a little more. Nothing is written to it."""
    return tf.raw_ops.Empty(shape=[-(-size // UNIT), UNIT], dtype=tf.uint8, init=False)  # no side may have 2 GiB


@contextmanager
def exact_blocks(largest: int) -> Iterator[None]:
    """While inside, the memory pool of the CPU gives out blocks of up to `largest` bytes that are as large as asked for.

    It would rather give out a free block whole that is less than twice as large (see `make_room`). Such blocks are taken here
    until the block ends; nothing is written to them.
    """
    device = default_device()
    taken: list[tf.Tensor] = []
    size = SMALL
    while in_counted_pool() and size < 2 * largest and len(taken) < MOST_HOLES:
        try:
            with measure(device) as seen:
                block = empty(size + ODD)
        except tf.errors.ResourceExhaustedError:
            break
        if (seen.added or 0) < size + 2 * ODD:
            size *= 2  # cut from a block of twice the size, or luckily exact
        else:
            taken.append(block)
        del block
    yield


def outside(array: np.ndarray, dtype: tf.DType) -> tf.Tensor:
    """A copy of an array on the CPU in memory that TensorFlow's allocator knows nothing of, if the type of element allows it."""
    memory = np.empty(array.nbytes + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    with suppress(BufferError, TypeError, RuntimeError):  # numpy cannot pass it on: bfloat16, for one
        copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())
    return tf.constant(array, dtype)


def zeros_outside(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Zeros on the CPU in memory that TensorFlow's allocator knows nothing of, if the type of element allows it."""
    if dtype.is_floating or dtype.is_integer or dtype.is_bool:
        return outside(np.zeros(shape, dtype.as_numpy_dtype), dtype)
    return tf.zeros(shape, dtype)


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


@contextmanager
def watch(device: str, most: int) -> Iterator[Measurement]:
    """As `measure`, but TensorFlow's statistics are the user's: they stay as long as a block that takes more than others shows in them.

    Args:
        most: bytes that earlier blocks took beyond what was there before them. Of a block that takes no more, nothing may be seen.
    """
    seen = Measurement()
    before = _info(device)
    if before is not None and before[1] > before[0] + max(0, most):
        tf.config.experimental.reset_memory_stats(device)
        before = _info(device)
    yield seen
    after = _info(device)
    if before is not None and after is not None and after[1] > before[1]:
        seen.base, seen.peak = before[0], after[1]


def in_counted_pool() -> bool:
    """Tensors lie in the pool of the CPU, and TensorFlow counts what it gives out."""
    return default_device() == "CPU:0" and counts_memory("CPU:0")


def bytes_in_use() -> int:
    """Bytes that are live where ops run; 0 where TensorFlow does not count."""
    info = _info(default_device())
    return 0 if info is None else info[0]


def counts_memory(device: str) -> bool:
    """TensorFlow counts the bytes of this device."""
    return _info(device) is not None


def smallest_counted(device: str) -> int:
    """Bytes of the smallest tensors that are worth a thought and that TensorFlow counts."""
    return SMALL if counts_small_blocks(device) else SMALL_BLOCK


@lru_cache
def counts_small_blocks(device: str) -> bool:
    """TensorFlow counts small blocks of memory too; see `op_kinds.SMALL_BLOCK`."""
    before = _info(device)
    block = tf.zeros([SMALL], tf.uint8)
    after = _info(device)
    del block
    return before is None or after is None or after[0] > before[0]


def _info(device: str) -> tuple[int, int] | None:
    try:
        info = tf.config.experimental.get_memory_info(device)
    except ValueError:  # this device's allocator keeps no statistics
        return None
    return int(info["current"]), int(info["peak"])
