"""Steps cut into segments, and nested checkpointing over them."""

from __future__ import annotations

import random

import numpy as np
import pytest

import checkmate
from checkmate import Graph, networks
from checkmate.solvers.default.auto import auto
from checkmate.solvers.heuristics.nested_checkpointing import Nested
from checkmate.solvers.representation.decoding import evaluate
from checkmate.solvers.representation.graph_arrays import problem_of
from checkmate.solvers.representation.segments import cut, segment_graph
from support import brute_force, random_graph, training_chain, with_reuse


def nested(graph: Graph, budget: int, most: int = 100) -> Nested:
    return Nested(problem_of(graph), auto, most, budget - graph.fixed_memory, 0)


@pytest.mark.parametrize("most", [4, 20, 100])
def test_segments_part_the_step(most: int) -> None:
    for graph in (networks.vgg19(), networks.resnet50(), networks.transformer(6), training_chain(30)):
        segments = cut(problem_of(graph), most)
        assert segments is not None and 2 <= len(segments.segments) <= most
        forward = [op for segment in segments.segments for op in segment.forward]
        backward = [op for segment in reversed(segments.segments) for op in segment.backward]
        assert forward + backward == list(range(graph.num_ops))


def test_what_a_segment_reads_is_its_own_or_passes_its_borders() -> None:
    graph = networks.transformer(4)
    segments = cut(problem_of(graph), 100)
    assert segments is not None
    for segment in segments.segments:
        own = {value for op in (*segment.forward, *segment.backward) for value in graph.ops[op].outputs}
        own |= {*segment.enters, *segment.returns, *np.flatnonzero(segments.lasting).tolist()}
        assert all(value in own for op in (*segment.forward, *segment.backward) for value in graph.ops[op].inputs)


def test_equal_layers_make_equal_segments() -> None:
    graph = networks.transformer(12)
    segments = cut(problem_of(graph), 100)
    assert segments is not None and len(segments.segments) >= 12
    assert len({segment_graph(segments, number).signature() for number in range(len(segments.segments))}) <= 8


def test_a_graph_without_a_backward_phase_is_not_cut() -> None:
    assert cut(problem_of(Graph.from_arrays([1] * 9, [1] * 9, [(i, i + 1) for i in range(8)])), 5) is None
    assert nested(Graph.from_arrays([1], [1], []), 5).run(5) is None


def test_with_memory_for_all_nothing_is_recomputed() -> None:
    for graph in (networks.vgg16(), networks.transformer(3), training_chain(20)):
        found = nested(graph, 2 * graph.no_recompute_peak).run(2 * graph.no_recompute_peak)
        assert found is not None and found.cost == graph.ideal_cost


@pytest.mark.parametrize("budget", [60, 80, 110, 150])
def test_a_deep_chain_costs_no_more_than_by_revolve(budget: int) -> None:
    """Revolve is optimal among schedules of a chain that hold the inputs of layers."""
    graph = training_chain(48)
    theirs = checkmate.solve(graph, budget, "griewank")
    ours = nested(graph, budget).run(budget)
    assert ours is not None and ours.peak <= budget
    assert ours.cost <= theirs.cost


def test_random_steps() -> None:
    """Within the budget, legal (`evaluate` simulates it), never below the optimum, and often at it."""
    found = at_optimum = 0
    for seed in range(60):
        rng = random.Random(seed)
        cost, size = ([rng.randint(1, 9) for _ in range(8)] for _ in range(2))
        edges = [(i, i + 1) for i in range(7)] + [(i - 1, 7 - i) for i in range(1, 4)]
        graph = Graph.from_arrays(cost, size, edges, rng.choice([0, 50]), phases=["forward"] * 4 + ["backward"] * 4)
        budget = rng.randint(graph.min_working_set, max(graph.min_working_set, graph.no_recompute_peak))
        schedule = nested(graph, budget, rng.randint(2, 6)).run(budget)
        optimum = brute_force(graph, budget)
        if schedule is not None:
            found += 1
            assert schedule.peak <= budget and optimum is not None and schedule.cost >= optimum
            assert evaluate(graph, schedule.sequence).peak == schedule.peak
            at_optimum += schedule.cost == optimum
    assert found > 30 and at_optimum > 0.5 * found


def test_deeper_than_eviction_reaches() -> None:
    graph = training_chain(99)
    budget = 70
    found = nested(graph, budget).run(budget)
    assert found is not None and found.peak <= budget
    assert found.cost < checkmate.solve(graph, budget, "greedy").cost


def test_a_long_last_segment_where_the_turn_leaves_little_room() -> None:
    """The loss takes nearly all memory, and its gradient does not read what enters it: that need not be held meanwhile."""
    layers, heavy = 30, 50
    n = 2 * layers + 2
    size = [10] * n
    size[layers] = size[layers + 1] = heavy
    edges = [(i, i + 1) for i in range(n - 1)] + [(layers - 1 - i, layers + 2 + i) for i in range(layers)]
    graph = Graph.from_arrays([1.0] * n, size, edges, phases=["forward"] * (layers + 1) + ["backward"] * (layers + 1))
    budget = 2 * heavy + 25
    plain, tailed = (Nested(problem_of(graph), auto, 16, budget, 0, tail=tail).run(budget) for tail in (0.0, 100.0))
    assert plain is not None and tailed is not None and max(plain.peak, tailed.peak) <= budget
    assert tailed.cost < plain.cost


def test_nothing_is_written_in_what_a_segment_holds() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        graph = with_reuse(rng, random_graph(rng, max_ops=90, min_ops=30), share=1.0)
        budget = (graph.min_working_set + graph.no_recompute_peak) // 2
        found = nested(graph, budget).run(budget)
        assert found is None or found.cost >= graph.ideal_cost
