"""Made-up inputs for ops that are run by themselves."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from ..ops.op_kinds import is_shape, shape_value, tensor_bytes
from .measure import default_device, outside


def constant_value(tensor: tf.Tensor) -> Any:
    """The value of a small tensor (a shape, an axis) that is known before the step runs; None otherwise."""
    if tensor.dtype.is_floating or tensor.dtype in (tf.resource, tf.variant) or tensor_bytes(tensor) > 1024:
        return None
    if is_shape(tensor.op):
        return shape_value(tensor)
    return tf.get_static_value(tensor)


def made_up(tensor: tf.Tensor) -> tf.Tensor:
    """Random numbers in (0.1, 1); zeros for integers, valid as indices; a mix of True and False."""
    shape = tuple(tensor.shape.as_list())
    return _random(shape, tensor.dtype)


def forget_made_up() -> None:
    """Free what was made: on an accelerator these are live tensors too."""
    _random.cache_clear()


@lru_cache(maxsize=8)
def _random(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    generator = np.random.default_rng(0)
    if dtype.is_floating:
        made = generator.uniform(0.1, 1.0, shape).astype(dtype.as_numpy_dtype)
    elif dtype.is_bool:
        made = generator.uniform(size=shape) < 0.5
    else:
        made = np.zeros(shape, dtype.as_numpy_dtype)
    return outside(made, dtype) if default_device() == "CPU:0" else tf.constant(made, dtype)
