"""Ops that write their output in the storage of an input: one buffer where the input dies with the op, two where it lives on."""

from __future__ import annotations

import random

import pytest

import checkmate
from checkmate import Compute, Free, Graph, GraphError, InfeasibleBudget, Op, Value, simulate
from checkmate.schedule import steps_from_sequence
from checkmate.solvers.exact.best_first_search import Exact, least_peak
from checkmate.solvers.representation.decoding import evaluate
from checkmate.verification import verify
from support import brute_force, random_budget, random_graph, random_sequence, random_steps, reference_trace, with_reuse


def chain(last_reads: bool = False) -> Graph:
    """a -> b -> c, where b is written in a's place; c may also need what recomputing b needs."""
    values = [Value("a", 10), Value("b", 10), Value("c", 1)]
    ops = [Op("a", 1.0, (), (0,)), Op("b", 1.0, (0,), (1,), workspace=2, reuses=0), Op("c", 1.0, (1,), (2,))]
    return Graph(ops, values, fixed_memory=100)


def test_by_hand():
    graph = chain()
    assert graph.no_recompute_profile == (110, 112, 111)
    assert (graph.min_working_set, graph.working_set(1), graph.reusable(1), graph.reusable(2)) == (112, 12, 10, 0)
    shared = [Compute(0), Compute(1), Free(0), Compute(2), Free(1), Free(2)]
    apart = [Compute(0), Compute(1), Compute(2), Free(0), Free(1), Free(2)]
    assert simulate(graph, shared).peak == 112
    assert simulate(graph, apart).peak == 122
    for steps in (shared, apart):
        trace = simulate(graph, steps)
        assert verify(graph, steps) == reference_trace(graph, steps) == (trace.cost, trace.peak)


def test_round_trip(tmp_path):
    graph = chain()
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == graph
    assert graph.scaled(2).ops[1].reuses == 0


@pytest.mark.parametrize(
    ("reuses", "changes", "message"),
    [
        (2, {}, r"op 'b' reuses 2: it must be the id of one of its inputs"),
        (True, {}, r"op 'b' reuses True: it must be the id of one of its inputs"),
        (0, {"keep": True}, r"op 'b' must not reuse the storage of value 'a', which is kept"),
        (0, {"size": 9}, r"op 'b' reuses the storage of value 'a', but has no output of 9 bytes"),
        (0, {"reader": True}, r"op 'b' must not reuse the storage of value 'a', which has another reader"),
    ],
)
def test_what_cannot_be_reused(reuses, changes, message):
    values = [Value("a", changes.get("size", 10), changes.get("keep", False)), Value("b", 10), Value("c", 1)]
    last = (0, 1) if changes.get("reader") else (1,)
    ops = [Op("a", 1.0, (), (0,)), Op("b", 1.0, (0,), (1,), reuses=reuses), Op("c", 1.0, last, (2,))]
    with pytest.raises(GraphError, match=message):
        Graph(ops, values)


def graphs(count: int, most: int, first: int = 0):
    for seed in range(first, first + count):
        rng = random.Random(seed)
        graph = with_reuse(rng, random_graph(rng, max_ops=most))
        if any(op.reuses is not None for op in graph.ops):
            yield rng, graph


def test_four_judges_agree():
    less = 0
    for rng, graph in graphs(300, 12):
        for steps in (random_steps(rng, graph), steps_from_sequence(graph, random_sequence(rng, graph))):
            trace = simulate(graph, steps)
            assert verify(graph, steps) == reference_trace(graph, steps) == (trace.cost, trace.peak)
        found = evaluate(graph, random_sequence(rng, graph))
        assert found.peak == simulate(graph, steps_from_sequence(graph, found.sequence)).peak
        once = simulate(graph, steps_from_sequence(graph, range(graph.num_ops)))
        assert (once.peak, max(once.during[0], once.peak)) == (graph.no_recompute_peak, once.peak)
        apart = Graph([Op(*_without(op)) for op in graph.ops], graph.values, graph.fixed_memory)
        less += graph.no_recompute_peak < apart.no_recompute_peak
    assert less > 20


def _without(op: Op):
    return op.name, op.cost, op.inputs, op.outputs, op.workspace, op.recomputable, op.phase


@pytest.mark.parametrize(("method", "order"), [("auto", "given"), ("auto", "any"), ("milp", "given"), ("lp-rounding", "given")])
def test_against_brute_force(method, order):
    again = 0
    for rng, graph in graphs(100 if method == "auto" else 60, 7, first=1000):
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget, order)
        try:
            found = checkmate.solve(graph, budget, method, order, time_limit=10)
        except InfeasibleBudget:
            assert truth is None or method == "lp-rounding"
            continue
        assert truth is not None and found.peak <= budget
        assert found.lower_bound <= truth + 1e-9 and found.cost >= truth - 1e-9
        if method != "lp-rounding":
            assert found.cost == pytest.approx(truth)
        again += found.num_recomputations > 0
    assert again or method == "lp-rounding"


def test_exact_search_and_least_peak():
    for rng, graph in graphs(150, 7, first=2000):
        budget = random_budget(rng, graph)
        search = Exact(graph, budget - graph.fixed_memory)
        assert search.run(1_000_000)
        truth = brute_force(graph, budget)
        assert (search.sequence is None) == (truth is None)
        if search.sequence is not None:
            found = evaluate(graph, search.sequence)
            assert found.peak <= budget and found.cost == pytest.approx(truth)
        best, low = least_peak(graph, evaluate(graph, range(graph.num_ops)), graph.min_working_set, "given", 10_000_000)
        assert best.peak == low
        assert brute_force(graph, low) is not None and (low == 0 or brute_force(graph, low - 1) is None)
