"""The tail bound against the least cost of tiny graphs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from checkmate import Graph, Value, networks
from checkmate.solvers.bounds import tail_bound
from checkmate.solvers.bounds.tail_bound import Tail
from checkmate.solvers.default.auto import auto
from checkmate.solvers.default.common_state import State
from checkmate.solvers.default.tail_phase import TailPhase
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Work
from checkmate.solvers.representation.graph_arrays import problem_of
from support import brute_force, random_budget, random_edge_case, random_graph, training_chain, with_reuse


def tail(graph: Graph, budget: int, after: int, most_values: int = 80) -> Tail:
    return Tail(problem_of(graph), budget - graph.fixed_memory, after, most_values)


def test_all_but_the_first_op_is_exact() -> None:
    """The tail after the first op, with all values: its cost and that of the first op are the optimum, or there is no schedule."""
    possible = impossible = 0
    for seed in range(400):
        rng = random.Random(seed)
        graph = random_graph(rng, 8, 2)
        graph = Graph(graph.ops, [replace(value, size=max(1, value.size)) for value in graph.values], graph.fixed_memory)
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget)
        found = graph.ops[0].cost + tail(graph, budget, 0).bound()
        if truth is None:
            assert found == math.inf
            impossible += 1
        else:
            assert found == pytest.approx(truth, rel=1e-4)
            assert found <= truth
            possible += 1
    assert min(possible, impossible) > 50


@pytest.mark.parametrize("chains", [False, True])
def test_what_comes_before_and_the_tail_cost_no_more_than_the_optimum(chains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tail begins, and whichever values are looked at; with chains, whatever can be one item with another value is."""
    if chains:
        monkeypatch.setattr(tail_bound, "_SMALL", 1.0)
        monkeypatch.setattr(tail_bound, "_CHEAP", 1.0)
    more = 0
    for seed in range(250):
        rng = random.Random(seed)
        graph = random_edge_case(rng, 8) if rng.random() < 0.5 else random_graph(rng, 8)
        if rng.random() < 0.4:
            graph = with_reuse(rng, graph)
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget)
        for after in range(graph.num_ops):
            one = tail(graph, budget, after, rng.choice([1, 3, 80]))
            before = brute_force(one.before(), budget)
            found, glance = one.bound(), one.glance()
            assert glance <= found
            if truth is not None:
                assert before is not None
                assert before + found <= truth * (1 + 1e-12)
                more += found > one.ideal_cost * (1 + 1e-6) + 1e-6
    assert more > 10


def test_chains_are_one_item() -> None:
    """Of blocks of a large value, a small one, and another small one at no cost: the small ones are one item."""
    forward, sizes, costs = 12, [100, 2, 2] * 4, [5.0, 5.0, 0.0] * 4
    graph = Graph.from_arrays(
        costs + [5.0] * forward,
        sizes + sizes[::-1],
        [(i, i + 1) for i in range(2 * forward - 1)] + [(forward - 1 - i, forward + i) for i in range(1, forward)],
    )
    item = tail(graph, 250, forward - 1)._item
    assert len(set(item[:forward].tolist())) == 8
    for block in range(0, forward, 3):
        assert item[block] != item[block + 1] == item[block + 2]


def test_before() -> None:
    graph = Graph(training_chain(4).ops, [replace(value, keep=True) for value in training_chain(4).values], 7, "step")
    before = tail(graph, 100, 4).before()
    assert (before.num_ops, before.fixed_memory, before.name) == (5, 7, "step")
    assert before.ops == graph.ops[:5]
    assert not any(value.keep for value in before.values)
    # Values may be numbered in any order.
    swapped = Graph(
        [replace(graph.ops[0], outputs=(1,)), replace(graph.ops[1], inputs=(1,), outputs=(0,))], [Value("b", 1), Value("a", 2)]
    )
    assert tail(swapped, 100, 0).before().values == (Value("a", 2),)


def test_limits() -> None:
    graph = training_chain(6)
    work = Work()
    assert tail(graph, graph.min_working_set, 6).bound(work, lambda: True) == 0.0
    assert tail(graph, graph.min_working_set, 6).bound(work) > 0.0
    assert work.done > 0.0
    assert tail(graph, graph.min_working_set - 1, 6).bound() == math.inf


def phase(graph: Graph, budget: int) -> Search:
    """A search that does nothing else."""
    search = Search(graph, budget, gap=0.0)
    TailPhase(State(search, None, TUNING), auto).run()
    return search


def test_in_a_search() -> None:
    """With what comes before it the bound of the tail is near the optimum, and never above; without recomputation it says nothing."""
    graph = training_chain(6)
    for budget in range(graph.min_working_set, graph.no_recompute_peak + 1, 5):
        truth = brute_force(graph, budget)
        search = phase(graph, budget)
        assert truth is not None
        assert graph.ideal_cost <= search.lower_bound <= truth
        if budget == graph.min_working_set:
            assert search.lower_bound > (graph.ideal_cost + truth) / 2
            assert search.bound_source == "bound of the tail"
    assert phase(graph, graph.no_recompute_peak).bound_source != "bound of the tail"


def test_where_the_first_layers_are_the_largest() -> None:
    """ResNet50 at the least memory: of what is computed again most is seen, where snapshots see half of it."""
    graph = networks.resnet50()
    budget = graph.fixed_memory + 16_100_000
    one = tail(graph, budget, 317)
    assert one.glance() > one.ideal_cost + 0.12 * graph.ideal_cost
    assert one.bound() > one.ideal_cost + 0.25 * graph.ideal_cost
