"""Where the variables of a step lie in the memory pool of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import itemgetter
from typing import Any

import tensorflow as tf

from ..internals import address, variable_bytes, variable_type
from .measure import MOST_HOLES, ODD, UNIT, bytes_in_use, empty, in_counted_pool, smallest_counted

#: So many free blocks that lie elsewhere are taken away for one variable at most.
_MOST_ELSEWHERE = 64


def settle(variables: Iterable[Any]) -> int:
    """Have variables lie in blocks that are as large as they are, as far as the pool has such blocks.

    A variable keeps the block that its first value was put into, which the pool may have given out whole though it was nearly twice as
    large, or a place outside of the pool. That would be there in every step, and no rehearsal would show it.

    Args:
        variables: their handles, and whatever else.

    Returns:
        Bytes by which the blocks are larger than the variables. Variables of so few bytes that they are not counted are left out.
    """
    if not in_counted_pool():
        return 0
    wasted = 0
    taken: list[tf.Tensor] = []
    for size, handle in sorted(_counted(variables), key=itemgetter(0)):  # none fits where a smaller one was
        with suppress(tf.errors.OpError):  # it has no value yet, or there is no room
            wasted += _move(handle, size, taken)
    return wasted


class Homes:
    """Places, side by side, of the variables that steps move; they are brought back there between steps.

    A step puts the next value of a variable wherever there is room, in the middle of the pool for one. Free blocks beside it are smaller
    then, and the pool gives them out whole to tensors that need less: of 30 steps of VGG19 with momentum in `benchmarks/keras_matrix.py`,
    none of which changed the plan, the first took 187 MiB and some up to 229. With all variables back in their places before each step,
    every one took 187.
    """

    def __init__(self) -> None:
        self._moved: dict[int, Any] = {}  # handles by their identities
        self._place = range(0)  # addresses; empty where there is none yet
        self._away = False  # a step ran since they were brought back

    def leave(self, handles: Iterable[Any]) -> None:
        """A step moves these variables."""
        before = len(self._moved)
        self._moved |= {id(one): one for one in handles}
        self._away = bool(self._moved)
        if len(self._moved) > before:
            self._place = range(0)  # all need a larger one

    def bring_back(self) -> int:
        """Put the variables where they belong.

        Returns:
            Bytes by which their blocks are larger than they are.
        """
        if not self._away or not in_counted_pool():
            return 0
        self._away = False
        variables = sorted(_counted(self._moved.values()), key=itemgetter(0), reverse=True)
        wasted = 0
        with suppress(tf.errors.OpError):  # one has no value any more, or there is no room
            wasted = self._put(variables)
            if not all(address(_value(handle)) in self._place for _, handle in variables):
                self._place = range(0)  # something else lies there, or what is free before it has become one with it
                wasted = self._put(variables)
        return wasted

    def _put(self, variables: list[tuple[int, tf.Tensor]]) -> int:
        """Put variables into the place, which is found first where there is none."""
        taken: list[tf.Tensor] = []
        if self._place:
            # Each may lie where another one belongs.
            for size, handle in variables:
                if address(_value(handle)) in self._place:
                    _move(handle, size, taken, lambda at: at not in self._place)
        else:
            total = sum(-(-size // UNIT) * UNIT for size, _ in variables)
            _next_waste(total, taken)
            begin = address(empty(total))
            self._place = range(begin, begin + total)
        taken.clear()
        return sum([_move(handle, size, taken, lambda at: at in self._place) for size, handle in variables])


def _counted(variables: Iterable[Any]) -> list[tuple[int, tf.Tensor]]:
    """Variables that TensorFlow counts, each once, with their bytes."""
    least = smallest_counted("CPU:0")
    found = {id(one): one for one in variables if variable_type(one) is not None}
    return [(size, one) for one in found.values() if (size := variable_bytes(one)) >= least]


def _move(handle: tf.Tensor, size: int, taken: list[tf.Tensor], wanted: Callable[[int], bool] | None = None) -> int:
    """Put the value of a variable of so many bytes into another block, and say how much larger that is; see `_next_waste`."""
    value = _value(handle)
    waste = _next_waste(size, taken, wanted)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.raw_ops.DeepCopy(x=value))
    return waste


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
        if (exact and (wanted is None or elsewhere > _MOST_ELSEWHERE or wanted(address(block)))) or len(taken) >= MOST_HOLES:
            return max(0, waste)
        taken.append(block)
        del block
