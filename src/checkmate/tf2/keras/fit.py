"""`model.fit` under a budget: the model's own train_step, traced whole and planned, one plan for every shape of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from ...errors import CheckmateError
from ...units import Budget
from ..execution.plan import Plan
from ..graphs.layers import note_layers
from ..ops.op_kinds import are_sizes_known
from ..options import Options
from ..specs import dense
from ..step import PlannedStep
from .coverage import covered, trained_as_at_first, warn_of_other_training
from .shapes import PlainTraces, Specs, batch_unknown_to_losses, is_batch_open, layout, without_options
from .step import check_backend, is_complete, keras_of, refuse_distributed


def prepare(model: Any, budget: Budget = "auto", **options: Any) -> None:
    """Make `model.fit` and `model.train_on_batch` train under a memory budget.

    Call it once, before or after `model.compile`; then use the model as before: callbacks, validation, metrics, class and
    sample weights and a last batch of another size work as without it. A plan is made when a batch of a new shape comes.
    What is planned is the model's `train_step`, its own or yours, with the optimizer's update and the metrics.

    The budget is for the training step, and for the next batch, which the input pipeline makes ready meanwhile; on a GPU that lies
    elsewhere. Evaluation keeps no activations and runs as always. More batches that the pipeline holds, as with `prefetch(4)`,
    what it caches or shuffles, and the copies that Keras makes of arrays which `fit` is given are not counted: name them with
    `reserved=`.

    Args:
        model: a Keras model (Keras 3, or tf_keras).
        budget: bytes, "4GiB", "50%" of the plain peak with the first batch, or "auto".
        options: see `checkmate.tf2.Options`.

    Raises:
        UnknownMethod: an option that does not exist. BudgetError: the budget cannot be read.
        CheckmateError: this is not a Keras model, or it lives under a distribution strategy of several devices. Later, from `fit`: also if the
            model was compiled with jit_compile=True or run_eagerly=True; InfeasibleBudget if the budget cannot be met (the
            message names one that can).
    """
    if not callable(getattr(model, "train_step", None)) or not hasattr(model, "make_train_function"):
        raise CheckmateError(
            f"checkmate.tf2.prepare takes a Keras model, not {type(model).__name__}; for a training loop of your own use "
            "checkmate.tf2.compile"
        )
    chosen = Options.read({"budget": budget, **options})
    check_backend(model)
    refuse_distributed(model, model.variables if getattr(model, "built", True) else [], fitted=True)
    warn_of_other_training(model)
    model.make_train_function = Preparation(model, chosen)
    model.train_function = None  # of an earlier fit; Keras makes a new one


def prepared_plans(model: Any) -> list[Plan] | None:
    """The plans of a prepared model, one per shape of a batch; None if it was not prepared."""
    preparation = getattr(model, "make_train_function", None)
    return preparation.plans if isinstance(preparation, Preparation) else None


class Preparation:
    """Stands in for `model.make_train_function`: Keras calls it at the start of `fit`."""

    def __init__(self, model: Any, options: Options):
        self._model = model
        self._options = options
        self._trainer: _Trainer | None = None

    @property
    def plans(self) -> list[Plan]:
        """Since the model was last compiled, in the order in which the shapes came up."""
        return self._trainer.plans if self._trainer is not None else []

    def __call__(self, force: bool = False) -> Callable[[Any], Any]:
        model = self._model
        if self._trainer is None or model.train_function is not self._trainer or force:
            _check_compiled(model)
            self._trainer = _Trainer(model, self._options)  # model.compile forgot the old one: optimizer and metrics may be new
        model.train_function = self._trainer
        return self._trainer


class _Trainer:
    """Keras calls it with an iterator over batches, for one execution of one or more steps."""

    def __init__(self, model: Any, options: Options):
        self._model = model
        self._options = options
        # By the structure of the batch, whether it comes from a pipeline, and with which sizes plain Keras traces it if it leaves any open.
        self._steps: dict[tuple[str, bool, Specs | None], PlannedStep] = {}
        self._last: PlannedStep | None = None
        self._plain = PlainTraces()
        self._train_step = trained_as_at_first(model)(model.train_step)

    @property
    def plans(self) -> list[Plan]:
        return [plan for step in self._steps.values() for plan in step.plans]

    def __call__(self, iterator: Any) -> Any:
        logs = None
        refuse_distributed(self._model, [], fitted=True)
        is_pipeline = isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator)
        specs = self._plain.of_iterator(iterator) if is_pipeline else None
        steps = int(self._model.steps_per_execution or 1)
        for batch in _batches(iterator, steps):
            logs = self._train(without_options(batch), specs)
        if logs is None:
            # Before it begins several steps at a time, plain Keras asks whether there is a batch.
            if steps == 1 and specs is not None and self._last is not None:
                self._last.run_without_batch()
            raise StopIteration
        return logs

    def _train(self, batch: Any, specs: Specs | None) -> Any:
        """One step: `model.train_step(batch)` under the plan for this kind of batch.

        Args:
            specs: with which plain Keras would trace it; None if that depends on this batch alone, which comes from no pipeline.
        """
        batch = tf.nest.map_structure(lambda x: None if x is None else dense(x, "a batch"), batch)
        pipeline = specs is not None
        specs = self._plain.of_batch(batch) if specs is None else specs
        nest = layout(batch)
        traced_as = None if are_sizes_known(specs) else specs
        key = str(nest), pipeline, traced_as
        if key not in self._steps:
            _build_optimizer(self._model)
            as_plain = batch_unknown_to_losses if is_batch_open(traced_as) else nullcontext

            # The batch has the name that it has in plain Keras: in an order of names TensorFlow multiplies several factors.
            @covered(self._model)
            def step(*data: tf.Tensor) -> Any:
                note_layers(self._model)
                given = iter(data)
                leaves = [next(given) if there else None for there in tf.nest.flatten(nest)]
                with as_plain(self._model):
                    return self._train_step(tf.nest.pack_sequence_as(nest, leaves))

            self._steps[key] = PlannedStep(step, self._options, str(self._model.name), traced_as=traced_as, pipeline=pipeline)
        planned = self._steps[key]
        logs = planned(*(x for x in tf.nest.flatten(batch) if x is not None))
        self._last = planned
        self._options = planned.options  # one budget for all
        counter = getattr(self._model, "_train_counter", None)  # tf_keras counts its steps here
        if counter is not None:
            counter.assign_add(1)
        return logs


def _batches(iterator: Any, count: int) -> Iterator[Any]:
    """Up to `count` batches."""
    for _ in range(count):
        try:
            yield next(iterator)
        except StopIteration:
            return


def _build_optimizer(model: Any) -> None:
    """Make the variables of the optimizer beforehand, where it is known which they will be: a step that makes variables is traced twice.

    It is not known before the layers have theirs, nor for a train_step of the user's own, which may leave this optimizer alone.
    """
    optimizer = model.optimizer
    is_own = type(model).train_step.__module__.partition(".")[0] in ("keras", "tf_keras")
    unbuilt = hasattr(optimizer, "build") and not getattr(optimizer, "built", False)
    if is_own and is_complete(model) and unbuilt and model.trainable_variables:
        # In the scope in which an optimizer would do it itself: paths of its variables follow from it.
        keras, name = keras_of(model), optimizer.name
        with keras.name_scope(name, caller=optimizer) if hasattr(keras, "name_scope") else tf.name_scope(name or "optimizer"):
            optimizer.build(model.trainable_variables)


def _check_compiled(model: Any) -> None:
    if getattr(model, "run_eagerly", False):
        raise CheckmateError("a model compiled with run_eagerly=True cannot be planned: compile it without")
    # Where there is a GPU Keras may have chosen XLA itself; without one only the user can have.
    accelerated = any(device.device_type != "CPU" for device in tf.config.list_physical_devices())
    if getattr(model, "jit_compile", False) and not accelerated:
        raise CheckmateError(
            "jit_compile=True cannot be used: XLA orders the ops by itself and merges what is computed twice, which undoes the "
            "plan; compile the model without it"
        )
