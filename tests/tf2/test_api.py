"""What the front end accepts, refuses and says."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate
import checkmate.tf2
from checkmate.tf2.specs import like, read_specs
from tf2_models import CASES


def test_reached_from_the_package_and_imported_late() -> None:
    code = "import checkmate, sys; print('tensorflow' in sys.modules); print(checkmate.tf2.compile.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\ncompile\n"


def test_xla_is_refused() -> None:
    case = CASES["conv"]()
    with pytest.raises(checkmate.CheckmateError, match="XLA orders the ops by itself"):
        checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, jit_compile=True)


def test_mirrored_strategy_is_refused() -> None:
    code = """
import tensorflow as tf, keras, checkmate.tf2
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1)
try:
    checkmate.tf2.compile(model, "mse", optimizer, tf.zeros((2, 4)), tf.zeros((2, 2)))
except checkmate.CheckmateError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("this model lives under a tf.distribute strategy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bugdet": 1}, "unknown option 'bugdet'"),
        ({"budget": "5 parsecs"}, "unknown unit"),
        ({"cost_model": "guess"}, "unknown cost model 'guess': choose one of profile, flops"),
        ({"method": "magic"}, "unknown method 'magic'"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    case = CASES["conv"]()
    with pytest.raises(checkmate.CheckmateError, match=message):
        checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, **options)  # type: ignore[arg-type]  # bad


def test_shapes_must_be_known() -> None:
    case = CASES["conv"]()
    spec = tf.TensorSpec((None, 48, 48, 3))
    with pytest.raises(checkmate.CheckmateError, match="give specs with the batch size filled in"):
        checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), spec, case.y)


def test_a_batch_unlike_the_specs_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    step = checkmate.tf2.compile(model, "mse", keras.optimizers.SGD(0.1), tf.zeros((2, 4)), tf.zeros((2, 2)), budget="1GiB")
    with pytest.raises(checkmate.CheckmateError, match="does not look like the specs"):
        step({"x": np.zeros((2, 4))}, np.zeros((2, 2)))
    prediction, loss = step(np.zeros((2, 4)), np.ones((2, 2)))  # float64 arrays become what the model takes
    assert prediction.shape == (2, 2)
    assert loss.shape == ()


def small() -> tuple[keras.Model, tf.Tensor, tf.Tensor]:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), tf.ones((2, 4)), tf.zeros((2, 2))


def test_an_optimizer_by_name_and_batches_as_lists() -> None:
    model, x, y = small()
    step = checkmate.tf2.compile(model, "mse", "adam", keras.Input((4,), batch_size=2), y, budget="1GiB")
    assert isinstance(step.optimizer, keras.optimizers.Adam)
    _, loss = step(x.numpy().tolist(), y.numpy().tolist())
    assert float(loss) > 0
    with (
        tf.GradientTape(),
        pytest.raises(checkmate.CheckmateError, match="called inside a tf.GradientTape: .*; call it outside of the tape"),
    ):
        step(x, y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adan"}, "Keras has no optimizer of the name 'adan'"),
        ({"optimizer": keras.optimizers.Adam}, "optimizer must be a Keras optimizer, .*; it is the class Adam"),
        ({"optimizer": [0.0] * 10**5}, 'or its name, "adam"; it is a list'),
        ({"loss": "mean"}, "Keras has no loss of the name 'mean'"),
        ({"loss": keras.losses.MeanSquaredError}, "loss must be a function .* it is the class MeanSquaredError"),
        ({"metrics": ["accuracy"]}, "metrics must be Keras metrics, .* one of them is 'accuracy'"),
        (
            {"input_spec": keras.Input((4,))},
            "input_spec is a keras.Input of shape \\(None, 4\\), .* with the batch size filled in",
        ),
        ({"input_spec": [[1.0] * 4] * 10**4}, "input_spec holds a Python float where an array is meant"),
        ({"label_spec": None}, "label_spec holds a Python NoneType"),
        ({"label_spec": tf.ragged.constant([[1.0], []])}, "label_spec holds a RaggedTensor: .* give dense tensors"),
    ],
)
def test_arguments_that_are_not_what_they_should_be(given: dict[str, object], message: str) -> None:
    model, x, y = small()
    arguments = {"loss": "mse", "optimizer": "sgd", "input_spec": x, "label_spec": y, "budget": "1GiB", **given}
    with pytest.raises(checkmate.CheckmateError, match=message) as caught:
        checkmate.tf2.compile(model, **arguments)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_a_batch_is_said_without_showing_it() -> None:
    x, y = {"a": tf.zeros((3, 4)), "b": [tf.zeros(3), tf.zeros(3)]}, tf.zeros(3, tf.int32)
    for given, spec, message in (
        (
            np.zeros((3, 4)),
            x,
            "batch does not look like the specs given to compile: it should be a dictionary of 'a', 'b', and is an array",
        ),
        ({"a": 1, "c": 2}, x, "it should be a dictionary of 'a', 'b', and is a dict of 'a', 'c'"),
        ({"a": x["a"], "b": x["b"][0]}, x, "batch\\['b'\\] does not .*: it should be 2 parts, and is a "),
        ({"a": x["a"], "b": [1] * 10**6}, x, "it should be 2 parts, and is a list of 1000000"),
        ([["secret"] * 3] * 10**5, y, "batch cannot be made a tensor of int32: it is a list of 100000"),
        (tf.zeros(3), y, "batch has element type float32, and the specs given to compile have int32"),
        (tf.ragged.constant([[1], []]), y, "batch holds a RaggedTensor"),
    ):
        with pytest.raises(checkmate.CheckmateError, match=message) as caught:
            like(read_specs(spec, "spec"), given, "batch")
        assert len(str(caught.value)) < 300
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_keras_on_another_backend_is_refused_at_once() -> None:
    pytest.importorskip("torch")
    code = """
import keras, checkmate.tf2
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
for call in (lambda: checkmate.tf2.prepare(model), lambda: checkmate.tf2.compile(model, "mse", "adam", None, None)):
    try:
        call()
    except checkmate.CheckmateError as error:
        print(error)
"""
    settings = {**os.environ, "KERAS_BACKEND": "torch"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=settings)
    said = "Keras computes with torch here, and checkmate.tf2 plans steps of TensorFlow: set KERAS_BACKEND=tensorflow before"
    assert result.stdout.count(said) == 2


def test_the_loss_per_sample_is_averaged() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, kernel_initializer="ones")])
    x, y = tf.ones((3, 4)), tf.zeros((3, 2))
    step = checkmate.tf2.compile(model, lambda y, p: tf.reduce_sum(p, axis=1), keras.optimizers.SGD(0.5), x, y, budget="1GiB")
    _, loss = step(x, y)
    assert float(loss) == 8.0
    assert np.allclose(model.get_weights()[0], 0.5)


def test_capture_without_an_optimizer_keeps_the_gradients() -> None:
    case = CASES["conv"]()
    model = case.make()
    before = [np.array(w) for w in model.get_weights()]
    graph = checkmate.tf2.capture(model, case.loss, case.x, case.y, cost_model="flops")
    kept = sum(value.size for value in graph.values if value.keep)
    assert kept >= sum(w.nbytes for w in before)
    assert graph.fixed_memory == sum(w.nbytes for w in before) + case.x.nbytes + case.y.nbytes
    assert {op.phase for op in graph.ops} == {"forward", "backward"}
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_nothing_to_train() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Flatten()])
    with pytest.raises(checkmate.CheckmateError, match="no trainable variables"):
        checkmate.tf2.compile(model, "mse", keras.optimizers.SGD(0.1), tf.zeros((2, 4)), tf.zeros((2, 4)))
