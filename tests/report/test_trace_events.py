"""The trace for Perfetto: it obeys the format, and its counters are the memory that the simulator sees."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import Compute, Graph, Op, Schedule, Value, networks, solve
from checkmate.planning import Allowance, Plan
from checkmate.report.facts import without_recomputation
from checkmate.report.trace_events import _microseconds, trace_data
from support import graphs, random_steps, reference_trace, training_chain

COMPUTATIONS, LAYERS = 1, 2


def nanoseconds(microseconds: float) -> int:
    """As Perfetto reads them."""
    return int(microseconds * 1000)


def slices(data: dict[str, Any], thread: int) -> list[dict[str, Any]]:
    return [event for event in data["traceEvents"] if event["ph"] == "X" and event["tid"] == thread]


def counters(data: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """For each counter its times in nanoseconds and values."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in data["traceEvents"]:
        if event["ph"] == "C":
            ((_, size),) = event["args"].items()
            found[event["name"]].append((nanoseconds(event["ts"]), size))
    return found


def check_format(data: dict[str, Any]) -> None:
    """What the Trace Event Format asks for: known kinds of events, rows that never go back in time, slices that nest."""
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)  # of the slices that are open
    latest: dict[object, int] = defaultdict(int)
    for event in data["traceEvents"]:
        assert event["ph"] in ("M", "X", "C") and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            continue
        row = event["pid"], event["tid"]
        key = (*row, event["name"] if event["ph"] == "C" else "")
        begin = nanoseconds(event["ts"])
        assert begin >= latest[key]
        latest[key] = begin
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
            continue
        end = begin + nanoseconds(event["dur"])
        assert end > begin and event["cat"]
        while ends[row] and ends[row][-1] <= begin:
            ends[row].pop()
        assert not ends[row] or end <= ends[row][-1], "a slice ends after the one that it is in"
        ends[row].append(end)


@given(graphs(), st.integers(0, 2**32))
def test_counters_are_the_memory_that_the_simulator_sees(graph: Graph, seed: int) -> None:
    rng = random.Random(seed)
    layered = [replace(op, layer=rng.choice(["", "a", "a.b", "a.c", "b"])) for op in graph.ops]
    graph = Graph(layered, graph.values, graph.fixed_memory, graph.name)
    schedule = Schedule(graph, random_steps(rng, graph), budget=10**6)
    data = trace_data(schedule)
    check_format(data)
    memory, during = schedule.trace.memory, schedule.trace.during
    starts = [number for number, step in enumerate(schedule.steps) if isinstance(step, Compute)]
    runs = slices(data, COMPUTATIONS)
    values = counters(data)
    assert [size for _, size in values["memory of this schedule"]] == [*(during[start] for start in starts), memory[-1]]
    assert reference_trace(graph, schedule.steps) == (schedule.cost, max(size for _, size in values["memory of this schedule"]))
    assert [time for time, _ in values["memory of this schedule"]][:-1] == [nanoseconds(run["ts"]) for run in runs]
    assert {size for _, size in values["budget"]} == {10**6}
    # Each op is once computed for the first time, and there stands what plain training takes while it runs.
    first = [run for run in runs if run["cat"] != "recomputation"]
    assert sorted(run["args"]["op"] for run in first) == list(range(graph.num_ops))
    plain = dict(zip([run["args"]["op"] for run in first], values["memory without recomputation"], strict=True))
    assert [plain[op][1] for op in range(graph.num_ops)] == list(graph.no_recompute_profile)
    assert len(runs) - len(first) == schedule.num_recomputations
    for run, start, following in zip(runs, starts, [*starts[1:], len(schedule.steps)], strict=True):
        op = graph.ops[run["args"]["op"]]
        assert schedule.steps[start] == Compute(run["args"]["op"])
        assert run["args"]["bytes live after it"] == memory[following - 1]
        freed = [step.value for step in schedule.steps[start + 1 : following]]  # type: ignore[union-attr]  # all are Free
        assert run["args"]["bytes freed after it"] == sum(graph.values[value].size for value in freed)
        assert run["args"]["bytes made"] == sum(graph.values[value].size for value in op.outputs)
        assert (run["args"]["layer"], run["args"]["phase"], run["args"]["workspace"]) == (op.layer, op.phase, op.workspace)
        assert nanoseconds(run["dur"]) == max(1, round(op.cost * 1e9))


def test_a_trace_by_hand() -> None:
    ops = [
        Op("up", 2e-6, (), (0,), workspace=5, layer="net.0.up"),
        Op("down", 1e-6, (0,), (1,), layer="net.0.down"),
        Op("loss", 0.0, (1,), (2,), phase="loss"),
        Op("back", 4e-6, (2, 0), (3,), phase="backward", layer="net.0.up"),
    ]
    graph = Graph(ops, [Value("a", 10), Value("b", 20), Value("c", 30), Value("d", 40, keep=True)], fixed_memory=100, name="g")
    data = trace_data(solve(graph, 180, "auto"))
    check_format(data)
    assert [(run["name"], run["ts"], run["dur"], run["cat"]) for run in slices(data, COMPUTATIONS)] == [
        ("up", 0.0, 2.0, "forward"),
        ("down", 2.0, 1.0, "forward"),
        ("loss", 3.0, 0.001, "loss"),
        ("back", 3.001, 4.0, "backward"),
    ]
    assert [(one["name"], one["ts"], one["dur"]) for one in slices(data, LAYERS)] == [
        ("forward", 0.0, 3.0),
        ("net", 0.0, 3.0),
        ("0", 0.0, 3.0),
        ("up", 0.0, 2.0),
        ("down", 2.0, 1.0),
        ("loss", 3.0, 0.001),
        ("backward", 3.001, 4.0),
        *((name, 3.001, 4.0) for name in ("net", "0", "up")),
    ]
    assert slices(data, LAYERS)[3]["args"] == {"layer": "net.0.up"}
    assert data["otherData"]["time"] == "costs are seconds"
    assert data["displayTimeUnit"] == "ns", "by microseconds, Chrome's viewer takes short slices for parts of those before them"
    assert not slices(trace_data(without_recomputation(training_chain(3))), LAYERS), "no layer is known"


def test_recomputations_are_told_apart() -> None:
    graph = training_chain(12)
    schedule = solve(graph, "60%")
    runs = slices(trace_data(schedule), COMPUTATIONS)
    again = [run for run in runs if run["cat"] == "recomputation"]
    assert len(again) == schedule.num_recomputations > 0
    assert all(run["name"].endswith(" (again)") and run["cname"] == "thread_state_iowait" for run in again)
    assert not any(
        run["name"].endswith(" (again)") or run["cname"] == "thread_state_iowait" for run in runs if run["cat"] != "recomputation"
    )


@pytest.mark.parametrize(
    ("cost", "unit", "microseconds", "words"),
    [
        (0.5, None, 0.5e6, "costs are seconds"),
        (0.5, "seconds", 0.5e6, "costs are seconds"),
        (2e5, "seconds", 2e11, "costs are seconds"),
        (2e12, None, 2e6, "a cost of 1e+12 units is shown as one second"),
        (2e6, "FLOPs", 2.0, "a cost of 1e+12 FLOPs is shown as one second"),
        (1e30, "FLOPs", 1e12, "a cost of 1e+24 FLOPs is shown as one second"),
        (1e100, None, 1e12, "a cost of 1e+94 units is shown as one second"),
    ],
)
def test_how_long_costs_are_shown(cost: float, unit: str | None, microseconds: float, words: str) -> None:
    data = trace_data(without_recomputation(Graph.from_arrays([cost], [8], [])), unit)
    check_format(data)
    (run,) = slices(data, COMPUTATIONS)
    assert run["dur"] == pytest.approx(microseconds)
    assert data["otherData"]["time"] == words
    assert words in data["traceEvents"][0]["args"]["name"]


@given(st.integers(0, 10**15))
def test_times_are_read_again_to_the_nanosecond(time: int) -> None:
    assert int(_microseconds(time) * 1000) == round(_microseconds(time) * 1000) == time
    assert _microseconds(time) == pytest.approx(time / 1000, rel=1e-15)


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    op = Op("\ud800\x1b[31m</script>", 1.0, (), (0,), phase="\n", layer="a\u202e.\ud800")
    path = tmp_path / "t.json"
    without_recomputation(Graph([op], [Value("v", 8)], name="\ud800")).trace_events(path)
    text = path.read_bytes().decode("utf-8")
    data = json.loads(text)
    check_format(data)
    assert "\\ud800" in text and "\\\\ud800" in text, "what is no character is written as text, not as half of one"
    for event in data["traceEvents"]:
        assert event["name"].isprintable()
    assert slices(data, COMPUTATIONS)[0]["args"]["layer"] == "a\\u202e.\\ud800"


def test_an_empty_graph() -> None:
    data = trace_data(without_recomputation(Graph([], [], 12)))
    check_format(data)
    assert counters(data) == {"memory of this schedule": [(0, 12)]}


def test_a_trace_grows_with_the_number_of_ops_alone(tmp_path: Path) -> None:
    sizes = []
    for layers in (10, 150):
        schedule = without_recomputation(networks.transformer(layers))
        schedule.trace_events(tmp_path / "t.json")
        data = json.loads((tmp_path / "t.json").read_text())
        check_format(data)
        sizes.append(
            (len(data["traceEvents"]) / schedule.graph.num_ops, (tmp_path / "t.json").stat().st_size / schedule.graph.num_ops)
        )
    assert schedule.graph.num_ops > 5000
    assert all(large <= 1.05 * small for small, large in zip(*sizes, strict=True))
    assert sizes[1][0] < 6 and sizes[1][1] < 1000


def test_a_plan_writes_the_trace_of_its_schedule(tmp_path: Path) -> None:
    schedule = solve(training_chain(12), "60%")
    plan = Plan(schedule.graph, schedule, Allowance(schedule.peak), schedule.peak)
    plan.trace_events(tmp_path / "plan.json")
    schedule.trace_events(tmp_path / "schedule.json")
    assert (tmp_path / "plan.json").read_bytes() == (tmp_path / "schedule.json").read_bytes()
    plan.report(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text().startswith("<!")
