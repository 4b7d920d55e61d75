"""How a random Keras program is trained, plainly or under a budget, and all that a script can see of it. See `keras_fuzz.py`."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from fuzz_report import imported
from keras import callbacks
from keras_fuzz_programs import Program

BATCHES, EPOCHS = 3, 2

#: What training came to: names and values.
Found = list[tuple[str, np.ndarray]]


class Training:
    """One training of a program.

    Args:
        front: has `prepare`, `compile` and `plans` as `checkmate.tf2`. options: of these, the budget among them; none in plain training.

    Attributes:
        plans: of all that was trained. found: see `Found`.
    """

    def __init__(self, program: Program, front: Any = None, options: dict[str, Any] | None = None):
        self.program, self.script, self.front, self.options = program, program.script, front, options
        keras.backend.clear_session()
        gc.collect()
        keras.utils.set_random_seed(program.seed)
        keras.mixed_precision.set_dtype_policy(self.script.policy)
        self.found: Found = []
        self.plans: list[Any] = []
        self.module = imported(f"keras_program_{program.seed}", program.source())
        self.model = self.module.make()
        self.optimizer: Any = None  # of the loop
        sizes = [self.script.batch] * BATCHES
        sizes[-1] = sizes[-1] // 2 - 3 if self.script.smaller else sizes[-1]
        self.batches = [program.batch(number, size) for number, size in enumerate(sizes)]

    def run(self) -> Training:
        """Train in all ways, and note what comes of it."""
        ways: dict[str, Callable[[], None]] = {"loop": self._loop, "train_on_batch": self._on_batches}
        ways |= {"fit arrays": self._fit_arrays, "fit dataset": self._fit_dataset, "fit generator": self._fit_generator}
        if self.options is not None and set(self.script.ways) != {"loop"}:
            self.front.prepare(self.model, **self.options)
        for number, way in enumerate(self.script.ways):
            if number:
                self._between()
            if way != "loop" and not self.model.compiled:
                self._compile()
            ways[way]()
            self._note_plans(self.model if way != "loop" else None)
            self._note_variables()
        x, y = self.batches[0]
        if self.model.compiled:
            self._note("evaluated", self.model.evaluate(x, y, batch_size=self.script.batch, verbose=0, return_dict=True))
        self._note("predicted", self.model.predict(x, batch_size=self.script.batch, verbose=0))
        self._note("next random number", [keras.random.uniform((2,)), tf.random.uniform((2,))])
        return self

    def _note(self, name: str, values: Any) -> None:
        if isinstance(values, dict):
            self.found += [(f"{name} {key}", np.asarray(values[key])) for key in sorted(values)]
        else:
            self.found += [(name, np.asarray(value)) for value in tf.nest.flatten(values)]

    def _note_variables(self) -> None:
        optimizer = self.optimizer or self.model.optimizer
        for one in (*self.model.variables, *(optimizer.variables if optimizer is not None else ())):
            self._note(one.path, keras.ops.convert_to_numpy(one))

    def _note_plans(self, trained: Any) -> None:
        if self.options is not None and trained is not None:
            self.plans += self.front.plans(trained)

    def _compile(self) -> None:
        script, losses = self.script, self.program.losses
        metrics = (
            [[self.module.metric()] if loss and "Cross" not in loss else None for loss in losses] if script.metrics else None
        )
        weights = [0.5 + number for number in range(len(losses))] if script.loss_weights and len(losses) > 1 else None
        self.model.compile(
            self.module.optimizer(),
            self.module.losses(),
            loss_weights=None if weights is None else self.program.nest(weights),
            metrics=None if metrics is None else self.program.nest(metrics),
            steps_per_execution=script.executions,
        )

    def _between(self) -> None:
        """What scripts do between two trainings."""
        what, model = self.script.between, self.model
        layers = [one for one in model._flatten_layers(include_self=False, recursive=False) if one.trainable_weights]
        if what.startswith("freeze") and len(layers) > 1:
            layers[0].trainable = False
        if what.endswith("compile") and model.compiled:
            self._compile()
        if what == "load weights":
            with tempfile.TemporaryDirectory() as folder:
                model.save_weights(f"{folder}/all.weights.h5")
                for one in model.trainable_variables:
                    one.assign(one * 0.5)
                model.load_weights(f"{folder}/all.weights.h5")
        if what == "set weights":
            model.set_weights([one * 0.9 if one.dtype.kind == "f" else one for one in model.get_weights()])
        if what == "set rate" and model.compiled and not self.script.has_schedule:
            model.optimizer.learning_rate = 5e-3

    # --- ways of training ---

    def _on_batches(self) -> None:
        for x, y in self.batches * EPOCHS:
            weights = {"sample_weight": _weights(x)} if self.script.weighted else {}
            self._note("log", self.model.train_on_batch(x, y, return_dict=True, **weights))

    def _fit_arrays(self) -> None:
        x, y = self._all()
        weights = {"sample_weight": _weights(x)} if self.script.weighted else {}
        self._fit(x, y, batch_size=self.script.batch, **weights)

    def _fit_dataset(self) -> None:
        self._fit(self._data().prefetch(1))

    def _fit_generator(self) -> None:
        """One of which it is known how many batches it has, or none."""
        data = self._data()
        if self.program.seed % 2:
            self._fit(tf.data.Dataset.from_generator(lambda: iter(data), output_signature=data.element_spec))
        else:
            self._fit(_forever(data), steps_per_epoch=BATCHES)

    def _fit(self, *data: Any, **more: Any) -> None:
        script, note = self.script, self._note
        made: dict[str, Callable[[], Any]] = {"terminate": callbacks.TerminateOnNaN}
        made["stop"] = lambda: callbacks.EarlyStopping(monitor="loss", patience=0, restore_best_weights=True)
        if not script.has_schedule:
            made["rate"] = lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        if "use_ema" in script.optimizer and "LossScale" not in script.optimizer:
            made["swap"] = callbacks.SwapEMAWeights

        class Noting(callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                note("log", dict(logs or {}))

        chosen = [Noting(), *(made[name]() for name in script.callbacks if name in made)]
        if script.validates:
            more["validation_data"] = self.program.batch(50, script.batch)
        note("history", self.model.fit(*data, epochs=EPOCHS, verbose=0, callbacks=chosen, **more).history)

    def _all(self) -> tuple[Any, Any]:
        x, y = (tf.nest.map_structure(lambda *parts: np.concatenate(parts), *parts) for parts in zip(*self.batches, strict=True))
        return x, y

    def _data(self) -> Any:
        x, y = self._all()
        parts = (x, y, _weights(x)) if self.script.weighted else (x, y)
        # A list would be one tensor.
        parts = tuple(tuple(part) if isinstance(part, list) else part for part in parts)
        return tf.data.Dataset.from_tensor_slices(parts).batch(self.script.batch)

    def _loop(self) -> None:
        """A loop of the user's own."""
        model, loss = self.model, self._loss()
        self.optimizer = self.module.optimizer()
        if self.script.policy == "mixed_float16" and "LossScale" not in self.script.optimizer:
            self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        batches = [tf.nest.map_structure(tf.constant, batch) for batch in self.batches]
        if self.options is None:
            step = _plain_step(model, loss, self.optimizer, batches[0][0])
        else:
            step = self.front.compile(model, loss, self.optimizer, *batches[0], **self.options)
        for x, y in batches * EPOCHS:
            prediction, value = step(x, y)
            self._note("loss", value)
            self._note("prediction", prediction)
        self._note_plans(step)

    def _loss(self) -> Callable[[Any, Any], Any]:
        losses = [keras.losses.get(one) for one in tf.nest.flatten(self.module.losses())]

        def loss(labels: Any, predictions: Any) -> Any:
            total = tf.zeros(())
            for one, label, prediction in zip(losses, tf.nest.flatten(labels), tf.nest.flatten(predictions), strict=True):
                if one is not None:
                    total += tf.reduce_mean(one(label, tf.cast(prediction, tf.float32)))
            return total

        return loss


def _plain_step(model: Any, loss: Callable[[Any, Any], Any], optimizer: Any, x: Any) -> Callable[[Any, Any], Any]:
    """What `checkmate.tf2.compile` stands for."""
    tf.function(lambda inputs: model(inputs, training=False), autograph=False).get_concrete_function(x)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            prediction = model(x, training=True)
            value = loss(y, prediction)
            for extra in model.losses:
                value += tf.cast(extra, value.dtype)
            scaled = optimizer.scale_loss(value)
        gradients = tape.gradient(scaled, [one.value for one in model.trainable_variables])
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))
        return prediction, value

    return lambda x, y: step(x, y)


def _weights(x: Any) -> np.ndarray:
    return np.linspace(0.5, 1.5, len(tf.nest.flatten(x)[0])).astype("float32")


def _forever(data: Any) -> Iterator[Any]:
    while True:
        yield from data
