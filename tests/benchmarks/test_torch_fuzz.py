"""What the fuzzer of the PyTorch front end calls a failure."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def program(load: Any) -> Any:
    """A head that is not used, batch norm, dropout, a write in place."""
    programs, scripts, steps = (load(f"torch_fuzz_{name}") for name in ("programs", "scripts", "steps"))
    plot = scripts.Plot(((steps.accumulated, scripts.evaluation), (steps.retained,), (steps.plain,)))
    script = programs.Script(
        shape=(16,), batch=64, sizes=False, input_grad=False, budget="80%", wait=True, by_name=False, plot=plot
    )
    made = ["nn.Linear(16, 32)", "nn.BatchNorm1d(32)", "nn.Linear(32, 8)", "nn.Linear(32, 8)"]
    return programs.Program(
        seed=0,
        script=script,
        init=[f"self.{name} = {module}" for name, module in zip("abcd", made, strict=True)],
        body=["v = self.b(self.a(x))", "v.mul_(0.7)", "w = self.c(F.dropout(v, 0.3, self.training))", "u = self.d(v)"],
        outputs=["w", "u"],
        loss=["w"],
    )


def test_programs_follow_from_their_seed(load: Any) -> None:
    programs = [load("torch_fuzz_programs").generate(seed) for seed in (3, 4, 3)]
    for known in (programs[0].source, programs[1].source), (programs[0].script.plot.names, programs[1].script.plot.names):
        assert known[0]() != known[1]()
    assert programs[0] == programs[2]


def test_a_program_that_trains_alike(load: Any) -> None:
    kind, detail = load("torch_fuzz").judge(program(load))
    assert kind == "same", detail
    assert detail.startswith("1 plans")


@pytest.mark.parametrize("broken", ["number", "gradient", "error"])
def test_failures_are_seen(load: Any, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = load("torch_fuzz")
    monkeypatch.setattr(fuzz.checkmate.torch, "plans", lambda model: [])

    def compile(model: Any, **options: Any) -> Any:
        if broken == "gradient":
            model.c.weight.register_hook(lambda gradient: gradient + 1e-7)

        def call(*inputs: torch.Tensor) -> Any:
            if broken == "error":
                raise IndexError("no")
            first, second = model(*inputs)
            return first, second + (1e-3 if broken == "number" else 0)

        return call

    kind, detail = fuzz.judge(program(load), compile=compile)
    expected = {
        "number": ("differs", "output in step accumulated"),
        "gradient": ("differs", "gradient of c.weight"),
        "error": ("fails", "Index"),
    }
    assert kind == expected[broken][0]
    assert detail.startswith(expected[broken][1])


def test_a_peak_that_is_not_told(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = load("torch_fuzz")
    plan = type("Plan", (), {"measured_peak": 11, "budget": 10})
    monkeypatch.setattr(fuzz.checkmate.torch, "plans", lambda model: [plan])
    assert fuzz.judge(program(load), compile=lambda model, **options: model) == ("above the budget", "11 bytes of 10")


@pytest.mark.parametrize(
    ("error", "rounding", "seen"), [(0.0, 0.0, False), (1e-6, 0.0, True), (1e-6, 1e-3, False), (1.0, 1e-3, True)]
)
def test_rounding_is_allowed_for_where_it_is_to_be(load: Any, error: float, rounding: float, seen: bool) -> None:
    value = torch.tensor([10.0, 0.0, float("nan")])
    found = load("torch_fuzz").difference(
        [("step", None), ("x", value)], [("step", None), ("x", value + error)], rounding=rounding
    )
    assert bool(found) == seen
    assert load("torch_fuzz").difference([("x", value)], [("x", None)], rounding=rounding) == "x in : None"
