"""What the baselines are made of: stages, articulation points, revolve; and where the original's figures come from."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from math import isqrt

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import Compute, Graph, simulate
from checkmate.networks import fcn8, resnet50
from checkmate.solvers.baselines.articulation_points import articulation_points
from checkmate.solvers.baselines.checkpoints import Forward
from checkmate.solvers.baselines.griewank import _Chain, first_checkpoint, least_steps
from checkmate.solvers.representation.decoding import evaluate
from checkmate.solvers.representation.retention import Retention
from support import random_graph, training_chain

# --- stages ---


def test_what_is_retained_gives_the_cheapest_computations() -> None:
    """Random S on random graphs: the schedule is valid, and R is what a direct reading of the constraints gives."""
    for seed in range(200):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=15)
        n, m = graph.num_ops, graph.num_values
        wanted = np.random.default_rng(seed).random((n + 1, m)) < rng.choice([0.2, 0.5, 0.9])
        retention = Retention.from_matrix(graph, wanted)
        s = wanted & (np.array(graph.producer, dtype=int) < np.arange(n + 1)[:, None])
        for v, value in enumerate(graph.values):
            born = graph.producer[v]
            if value.keep or not graph.ops[born].recomputable:
                s[born + 1 : n, v] = True
                s[n, v] |= value.keep
        expected = [op for t in range(n) for op in sorted(computed(graph, s, t))]
        assert retention.sequence() == expected
        steps = retention.steps()
        assert steps is not None
        assert [step.op for step in steps if isinstance(step, Compute)] == expected
        literal, early = simulate(graph, steps), evaluate(graph, expected)
        assert early.peak <= literal.peak and early.cost <= literal.cost


def computed(graph: Graph, s: np.ndarray, t: int) -> set[int]:
    """Ops of stage t: t itself, what S hands on and did not have, and the inputs of all these that S does not have."""
    ops = {t} | {graph.producer[v] for v in range(graph.num_values) if s[t + 1, v] and not s[t, v] and graph.producer[v] <= t}
    while True:
        more = {graph.producer[v] for op in ops for v in graph.ops[op].inputs if not s[t, v]} - ops
        if not more:
            return ops
        ops |= more


def test_stop() -> None:
    retention = Retention(training_chain(100))
    assert retention.sequence(lambda: True) is None and retention.steps(lambda: True) is None


# --- articulation points ---


def test_articulation_points_by_removing_every_op() -> None:
    for seed in range(150):
        graph = random_graph(random.Random(seed), max_ops=14)
        forward = Forward(graph)
        edges = [(graph.producer[v], i) for i in range(forward.num_ops) for v in graph.ops[i].inputs]
        touched = {op for edge in edges for op in edge}
        if not touched:
            continue
        edges += [(-1, 0), (max(touched), -2)]
        nodes = {op for edge in edges for op in edge}
        before = components(nodes, edges)
        expected = [op for op in sorted(touched) if components(nodes - {op}, [e for e in edges if op not in e]) > before]
        assert forward.articulation_points == (expected or [max(touched)]), seed


def components(nodes: set[int], edges: list[tuple[int, int]]) -> int:
    group = {node: node for node in nodes}
    for _ in nodes:
        for u, v in edges:
            group[u] = group[v] = min(group[u], group[v])
    return len(set(group.values()))


# --- revolve ---


@cache
def by_recurrence(length: int, slots: int) -> int:
    if length <= 1:
        return 0
    if slots == 0:
        return length * (length - 1) // 2
    return min(m + by_recurrence(length - m, slots - 1) + by_recurrence(m, slots) for m in range(1, length))


def test_least_steps_in_closed_form() -> None:
    for length in range(1, 40):
        for slots in range(12):
            assert least_steps(length, slots) == by_recurrence(length, slots)
            if length > 1 and slots:
                m = first_checkpoint(length, slots)
                assert m + least_steps(length - m, slots - 1) + least_steps(m, slots) == least_steps(length, slots)


@pytest.mark.parametrize("layers", [2, 5, 16, 30])
def test_revolve_on_chains_recomputes_as_little_as_possible(layers: int) -> None:
    graph = training_chain(layers)
    chain = _Chain(Forward(graph))
    peaks = []
    for slots in range(layers):
        sequence = chain.retention(slots).sequence()
        assert sequence is not None
        assert len(sequence) - graph.num_ops == least_steps(layers, slots) - (layers - 1)
        peaks.append(evaluate(graph, sequence).peak)
    assert peaks == sorted(peaks) and peaks[0] <= 60, "a checkpoint costs a value, and nothing else is stored"


# --- where the original's figures on ResNet50 and FCN8 come from ---


def test_figures_of_the_original_that_depend_on_the_order_of_its_candidates() -> None:
    """The original takes candidates as Python sets yield them, and walks the graph depth-first without directions.

    Both mean graph order on chains. On ResNet50 and FCN8 they do not: in graph order, as here, the batches are larger, with
    the original's orders they are exactly the published 116 and 245 (ResNet50), 43 and 51 (FCN8).
    """
    graph = resnet50()
    forward = Forward(graph)
    points = forward.articulation_points
    assert largest_batch(graph, every_root(points)) == 129
    assert largest_batch(graph, every_root(list(as_a_set(points)))) == 116
    assert sweep(graph, points, range(forward.num_ops)) == 282
    assert sweep(graph, points, depth_first(graph)) == 245
    graph = fcn8()
    points = Forward(graph).articulation_points
    assert sweep(graph, points, depth_first(graph)) == 43
    assert sweep(graph, range(Forward(graph).num_ops), depth_first(graph)) == 51


def as_a_set(points: list[int]) -> set[int]:
    result: set[int] = set()
    for point in points:
        result.add(point)
    return result


def every_root(points: list[int]) -> list[int]:
    length = isqrt(len(points))
    return [point for index, point in enumerate(points) if (index + 1) % length == 0]


def peak_and_cost(graph: Graph, checkpoints: list[int]) -> tuple[int, float]:
    steps = Forward(graph).checkpointed(sorted(checkpoints)).steps()
    assert steps is not None
    trace = simulate(graph, steps)
    return trace.peak - graph.fixed_memory, trace.cost


def largest_batch(graph: Graph, checkpoints: list[int]) -> int:
    peak, cost = peak_and_cost(graph, checkpoints)
    forward = sum(op.cost for op in graph.ops if op.phase == "forward")
    return (16 * 10**9 - 2 * graph.fixed_memory) // peak if cost <= graph.ideal_cost + forward else 0


def sweep(graph: Graph, candidates: Iterable[int], order: Iterable[int]) -> int:
    chosen, order = set(candidates), list(order)
    reference, _ = peak_and_cost(graph, every_root(list(range(len(order)))))
    best = 0
    for step in range(60):
        checkpoints, filled = [], 0
        for op in order:
            filled += graph.values[op].size
            if op in chosen and filled > 0.05 * step * reference:
                checkpoints.append(op)
                filled = 0
        best = max(best, largest_batch(graph, checkpoints))
    return best


def depth_first(graph: Graph) -> list[int]:
    n = Forward(graph).num_ops
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for user in range(n):
        for v in graph.ops[user].inputs:
            neighbours[user].add(v)
            neighbours[v].add(user)
    order: list[int] = []
    seen: set[int] = set()

    def visit(op: int) -> None:
        seen.add(op)
        for other in neighbours[op]:
            if other not in seen:
                visit(other)
        order.insert(0, op)

    visit(0)
    return order


@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=30)))
)
def test_articulation_points_are_those_of_networkx(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    """Of graphs in several parts, with edges twice and in both directions."""
    count, edges = drawn
    edges = [(one, other) for one, other in edges if one != other]
    graph = networkx.Graph(edges)
    graph.add_nodes_from(range(count))
    assert articulation_points(edges, count) == set(networkx.articulation_points(graph))


def test_articulation_points_of_a_path_too_long_for_recursion() -> None:
    assert articulation_points([(i, i + 1) for i in range(20_000)], 20_001) == set(range(1, 20_000))
