"""Where the variables of a step lie in the memory pool of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import tensorflow as tf

from .internals import address, variable_bytes, variable_type
from .measure import ODD, UNIT, bytes_in_use, counts_memory, default_device, empty, smallest_counted

#: So many free blocks that would be too large are taken away at most, and so many that lie elsewhere.
_MOST_HOLES, _MOST_ELSEWHERE = 10_000, 64


@dataclass
class _Variable:
    """A variable that has a place: its handle, its bytes, the address at which it belongs, and by how many bytes its block is larger."""

    handle: tf.Tensor
    size: int
    home: int
    waste: int

    @property
    def place(self) -> range:
        return range(self.home, self.home + self.size)


class Homes:
    """Places of variables, side by side, in blocks that are as large as they are, as far as the pool has such blocks.

    A variable keeps the block that its first value was put into, which the pool may have given out whole though it was nearly twice as
    large, or a place outside of the pool. That would be there in every step, and no rehearsal would show it.

    And a step puts the next value of a variable wherever there is room, in the middle of the pool for one. Free blocks beside it are smaller
    then, and the pool gives them out whole to tensors that need less: of 30 steps of VGG19 with momentum in `benchmarks/keras_matrix.py`,
    none of which changed the plan, the first took 187 MiB and some up to 229. With all variables back where they were before each step,
    every one took 187.
    """

    def __init__(self) -> None:
        self._variables: dict[int, _Variable] = {}  # by the identity of the handle
        self._away: dict[int, _Variable] = {}  # those of them that may lie elsewhere

    def take_in(self, handles: Iterable[Any]) -> int:
        """Give places to variables that have none.

        Args:
            handles: of variables, and whatever else. Variables of so few bytes that they are not counted are left where they are.

        Returns:
            Bytes by which their blocks are larger than they are.
        """
        if not _in_pool():
            return 0
        least = smallest_counted("CPU:0")
        wanted = {id(one): one for one in handles if variable_type(one) is not None}
        new = {key: one for key, one in wanted.items() if key not in self._variables}
        sizes = [(size, one) for one in new.values() if (size := variable_bytes(one)) >= least and _has_value(one)]
        taken: list[tf.Tensor] = []
        total = sum(-(-size // UNIT) * UNIT for size, _ in sizes)
        with suppress(tf.errors.OpError):  # there is no room
            _next_waste(total, taken)
            begin = address(empty(total))
            place = range(begin, begin + total)
            taken.clear()
            for size, handle in sorted(sizes, key=itemgetter(0), reverse=True):
                waste = _move(handle, size, taken, lambda at: at in place)
                self._variables[id(handle)] = _Variable(handle, size, address(_value(handle)), waste)
        return sum(self._variables[key].waste for key in wanted if key in self._variables)

    def leave(self, handles: Iterable[Any]) -> None:
        """A step moves these variables."""
        self._away |= {id(one): self._variables[id(one)] for one in handles if id(one) in self._variables}

    def bring_back(self) -> int:
        """Put variables where they belong that a step moved, and find other places for them where something else lies there.

        Returns:
            Bytes by which their blocks are larger than they are.
        """
        away = [one for one in self._away.values() if _has_value(one.handle) and address(_value(one.handle)) != one.home]
        self._away.clear()
        away.sort(key=lambda one: one.home)  # of a free block the pool gives out the beginning first
        taken: list[tf.Tensor] = []
        with suppress(tf.errors.OpError):  # there is no room
            for one in away:
                if _in_any(away, address(_value(one.handle))):
                    _move(one.handle, one.size, taken, lambda at: not _in_any(away, at))
            taken.clear()
            for one in away:
                _move(one.handle, one.size, taken, one.home.__eq__)
        taken.clear()
        if all(address(_value(one.handle)) == one.home for one in away):
            return 0
        for one in away:
            del self._variables[id(one.handle)]
        return self.take_in(one.handle for one in away)


def _in_any(variables: Iterable[_Variable], at: int) -> bool:
    return any(at in one.place for one in variables)


def _in_pool() -> bool:
    """Variables lie in the pool of the CPU, and TensorFlow counts what it gives out."""
    return default_device() == "CPU:0" and counts_memory("CPU:0")


def _move(handle: tf.Tensor, size: int, taken: list[tf.Tensor], wanted: Callable[[int], bool] | None = None) -> int:
    """Put the value of a variable of so many bytes into another block, and say how much larger that is; see `_next_waste`."""
    value = _value(handle)
    waste = _next_waste(size, taken, wanted)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.raw_ops.DeepCopy(x=value))
    return waste


def _has_value(handle: tf.Tensor) -> bool:
    return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def _value(handle: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable_type(handle))


def _next_waste(size: int, taken: list[tf.Tensor], wanted: Callable[[int], bool] | None = None) -> int:
    """Bytes by which the next block for so many bytes will be larger.

    Args:
        taken: free blocks for which it would be too many are taken away here first, those among them that variables have left.
        wanted: says of an address whether the block had better begin there; others are taken away, too.
    """
    elsewhere = 0
    while True:
        before = bytes_in_use()
        block = empty(size)
        waste = bytes_in_use() - before - size
        exact = waste < ODD
        elsewhere += exact
        if (exact and (wanted is None or elsewhere > _MOST_ELSEWHERE or wanted(address(block)))) or len(taken) >= _MOST_HOLES:
            return max(0, waste)
        taken.append(block)
        del block
