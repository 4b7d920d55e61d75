"""The exact search: against brute force beyond the sizes of tests/solvers/test_solving.py, methods of other kinds, and by its parts."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

import checkmate
from checkmate import Graph, simulate
from checkmate.schedule import steps_from_sequence
from checkmate.solvers.exact.best_first_search import ALL, FIRST, Exact, exact, least_peak
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.representation.decoding import evaluate
from support import brute_force, random_budget, random_graph, training_chain


def room(graph: Graph, budget: int) -> int:
    return budget - graph.fixed_memory


@pytest.mark.parametrize("order", ["given", "any"])
@pytest.mark.parametrize("block", range(3))
def test_against_brute_force(block: int, order: str) -> None:
    recomputed = none = 0
    for seed in range(100 * block, 100 * block + 100):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=9 if order == "given" else 8)
        budget = max(random_budget(rng, graph), graph.min_working_set)
        truth = brute_force(graph, budget, order)
        solver = Exact(graph, room(graph, budget), order)
        assert solver.run(10**6)
        if solver.sequence is None:
            assert truth is None and solver.none
            none += 1
            continue
        trace = simulate(graph, steps_from_sequence(graph, solver.sequence))
        assert trace.cost == truth == solver.bound and trace.peak <= budget
        recomputed += trace.cost > graph.ideal_cost
    assert recomputed >= 10 and none >= 3


def test_bounds_rise_to_the_truth() -> None:
    """However early it is stopped."""
    stopped = 0
    for seed in range(200):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=9, min_ops=6)
        budget = max(random_budget(rng, graph), graph.min_working_set)
        truth = brute_force(graph, budget)
        bounds = []
        for most in (1, 10, 30, 100):
            solver = Exact(graph, room(graph, budget))
            stopped += not solver.run(most)
            bounds.append(solver.bound)
        assert bounds == sorted(bounds) and bounds[0] >= graph.ideal_cost
        assert truth is None or bounds[-1] <= truth
    assert stopped > 100


def test_only_what_is_cheaper() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=8)
        budget = max(random_budget(rng, graph), graph.min_working_set)
        truth = brute_force(graph, budget)
        if truth is not None:
            for below, expected in ((truth, True), (truth + 0.5, False)):
                solver = Exact(graph, room(graph, budget), below=below)
                assert solver.run(10**6) and solver.none == expected


def test_costs_that_are_no_whole_numbers() -> None:
    """The same optimum as with whole ones, and a bound that is not above it."""
    plain = training_chain(6)
    budget = 60
    truth = brute_force(plain, budget)
    assert truth is not None and truth > plain.ideal_cost
    edges = [(value, index) for index, op in enumerate(plain.ops) for value in op.inputs]
    for factor in (0.1, 1e-7, 3.3e9):
        graph = Graph.from_arrays([factor] * plain.num_ops, [10] * plain.num_ops, edges, phases=[op.phase for op in plain.ops])
        schedule = checkmate.solve(graph, budget, gap=0)
        assert schedule.status == "optimal" and schedule.cost == pytest.approx(factor * truth, rel=1e-12)
        solver = Exact(graph, budget)
        assert solver.run(10**6) and solver.bound <= factor * truth


def test_the_integer_program_agrees() -> None:
    """Chains of 24 to 30 ops, which brute force cannot do; the program's class has the optimum there."""
    for layers, size, share in ((12, 10, 0.5), (15, 7, 0.6)):
        graph = training_chain(layers, size)
        budget = int(share * graph.no_recompute_peak)
        solver = Exact(graph, room(graph, budget))
        assert solver.run(10**6) and solver.sequence is not None
        assert evaluate(graph, solver.sequence).cost == checkmate.solve(graph, budget, method="milp", gap=0).cost


@pytest.mark.parametrize("order", ["given", "any"])
def test_least_peak(order: str) -> None:
    above = 0
    for seed in range(150):
        graph = random_graph(random.Random(seed), max_ops=7)
        best, low = least_peak(graph, evaluate(graph, range(graph.num_ops)), graph.min_working_set, order, 10**6)
        assert best.peak == low
        assert brute_force(graph, low, order) is not None and brute_force(graph, low - 1, order) is None
        above += low > graph.min_working_set
    assert above >= 5


def test_the_least_peak_takes_no_more_work_for_larger_numbers() -> None:
    """Bytes of all sizes: not one proof for each binary digit."""
    for seed in range(40):
        graph = random_graph(random.Random(seed), max_ops=8, min_ops=6)
        values = [replace(value, size=value.size * 2**40 + number) for number, value in enumerate(graph.values)]
        large = Graph([replace(op, workspace=op.workspace * 2**40) for op in graph.ops], values)
        best, low = least_peak(large, evaluate(large, range(large.num_ops)), large.min_working_set, "given", 200)
        assert best.peak == low, seed


def test_large_graphs_are_left_to_others() -> None:
    graph = training_chain(32)
    search = Search(graph, 200)
    assert not exact(search, FIRST) and search.best is None and search.lower_bound == graph.ideal_cost
    known = evaluate(graph, range(graph.num_ops))
    assert least_peak(graph, known, 7, "given", FIRST) == (known, 7)


def test_wide_graphs_do_not_take_long() -> None:
    """Thirty values of which an op that comes next leaves room for any half: far too many sets to look at."""
    edges = [(value, 31 + value % 2) for value in range(30)] + [(30, 31)]
    graph = Graph.from_arrays([1.0] * 33, [10] * 30 + [150, 1, 1], edges)
    search = Search(graph, 300 + graph.fixed_memory, time_limit=600.0)
    began = time.process_time()
    assert not exact(search, ALL) and time.process_time() - began < 5
