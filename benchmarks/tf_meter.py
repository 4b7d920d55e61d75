"""What training takes at its peak by TensorFlow's allocator, everything included."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_models import tensor_bytes

from checkmate.tf2 import Measurement, measure


class Meter:
    """Made when variables and batch are there, and nothing else of training.

    Args:
        variables: `tf.Variable`s of the model and the optimizer. batch: the tensors of one step.
    """

    def __init__(self, variables: Sequence[Any], batch: Sequence[tf.Tensor]):
        wasted = 0
        for variable in variables:  # some lie outside of the allocator's memory until a step changes them
            with measure("CPU:0") as seen:
                value = tf.raw_ops.DeepCopy(x=variable)
            variable.assign(value)
            del value
            # The allocator may give out a block that is nearly twice as large, and all of it is taken.
            wasted += max(0, (seen.added or 0) - tensor_bytes([variable]))
        gc.collect()
        with measure("CPU:0") as seen:
            pass
        if seen.base is None:
            sys.exit("TensorFlow counts no memory on this device: run on the CPU with oneDNN on")
        self.beyond = tensor_bytes([*variables, *batch]) + wasted - seen.base

    def peak(self, seen: Measurement) -> int:
        """Bytes at the peak of a measured step: variables in their blocks, batch, and whatever training has added, then or before."""
        return (seen.peak or 0) + self.beyond
