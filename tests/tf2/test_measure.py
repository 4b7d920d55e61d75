"""Blocks of the memory pool that variables lie in."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.internals import address
from checkmate.tf2.measure import bytes_in_use, counts_memory, exact_blocks, make_room, measure
from checkmate.tf2.variable_memory import Homes

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
    assert Homes().take_in([one.handle for one in variables]) == 0
    assert bytes_in_use() - before == 4 * MEBI
    assert all((one.numpy() == value).all() for one in variables)


def test_what_has_no_value_stays_so() -> None:
    variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[MEBI], shared_name="checkmate_no_value")
    variable._handle_data = tf.Variable(tf.zeros([MEBI])).handle._handle_data
    homes = Homes()
    homes.leave([variable])
    assert homes.take_in([variable, tf.zeros([MEBI])]) == homes.bring_back() == 0
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
def test_variables_come_back_to_where_they_were() -> None:
    """Wherever they were moved, into each other's places for one, and with values of later steps."""
    make_room(64 * MEBI)
    before = bytes_in_use()
    variables = [tf.Variable(tf.zeros([size * MEBI // 4])) for size in (1, 4, 2, 3)]
    handles = [one.handle for one in variables]
    homes = Homes()
    assert homes.take_in(handles) == homes.bring_back() == 0
    places = []
    for step in range(12):
        between = []
        for one in variables[step % 4 :] + variables[: step % 4]:
            one.assign(tf.fill(one.shape, float(step)))
            between.append(block(MEBI + step * 1000))
        del between
        homes.leave(handles)
        assert homes.bring_back() == 0
        places.append([address(one.read_value()) for one in variables])
        assert all((one.numpy() == step).all() for one in variables)
    assert (
        places[-1] == places[-2] == places[-3]
    )  # the first ones may lie beside room that is free by now, which moves them a few times
    assert bytes_in_use() - before == 10 * MEBI


@pytest.mark.skipif(not counts_memory("CPU:0"), reason="TensorFlow counts no memory here")
def test_variables_find_another_place_where_something_else_lies_in_theirs() -> None:
    make_room(64 * MEBI)
    variables = [tf.Variable(tf.zeros([MEBI])) for _ in range(2)]
    handles = [one.handle for one in variables]
    homes = Homes()
    homes.take_in(handles)
    first = {address(one.read_value()) for one in variables}
    kept = []
    for one in variables:
        one.assign(tf.ones(one.shape))
        kept.append(block(4 * MEBI))
    assert first & {address(one) for one in kept}
    homes.leave(handles)
    assert homes.bring_back() == 0
    second = [address(one.read_value()) for one in variables]
    for one in variables:
        one.assign(tf.ones(one.shape))
    homes.leave(handles)
    assert homes.bring_back() == 0
    assert [address(one.read_value()) for one in variables] == second
