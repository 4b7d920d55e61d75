"""Blocks of the memory pool that variables lie in."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.memory.measure import bytes_in_use, counts_memory, exact_blocks, make_room, measure
from checkmate.tf2.memory.variable_memory import Homes, settle

MEBI = 2**20


def block(size: int) -> tf.Tensor:
    return tf.raw_ops.Empty(shape=[size], dtype=tf.uint8, init=False)


@pytest.mark.skipif(not counts_memory("CPU:0"), reason="TensorFlow counts no memory here")
def test_variables_leave_blocks_that_are_too_large() -> None:
    """The pool gives out a free block whole that is less than twice as large as asked for."""
    before = bytes_in_use()
    with exact_blocks(4 * MEBI):
        guards = [block(3 * MEBI) for _ in range(5)]  # one behind the other
        del guards[1], guards[2]
        value = np.arange(MEBI // 2, dtype=np.float32)
        variables = [tf.Variable(tf.raw_ops.DeepCopy(x=value)) for _ in range(2)]
    del guards
    assert bytes_in_use() - before > 4 * MEBI
    assert settle([one.handle for one in variables]) == 0
    assert bytes_in_use() - before == 4 * MEBI
    assert all((one.numpy() == value).all() for one in variables)


def test_what_has_no_value_stays_so() -> None:
    variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[MEBI], shared_name="checkmate_no_value")
    variable._handle_data = tf.Variable(tf.zeros([MEBI])).handle._handle_data
    homes = Homes()
    homes.leave([variable])
    assert settle([variable, tf.zeros([MEBI])]) == homes.bring_back() == 0
    assert not tf.raw_ops.VarIsInitializedOp(resource=variable)


@pytest.mark.skipif(not counts_memory("CPU:0"), reason="TensorFlow counts no memory here")
def test_room_for_more_than_two_gibibytes() -> None:
    before = bytes_in_use()
    with measure("CPU:0") as seen:
        make_room(2**31)
    assert seen.added is not None
    assert seen.added >= 2**31
    assert bytes_in_use() == before


@pytest.mark.skipif(not counts_memory("CPU:0"), reason="TensorFlow counts no memory here")
def test_variables_that_are_brought_back_keep_their_values_and_take_no_more() -> None:
    """Wherever they were moved, into each other's places for one, with values of later steps, and where something else lies in theirs."""
    make_room(64 * MEBI)
    before = bytes_in_use()
    variables = [tf.Variable(tf.zeros([size * MEBI // 4])) for size in (1, 4, 2, 3)]
    homes = Homes()
    assert homes.bring_back() == 0
    kept = None
    for step in range(12):
        between = []
        for one in variables[step % 4 :] + variables[: step % 4]:
            one.assign(tf.fill(one.shape, float(step)))
            between.append(block(MEBI + step * 1000))
        kept = between[0] if step > 8 else None
        del between
        homes.leave([one.handle for one in variables])
        assert homes.bring_back() == 0
        assert all((one.numpy() == step).all() for one in variables)
    del kept
    assert bytes_in_use() - before == 10 * MEBI
