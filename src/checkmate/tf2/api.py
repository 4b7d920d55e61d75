"""What a user calls: compile a training step, look at its plans, capture its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..errors import CheckmateError
from ..graph import Graph
from ..planning import Options
from ..units import Budget
from .keras_fit import prepared_plans
from .keras_step import build, gradient_step, training_step
from .plan import Plan
from .step import PlannedStep, capture_step


class TrainIteration:
    """One optimizer step under a budget: `prediction, loss_value = train_iteration(x, y)`.

    Attributes:
        model, optimizer: what it trains.
    """

    def __init__(self, model: Any, optimizer: Any, step: PlannedStep, input_spec: Any, label_spec: Any):
        self.model = model
        self.optimizer = optimizer
        self._step = step
        self._specs = (input_spec, label_spec)

    @property
    def plans(self) -> list[Plan]:
        """One per set of input shapes, the shapes of the specs first."""
        return self._step.plans

    def __call__(self, x: Any, y: Any) -> tuple[Any, tf.Tensor]:
        """Train on one batch.

        Args:
            x, y: tensors or arrays, or nests of them, as in the specs; the batch may have another size.
        """
        x, y = (_like(spec, given) for spec, given in zip(self._specs, (x, y), strict=True))
        return self._step(x, y)


def compile(
    model: Any,
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any,
    budget: Budget = "auto",
    metrics: Sequence[Any] | None = None,
    jit_compile: bool = False,
    **options: Any,
) -> TrainIteration:
    """Make a training step of a Keras model that stays within a memory budget.

    The step is traced, profiled and planned here; it runs when the result is called.

    Args:
        model: a Keras model (Keras 3: functional, sequential or subclassed; or tf_keras).
        loss: `loss(y_true, y_pred)`, a Keras loss or its name. Losses that layers add count too.
        optimizer: a Keras optimizer.
        input_spec, label_spec: what a batch looks like: tensors, arrays or `tf.TensorSpec`, or nests of them, with the batch size.
        budget: bytes, "4GiB", "50%" of the plain peak, or "auto".
        metrics: Keras metrics to update in every step.
        options: see `checkmate.tf2.Options`.

    Returns:
        A function: `prediction, loss_value = train_iteration_fn(x, y)` is one optimizer step.

    Raises:
        InfeasibleBudget: the budget cannot be met; the message names one that can.
        UnknownMethod: an option that does not exist. BudgetError: the budget cannot be read.
        CheckmateError: XLA was asked for, or the model lives under a distribution strategy.
    """
    if jit_compile:
        raise CheckmateError(
            "jit_compile=True cannot be used: XLA orders the ops by itself and merges what is computed twice, which undoes the "
            "plan; leave jit_compile out"
        )
    chosen = Options.read({"budget": budget, **options})
    inputs, labels = _specs(input_spec), _specs(label_spec)
    build(model, optimizer, inputs)
    step = PlannedStep(training_step(model, loss, optimizer, list(metrics or ())), chosen, str(model.name))
    step.prepare(inputs, labels)
    return TrainIteration(model, optimizer, step, inputs, labels)


def capture(model: Any, loss: Any, input_spec: Any, label_spec: Any, optimizer: Any = None, cost_model: str = "profile") -> Graph:
    """The graph of one training step, for planning without training. Nothing is trained.

    Args:
        model, loss, input_spec, label_spec: as in `compile`.
        optimizer: with one its update is part of the step; without one the step ends with all gradients live.
        cost_model: "profile" or "flops".
    """
    options = Options.read({"cost_model": cost_model})
    inputs, labels = _specs(input_spec), _specs(label_spec)
    build(model, optimizer, inputs)
    step = gradient_step(model, loss) if optimizer is None else training_step(model, loss, optimizer)
    return capture_step(step, (inputs, labels), options, str(model.name)).graph


def plans(trained: Any) -> list[Plan]:
    """The plans of what `compile` returned or of a model given to `prepare`, one per set of input shapes.

    Raises:
        CheckmateError: it is neither.
    """
    found = prepared_plans(trained)
    if found is None:
        found = getattr(trained, "plans", None)
    if found is None:
        raise CheckmateError(
            "this has no plans: pass what checkmate.tf2.compile returned, or a model after checkmate.tf2.prepare"
        )
    return list(found)


def _specs(nest: Any) -> Any:
    return tf.nest.map_structure(_spec, nest)


def _spec(given: Any) -> tf.TensorSpec:
    if isinstance(given, tf.TensorSpec):
        return given
    tensor = given if tf.is_tensor(given) else tf.convert_to_tensor(given)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _like(spec: Any, given: Any) -> Any:
    """Arrays as tensors of the element types of the spec."""
    try:
        return tf.nest.map_structure(
            lambda s, x: x if tf.is_tensor(x) and x.dtype == s.dtype else tf.convert_to_tensor(x, s.dtype), spec, given
        )
    except (TypeError, ValueError) as error:
        raise CheckmateError(f"this batch does not look like the specs given to compile: {error}") from None
