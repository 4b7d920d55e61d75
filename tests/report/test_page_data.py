"""What the page is drawn from: at every computation it adds up to what the simulator says."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import Compute, Graph, Schedule, simulate, solve
from checkmate.report.facts import without_recomputation
from checkmate.report.page import page
from checkmate.report.page_data import even_budgets, page_data, points
from checkmate.schedule import steps_from_sequence
from support import graphs, random_steps, training_chain, with_reuse


def embedded(schedule: Schedule, others: tuple[Schedule, ...] = ()) -> dict[str, Any]:
    """The data as a browser finds them in the page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page(schedule, others), re.DOTALL)
    assert found is not None and "<" not in found[1]
    return json.loads(found[1])


@given(graphs(), st.integers(0, 2**32), st.booleans())
def test_sizes_add_up_to_the_simulation(graph: Graph, seed: int, reuse: bool) -> None:
    rng = random.Random(seed)
    if reuse:
        graph = with_reuse(rng, graph)
    plain = without_recomputation(graph)
    schedule = Schedule(graph, random_steps(rng, graph))
    data = embedded(schedule)
    for run, of in ((data["plan"], schedule), (data["plain"] or data["plan"], plain)):
        trace = simulate(graph, of.steps)
        computed = [number for number, step in enumerate(of.steps) if isinstance(step, Compute)]
        assert run["ops"] == [of.steps[number].op for number in computed]
        assert run["during"] == [trace.during[number] for number in computed]
        held = [data["fixed"] + data["ops"]["workspace"][op] for op in run["ops"]]
        stays = list(zip(*[iter(run["stays"])] * 3, strict=True))
        for value, begin, end in stays:
            for position in range(begin, end):
                held[position] += data["values"]["size"][value]
        assert held == run["during"]
        # Whatever an op reads is there while it runs, but for what it writes over.
        for position, op in enumerate(run["ops"]):
            live = {value for value, begin, end in stays if begin <= position < end}
            assert set(graph.ops[op].inputs) - {graph.ops[op].reuses} <= live
            assert set(graph.ops[op].outputs) <= live
            assert all(data["values"]["op"][value] == op for value in graph.ops[op].outputs)
    assert [values["times"] for values in data["again"]] == [
        sum(step == Compute(one["op"]) for step in schedule.steps) - 1 for one in data["again"]
    ]


def test_no_second_run_where_there_is_nothing_to_compare() -> None:
    assert page_data(without_recomputation(training_chain(4)))["plain"] is None


def test_points_of_the_curve() -> None:
    graph = training_chain(8)
    this, more = solve(graph, "60%"), solve(graph, "90%")
    any_order = replace(solve(graph, "75%"), order="any")
    found = points(this, [more, any_order])
    assert [point.kind for point in found] == ["plain", "other", "other", "this"]
    assert [point.budget for point in found] == [graph.no_recompute_peak, more.budget, any_order.budget, this.budget]
    assert [point.overhead for point in found] == [1.0, more.overhead, any_order.overhead, this.overhead]
    assert [point.bound for point in found[1:]] == [one.lower_bound / graph.ideal_cost for one in (more, any_order, this)]
    # What is proven for the graph's order says nothing about all orders.
    assert [point.bound is None for point in points(any_order, [this])] == [False, False, True]
    kept = without_recomputation(graph)
    assert [point.kind for point in points(kept, [this])] == ["plain", "other"]


def test_points_without_cost() -> None:
    graph = Graph.from_arrays([0.0, 0.0], [5, 5], [(0, 1)])
    found = points(Schedule(graph, steps_from_sequence(graph, [0, 1, 0])), [])
    assert [(point.overhead, point.bound) for point in found] == [(1.0, 1.0), (1.0, None)]


@pytest.mark.parametrize("count", [1, 6])
def test_budgets_between(count: int) -> None:
    graph = training_chain(30, size=1000)
    found = even_budgets(graph, count)
    assert len(found) == count and found == sorted(found, reverse=True)
    assert graph.min_working_set < found[-1] <= found[0] < graph.no_recompute_peak
    assert even_budgets(graph, count, apart_from=found[0] + 1) == found[1:]
    assert even_budgets(Graph([], []), count) == []


def test_size_of_the_page(tmp_path: Path) -> None:
    graph = training_chain(650, size=3_000_000)
    solve(graph, "50%", time_limit=0.5).report(tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 1e6
