"""Random Keras models as source text, and the scripts that train them. See `keras_fuzz.py`.

A model is written line by line; each line is run with what was written before, and with an open batch size, as Keras traces it. It stays
if that can be done.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_fuzz_material import (
    BREAKING,
    HEADER,
    LAYERS,
    LOOSE,
    LOSSES,
    METRICS,
    OPS,
    OPTIMIZERS,
    RATES,
    SETTINGS,
    TENSORFLOW,
    TRAIN_STEP,
    WIDTHS,
)  # fmt: skip

MOST_NUMBERS, MOST = 1_000_000, 1e3  # in a value, and how large they may be
TOKENS, WORDS = 12, 50  # of an example, and different ones
INPUTS = ("x", "y", "tokens")


@dataclass(frozen=True)
class Script:
    """How a program is trained.

    Attributes:
        shape: of an example. batch: examples of a batch. ways: of training, one after the other. smaller: whether the last batch is.
        functional: the model; else it is subclassed. policy: of Keras, for element types. budget: percentage of the plain peak. optimizer:
            its text. executions: steps for each call of Keras. weighted: samples. loss_weights: whether outputs have them.
        validates: in `fit`. between: what is done between two ways. metrics: text of one for each output. own_step: the model has a
            train_step of its own. callbacks: of `fit`.
    """

    shape: tuple[int, ...]
    batch: int
    ways: tuple[str, ...]
    smaller: bool
    functional: bool
    policy: str
    budget: str
    optimizer: str
    executions: int
    weighted: bool
    loss_weights: bool
    validates: bool
    between: str
    metrics: str
    own_step: bool
    callbacks: tuple[str, ...]

    @staticmethod
    def drawn(draw: random.Random) -> Script:
        ways = ("fit arrays", "fit dataset", "fit generator", "train_on_batch", "loop")
        between = ("nothing", "nothing", "compile", "freeze and compile", "freeze", "load weights", "set weights", "set rate")
        return Script(
            shape=draw.choice([(64,), (16, 32), (16, 32), (10, 10, 16)]),
            batch=draw.choice([64, 128, 256]),
            ways=tuple(draw.choice(ways) for _ in range(draw.choice([1, 1, 2]))),
            smaller=draw.random() < 0.4,
            functional=draw.random() < 0.5,
            policy=draw.choice(["float32"] * 6 + ["mixed_bfloat16", "mixed_float16"]),
            budget=draw.choice(["40%", "50%", "65%", "80%", "100%"]),
            optimizer=_optimizer(draw),
            executions=draw.choice([1, 1, 1, 1, 2, 3]),
            weighted=draw.random() < 0.15,
            loss_weights=draw.random() < 0.2,
            validates=draw.random() < 0.2,
            between=draw.choice(between),
            metrics=draw.choice(METRICS) if draw.random() < 0.4 else "",
            own_step=draw.random() < 0.12,
            callbacks=tuple(one for one in ("rate", "stop", "terminate", "swap") if draw.random() < 0.1),
        )

    @property
    def has_schedule(self) -> bool:
        return "schedules" in self.optimizer

    def inputs(self, seed: int, size: int) -> dict[str, Any]:
        """Arrays by the names of the model's inputs."""
        generator = np.random.default_rng(seed)
        x, y = (generator.standard_normal((size, *self.shape)).astype("float32") for _ in range(2))
        return {"x": x, "y": y, "tokens": generator.integers(0, WORDS, (size, TOKENS)).astype("int32")}


def _optimizer(draw: random.Random) -> str:
    text = draw.choice(OPTIMIZERS).format(rate=draw.choice(RATES))
    settings = [draw.choice(alike) for alike in SETTINGS if draw.random() < 0.1]
    settings = [one for one in settings if one.partition("=")[0] not in text]
    text = f"keras.optimizers.{', '.join([text[:-1], *settings])})"
    return f"keras.optimizers.LossScaleOptimizer({text}, dynamic_growth_steps=2)" if draw.random() < 0.08 else text


@dataclass
class Program:
    """A model, and how it is trained.

    Attributes:
        init: lines that make its layers. body: lines that compute with them. outputs: what it returns. shapes, losses: of each of them;
            the text of a loss is empty where there is none. given, returned: "dict", "list" or "tuple" of inputs and outputs; one output
            may be "single", too.
    """

    seed: int
    script: Script
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    given: str = "dict"
    returned: str = "dict"

    @property
    def is_loose(self) -> bool:
        """Last bits may differ from plain training, as the documentation says."""
        text = "\n".join((*self.init, *self.body))
        optimizer = self.script.optimizer
        sparse = "Embedding" in text and any(name in optimizer for name in ("Adadelta", "Adafactor", "RMSprop"))
        centered = "centered" in optimizer and ("accumulation" in optimizer or "LossScale" in optimizer)
        return sparse or centered or any(word in text for word in LOOSE)

    def source(self) -> str:
        """Of a Python module that has the functions `make()`, of a model, `optimizer()` and `losses()`."""
        step = TRAIN_STEP if self.script.own_step else ["    pass"]
        lines = [
            "class Trained(keras.Model):",
            *step,
            "",
            *(self._functional() if self.script.functional else self._subclassed()),
        ]
        losses = _text(self.returned, self._named([text or "None" for text in self.losses]))
        lines += ["", "def losses():", f"    return {losses}", "", "def optimizer():", f"    return {self.script.optimizer}"]
        lines += ["", "def metric():", f"    return {self.script.metrics or None}"]
        return HEADER + "\n".join(lines) + "\n"

    def _functional(self) -> list[str]:
        shapes = {"x": self.script.shape, "y": self.script.shape, "tokens": (TOKENS,)}
        made = [f"    {name} = keras.Input({shape}, name={name!r}, dtype={_type(name)!r})" for name, shape in shapes.items()]
        lines = ["def make():", "    self = SimpleNamespace()", *made, *(f"    {line}" for line in self.init + self.body)]
        return [*lines, f"    return Trained({_text(self.given, dict(zip(INPUTS, INPUTS, strict=True)))}, {self._outputs()})"]

    def _subclassed(self) -> list[str]:
        read = "(inputs[name] for name in ('x', 'y', 'tokens'))" if self.given == "dict" else "inputs"
        return [
            *("class Model(Trained):", "    def __init__(self):", "        super().__init__()"),
            *(f"        {line}" for line in self.init),
            *("    def call(self, inputs, training=None):", f"        x, y, tokens = {read}"),
            *(f"        {line}" for line in self.body),
            f"        return {self._outputs()}",
            *("", "def make():", "    return Model()"),
        ]

    def _outputs(self) -> str:
        return _text(self.returned, self._named(self.outputs))

    @staticmethod
    def _named(parts: Sequence[Any]) -> dict[str, Any]:
        return {f"o{number}": part for number, part in enumerate(parts)}

    def nest(self, parts: Sequence[Any]) -> Any:
        """Parts, one for each output, as the model returns these."""
        return as_nest(self.returned, self._named(parts))

    def batch(self, seed: int, size: int) -> tuple[Any, Any]:
        """Inputs and labels: nests of arrays."""
        generator = np.random.default_rng(seed + 1000)
        labels = []
        for (_, *inner, width), loss in zip(self.shapes, self.losses, strict=True):
            if "Crossentropy" in loss:
                classes = generator.integers(0, width, (size, *inner))
                labels.append(classes.astype("int32") if "Sparse" in loss else np.eye(width, dtype="float32")[classes])
            else:
                labels.append(generator.standard_normal((size, *inner, width)).astype("float32"))
        return as_nest(self.given, self.script.inputs(seed, size)), self.nest(labels)


def as_nest(kind: str, parts: dict[str, Any]) -> Any:
    """A dict, list or tuple of parts, or the only one."""
    if kind == "dict":
        return parts
    values = tuple(parts.values())
    return values[0] if kind == "single" else list(values) if kind == "list" else values


def _text(kind: str, parts: dict[str, str]) -> str:
    """The same in Python, of texts."""
    if kind == "dict":
        return "{" + ", ".join(f"{name!r}: {part}" for name, part in parts.items()) + "}"
    text = ", ".join(parts.values())
    return text if kind == "single" else f"[{text}]" if kind == "list" else f"({text},)"


def _type(name: str) -> str:
    return "int32" if name == "tokens" else "float32"


class _Writer:
    """Writes a program and has what its lines make."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        self.program = Program(seed, Script.drawn(self.draw))
        script = self.program.script
        keras.mixed_precision.set_dtype_policy(script.policy)
        sources = [OPS] if script.functional else [OPS, TENSORFLOW]
        self.lines = [text for lines in sources for weight, texts in lines.items() for text in texts * weight]
        self.names = ["x", "y"]
        self.trained: set[str] = set()  # names of values that depend on what is trained
        self.layers: list[tuple[str, str]] = []
        self.values: dict[str, Any] = {"training": True, "self": SimpleNamespace()}
        exec(HEADER, self.values)
        self.symbols = dict(self.values) | {"self": SimpleNamespace()}
        for name, value in script.inputs(0, script.batch).items():
            self.values[name] = tf.constant(value)
            self.symbols[name] = keras.Input(value.shape[1:], dtype=_type(name))

    def add(self) -> None:
        """Draw a line, and write it if it can be run."""
        draw, number = self.draw, len(self.program.body)
        a = draw.choice(self.names[-4:] if draw.random() < 0.7 else self.names)
        shape = self.values[a].shape
        alike = [name for name in self.names if self.values[name].shape == shape]
        b = draw.choice(alike if draw.random() < 0.7 else self.names)
        words = {"a": a, "b": b, "d": shape[-1], "k": draw.choice(WIDTHS), "n": math.prod(shape[1:]), "m": f"m{number}"}
        init: list[str] = []
        if self.layers and draw.random() < 0.1:
            words["m"], template = draw.choice(self.layers)
        elif draw.random() < 0.5 or not self.program.body:
            made, template = draw.choice(LAYERS[0] + LAYERS.get(len(shape), ()) * 2)
            init = [f"self.{words['m']} = {made.format(**words)}"]
        else:
            template = draw.choice(self.lines)
        name = f"v{number}"
        line = f"{name} = {template.format(**words)}"
        if any(word in line + "".join(init) for word in LOOSE) and draw.random() < 0.75:
            return
        values, symbols = dict(self.values), dict(self.symbols)
        try:
            for text in (*init, line):
                exec(text, values)
            self._check(values[name])
            self._trace(init, line, name, symbols)
        except Exception:  # noqa: BLE001 - TensorFlow and Keras have many for what does not fit
            return
        self.values, self.symbols = values, symbols
        self.program.init += init
        self.program.body.append(line)
        self.names.append(name)
        self.layers += [(words["m"], template)] if init else []
        read = {words[key] for key in "ab" if f"{{{key}}}" in template}
        weights = "{m}" in template and getattr(getattr(values["self"], words["m"]), "trainable_weights", ())
        if weights or (read & self.trained and not any(word in template for word in BREAKING)):
            self.trained.add(name)

    def _check(self, value: Any) -> None:
        """Raise for what is no batch of numbers that can be trained."""
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating or (value.shape.rank or 0) < 2:
            raise ValueError("no tensor of floating-point numbers")
        if value.shape[0] != self.program.script.batch or not 0 < value.shape.num_elements() <= MOST_NUMBERS:
            raise ValueError("too large, or no batch")
        if not tf.reduce_all(tf.abs(tf.cast(value, tf.float32)) <= MOST):
            raise ValueError("numbers are too large")

    def _trace(self, init: Sequence[str], line: str, name: str, symbols: dict[str, Any]) -> None:
        """Run lines with an open batch size: with Keras's symbols, or in a graph."""
        if self.program.script.functional:
            for text in (*init, line):
                exec(text, symbols)
            return
        known = {one: self.values[one] for one in (*self.names, "tokens")}

        def traced(given: dict[str, Any]) -> Any:
            found = {**self.values, **given}
            exec(line, found)
            return found[name]

        specs = {one: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for one, value in known.items()}
        if tf.function(traced, autograph=False).get_concrete_function(specs).outputs[0].shape.rank is None:
            raise ValueError("it has any number of dimensions")

    def finish(self) -> None:
        """Choose outputs and losses."""
        draw, program = self.draw, self.program
        made = self.names[2:] or self.names
        (*_, last) = [name for name in made if name in self.trained] or made
        program.outputs = list(dict.fromkeys([last, *draw.sample(made, min(len(made), draw.randint(0, 3)))]))
        draw.shuffle(program.outputs)
        program.returned = draw.choice(["dict", "list", "tuple"] if len(program.outputs) > 1 else ["dict", "list", "single"])
        program.given = draw.choice(["dict", "list", "tuple"])
        program.shapes = [tuple(self.values[name].shape) for name in program.outputs]
        program.losses = [draw.choice(LOSSES) if draw.random() < 0.8 or name == last else "" for name in program.outputs]


def generate(seed: int) -> Program:
    """The program of a seed."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    writer = _Writer(seed)
    length = writer.draw.randint(5, 22)
    for _ in range(6 * length):
        if len(writer.program.body) < length:
            writer.add()
    writer.finish()
    return writer.program
