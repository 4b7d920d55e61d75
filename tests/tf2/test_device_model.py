"""Costs for a device that is not here: arithmetic of the op over the rate that is published for its element type."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

from checkmate.tf2 import capture

#: Large enough that nothing but arithmetic counts.
BATCH, WIDTH = 8192, 4096


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def rate() -> float:
    """Operations per second of the products, a multiply-add counted as two."""
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), tf.keras.layers.Dense(WIDTH, use_bias=False)])
    graph = capture(model, "mse", tf.TensorSpec((BATCH, WIDTH)), tf.TensorSpec((BATCH, WIDTH)), device="a100")
    return 2 * BATCH * WIDTH * WIDTH / max(op.cost for op in graph.ops)


def test_products_round_as_tensorflow_lets_them() -> None:
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert rate() == pytest.approx(156e12, rel=0.01)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert rate() == pytest.approx(19.5e12, rel=0.01)
