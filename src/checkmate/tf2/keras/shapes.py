"""Which sizes plain Keras knows when it traces a training step: TensorFlow rewrites a step otherwise where it does not know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

#: Of the tensors of a batch, in their order.
Specs: TypeAlias = tuple[tf.TensorSpec, ...]


class PlainTraces:
    """Tells for each batch with which sizes known plain Keras would trace the step for it.

    Keras has `tf.function` trace its step, once for a first batch; for a batch of another shape it is traced again, with the sizes open
    that differ, and that trace serves every other batch from then on. Which one serves which batch is asked of `tf.function` itself,
    by functions that are called as those of Keras are and compute nothing.
    """

    def __init__(self) -> None:
        self._of_batch = tf.function(self._traced, autograph=False, reduce_retracing=True)
        self._of_iterator = tf.function(self._next_traced, autograph=False, reduce_retracing=True)
        self._traces: list[Specs] = []
        self._known: dict[Any, Specs] = {}

    def of_iterator(self, iterator: Any) -> Specs:
        """Of the batches of a `tf.data` iterator, which Keras traces together with taking them from it: the specs of their tensors."""
        spec = iterator.element_spec
        key = str(tf.nest.map_structure(lambda _: 0, spec)), *tf.nest.flatten(spec)
        if key not in self._known:
            self._known[key] = self._answer(self._of_iterator.get_concrete_function(iterator))
        return self._known[key]

    def of_batch(self, batch: Any) -> Specs:
        """The same of a batch that Keras was given by itself: a nest of tensors and None."""
        specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tf.nest.flatten(batch) if tensor is not None)
        key = str(layout(batch)), *specs
        if key not in self._known:
            self._known[key] = self._answer(self._of_batch.get_concrete_function(key[0], specs))
        return self._known[key]

    def _traced(self, layout: str, batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
        self._traces.append(tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in batch))
        return tf.constant(len(self._traces) - 1)

    def _next_traced(self, iterator: Any) -> tf.Tensor:
        return tf.constant(self._traces.index(self.of_batch(without_options(iterator.get_next()))))

    def _answer(self, function: Any) -> Specs:
        return self._traces[int(tf.get_static_value(function.outputs[0]))]


def without_options(batch: Any) -> Any:
    """Keras has None where a `tf.data` batch has a `tf.experimental.Optional`."""
    return tf.nest.map_structure(lambda x: None if isinstance(x, tf.experimental.Optional) else x, batch)


def layout(batch: Any) -> Any:
    """The nest of a batch, with True for a tensor and False for None."""
    return tf.nest.map_structure(lambda x: x is not None, batch)


def is_batch_open(specs: Specs | None) -> bool:
    """How many examples there are is not known in a trace with these sizes."""
    return any(spec.shape.rank and spec.shape[0] is None for spec in specs or ())


@contextmanager
def batch_unknown_to_losses(model: Any) -> Iterator[None]:
    """A trace in this block averages the losses of single outputs over batches as one does that does not know how many examples there are.

    Keras weighs their averages by that number if it is known in the trace, and by nothing if it is not.
    """
    averages = list(getattr(getattr(model, "_compile_loss", None), "metrics", ()))
    for average in averages:
        # Beside what Keras has it do when attributes are set.
        average.__dict__["update_state"] = lambda value, sample_weight=None, update=average.update_state: update(value)
    try:
        yield
    finally:
        for average in averages:
            del average.__dict__["update_state"]
