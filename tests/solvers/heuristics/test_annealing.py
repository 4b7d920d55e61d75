"""The annealer's incremental bookkeeping against the simulator, and what it finds against brute force."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import checkmate
from checkmate import Compute, Graph, simulate
from checkmate.schedule import steps_from_sequence
from checkmate.solvers.heuristics.annealing import Anneal
from checkmate.solvers.representation import sequence_kernels as rows
from checkmate.solvers.representation.decoding import evaluate
from checkmate.solvers.representation.execution_sequence import SequenceArrays, arrays_of, new_state
from checkmate.solvers.representation.graph_arrays import Problem
from checkmate.solvers.representation.sequence_kernels import SequenceState
from support import brute_force, random_graph, random_sequence, training_chain


def sequence_of(state: SequenceState) -> list[int]:
    """The ops of a state, without the sink."""
    return state.rows[rows.OP, state.rows[rows.ORDER, : state.rows[rows.COUNT, rows.LENGTH] - 1]].tolist()


def assert_agrees(graph: Graph, state: SequenceState, limit: int) -> None:
    """Every number in the state is what the simulator says about its sequence."""
    sequence = sequence_of(state)
    steps = steps_from_sequence(graph, sequence)
    trace = simulate(graph, steps)
    live = [b - graph.fixed_memory for step, b in zip(steps, trace.during, strict=True) if isinstance(step, Compute)]
    live.append(sum(value.size for value in graph.values if value.keep))
    assert state.rows[rows.LIVE, : len(live)].tolist() == live
    assert state.rows[rows.COUNT, rows.EXCESS] == sum(max(0, b - limit) for b in live)
    assert state.rows[rows.COUNT, rows.TOTAL] / 2**rows.IDEAL_BITS * (graph.ideal_cost or 1.0) == pytest.approx(trace.cost)
    assert state.rows[rows.POSITION, state.rows[rows.ORDER, : len(live)]].tolist() == list(range(len(live)))


def first_computations(sequence: list[int]) -> list[int]:
    return list(dict.fromkeys(sequence))


def phases_in_order(graph: Graph, sequence: list[int]) -> bool:
    """Forward ops first run before any backward op, if they stand before them in the graph."""
    backward = [i for i, op in enumerate(graph.ops) if op.phase == "backward"]
    firsts = first_computations(sequence)
    return all(
        firsts.index(i) < firsts.index(j)
        for j in backward
        for i in range(backward[0])
        if graph.ops[i].phase in ("forward", "loss")
    )


def random_change(rng: random.Random, arrays: SequenceArrays, state: SequenceState, reorder: bool) -> None:
    """Insert, remove or move something that may be."""
    found = state.rows
    length = int(found[rows.COUNT, rows.LENGTH])
    slot = int(found[rows.ORDER, rng.randrange(length)])
    kind = rng.randrange(3)
    if kind == 0:
        target = rng.randrange(length)
        if rows.may_move(state, slot, target, reorder):
            rows.move(state, slot, target)
    elif kind == 1 and found[rows.BEFORE, slot] >= 0:
        rows.remove(state, slot)
    elif kind == 2 and arrays.table[rows.RECOMPUTABLE, found[rows.OP, slot]] and length < 4 * arrays.table[rows.SHAPE, 0] + 8:
        rows.insert(state, found[rows.OP, slot], rng.randint(int(found[rows.POSITION, slot]) + 1, length - 1))


@pytest.mark.parametrize("order", ["given", "any"])
def test_changes_and_undo_keep_the_profile_exact(order: str) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=14)
        limit = rng.randint(graph.min_working_set, graph.no_recompute_peak) - graph.fixed_memory
        arrays = arrays_of(Problem(graph))
        state = new_state(arrays, random_sequence(rng, graph), 8 * graph.num_ops + 50, limit)
        assert_agrees(graph, state, limit)
        for _ in range(30):
            before, excess = sequence_of(state), int(state.rows[rows.COUNT, rows.EXCESS])
            state.rows[rows.COUNT, rows.CHANGES] = 0
            for _ in range(rng.randint(1, 6)):
                random_change(rng, arrays, state, order == "any")
                assert_agrees(graph, state, limit)
            after = sequence_of(state)
            if order == "given":
                assert first_computations(after) == sorted(first_computations(after))
            assert phases_in_order(graph, after)
            if rng.random() < 0.5:
                rows.undo(state)
                assert sequence_of(state) == before and state.rows[rows.COUNT, rows.EXCESS] == excess
                assert_agrees(graph, state, limit)


@pytest.mark.parametrize("order", ["given", "any"])
def test_superfluous_is_what_nobody_reads(order: str) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=14)
        arrays = arrays_of(Problem(graph))
        sequence = random_sequence(rng, graph)
        state = new_state(arrays, sequence, len(sequence) + 1, 0)
        useless = [rows.superfluous(state, slot, order == "any") for slot in state.rows[rows.ORDER, : len(sequence)]]
        if order == "given":
            assert any(useless) == (evaluate(graph, sequence).sequence != sequence)
        for position in np.flatnonzero(useless).tolist():
            shorter = sequence[:position] + sequence[position + 1 :]
            simulate(graph, steps_from_sequence(graph, shorter))
            assert phases_in_order(graph, shorter)


@pytest.mark.parametrize("order", ["given", "any"])
def test_runs_are_legal_and_never_below_the_optimum(order: str) -> None:
    feasible = optimal = 0
    for seed in range(200):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=7)
        budget = rng.randint(graph.min_working_set, graph.no_recompute_peak)
        found = Anneal(Problem(graph), budget, order, seed).run(range(graph.num_ops), 10_000)
        assert (found.cost, found.peak) == (evaluate(graph, found.sequence).cost, evaluate(graph, found.sequence).peak)
        firsts = first_computations(found.sequence)
        assert phases_in_order(graph, found.sequence)
        assert order == "any" or firsts == sorted(firsts)
        truth = brute_force(graph, budget, order)
        if truth is None:
            assert found.peak > budget
            continue
        feasible += 1
        assert found.peak > budget or found.cost >= truth - 1e-9
        optimal += found.peak <= budget and found.cost == truth
    assert optimal >= 0.9 * feasible > 50


def test_polish_takes_out_what_is_not_needed() -> None:
    graph = training_chain(40)
    schedule = checkmate.solve(graph, "30%", method="greedy")
    sequence = schedule.sequence
    spoiled = [op for i, op in enumerate(sequence) for op in ([i // 2, op] if i in sequence[:i] and i % 4 == 0 else [op])]
    annealer = Anneal(Problem(graph), schedule.budget or 0, "given", 0)
    for start in (sequence, spoiled):
        found = annealer.run(start, 30_000, hot=1e-4)
        assert found.peak <= (schedule.budget or 0) and found.cost <= schedule.cost


def test_same_seed_same_run_and_stop_is_asked_between_chunks() -> None:
    graph = training_chain(40)
    budget = graph.no_recompute_peak // 2
    one, two, other = (Anneal(Problem(graph), budget, "any", seed).run(range(80), 20_000) for seed in (1, 1, 2))
    assert one.sequence == two.sequence != other.sequence
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    stopped = Anneal(Problem(graph), budget, "any", 1).run(range(80), 10**12, stop=stop)
    assert asked == 3 and simulate(graph, steps_from_sequence(graph, stopped.sequence)).cost == stopped.cost


def test_runs_side_by_side_are_those_one_after_the_other() -> None:
    """Threads share nothing that a run changes."""
    graph = training_chain(60)
    budget = graph.min_working_set + (graph.no_recompute_peak - graph.min_working_set) // 4
    anneal = Anneal(Problem(graph), budget, "given", 0)

    def run(seed: int) -> list[int]:
        return anneal.run(range(graph.num_ops), 20_000, rng=np.random.default_rng(seed)).sequence

    alone = [run(seed) for seed in range(6)]
    assert len({tuple(one) for one in alone}) > 1
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(6))) == alone


def test_shifts_alone_find_a_low_peak() -> None:
    """Two independent chains interleaved: one after the other needs half the memory, at no cost."""
    edges = [(i, i + 2) for i in range(18)]
    graph = Graph.from_arrays([1.0] * 20, [10, 30] * 10, edges)
    budget = graph.no_recompute_peak - 10
    found = Anneal(Problem(graph), budget, "any", 0).run(range(20), 20_000, shifts_only=True)
    assert found.peak <= budget and found.cost == graph.ideal_cost and sorted(found.sequence) == list(range(20))


def test_graph_without_values_or_cost() -> None:
    graph = Graph([checkmate.Op("only", 0.0)], [])
    assert Anneal(Problem(graph), 0, "any", 0).run([0], 100).sequence == [0]


def test_a_seed_means_the_same_schedule_in_every_release() -> None:
    """Numbers are drawn of one stream, whatever draws them: what these runs find was found by the first release, by another implementation."""
    graph = training_chain(60)
    budget = graph.min_working_set + (graph.no_recompute_peak - graph.min_working_set) // 4
    for order, digest in (("given", 821_743), ("any", 823_116)):
        found = Anneal(Problem(graph), budget, order, 7).run(range(120), 20_000)
        assert (found.cost, len(found.sequence), found.peak) == (164.0, 164, 170)
        assert sum(position * op for position, op in enumerate(found.sequence)) == digest
