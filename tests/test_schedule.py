"""Schedules and their simulator, against a second simulator."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import Compute, Free, Graph, InvalidSchedule, Op, Schedule, Value, simulate
from checkmate.schedule import Step, steps_from_sequence
from support import brute_force, graphs, random_sequence, random_steps, reference_trace, training_chain

RANDOM = st.randoms(use_true_random=False)


def pair() -> Graph:
    """Op `a` makes x and y; op `b` reads x and makes z, which is kept."""
    ops = [Op("a", 2.0, (), (0, 1), workspace=3), Op("b", 5.0, (0,), (2,))]
    return Graph(ops, [Value("x", 10), Value("y", 20), Value("z", 40, keep=True)], fixed_memory=100)


# --- the simulator, by hand ---


def test_trace_by_hand() -> None:
    trace = simulate(pair(), [Compute(0), Free(1), Compute(0), Free(1), Compute(1), Free(0)])
    # Recomputing `a` allocates x and y anew while the old x is still there: 100 + 10 + (10 + 20) + 3.
    assert trace.during == [133, 130, 143, 130, 150, 150]
    assert trace.memory == [130, 110, 130, 110, 150, 140]
    assert (trace.cost, trace.peak) == (9.0, 150)


def test_recomputation_counts_old_and_new_copies() -> None:
    assert simulate(pair(), [Compute(0), Compute(0), Free(1), Free(0), Compute(0), Compute(1)]).peak == 170
    assert simulate(pair(), [Compute(0), Compute(0), Free(1), Compute(1)]).peak == 163


def test_empty_schedule_of_an_empty_graph() -> None:
    trace = simulate(Graph([], [], 7), [])
    assert (trace.cost, trace.peak, trace.memory) == (0.0, 7, [])


PINNED = Graph([Op("once", 1.0, (), (0,), recomputable=False)], [Value("x", 1)])
INVALID: dict[str, tuple[Graph, list[Any], str]] = {
    "input never computed": (pair(), [Compute(1)], "step 0 computes op 'b', but its input 'x' is not live"),
    "input freed": (pair(), [Compute(0), Free(0), Compute(1)], "step 2 computes op 'b'.*'x' is not live"),
    "freed twice": (pair(), [Compute(0), Free(0), Free(0)], "step 2 frees value 'x', which is not live"),
    "freed too early": (pair(), [Free(2), Compute(0), Compute(1)], "step 0 frees value 'z'"),
    "op missing": (pair(), [Compute(0)], "op 'b' never runs"),
    "nothing": (pair(), [], "op 'a' never runs"),
    "kept value freed": (pair(), [Compute(0), Compute(1), Free(2)], "value 'z' must be kept"),
    "recomputed though forbidden": (PINNED, [Compute(0), Free(0), Compute(0)], "step 2 computes op 'once' again"),
    "no such op": (pair(), [Compute(2)], "step 0 computes op 2, which does not exist"),
    "negative op": (pair(), [Compute(-1)], "op -1, which does not exist"),
    "no such value": (pair(), [Compute(0), Free(3)], "step 1 frees value 3, which does not exist"),
    "negative value": (pair(), [Compute(0), Free(-1)], "value -1, which does not exist"),
    "not a step": (pair(), ["compute"], "step 0 is 'compute': a step is"),
}


@pytest.mark.parametrize(("graph", "steps", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_schedules(graph: Graph, steps: list[Any], message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        simulate(graph, steps)


# --- the simulator against another one ---


@settings(max_examples=300)
@given(graphs(), RANDOM)
def test_valid_schedules_agree(graph: Graph, rng: random.Random) -> None:
    steps = random_steps(rng, graph)
    trace = simulate(graph, steps)
    assert (trace.cost, trace.peak) == reference_trace(graph, steps)
    assert len(trace.memory) == len(trace.during) == len(steps)


@settings(max_examples=500)
@given(graphs(max_ops=6), RANDOM)
def test_damaged_schedules_agree(graph: Graph, rng: random.Random) -> None:
    """Drop, repeat, swap or replace steps: both simulators must accept the same ones, with the same figures."""
    steps = random_steps(rng, graph)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(steps) + 1)
        index = rng.randint(-1, max(graph.num_ops, graph.num_values))
        new: Step = Compute(index) if rng.random() < 0.5 else Free(index)
        steps[at : at + rng.randint(0, 1)] = rng.choice([[], [new], steps[at : at + 1] * 2])
    expected = reference_trace(graph, steps)
    if expected is None:
        with pytest.raises(InvalidSchedule):
            simulate(graph, steps)
    else:
        trace = simulate(graph, steps)
        assert (trace.cost, trace.peak) == expected


# --- schedules from sequences of ops ---


@settings(max_examples=300)
@given(graphs(), RANDOM)
def test_steps_from_sequence_are_valid_and_free_at_once(graph: Graph, rng: random.Random) -> None:
    sequence = random_sequence(rng, graph)
    steps = steps_from_sequence(graph, sequence)
    assert [step.op for step in steps if isinstance(step, Compute)] == sequence
    trace = simulate(graph, steps)
    assert trace.cost == sum(graph.ops[op].cost for op in sequence)
    # No free can come before the computation that it follows.
    frees = [i for i, step in enumerate(steps) if isinstance(step, Free)]
    for at in frees:
        before = max((i for i in range(at) if isinstance(steps[i], Compute)), default=0)
        earlier = [*steps[:before], steps[at], *steps[before:at], *steps[at + 1 :]]
        assert reference_trace(graph, earlier) is None or reference_trace(graph, earlier) == (trace.cost, trace.peak)
    live_at_the_end = trace.memory[-1] if steps else graph.fixed_memory
    assert live_at_the_end == graph.fixed_memory + sum(value.size for value in graph.values if value.keep)


@given(graphs())
def test_every_op_once_is_the_no_recompute_profile(graph: Graph) -> None:
    steps = steps_from_sequence(graph, range(graph.num_ops))
    trace = simulate(graph, steps)
    running = tuple(size for size, step in zip(trace.during, steps, strict=True) if isinstance(step, Compute))
    assert running == graph.no_recompute_profile
    assert (trace.peak, trace.cost) == (graph.no_recompute_peak, graph.ideal_cost)


@pytest.mark.parametrize(
    ("sequence", "message"), [([1], "'b' runs before 'a'"), ([0, 2], "op 2, which does not exist"), ([-1], "op -1")]
)
def test_steps_from_sequence_refuses(sequence: list[int], message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        steps_from_sequence(pair(), sequence)


# --- Schedule ---


def example() -> Schedule:
    graph = training_chain(4)
    steps = steps_from_sequence(graph, [0, 1, 2, 3, 4, 5, 0, 1, 6, 7])
    return Schedule(graph, steps, budget=60, method="by hand", lower_bound=8.0, solve_seconds=0.5, seed=3)


def test_figures_of_a_schedule() -> None:
    schedule = example()
    assert (schedule.cost, schedule.overhead, schedule.num_recomputations) == (10.0, 1.25, 2)
    assert (schedule.gap, schedule.status) == (0.25, "feasible")
    assert schedule.peak == simulate(schedule.graph, schedule.steps).peak == schedule.trace.peak
    assert schedule.summary()["gap"] == 0.25


def test_status_is_optimal_only_when_proven() -> None:
    schedule = example()

    def status(bound: float) -> str:
        return Schedule(schedule.graph, schedule.steps, lower_bound=bound).status

    assert [status(bound) for bound in (10.0, 10.0 - 1e-6, 9.999, 0.0)] == ["optimal", "optimal", "feasible", "feasible"]


def test_unknown_gap_is_null_in_json(tmp_path: Path) -> None:
    schedule = Schedule(example().graph, example().steps)
    assert math.isinf(schedule.gap)
    schedule.save(tmp_path / "s.json")
    assert "Infinity" not in (tmp_path / "s.json").read_text()
    assert math.isinf(Schedule.load(tmp_path / "s.json", schedule.graph).gap)


@given(graphs(), RANDOM, st.none() | st.integers(1, 10**12))
def test_save_and_load(tmp_path_factory: pytest.TempPathFactory, graph: Graph, rng: random.Random, budget: int | None) -> None:
    schedule = Schedule(graph, random_steps(rng, graph), budget, "m", graph.ideal_cost, "given", 1.5, 7)
    path = tmp_path_factory.mktemp("schedules") / "s.json"
    schedule.save(path)
    again = Schedule.load(path, graph)
    assert again == schedule
    assert again.summary() == schedule.summary()


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "checkmate-graph"}, "format is not 'checkmate-schedule'"),
    "version": ({"version": 2}, "version 1"),
    "steps of a wrong type": ({"steps": 3}, "not a schedule file"),
    "unknown step": ({"steps": [["jump", 1]]}, "is not a step"),
    "step with a string": ({"steps": [["compute", "0"]]}, "is not a step"),
    "step with a fraction": ({"steps": [["compute", 0.5]]}, "is not a step"),
    "steps missing": ({"steps": []}, "is not a schedule of graph 'chain4': op 'op0' never runs"),
    "other cost": ({"cost": 9.0}, "does not belong to graph 'chain4'"),
    "other peak": ({"peak": 1}, "does not belong to graph 'chain4'"),
    "budget of a wrong type": ({"budget": "big"}, "not a schedule file"),
    "unknown order": ({"order": "\x1b[31m"}, "its order is .* not 'given' or 'any'"),
    "bound above the cost": ({"lower_bound": 11.0}, "lower bound 11.0 is not between 0 and the cost 10.0"),
    "bound not a number": ({"lower_bound": math.nan}, "lower bound nan"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "s.json"
    example().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InvalidSchedule, match=message) as caught:
        Schedule.load(path, example().graph)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "null", "[" * 100_000, "{}"])
def test_files_that_are_no_schedule(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(InvalidSchedule, match="is not a schedule file"):
        Schedule.load(tmp_path / "s.json", example().graph)


def test_missing_file_and_wrong_graph(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchedule, match="cannot read"):
        Schedule.load(tmp_path / "none.json", example().graph)
    example().save(tmp_path / "s.json")
    with pytest.raises(InvalidSchedule, match="does not belong to graph|not a schedule of graph"):
        Schedule.load(tmp_path / "s.json", training_chain(4, size=11))


# --- the truth that the tests of the solvers rest on ---


def test_brute_force_by_hand() -> None:
    """Chain of 3 layers, sizes 10: the plain peak is 40; the backward of layer 2 needs its input, so 30 is the least."""
    graph = training_chain(3)
    assert graph.no_recompute_peak == 40
    assert brute_force(graph, 40) == 6.0
    # At 30 only two values stay beside the one being made: op 0 runs again before its backward.
    assert brute_force(graph, 30) == 7.0
    assert brute_force(graph, 29) is None
    assert graph.min_working_set == 30


def test_brute_force_obeys_pins_keeps_and_workspace() -> None:
    ops = [Op("a", 1.0, (), (0,)), Op("b", 1.0, (), (1,), workspace=5), Op("c", 1.0, (0,), (2,))]
    values = [Value("x", 10), Value("y", 10), Value("z", 1)]
    graph = Graph(ops, values)
    assert brute_force(graph, 25) == 3.0
    assert brute_force(graph, 24) == 4.0, "x must be dropped while b runs"
    assert brute_force(graph, 14) is None
    pinned = Graph([Op("a", 1.0, (), (0,), recomputable=False), *ops[1:]], values)
    assert brute_force(pinned, 24) is None
    kept = Graph(ops, [values[0], Value("y", 10, keep=True), values[2]])
    assert (brute_force(kept, 25), brute_force(kept, 24)) == (3.0, 4.0)
    assert brute_force(kept, 20) == 5.0, "y must make room for c too, and b runs again at the very end"
    assert (brute_force(kept, 15), brute_force(kept, 14)) == (5.0, None)


@settings(max_examples=150)
@given(graphs(max_ops=5), RANDOM)
def test_no_schedule_beats_brute_force(graph: Graph, rng: random.Random) -> None:
    steps = random_steps(rng, graph)
    trace = simulate(graph, steps)
    least = brute_force(graph, trace.peak)
    assert least is not None
    assert graph.ideal_cost <= least <= trace.cost
    assert brute_force(graph, graph.no_recompute_peak) == graph.ideal_cost
    assert brute_force(graph, graph.min_working_set - 1) is None
