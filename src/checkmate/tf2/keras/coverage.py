"""What a plan of a Keras model covers: the steps that were traced for one, with the layers that were trainable at first."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ...errors import BudgetWarning
from ..internals import converted_where_keras_does, converting, is_recording, layers_in, not_converted

Step = Callable[..., Any]

_WARNS = "_checkmate_warns"  # a function that has this attribute warns already

_TRACING: ContextVar[bool] = ContextVar("a step is traced for a plan", default=False)


def covered(model: Any) -> Callable[[Step], Step]:
    """A step of a model that is planned: gradients that are recorded while it is traced are those of the plan."""

    def decorated(step: Step) -> Step:
        @functools.wraps(step)
        def traced(*arguments: Any) -> Any:
            token = _TRACING.set(True)
            try:
                with converting(model):
                    return step(*arguments)
            finally:
                _TRACING.reset(token)

        return traced

    return decorated


def warn_of_other_training(model: Any) -> None:
    """Say once, with a warning, that a prepared model is trained where no plan covers it.

    That is so where it is called to train while a `tf.GradientTape` records, unless a step is traced for a plan.
    """
    original = model.call
    if hasattr(original, _WARNS):
        return
    said = False

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal said
        if not said and not _TRACING.get() and named.get("training", True) and is_recording():
            said = True
            warnings.warn(
                f"gradients of {model.name} are recorded outside of its fit and train_on_batch: checkmate.tf2.prepare covers these "
                "two only, and this training may take any amount of memory; for a loop of your own call what "
                "checkmate.tf2.compile returns",
                BudgetWarning,
                stacklevel=2,
            )
        return converted_where_keras_does(model, original)(*arguments, **named)

    setattr(call, _WARNS, True)
    not_converted(call)
    model.call = call


def trained_as_at_first(model: Any) -> Callable[[Step], Step]:
    """The step trains the layers that were trainable when it was traced first, whatever is set afterwards.

    A function that Keras has traced keeps to what was trainable then, until the model is compiled again. A plan for another size of
    batch comes with a trace of its own, which must not follow another rule.
    """

    def decorated(step: Step) -> Step:
        first: list[tuple[Any, bool]] = []

        @functools.wraps(step)
        def traced(*arguments: Any) -> Any:
            changed = [(one, one._trainable) for one, trainable in first if one._trainable != trainable]
            try:
                _set_trainable(first)
                result = step(*arguments)
            finally:
                _set_trainable(changed)
            if not first:
                first.extend(_trainable(model))  # all variables are there now
            return result

        return traced

    return decorated


def _trainable(model: Any) -> list[tuple[Any, bool]]:
    """Layers and variables, and whether they are trainable."""
    return [(one, one._trainable) for one in (*layers_in(model), *model.variables) if hasattr(one, "_trainable")]


def _set_trainable(states: list[tuple[Any, bool]]) -> None:
    for one, trainable in states:
        one._trainable = trainable  # of this one alone: the public attribute of a layer is handed down
