"""A user's own Keras model on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from checkmate import Graph, cli
from checkmate.tf2 import capture
from support import error_line

MODULE = """
import keras
import numpy as np

def model(batch=4):
    net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(600, activation="relu"), keras.layers.Dense(300)])
    return net, (np.zeros((batch, 8), "float32"), np.zeros((batch, 300), "float32"))

def with_loss(batch=4):
    return (*model(batch), "mse")

def compiled(batch=4):
    net, data = model(batch)
    net.compile("adam", "mse")
    return net, data

def no_pair():
    return model()[0], 3, "mse"

def wrong_shape():
    net, (x, y) = model()
    return net, (x[:, :5], y), "mse"
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keras_net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # a factory's folder is added to it


def run(capsys: pytest.CaptureFixture[str], command: str, factory: str, *words: str) -> Any:
    assert cli.main([command, f"keras_net.py:{factory}", "--json", *words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_the_graph_is_that_of_the_front_end(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "trace", "with_loss", "--batch", "64", "--device-model", "a100")
    traced = Graph.load("graph.json")
    model, (x, y), loss = sys.modules["keras_net"].with_loss(64)
    real = capture(model, loss, x, y, cost_model="flops")
    # Names of variables count up with each model that is made.
    assert [value.size for value in traced.values] == [value.size for value in real.values]
    assert [(op.inputs, op.outputs, op.workspace) for op in traced.ops] == [
        (op.inputs, op.outputs, op.workspace) for op in real.ops
    ]
    assert traced.fixed_memory == real.fixed_memory


def test_the_loss_is_that_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (run(capsys, "info", factory, "--device-model", "h100") for factory in ("with_loss", "compiled"))
    assert {**one, "name": ""} == {**other, "name": ""}


def test_a_plan_with_costs_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "solve", "with_loss", "--batch", "256", "--budget", "100%")
    assert found["peak"] <= found["budget"] and 0 < found["cost"] < 60


def test_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--budget", "8MB", "--device-model", "cpu")
    found = run(capsys, "max-batch", "with_loss", *words, "--max-overhead", "1.2")
    assert found["schedule"]["peak"] <= 8_000_000 and 1 <= found["batch"] <= found["upper_bound"]


@pytest.mark.parametrize(
    ("factory", "code", "message"),
    [
        ("model", 2, "returned a Keras model without a loss"),
        ("no_pair", 2, "a batch that is not a pair (x, y)"),
        ("wrong_shape", 1, "keras_net.py:wrong_shape failed with ValueError: "),
    ],
)
def test_what_is_no_factory(factory: str, code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", f"keras_net.py:{factory}", "--device-model", "cpu"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in (error_line(captured.err) if code == 2 else captured.err.splitlines()[-1])
