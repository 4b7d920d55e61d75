"""What a variable was is in memory for as long as something reads it."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import checkmate
from checkmate.planning import Allowance, Options
from checkmate.planning import plan as planning
from checkmate.schedule import Compute, Step
from checkmate.tf2.capture import Captured
from checkmate.tf2.emit import emit
from checkmate.tf2.internals import without_graph_rewriting
from checkmate.tf2.op_kinds import root
from checkmate.tf2.plan import make_plan
from checkmate.tf2.replay import peak_of, replay
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
    return {path: read._numpy().__array_interface__["data"][0] for path, read in reads.items()}


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
        assert 0 <= max(run.outdated for run in runs) - copied[-1] < (1024 if copied[-1] == 0 else sum(size.values()) / 20)
    assert copied[0] == 0 < copied[1]


def test_outputs_are_computed_once_where_former_values_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, captured = captured_case("transformer")
    graph = captured.graph
    outputs = {root(tensor).op.name for tensor in captured.traced.outputs}
    asked: list[bool] = []

    def solved(given: checkmate.Graph, budget: int, **_: object) -> checkmate.Schedule:
        again = any(
            op.recomputable for op, group in zip(given.ops, captured.groups, strict=True) if outputs & {o.name for o in group.ops}
        )
        asked.append(again)
        if again:
            return checkmate.Schedule(given, and_the_outputs_again(captured), budget)
        return checkmate.solve(given, budget, time_limit=20, gap=0.05)

    monkeypatch.setattr(planning, "solve_cached", solved)
    most = peak_of(captured, replay(captured, and_the_outputs_again(captured)))
    plan = make_plan(captured, Options(), Allowance(most))
    assert asked == [True]
    assert plan.modelled_peak == most
    asked.clear()
    plan = make_plan(captured, Options(), Allowance(int(0.8 * most)))
    assert asked == [True, False]
    assert plan.schedule.graph is graph
    assert plan.modelled_peak <= 0.8 * most
