"""What the fuzzer of the Keras front end calls a failure."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from checkmate import InfeasibleBudget

pytest.importorskip("keras")

# Keras saves variables in a way that NumPy 2 asks to be written otherwise.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def program(load: Any, way: str = "train_on_batch") -> Any:
    """Dropout, batch norm, an output that no loss uses."""
    programs = load("keras_fuzz_programs")
    script = programs.Script(
        shape=(8, 16), batch=64, ways=(way,), smaller=False, functional=True, policy="float32", budget="90%",
        optimizer="keras.optimizers.Adam(1e-3)", executions=1, weighted=False, loss_weights=False, validates=False, between="nothing",
        metrics="", own_step=False, callbacks=(),
    )  # fmt: skip
    return programs.Program(
        seed=0,
        script=script,
        init=["self.a = layers.Dense(32)", "self.b = layers.BatchNormalization()", "self.c = layers.Dropout(0.3)"],
        body=["v = self.b(self.a(x))", "w = self.c(ops.gelu(v))", "u = ops.sin(y)"],
        outputs=["w", "u"],
        shapes=[(64, 8, 32), (64, 8, 16)],
        losses=["'mse'", ""],
    )


def alone(load: Any, work: Callable[[], Any]) -> Any:
    """What `work` returns in a process of its own: threads of TensorFlow in this one would be missing in those that other tests fork."""
    found = load("worker").forked(lambda: {"result": work()}, 120.0, {})
    assert "error" not in found, found
    return found["result"]


def test_programs_follow_from_their_seed(load: Any) -> None:
    sources = alone(load, lambda: [load("keras_fuzz_programs").generate(seed).source() for seed in (3, 4, 3)])
    assert sources[0] == sources[2] != sources[1]


@pytest.mark.parametrize("way", ["fit arrays", "loop"])
def test_a_program_that_trains_alike(load: Any, way: str) -> None:
    kind, detail = alone(load, lambda: load("keras_fuzz").judge(program(load, way)))
    assert kind == "same", detail
    assert detail.startswith("1 plans")


def test_a_front_end_that_changes_a_weight_by_a_millionth_is_seen(load: Any) -> None:
    def prepare(model: Any, **options: Any) -> None:
        (layer,) = [one for one in model.layers if one.name.startswith("batch_normalization")]
        layer.gamma.assign_add([1e-6] + [0.0] * 31)

    front = types.SimpleNamespace(prepare=prepare, plans=lambda model: [])
    kind, detail = alone(load, lambda: load("keras_fuzz").judge(program(load), front))
    assert kind == "differs"
    assert detail.startswith("log loss")


@pytest.mark.parametrize(
    ("plain", "ours", "peak", "told", "expected"),
    [
        ([1.0, 1.0], 1.0, 10, False, "same"),
        ([1.0, 1.0], 1.001, 10, False, "differs"),
        ([1.0, 1.0001], 1.001, 10, False, "near"),  # plain training does not repeat itself
        ([1.0, 1.0001], 1.1, 10, False, "differs"),
        ([1.0, 1.0], "no", 10, False, "fails"),
        ([1.0, 1.0], "refused", 10, False, "refused"),
        (["no", "no"], 1.0, 10, False, "not trained"),
        ([float("nan")] * 2, 1.0, 10, False, "not trained"),
        ([1.0, 1.0], 1.0, 11, False, "above the budget"),
        ([1.0, 1.0], 1.0, 11, True, "same"),
    ],
)
def test_verdicts(
    load: Any, monkeypatch: pytest.MonkeyPatch, plain: list[Any], ours: Any, peak: int, told: bool, expected: str
) -> None:
    """Of trainings that come to one number, or fail with a word."""
    fuzz, runs = load("keras_fuzz"), iter(plain)
    plan = types.SimpleNamespace(measured_peak=peak, budget=10, schedule=types.SimpleNamespace(num_recomputations=0))

    class Training:
        plans = (plan,)
        model = types.SimpleNamespace(trainable_variables=["a weight"])

        def __init__(self, program: Any, front: Any = None, options: Any = None):
            self.number = next(runs) if options is None else ours
            if options is not None and told:
                warnings.warn("above", fuzz.checkmate.tf2.BudgetWarning, stacklevel=1)

        def run(self) -> Any:
            if self.number == "no":
                raise IndexError("no")
            if self.number == "refused":
                raise InfeasibleBudget(budget=10, proven_minimum=11, smallest_found=12)
            self.found = [("loss", np.asarray(self.number))]
            return self

    monkeypatch.setattr(fuzz, "Training", Training)
    assert fuzz.judge(program(load))[0] == expected


@pytest.mark.parametrize("line", ["self.d = layers.SpectralNormalization(layers.Dense(4))", "self.d = layers.LSTM(4)"])
def test_where_last_bits_may_differ(load: Any, line: str) -> None:
    one = program(load)
    assert not one.is_loose
    one.init.append(line)
    assert one.is_loose
