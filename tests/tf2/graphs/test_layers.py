"""The layers of ops are the names of the layers in the user's own model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate
from checkmate.tf2.graphs.layers import Scopes, note_layers, scopes_of
from tf2_models import captured_case


class Subclassed(keras.Model):
    """Layers in lists and in other layers, and one that is called twice."""

    def __init__(self) -> None:
        super().__init__(name="mine")
        self.first = layers.Dense(32, activation="relu")
        self.blocks = [layers.Dense(32), layers.LayerNormalization(name="norm")]
        self.inner = keras.Sequential([layers.Dense(64, activation="gelu"), layers.Dense(32, name="back")], name="inner")

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return tf.nn.softmax(self.inner(self.inner(x)) + x)


def test_captured() -> None:
    keras.utils.clear_session()
    model, x = Subclassed(), np.ones((64, 64, 32), np.float32)
    graph = checkmate.tf2.capture(model, "mse", x, x, "adam", cost_model="flops")
    names = {"dense", "dense_1", "norm", "inner.dense_2", "inner.back"}
    found = {phase: {op.layer for op in graph.ops if op.phase == phase} for phase in ("forward", "backward")}
    assert found["forward"] - {""} == names == found["backward"] - {""}
    for op in graph.ops:  # what TensorFlow calls the second time that a layer is called is no layer
        assert "MatMul" not in op.name or op.layer in {"dense", "dense_1", "inner.dense_2", "inner.back"}
        assert "norm_1" not in op.name or op.layer == "norm"


@pytest.mark.parametrize(("name", "kind"), [("conv", "conv2d"), ("transformer", "multi_head_attention"), ("unet", "conv2d")])
def test_the_names_are_those_of_the_layers_of_the_model(name: str, kind: str) -> None:
    _, model, captured = captured_case(name)
    known = {layer.name for layer in model.layers}
    ops = captured.graph.ops
    assert {op.layer.partition(".")[0] for op in ops} - {""} <= known
    forward, backward = ({op.layer for op in ops if op.phase == phase} for phase in ("forward", "backward"))
    large = {layer for layer in known if layer.startswith(kind)}
    assert large and large <= {layer.partition(".")[0] for layer in forward & backward}


def test_which_scope_was_asked_for_which_name() -> None:
    model = keras.Sequential([layers.Dense(2, name="a"), layers.Dense(2, name="a_1"), layers.ReLU(name="relu")], name="net")
    names = []

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        note_layers(model)
        for scope in ("net", "net"):
            with tf.name_scope(scope):
                for layer in ("a", "a", "a_1", "other"):
                    with tf.name_scope(layer) as opened, tf.name_scope("inside"):
                        names.append(tf.square(x).op.name)
                    with tf.name_scope(opened):
                        names.append(tf.square(x).op.name)
        names.append(tf.square(x).op.name)
        return x

    graph = step.get_concrete_function(tf.TensorSpec((2, 2))).graph
    found = [scopes_of(graph).layer_of(name) for name in names]
    assert found == [*("a", "a", "a", "a", "a_1", "a_1", "", ""), *("a", "a", "a", "a", "a_1", "a_1", "", ""), ""]
    assert [scopes_of(graph).layer_of(f"gradient_tape/{name}/mul") for name in names] == found
    assert scopes_of(tf.Graph()).layer_of("net/a/MatMul") == ""


def test_scopes_that_are_opened_by_their_whole_path() -> None:
    """So does tf_keras."""
    scopes = Scopes("net", {"net", "a", "b"})
    assert scopes.opened_as("net/a/b") == ("net", "a", "b")
    scopes.asked["net_1"] = ("net",)
    assert scopes.opened_as("net_1/a") == ("net", "a")
    assert [scopes.layer_of(name) for name in ("net/a/b/MatMul", "net/a/MatMul", "net_1/a/x/y", "net_2/a/x")] == [
        "a.b",
        "a",
        "a",
        "",
    ]


def test_training_with_fit() -> None:
    """In Keras 3 and in tf_keras."""
    tf_keras = pytest.importorskip("tf_keras")
    for library in (keras, tf_keras):
        dense = [library.layers.Dense(256, activation="relu", name=name) for name in ("one", "two", "three")]
        model = library.Sequential([library.Input((256,)), *dense])
        model.compile("sgd", "mse")
        checkmate.tf2.prepare(model, budget="1GiB", cost_model="flops")
        x = np.ones((256, 256), np.float32)
        model.fit(x, x, batch_size=256, epochs=1, verbose=0)
        ops = checkmate.tf2.plans(model)[0].graph.ops
        assert {op.layer for op in ops} - {""} == {"one", "two", "three"}
        assert {op.layer for op in ops if "/Relu" in op.name} == {"one", "two", "three"}


def test_outside_of_a_trace_nothing_is_noted() -> None:
    note_layers(keras.Sequential([], name="net"))
    assert Scopes().layer_of("net/a/MatMul") == ""
