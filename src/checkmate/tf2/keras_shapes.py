"""Which sizes plain Keras knows when it traces a training step: a step with sizes left open rounds otherwise (see `hide_counts`)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class PlainTraces:
    """Tells for each batch whether the trace that plain Keras would use for it leaves sizes open.

    Keras has `tf.function` trace its step, once for a first batch; for a batch of another shape it is traced again, with the sizes open
    that differ, and that trace serves every other batch from then on. Which one serves which batch is asked of `tf.function` itself,
    by functions that are called as those of Keras are and compute nothing.
    """

    def __init__(self) -> None:
        self._of_batch = tf.function(_leaves_sizes_open, autograph=False, reduce_retracing=True)
        self._of_iterator = tf.function(self._next_leaves_sizes_open, autograph=False, reduce_retracing=True)
        self._known: dict[Any, bool] = {}

    def of_iterator(self, iterator: Any) -> bool:
        """The batches of a `tf.data` iterator, which Keras traces together with taking them from it."""
        spec = iterator.element_spec
        key = str(tf.nest.map_structure(lambda _: 0, spec)), *tf.nest.flatten(spec)
        if key not in self._known:
            self._known[key] = _answer(self._of_iterator.get_concrete_function(iterator))
        return self._known[key]

    def of_batch(self, batch: Any) -> bool:
        """A batch that Keras was given by itself: a nest of tensors and None."""
        specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tf.nest.flatten(batch) if tensor is not None)
        key = str(layout(batch)), *specs
        if key not in self._known:
            self._known[key] = _answer(self._of_batch.get_concrete_function(key[0], specs))
        return self._known[key]

    def _next_leaves_sizes_open(self, iterator: Any) -> tf.Tensor:
        return tf.constant(self.of_batch(without_options(iterator.get_next())))


def without_options(batch: Any) -> Any:
    """Keras has None where a `tf.data` batch has a `tf.experimental.Optional`."""
    return tf.nest.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch)


def layout(batch: Any) -> Any:
    """The nest of a batch, with True for a tensor and False for None."""
    return tf.nest.map_structure(lambda x: x is not None, batch)


def _leaves_sizes_open(layout: str, batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
    return tf.constant(any(not tensor.shape.is_fully_defined() for tensor in batch))


def _answer(function: Any) -> bool:
    return bool(tf.get_static_value(function.outputs[0]))
