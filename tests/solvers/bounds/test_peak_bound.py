"""The bound on the peak: against the exact least peak of small graphs, and on a graph where more than one op decides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from checkmate import Graph
from checkmate.solvers import Search
from checkmate.solvers.bounds import peak_bound
from checkmate.solvers.bounds.peak_bound import least_peak_bound
from checkmate.solvers.default.auto import auto
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.exact.best_first_search import least_peak
from checkmate.solvers.heuristics.greedy_eviction import SETTINGS, Greedy
from checkmate.solvers.representation.decoding import evaluate
from checkmate.solvers.representation.graph_arrays import problem_of
from support import random_graph, training_chain


@pytest.mark.parametrize("values", [100, 4])
def test_against_the_exact_least_peak(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all values, and with the few largest only."""
    monkeypatch.setattr(peak_bound, "_MOST_SETS", (values + 3) * (values + 2) * (values + 1) // 6)
    above = equal = 0
    for seed in range(300):
        graph = random_graph(random.Random(seed), max_ops=9, min_ops=4)
        best, exact = least_peak(graph, evaluate(graph, range(graph.num_ops)), graph.min_working_set, "any", 10**6)
        assert best.peak == exact
        bound = least_peak_bound(problem_of(graph), graph.no_recompute_peak)
        assert graph.min_working_set <= bound <= exact
        if exact > graph.min_working_set:
            above += 1
            equal += bound == exact
    assert above >= 30 and equal >= (0.5 if values == 100 else 0.15) * above


def test_values_may_come_in_any_order() -> None:
    """Their numbers say nothing about when they are computed."""
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=9, min_ops=4)
        number = rng.sample(range(graph.num_values), graph.num_values)
        values = [value for _, value in sorted(zip(number, graph.values, strict=True), key=lambda pair: pair[0])]
        ops = [
            replace(
                op,
                inputs=tuple(number[value] for value in op.inputs),
                outputs=tuple(number[value] for value in op.outputs),
                reuses=None if op.reuses is None else number[op.reuses],
            )
            for op in graph.ops
        ]
        other = Graph(ops, values, graph.fixed_memory)
        bound = least_peak_bound(problem_of(graph), graph.no_recompute_peak)
        assert least_peak_bound(problem_of(other), graph.no_recompute_peak) == bound


def residual_network(blocks: int, width: int = 4) -> Graph:
    """Blocks whose output is kept for the sum behind the next block, with small values inside; forward and backward."""
    cost, memory, edges, phases = [1.0], [width], [], ["forward"]

    def op(size: int, reads: list[int], phase: str) -> int:
        number = len(cost)
        cost.append(1.0)
        memory.append(size)
        phases.append(phase)
        edges.extend((read, number) for read in reads)
        return number

    last, made = 0, []
    for _ in range(blocks):
        first = op(1, [last], "forward")
        second = op(width, [first], "forward")
        total = op(width, [last, second], "forward")
        made.append((last, first, second, total))
        last = total
    gradient = op(width, [last], "backward")
    for before, first, second, _ in reversed(made):
        inner = op(1, [gradient, first, second], "backward")
        outer = op(width, [inner, before], "backward")
        gradient = op(width, [gradient, outer], "backward")
    return Graph.from_arrays(cost, memory, edges, phases=phases)


def test_proves_what_no_single_op_does() -> None:
    """The gradient passed around a block is there while the block runs backward, or a smaller one while it is made again."""
    graph = residual_network(8)
    looks: list[None] = []
    bound = least_peak_bound(problem_of(graph), graph.no_recompute_peak, lambda: bool(looks.append(None)))
    assert len(looks) <= 10, "sets are looked at in slices of a fixed number"
    found = [Greedy(problem_of(graph)).run(bound, setting, longest=8) for setting in SETTINGS]
    assert min(one.peak for one in found if one is not None) == bound > graph.min_working_set


def test_the_default_method_proves_it() -> None:
    graph = residual_network(11)
    search = Search(graph, least_peak_bound(problem_of(graph), graph.no_recompute_peak) - 1, time_limit=600)
    # Annealing has nothing to find here, and would take most of the time.
    auto(search, tuning=replace(TUNING, annealing=replace(TUNING.annealing, work=1e6)))
    assert search.proven_infeasible and "values" in str(search.infeasible_source) and search.best is None


def test_known_schedules_and_stopping() -> None:
    graph = training_chain(40)
    problem = problem_of(graph)
    assert least_peak_bound(problem, graph.min_working_set) == graph.min_working_set
    residual = residual_network(6)
    least = least_peak_bound(problem_of(residual), residual.no_recompute_peak)
    assert least_peak_bound(problem_of(residual), least - 1) == least, "one byte above what is of interest: there is none"
    assert least_peak_bound(problem, graph.no_recompute_peak, lambda: True) == graph.min_working_set
