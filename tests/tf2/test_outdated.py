"""What a variable was is in memory for as long as something reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import checkmate
from checkmate.planning import Allowance, Options
from checkmate.planning import plan as planning
from checkmate.schedule import Compute, Step, simulate, steps_from_sequence
from checkmate.solvers.smallest_budget import least_peak_found
from checkmate.tf2.execution.emit import emit
from checkmate.tf2.execution.former_values import FormerValues
from checkmate.tf2.execution.plan import make_plan
from checkmate.tf2.execution.replay import peak_of, replay
from checkmate.tf2.graphs.capture import Captured
from checkmate.tf2.internals import address, without_graph_rewriting
from tf2_models import captured_case, tensors


def once(captured: Captured) -> list[Step]:
    return [Compute(number) for number in range(captured.graph.num_ops)]


def and_the_outputs_again(captured: Captured) -> list[Step]:
    """After everything else, what the outputs of the step are computed from."""
    graph = captured.graph
    needed: set[int] = set()
    stack = [value for value, one in enumerate(graph.values) if one.keep]
    while stack:
        op = graph.producer[stack.pop()]
        if op not in needed and graph.ops[op].recomputable:
            needed.add(op)
            stack += graph.ops[op].inputs
    return [*once(captured), *map(Compute, sorted(needed))]


def addresses(model: Any) -> dict[str, int]:
    reads = {v.path: tf.raw_ops.ReadVariableOp(resource=v.value.handle, dtype=v.value.dtype) for v in model.trainable_variables}
    return {path: address(read) for path, read in reads.items()}


@pytest.mark.parametrize("name", ["transformer", "unet"])
def test_what_is_counted_is_what_tensorflow_copies(name: str) -> None:
    case, model, captured = captured_case(name)
    batch = tf.nest.flatten((tensors(case.x), tensors(case.y)))
    size = {v.path: v.shape.num_elements() * tf.as_dtype(v.dtype).size for v in model.trainable_variables}
    large = {path for path, bytes_ in size.items() if bytes_ >= 1024}  # the order of ops on small tensors is left to TensorFlow
    copied = []
    for steps in (once(captured), and_the_outputs_again(captured)):
        function = emit(captured, steps).function()
        before = addresses(model)
        with without_graph_rewriting():
            function(*batch)
        after = addresses(model)
        copied.append(sum(size[path] for path in large if before[path] != after[path]))
        runs = replay(captured, steps)
        handles = captured.traced.handles
        moved = {id(handles[name]) for run in runs for name in run.moved}
        assert {v.path for v in model.trainable_variables if id(v.value.handle) in moved} & large == {
            path for path in large if before[path] != after[path]
        }
        assert 0 <= max(run.outdated for run in runs) - copied[-1] < (1024 if copied[-1] == 0 else sum(size.values()) / 20)
    assert copied[0] == 0 < copied[1]


@pytest.mark.parametrize("name", ["transformer", "unet"])
def test_a_graph_with_former_values_counts_what_a_replay_does(name: str) -> None:
    """They take nothing where every op runs once."""
    _, _, captured = captured_case(name)
    known, plain = FormerValues(captured), captured.graph
    assert known.num_variables > 5
    assert known.graph.no_recompute_peak == plain.no_recompute_peak
    first = known.num_variables
    runs = [step.op for step in and_the_outputs_again(captured) if isinstance(step, Compute)]
    steps = steps_from_sequence(known.graph, [*range(first), *(first + op for op in runs)])
    found = known.of_step(steps)
    assert [step.op for step in found if isinstance(step, Compute)] == runs
    more = np.subtract(memory_of(known.graph, steps)[first:], memory_of(plain, found))
    outdated = max(run.outdated for run in replay(captured, found))
    assert min(more) >= 0
    assert 0.9 * outdated <= max(more[plain.num_ops :]) <= outdated


def memory_of(graph: checkmate.Graph, steps: list[Step]) -> list[int]:
    """After each computation."""
    memory = simulate(graph, steps).memory
    return [memory[number] for number, step in enumerate(steps) if isinstance(step, Compute)]


def test_former_values_that_take_too_much_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, captured = captured_case("transformer")
    graph = captured.graph
    asked: list[bool] = []

    def solved(given: checkmate.Graph, budget: int, **_: object) -> checkmate.Schedule:
        asked.append(given.num_ops > graph.num_ops)
        if not asked[-1]:
            return checkmate.Schedule(given, and_the_outputs_again(captured), budget)
        return checkmate.solve(given, budget, time_limit=20, gap=0.05)

    monkeypatch.setattr(planning, "solve_cached", solved)
    most = peak_of(captured, replay(captured, and_the_outputs_again(captured)))
    plan = make_plan(captured, Options(), Allowance(most))
    assert asked == [False]
    assert plan.modelled_peak == most
    asked.clear()
    plan = make_plan(captured, Options(), Allowance(int(0.8 * most)))
    assert asked == [False, True]
    assert plan.schedule.graph is graph
    assert plan.modelled_peak <= 0.8 * most


def test_a_budget_that_former_values_do_not_leave_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least budget that is named knows of them; what is proven is so whatever happens to variables."""
    _, _, captured = captured_case("transformer")
    graph, known = captured.graph, FormerValues(captured).graph
    least, _ = least_peak_found(known)

    def solved(given: checkmate.Graph, budget: int, **_: object) -> checkmate.Schedule:
        if given.num_ops > graph.num_ops:
            raise checkmate.InfeasibleBudget(budget, budget + 1, 2 * least.peak)
        return checkmate.Schedule(given, and_the_outputs_again(captured), graph.no_recompute_peak)

    monkeypatch.setattr(planning, "solve_cached", solved)
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        make_plan(captured, Options(), Allowance(least.peak - 10_000, reserved=1000, margin=500))
    assert caught.value.smallest_found == least.peak + 1500
    assert caught.value.proven_minimum == graph.min_working_set + 1000
