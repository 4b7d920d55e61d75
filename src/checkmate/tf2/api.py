"""What a user calls: compile a training step, look at its plans, capture its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..errors import CheckmateError
from ..graph import Graph
from ..planning import DeviceModel, OpCost, device_model
from ..units import Budget
from .execution.plan import Plan
from .graphs.trace import trace
from .internals import is_recording
from .keras.fit import prepared_plans
from .keras.step import build, check_backend, gradient_step, optimizer_of, training_step
from .options import Options
from .profile import profile_ops
from .specs import like, read_specs
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

        Raises:
            CheckmateError: the batch has other parts than the specs, or a `tf.GradientTape` is recording.
        """
        if is_recording():
            raise CheckmateError(
                "train_iteration was called inside a tf.GradientTape: it computes the gradients and applies them by itself, and "
                "there are none through it; call it outside of the tape"
            )
        inputs, labels = self._specs
        return self._step(like(inputs, x, "x"), like(labels, y, "y"))


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
        optimizer: a Keras optimizer or its name.
        input_spec, label_spec: what a batch looks like: tensors, arrays, `tf.TensorSpec` or `keras.Input`, or nests of them, with the
            batch size.
        budget: bytes, "4GiB", "50%" of the plain peak with these specs, or "auto". It stays for batches of other sizes, so that
            the specs had better be of the largest.
        metrics: Keras metrics to update in every step.
        options: see `checkmate.tf2.Options`.

    Returns:
        A function: `prediction, loss_value = train_iteration_fn(x, y)` is one optimizer step.

    Raises:
        InfeasibleBudget: the budget cannot be met; the message names one that can.
        UnknownMethod: an option that does not exist. BudgetError: the budget cannot be read.
        CheckmateError: XLA was asked for, the model lives under a distribution strategy, Keras runs on another backend than
            TensorFlow, or an argument is not what it should be.
    """
    if jit_compile:
        raise CheckmateError(
            "jit_compile=True cannot be used: XLA orders the ops by itself and merges what is computed twice, which undoes the "
            "plan; leave jit_compile out"
        )
    chosen = Options.read({"budget": budget, **options})
    check_backend(model)
    optimizer = optimizer_of(model, optimizer)
    inputs, labels = read_specs(input_spec, "input_spec"), read_specs(label_spec, "label_spec")
    build(model, optimizer, inputs)
    step = PlannedStep(training_step(model, loss, optimizer, list(metrics or ())), chosen, str(model.name))
    step.prepare(inputs, labels)
    return TrainIteration(model, optimizer, step, inputs, labels)


def capture(
    model: Any,
    loss: Any,
    input_spec: Any,
    label_spec: Any,
    optimizer: Any = None,
    cost_model: str = "profile",
    device: str | DeviceModel | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """The graph of one training step, for planning without training. Nothing is trained.

    Args:
        model, loss, input_spec, label_spec: as in `compile`.
        optimizer: with one its update is part of the step; without one the step ends with all gradients live.
        cost_model: "profile" or "flops".
        device: plan for "h100", "a100", "rtx4090" or "cpu" instead of this machine: costs come from its published rates
            (`checkmate.planning.device_models`), and no op is run.
        progress: called with (distinct ops measured, distinct ops to measure).
    """
    meant_for = device_model(device) if isinstance(device, str) else device
    options = Options.read({"cost_model": cost_model})
    check_backend(model)
    optimizer = None if optimizer is None else optimizer_of(model, optimizer)
    inputs, labels = read_specs(input_spec, "input_spec"), read_specs(label_spec, "label_spec")
    build(model, optimizer, inputs)
    step = gradient_step(model, loss) if optimizer is None else training_step(model, loss, optimizer)

    def profile(ops: Sequence[tf.Operation], kind: str, measured: Callable[[int, int], None]) -> dict[str, OpCost]:
        return profile_ops(ops, kind, progress or measured, meant_for)

    return capture_step(trace(step, (inputs, labels)), options, str(model.name), profile=profile).graph


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
