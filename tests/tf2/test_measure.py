"""Blocks of the memory pool that variables lie in."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.measure import bytes_in_use, counts_memory, exact_blocks, make_room, measure, settle

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


def test_what_has_no_value_yet_stays_so() -> None:
    variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[MEBI], shared_name="checkmate_no_value")
    assert settle([variable, tf.zeros([MEBI])]) == 0
    assert not tf.raw_ops.VarIsInitializedOp(resource=variable)


@pytest.mark.skipif(not counts_memory("CPU:0"), reason="TensorFlow counts no memory here")
def test_room_for_more_than_two_gibibytes() -> None:
    before = bytes_in_use()
    with measure("CPU:0") as seen:
        make_room(2**31)
    assert seen.added is not None
    assert seen.added >= 2**31
    assert bytes_in_use() == before
