"""How the models of keras_matrix.py are trained: the scripts of users, with what they do in them, watched from outside of checkmate."""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers
from keras_matrix_networks import Task
from worker import forked

import checkmate.tf2
from checkmate import InfeasibleBudget
from checkmate.errors import BudgetWarning

SEED, STEPS = 0, 8

#: Step -> which part of a full batch it has, where sizes change.
_PARTS = {3: 0.3, 4: 0.7, 6: 0.3, 7: 0.1}

#: Bytes: TensorFlow's allocator does not count smaller blocks. Networks are large enough that few of their activations are smaller.
_COUNTED = 256 * 1024

#: Something happens before this step, in the middle of training.
MIDDLE = 5


@dataclass(frozen=True)
class Feature:
    """What a script does besides training.

    Attributes:
        optimizer: a new one. policy: of Keras, for element types. way: "batches" (`train_on_batch`), "fit", or "loop" (a loop of
            the user's own). middle: changes the model before step `MIDDLE`. sizes: batches of several sizes.
        given: further arguments of `train_on_batch`, from the labels. callbacks: of `fit`, from a folder. metrics: by name.
    """

    optimizer: Callable[[], Any] = lambda: optimizers.Adam(1e-3)
    policy: str = "float32"
    way: str = "batches"
    middle: Callable[[Script], None] | None = None
    sizes: bool = False
    given: Callable[[Any], dict[str, Any]] = lambda labels: {}
    callbacks: Callable[[str], list[Any]] = lambda folder: []
    metrics: tuple[str, ...] = ()


class Script:
    """A user's script. The model is prepared where there is a budget."""

    def __init__(self, task: Task, feature: Feature, budget: int | str | None, time_limit: float):
        self.task, self.feature = task, feature
        self.budget, self.time_limit = budget, time_limit
        keras.mixed_precision.set_global_policy(feature.policy)
        self.batches = [self._batch(number) for number in range(1, STEPS + 1)]
        self.watch = Watch()
        self.model = task.build()
        self.watch.move_in(self.model)
        self.prepare()
        self.compile()
        self.losses: list[Any] = []

    def _batch(self, number: int) -> tuple[Any, Any]:
        part = _PARTS.get(number, 1.0) if self.feature.sizes else 1.0
        x, y = self.task.batch(number, int(part * self.task.examples))
        return tf.nest.map_structure(tf.constant, (x, y))  # type: ignore[no-any-return]

    def prepare(self) -> None:
        """The one line, where there is a budget and no loop of the user's own."""
        if self.budget is not None and self.feature.way != "loop":
            checkmate.tf2.prepare(self.model, budget=self.budget, time_limit=self.time_limit)

    def compile(self) -> None:
        """As Keras calls it: the optimizer is new."""
        self.model.compile(self.feature.optimizer(), self.task.loss, metrics=list(self.feature.metrics) or None)

    def train(self, steps: int) -> None:
        """All steps."""
        self.watch.began = time.perf_counter()
        if self.feature.way == "fit":
            self._fit(steps)
            return
        call = self._loop() if self.feature.way == "loop" else self._on_batch
        for number, (x, y) in enumerate(self.batches[:steps], 1):
            if number == MIDDLE and self.feature.middle is not None:
                self.feature.middle(self)
            self.losses.append(self.watch.step(self, partial(call, x, y), list(map(tensor_bytes, tf.nest.flatten((x, y))))))

    def _on_batch(self, x: Any, y: Any) -> Any:
        return self.model.train_on_batch(x, y, return_dict=True, **self.feature.given(y))

    def _loop(self) -> Callable[[Any, Any], Any]:
        model, optimizer = self.model, self.model.optimizer
        if self.budget is not None:
            x, y = self.batches[0]
            options = {"budget": self.budget, "time_limit": self.time_limit}
            return checkmate.tf2.compile(model, self.task.loss, optimizer, x, y, **options)  # type: ignore[arg-type]
        loss = keras.losses.get(self.task.loss)
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False)
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                prediction = model(x, training=True)
                value = tf.reduce_mean(loss(y, prediction))
            gradients = tape.gradient(value, [one.value for one in model.trainable_variables])
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return prediction, value

        return lambda x, y: step(x, y)

    def _fit(self, steps: int) -> None:
        before = _in_use()
        parts = [tf.concat(one, 0) for one in zip(*(tf.nest.flatten(batch) for batch in self.batches[:steps]), strict=True)]
        data = tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(self.batches[0], parts)).batch(self.task.examples)
        batch = list(map(tensor_bytes, tf.nest.flatten(self.batches[0])))
        self.batches, parts = [], []
        script = self

        class Watching(keras.callbacks.Callback):
            """Keras calls the function that trains; the watch calls it for Keras."""

            def on_train_begin(self, logs: Any = None) -> None:
                train = self.model.train_function
                self.model.train_function = lambda iterator: script.watch.step(script, partial(train, iterator), batch, new=True)

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                script.losses.append(dict(logs or {}))

        gc.collect()
        self.watch.leave_out(_in_use() - before)
        with tempfile.TemporaryDirectory() as folder:
            self.model.fit(
                data, epochs=2, steps_per_epoch=steps // 2, verbose=0, callbacks=[Watching(), *self.feature.callbacks(folder)]
            )

    @property
    def variables(self) -> list[Any]:
        """Of the model and its optimizers, each once."""
        own = getattr(self.model, "optimizers", None) or [self.model.optimizer]
        found = [*self.model.variables, *(one for optimizer in own for one in optimizer.variables)]
        return list({id(one): one for one in found}.values())


class Watch:
    """What training takes in each step by TensorFlow's allocator: all that lives, from the batch to the optimizer.

    Attributes:
        began: when training began, which may plan before its first step. peaks: bytes by step. seconds: of each, the first with what
            was before it. caught: warnings of Python so far. warned: messages of `BudgetWarning` by step.
    """

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.peaks: dict[str, int] = {}
        self.seconds: list[float] = []
        self.warned: dict[str, list[str]] = {}
        self.caught: list[Any] = []
        self._moved: set[int] = set()
        self._reset_by_all = tf.config.experimental.reset_memory_stats
        self._at_reset = 0
        tf.config.experimental.reset_memory_stats = self._reset
        gc.collect()
        self._start = _in_use()  # what is made from now on counts

    def leave_out(self, amount: int) -> None:
        """So many bytes have been made that are no part of training."""
        self._start += amount

    def _reset(self, device: str) -> None:
        """checkmate measures the first step of a plan, which is made and tried out in the same call: what comes after counts."""
        self._at_reset = _in_use()
        self._reset_by_all(device)

    def move_in(self, owner: Any) -> None:
        """Variables that lie outside of the allocator's memory, as first values may, move there.

        They may get larger blocks there than they need. So they stay where they are if as much has been made as they take.
        """
        counted = sum(size for size in map(tensor_bytes, owner.variables) if size >= _COUNTED)
        if _in_use() - self._start >= counted:
            self._moved.update(map(id, owner.variables))
        for one in owner.variables:
            if id(one) not in self._moved:
                self._moved.add(id(one))
                variable = getattr(one, "value", one)
                if isinstance(variable, tf.Variable) and variable.dtype != tf.string:
                    variable.assign(tf.raw_ops.DeepCopy(x=variable))

    def step(self, script: Script, call: Callable[[], Any], batch: list[int], new: bool = False) -> Any:
        """Run one step.

        Args:
            batch: bytes of each of its tensors, which were there before the watch; `new`: which are made in the call.
        """
        number, known = len(self.seconds) + 1, len(self._moved)
        told = len(self.caught) if self.seconds else 0
        began = time.perf_counter() if self.seconds else self.began
        tf.config.experimental.reset_memory_stats("CPU:0")
        result = call()
        self.seconds.append(time.perf_counter() - began)
        peak = int(tf.config.experimental.get_memory_info("CPU:0")["peak"])
        variables = list(map(tensor_bytes, script.variables))
        if number == 1 and not known:  # the model was made in this step, and its first values may lie anywhere
            self.peaks["1"] = peak - self._at_reset + sum(batch) + sum(variables)
        else:
            unseen = [size for size in (*variables, *batch) if size < _COUNTED]
            unseen += [size for size in batch if size >= _COUNTED and not new]
            self.peaks[str(number)] = peak - self._start + sum(unseen)
        self.move_in(script)
        messages = [str(one.message) for one in self.caught[told:] if issubclass(one.category, BudgetWarning)]
        if messages:
            self.warned[str(number)] = messages
        return tf.nest.map_structure(lambda one: np.asarray(one).tolist(), result) if isinstance(result, dict) else None


def tensor_bytes(one: Any) -> int:
    """Of a tensor or variable."""
    return int(np.prod(one.shape, dtype=int)) * tf.as_dtype(one.dtype).size


def _in_use() -> int:
    return int(tf.config.experimental.get_memory_info("CPU:0")["current"])


# --- what happens in the middle ---


def _freeze(script: Script) -> None:
    """The first half of the layers learns no more."""
    layers = [layer for layer in script.model.layers if layer.weights]
    for layer in layers[: len(layers) // 2]:
        layer.trainable = False


def _freeze_and_compile(script: Script) -> None:
    _freeze(script)
    script.compile()


def _save_and_load(script: Script) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        script.model.save(path)
        script.model = None
        gc.collect()
        script.model = keras.models.load_model(path)
    script.watch.move_in(script)
    script.prepare()


def _export(script: Script) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script.model.export(folder, verbose=False)
        tf.saved_model.load(folder)
    gc.collect()


def _evaluate(script: Script) -> None:
    x, y = script.batches[0]
    script.model.evaluate(x, y, verbose=0)
    script.model.predict(x, verbose=0)


def _weights(labels: Any) -> dict[str, Any]:
    return {"sample_weight": tf.cast(labels, tf.float32) / 10 + 0.5}


FEATURES: dict[str, Feature] = {
    "adam": Feature(),
    "sgd": Feature(partial(optimizers.SGD, 1e-2)),
    "momentum": Feature(partial(optimizers.SGD, 1e-2, momentum=0.9, nesterov=True)),
    "rmsprop": Feature(partial(optimizers.RMSprop, 1e-3)),
    "adamw": Feature(partial(optimizers.AdamW, 1e-3, weight_decay=1e-2)),
    "average": Feature(partial(optimizers.Adam, 1e-3, use_ema=True, ema_overwrite_frequency=3)),
    "accumulation": Feature(partial(optimizers.Adam, 1e-3, gradient_accumulation_steps=2)),
    "clipping": Feature(partial(optimizers.Adam, 1e-3, global_clipnorm=0.1)),
    "lion": Feature(partial(optimizers.Lion, 1e-4)),
    "nadam": Feature(partial(optimizers.Nadam, 1e-3)),
    "adagrad": Feature(partial(optimizers.Adagrad, 1e-2)),
    "schedule": Feature(lambda: optimizers.SGD(optimizers.schedules.CosineDecay(1e-2, 6, warmup_steps=2, warmup_target=2e-2))),
    "loss-scale": Feature(lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-3), dynamic_growth_steps=3)),
    "bfloat16": Feature(policy="mixed_bfloat16"),
    "float16": Feature(policy="mixed_float16"),
    "fit": Feature(way="fit", metrics=("accuracy",)),
    "callbacks": Feature(
        way="fit",
        callbacks=lambda folder: [
            keras.callbacks.EarlyStopping(monitor="loss", patience=5),
            keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="loss"),
            keras.callbacks.CSVLogger(f"{folder}/history.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        ],
    ),
    "loop": Feature(way="loop"),
    "loop-sgd": Feature(partial(optimizers.SGD, 1e-2), way="loop"),
    "loop-sizes": Feature(way="loop", sizes=True),
    "sizes": Feature(sizes=True),
    "class-weights": Feature(given=lambda labels: {"class_weight": {number: 0.5 + number / 5 for number in range(10)}}),
    "sample-weights": Feature(given=_weights),
    "metrics": Feature(metrics=("accuracy", "sparse_top_k_categorical_accuracy"), middle=_evaluate),
    "freeze-and-compile": Feature(middle=_freeze_and_compile),
    "freeze-later": Feature(middle=_freeze),
    "save-and-load": Feature(middle=_save_and_load),
    "export": Feature(middle=_export),
}


# --- one training ---


def train(
    task: Task, feature: Feature, budget: int | str | None, time_limit: float, output: str | None, steps: int = STEPS
) -> dict[str, Any]:
    """Train in this process, which does nothing else.

    Args:
        budget: None for plain training. output: file for the variables at the end.
    """
    keras.utils.set_random_seed(SEED)
    result: dict[str, Any] = {"error": None, "infeasible": None, "peaks": {}, "warnings": {}, "losses": [], "step_seconds": []}
    began = time.perf_counter()
    script = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            script = Script(task, feature, budget, time_limit)
            script.watch.caught = caught
            script.train(steps)
            values = [np.asarray(keras.ops.convert_to_numpy(one)) for one in script.variables if "string" not in str(one.dtype)]
            result["state"] = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
            if output is not None:
                np.savez(output, *[value.astype("float32") for value in values])
            if budget is not None and feature.way != "loop":
                result["plans"] = [_shown(plan) for plan in checkmate.tf2.plans(script.model)]
        except InfeasibleBudget as error:
            result["infeasible"] = {"budget": error.budget, "proven": error.proven_minimum, "named": error.smallest_found}
            result["error"] = f"InfeasibleBudget: {error}"
        except Exception as error:  # noqa: BLE001 - a row that fails is a result
            result["error"] = f"{type(error).__name__}: {error}"[:2000]
            result["traceback"] = traceback.format_exc()[-3000:]
    if script is not None:
        watch = script.watch
        result |= {"peaks": watch.peaks, "warnings": watch.warned, "losses": script.losses}
        result |= {"step_seconds": [round(seconds, 3) for seconds in watch.seconds]}
    others = {str(one.message)[:200] for one in caught if issubclass(one.category, BudgetWarning)}
    result["all_warnings"] = sorted(others)
    return {**result, "seconds": round(time.perf_counter() - began, 2)}


def _shown(plan: Any) -> dict[str, Any]:
    names = ("budget", "margin", "modelled_peak", "rehearsed_peak", "measured_peak", "executions", "mode")
    return {**{name: getattr(plan, name) for name in names}, "overhead": plan.schedule.overhead}


def forked_with_cache(work: Callable[[], dict[str, Any]], cache: str, seconds: float) -> dict[str, Any]:
    """What `work` returns, in a process of its own: this one, which has loaded the packages and done nothing else, copied.

    Args:
        cache: the folder in which the copy keeps plans.
    """

    def cached() -> dict[str, Any]:
        os.environ["CHECKMATE_CACHE_DIR"] = cache
        return work()

    failed: dict[str, Any] = {
        "infeasible": None,
        "peaks": {},
        "warnings": {},
        "losses": [],
        "step_seconds": [],
        "seconds": seconds,
    }
    return forked(cached, seconds, failed)
