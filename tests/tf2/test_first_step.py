"""The first step is waited for no longer than is said, and nothing is done twice."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import checkmate.tf2
from checkmate.planning import Options
from checkmate.schedule import Compute
from checkmate.tf2.execution.emit import emit
from checkmate.tf2.graphs.trace import trace
from checkmate.tf2.internals import without_graph_rewriting
from checkmate.tf2.memory.measure import bytes_in_use
from checkmate.tf2.memory.variable_memory import Homes
from checkmate.tf2.ops.op_kinds import Held, note_held, tensor_bytes
from checkmate.tf2.step import capture_step
from tf2_models import CASES, identical, state, train_plain

STEP, EXECUTE = sys.modules["checkmate.tf2.step"], sys.modules["checkmate.tf2.execution.execute"]


@pytest.fixture(autouse=True)
def _directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(STEP, "_QUICK", float("inf"))  # ops may overlap however slow the machine is


def counted(monkeypatch: pytest.MonkeyPatch, *watched: tuple[Any, str]) -> Counter[str]:
    """How often functions are called, by name."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **keywords)

        return call

    for owner, name in watched:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return calls


def test_trying_out_goes_on_between_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """When time is up the schedule was tried out with ops one by one; ways in which they overlap are tried later, one at a time.

    The budget leaves room for whatever ops take that overlap, which is a matter of chance.
    """
    monkeypatch.setattr(STEP, "_clock", itertools.count(0, 100).__next__)
    calls = counted(monkeypatch, (EXECUTE.Executor, "_rehearse"))
    case = CASES["conv"]()
    model, optimizer = case.make(), case.optimizer()
    settings = {"budget": "130%", "time_limit": 2, "gap": 0.05, "plan_seconds": 60, "progress": True}
    step = checkmate.tf2.compile(model, case.loss, optimizer, case.x, case.y, **settings)
    said = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "tracing the step"
    assert "looking for a schedule" in said
    assert said[-1].startswith("trying a schedule out")
    (shaped,) = step._step._steps.values()
    assert calls["_rehearse"] == 1
    assert not shaped.executor.overlaps
    steps = 0
    while steps < 30 and not shaped.executor.overlaps:
        before = calls["_rehearse"]
        step(case.x, case.y)
        steps += 1
        assert calls["_rehearse"] <= before + (steps > 1)  # the first step was waited for long enough
    assert shaped.executor.overlaps
    assert calls["_rehearse"] > 1
    (plan,) = step.plans
    assert plan.executions == steps
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert capsys.readouterr().err == "", "nothing is said between steps"
    expected, _, _ = train_plain(case, steps=steps)
    assert identical(state(model, optimizer), expected)


def test_a_second_process_only_traces_and_emits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["conv"]()
    settings = {"budget": "80%", "time_limit": 2, "gap": 0.05}
    checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, **settings)
    calls = counted(monkeypatch, (EXECUTE.Executor, "_rehearse"), (EXECUTE, "emit"), (STEP, "trace"), (STEP, "make_plan"))
    model, optimizer = case.make(), case.optimizer()
    step = checkmate.tf2.compile(model, case.loss, optimizer, case.x, case.y, **settings)
    for _ in range(2):
        step(case.x, case.y)
    assert calls == {"trace": 1, "make_plan": 1, "emit": 1}


def test_what_was_found_serves_a_model_with_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras counts layers through: where a model is made a second time, all of its ops are called differently."""
    case = CASES["conv"]()
    settings = {"budget": "80%", "time_limit": 2, "gap": 0.05}
    (first,) = checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, **settings).plans
    calls = counted(monkeypatch, (EXECUTE.Executor, "_rehearse"))
    (again,) = checkmate.tf2.compile(case.build(), case.loss, case.optimizer(), case.x, case.y, **settings).plans
    assert {op.name for op in again.graph.ops} != {op.name for op in first.graph.ops}
    assert again.schedule.steps == first.schedule.steps
    assert again.rehearsed_peak == first.rehearsed_peak
    assert not calls["_rehearse"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan_seconds": -1}, "plan_seconds must be a number of seconds, 0 or more; it is -1"),
        ({"plan_seconds": float("nan")}, "0 or more; it is nan"),
        ({"plan_seconds": True}, "it is True"),
        ({"plan_seconds": "soon"}, "it is a str"),
        ({"progress": "yes"}, "progress must be True, False or None; it is a str"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    case = CASES["conv"]()
    with pytest.raises(checkmate.CheckmateError, match=message):
        checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, **options)


def test_a_quarter_of_the_time_is_for_the_first_schedule() -> None:
    assert checkmate.tf2.Options.read({"time_limit": 15}).search_seconds == 15
    chosen = checkmate.tf2.Options.read({"time_limit": 15, "plan_seconds": 20})
    assert chosen.search_seconds == 5
    assert "plan_seconds" not in chosen.about(), "what was found is of use however long it was waited for"


def test_no_trial_begins_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a trial of ten seconds there have to be twenty left: for another one, and to make the step; also if one was quicker since."""
    monkeypatch.setattr(STEP, "_clock", iter([30, 39, 41]).__next__)
    shaped = object.__new__(STEP._Shaped)
    shaped.owner = SimpleNamespace(options=checkmate.tf2.Options(plan_seconds=60))
    shaped._began, shaped._trial_began, shaped._longest = 0, 20, 0
    assert [shaped._enough() for _ in range(3)] == [False, False, True]


def test_the_search_for_another_schedule_is_a_part_of_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is sought for longer than any other, which begins with the one that was made for the nearest number of bytes."""
    now, begun_with = [0.0], []
    monkeypatch.setattr(STEP, "_clock", lambda: now[0])

    def make_plan(captured: Any, options: Any, allowance: Any, others: Any, start: Any) -> Any:
        now[0] += 8
        begun_with.append(start and start.budget)
        return SimpleNamespace(schedule=SimpleNamespace(cost=0.0, overhead=1.0, budget=allowance.limit))

    def rehearse(limit: int, *, whole: bool, enough: int | None) -> None:
        now[0] += 3

    monkeypatch.setattr(STEP, "make_plan", make_plan)
    monkeypatch.setattr(STEP, "Executor", lambda captured, plan, overlap: SimpleNamespace(plan=plan, rehearse=rehearse))
    shaped = object.__new__(STEP._Shaped)
    shaped.owner = SimpleNamespace(options=checkmate.tf2.Options(plan_seconds=60), plans=[], homes=Homes())
    shaped.captured, shaped._progress = SimpleNamespace(graph=None), SimpleNamespace(say=lambda what: None)
    shaped._left = lambda executor: 0
    shaped._began = shaped._trial_began = shaped._longest = shaped._sought = shaped._outside = 0
    shaped._found = []
    for margin, again, longest in ((0, False, 3), (20, True, 11), (15, False, 11)):
        shaped.rehearse(shaped.make(100, margin, again=again))
        assert not shaped._enough()
        assert shaped._longest == longest
    assert begun_with == [None, 100, 80]


def test_a_trial_ends_once_it_takes_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["conv"]()
    settings = {"budget": "80%", "time_limit": 2, "gap": 0.05}
    step = checkmate.tf2.compile(case.make(), case.loss, case.optimizer(), case.x, case.y, **settings)
    (shaped,) = step._step._steps.values()
    calls = counted(monkeypatch, (EXECUTE.Executor, "_call"))
    executor = EXECUTE.Executor(shaped.captured, shaped.plan, overlap=False)
    peak = executor.rehearse(2**40, whole=True)
    runs = calls["_call"]
    assert runs > 1
    executor.rehearse(2**40, whole=True, enough=peak // 2)
    assert calls["_call"] == runs + 1


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("mode", ["sparse", "full"])
def test_variables_are_read_and_changed_in_turn(inline: bool, mode: str) -> None:
    variable, counter = tf.Variable(tf.ones([200, 200])), tf.Variable(0)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        before = tf.reduce_sum(variable * x)
        variable.assign(2 * variable + x)
        between = tf.reduce_sum(variable * x)
        variable.assign_add(x)
        counter.assign_add(1)
        parts = tf.split(variable - x, 2)
        return before, between, parts[1] + parts[0]

    x = tf.reshape(tf.range(40_000, dtype=tf.float32), [200, 200]) / 40_000
    captured = capture_step(trace(step, (tf.TensorSpec(x.shape, x.dtype),)), Options(cost_model="flops"))
    emitted = emit(captured, [Compute(number) for number in range(captured.graph.num_ops)], mode)
    run = tf.function(lambda x: emitted.place([x]), autograph=False) if inline else emitted.function()
    found = [[result.numpy() for result in run(x)] for _ in range(3)]
    after = variable.numpy()
    assert counter.numpy() == 3
    variable.assign(tf.ones([200, 200]))
    plain = tf.function(step, autograph=False)
    for results in found:
        for one, other in zip(results, plain(x), strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)
    np.testing.assert_allclose(after, variable.numpy(), rtol=1e-6)


def test_a_function_is_gone_with_its_last_reference() -> None:
    captured = capture_step(trace(lambda x: 2 * x, (tf.TensorSpec([100, 300]),)), Options(cost_model="flops"))
    run: Any = emit(captured, [Compute(number) for number in range(captured.graph.num_ops)]).function()
    name = run._name
    with without_graph_rewriting():
        assert run(tf.ones([100, 300]))[0][0, 0] == 2
    from tensorflow.python.eager import context

    assert context.context().has_function(name)
    del run
    assert not context.context().has_function(name)


def test_sizes_that_are_found_later_replace_those_of_before() -> None:
    graph = tf.Graph()
    with graph.as_default():
        tensor = tf.zeros([10, 10])
    assert tensor_bytes(tensor) == 400
    note_held(graph, {tensor.op.name: Held(0.0, 0, (7,), (7,))})
    assert tensor_bytes(tensor) == 7


def test_what_a_plan_held_goes_when_another_one_takes_its_place() -> None:
    """A function makes the large constants of a loop in its first run and keeps them. A plan that is taken up again makes them once more."""
    table = np.random.default_rng(0).normal(size=(1024, 512)).astype(np.float32) / 30

    def function(x: Any) -> Any:
        (looped,) = tf.while_loop(
            lambda _: True, lambda y: (tf.exp(y @ table) @ tf.transpose(table),), (x,), maximum_iterations=1
        )
        return tf.reduce_sum(tf.exp(looped), 1)

    x = tf.random.stateless_normal((64, 1024), (1, 2))
    expected = np.asarray(tf.function(function, autograph=False)(x))
    step = STEP.PlannedStep(function, checkmate.tf2.options.Options(budget="20 MiB", cost_model="flops", time_limit=1))
    assert np.array_equal(step(x), expected)
    (shaped,) = step._steps.values()
    first, held, peak = shaped.executor, bytes_in_use(), shaped.plan.measured_peak
    for executor in (shaped._executor(first.plan), first):
        shaped._go_on_under(executor)
        assert executor.unmade >= table.nbytes
        assert np.array_equal(step(x), expected)
        assert bytes_in_use() < held + table.nbytes // 2
        assert shaped.plan.measured_peak < peak + table.nbytes // 2


def test_large_constants_are_there_once_for_all_sizes() -> None:
    """So are those of the same numbers that a script makes anew. They go with the steps that read them."""
    table = np.random.default_rng(0).normal(size=(1024, 512)).astype(np.float32) / 30

    def function(x: Any) -> Any:
        return tf.reduce_sum(tf.exp(x @ table) @ tf.constant(table.T.copy()), 1), tf.constant(table)

    plain = tf.function(function, autograph=False)
    steps = [STEP.PlannedStep(function, checkmate.tf2.options.Options(cost_model="flops", time_limit=1)) for _ in range(2)]
    before = bytes_in_use()
    for step, size in itertools.product(steps, (64, 32, 64)):
        x = tf.random.stateless_normal((size, 1024), (1, 2))
        for result, expected in zip(step(x), plain(x), strict=True):
            assert np.array_equal(result, expected)
    del x, result, expected, plain
    gc.collect()
    assert bytes_in_use() < before + table.nbytes // 2  # exact ones lie outside of the pool
    constants: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    for shaped in (one for step in steps for one in step._steps.values()):
        constants.update((id(one), one) for one in shaped.captured.traced.captured)
        assert shaped.plan.graph.fixed_memory >= 2 * table.nbytes
    assert len(constants) == 2
    steps.clear()
    del step, shaped
    gc.collect()
    assert not constants
