"""Second runs of checkpointed regions: the backward pass gets nothing from the first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkmate import Graph, simulate, solve
from checkmate.graph import Op, Value
from checkmate.planning.checkpoints import with_second_runs
from checkmate.schedule import Compute


def chain(length: int = 4, **keywords: object) -> Graph:
    """A chain of forward ops, a loss, and a backward op for each that reads what its forward op made, and read."""
    ops = [Op(f"f{i}", 1.0, (i - 1,) if i else (), (i,), phase="forward") for i in range(length)]
    ops.append(Op("loss", 0.0, (length - 1,), (length,), recomputable=False, phase="loss"))
    for i in reversed(range(length)):
        value = 2 * length - i
        ops.append(Op(f"b{i}", 1.0, tuple(sorted({value - 1, i, *((i - 1,) if i else ())})), (value,), phase="backward"))
    values = [Value(op.name, 10 if op.phase == "forward" else 1, op.name == "b0") for op in ops]
    return Graph(ops, values, 5)


def computed(schedule_steps: list[object], op: int) -> int:
    return sum(isinstance(step, Compute) and step.op == op for step in schedule_steps)


def test_regions_run_twice_where_everything_fits() -> None:
    graph = chain()
    second = with_second_runs(graph, {1, 2})
    plain = solve(graph, graph.no_recompute_peak)
    assert plain.num_recomputations == 0
    schedule = second.merged(solve(second.graph, "100%"))
    assert [computed(list(schedule.steps), op) for op in range(4)] == [1, 2, 2, 1]
    assert schedule.graph is graph and schedule.cost == graph.ideal_cost + 2
    assert schedule.lower_bound == graph.ideal_cost
    # After the loss nothing of the region is there until the backward pass has computed it again.
    loss = schedule.steps.index(Compute(4))
    live = {step.op for step in schedule.steps[: loss + 1] if isinstance(step, Compute)}
    live -= {step.value for step in schedule.steps[: loss + 1] if not isinstance(step, Compute)}
    assert live.isdisjoint({1, 2}) and {0, 3} <= live


def test_second_runs_have_the_layers_of_the_first() -> None:
    graph = chain()
    graph = Graph([replace(op, layer=f"layer of {op.name}") for op in graph.ops], graph.values)
    second = with_second_runs(graph, {1, 2}).graph
    assert {op.layer for op in second.ops if op.name.startswith("f1")} == {"layer of f1"}
    assert [op.layer for op in second.ops] == [f"layer of {op.name.removesuffix(' (second run)')}" for op in second.ops]


@pytest.mark.parametrize("again", [{0, 1, 2, 3}, {1, 2}, {2}])
def test_the_merged_schedule_takes_no_more_than_the_one_that_was_found(again: set[int]) -> None:
    graph = chain()
    second = with_second_runs(graph, again)
    low = solve(second.graph, "100%").peak
    found = 0
    for budget in range(low, graph.fixed_memory, -5):
        try:
            schedule = solve(second.graph, budget)
        except Exception:  # noqa: BLE001 - none below
            break
        merged = second.merged(schedule)
        assert simulate(graph, merged.steps).peak <= schedule.peak
        assert merged.cost == pytest.approx(schedule.cost)
        found += 1
    assert found > 2


def test_what_cannot_run_again_runs_once() -> None:
    graph = chain()
    assert with_second_runs(graph, {4}).graph is graph
    assert with_second_runs(graph, ()).graph is graph


@pytest.mark.parametrize(("again", "reused"), [({0, 1}, [0, 4]), ({1}, [])])
def test_a_second_run_writes_in_place_only_what_nobody_else_reads(again: set[int], reused: list[int]) -> None:
    ops = [
        Op("f0", 1.0, (), (0,)),
        Op("f1", 1.0, (0,), (1,), reuses=0),
        Op("loss", 0.0, (1,), (2,), recomputable=False),
        Op("b1", 1.0, (1, 2), (3,), phase="backward"),
    ]
    graph = Graph(ops, [Value(op.name, 10, op.name == "b1") for op in ops], 5)
    second = with_second_runs(graph, again)
    assert [op.inputs[0] for op in second.graph.ops if op.reuses is not None] == reused
    schedule = solve(second.graph, "100%")
    merged = second.merged(schedule)
    assert computed(list(merged.steps), 1) == 2
    assert simulate(graph, merged.steps).peak <= schedule.peak


def test_a_backward_op_writes_in_the_place_of_what_the_second_run_made() -> None:
    ops = [
        Op("f0", 1.0, (), (0,)),
        Op("loss", 0.0, (), (1,), recomputable=False),
        Op("b0", 1.0, (0, 1), (2,), phase="backward", reuses=0),
    ]
    graph = Graph(ops, [Value(op.name, 10, op.name == "b0") for op in ops])
    second = with_second_runs(graph, {0})
    assert second.graph.ops[-1].reuses == second.graph.ops[-1].inputs[0] == 3
    merged = second.merged(solve(second.graph, "100%"))
    assert computed(list(merged.steps), 0) == 2 and simulate(graph, merged.steps).peak <= second.graph.no_recompute_peak
