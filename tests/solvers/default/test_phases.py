"""Which phase of the default method comes when: counted in work, not in seconds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate import Graph, Op, Value, networks, solve
from checkmate.networks.layers import Layers, build
from checkmate.solvers.default.annealing_runs import AnnealingRuns
from checkmate.solvers.default.auto import auto
from checkmate.solvers.default.bound_phases import BoundPhases
from checkmate.solvers.default.nested_tries import NestedCheckpointing
from checkmate.solvers.default.relaxation_rounds import RelaxationRounds
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.exact.best_first_search import ALL, FIRST
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Work

PROFILED = Path(__file__).parents[3] / "benchmarks" / "results" / "paper" / "profiled"


@pytest.mark.parametrize(
    ("name", "budget"), [("vgg16", 1_210_869_332), pytest.param("vgg19", 1_360_888_264, marks=pytest.mark.slow)]
)
def test_what_relaxations_prove_at_once_does_not_wait_for_searches(name: str, budget: int) -> None:
    """Measured costs: the bound of one snapshot is 7 to 11% below the optimum, that of five is the optimum."""
    graph = Graph.load(PROFILED / f"{name}.json")
    search = Search(graph, budget, time_limit=1000.0, work=Work(2.0))
    auto(search)
    assert search.closed()
    milp = solve(graph, budget, method="milp")  # Checkmate's own program, without any of the bounds
    assert search.lower_bound <= milp.cost and search.best_cost <= 1.001 * milp.cost


def test_within_the_gap_no_dearer_than_greedy_eviction() -> None:
    """ResNet50 where the first relaxation leads to a schedule that is within 0.1%, and greedy eviction to a cheaper one."""
    graph = networks.resnet50()
    budget = graph.min_working_set + 3 * (graph.no_recompute_peak - graph.min_working_set) // 10
    greedy = solve(graph, budget, method="greedy")
    found = solve(graph, budget)
    assert found.gap <= 1e-3 and found.cost <= greedy.cost


def test_near_the_least_memory_long_hot_runs_leave_what_eviction_finds() -> None:
    """A transformer of four layers: 5.3% above the bound after four units of work, and 12.6% without these runs."""
    graph = networks.transformer(4, width=112, heads=4, length=144, vocabulary=997)
    budget = graph.fixed_memory + int(1.05 * (graph.min_working_set - graph.fixed_memory))
    search = Search(graph, budget, time_limit=1000.0, work=Work(4.0))
    auto(search)
    assert search.best_cost <= 1.08 * search.lower_bound


def test_searches_come_where_relaxations_can_say_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all relaxations were solved in no time, which is when searches have to wait."""
    graph = Graph.load(PROFILED / "vgg16.json")
    budget = 1_210_869_332
    monkeypatch.setattr(RelaxationRounds, "prepare_next", lambda *_: False)
    monkeypatch.setattr(BoundPhases, "begin", lambda _: None)
    ran: list[str] = []
    for phase in (AnnealingRuns, NestedCheckpointing):
        monkeypatch.setattr(phase, "run", lambda *_, name=phase.__name__: ran.append(name))
    monkeypatch.setattr("checkmate.solvers.default.auto.exact", lambda _, work: ran.append(f"exact {work}") or work == ALL)
    search = Search(graph, budget, time_limit=1000.0)
    auto(search)
    assert not search.closed() and ran[0] == f"exact {FIRST}" and ran[-1] == f"exact {ALL}"
    assert {"AnnealingRuns", "NestedCheckpointing"} <= set(ran)


def unordered(count: int) -> Graph:
    """Ops that read any before them, as in the graphs of MOCCASIN."""
    rng = random.Random(0)
    inputs = [tuple(sorted(rng.sample(range(op), min(op, rng.randint(1, 3))))) for op in range(count)]
    values = [Value(f"v{op}", rng.randint(1, 100)) for op in range(count)]
    return Graph([Op(f"op{op}", float(rng.randint(1, 100)), inputs[op], (op,)) for op in range(count)], values)


def test_a_bad_schedule_is_annealed_before_relaxations_that_take_their_time() -> None:
    graph = unordered(150)
    budget = 7 * graph.no_recompute_peak // 10
    costs = []
    for share in (TUNING.annealing.long_share, 0.0):  # the first schedule costs 22% more than the ideal, the optimum 8 to 10%
        search = Search(graph, budget, time_limit=1000.0, work=Work(0.5))
        auto(search, tuning=replace(TUNING, annealing=replace(TUNING.annealing, long_share=share)))
        costs.append(search.best_cost / graph.ideal_cost)
    assert costs[0] < 1.12 < 1.15 < costs[1]


def residual(blocks: int) -> Graph:
    """A chain of residual blocks of two convolutions each."""

    def network(net: Layers) -> None:
        x = net.conv("stem", net.input, 64)
        for block in range(blocks):
            y = net.activation(f"relu{block}_1", net.norm(f"norm{block}_1", net.conv(f"conv{block}_1", x, 64)))
            y = net.norm(f"norm{block}_2", net.conv(f"conv{block}_2", y, 64))
            x = net.activation(f"relu{block}_2", net.add(f"add{block}", x, y))

    return build("residual", (56, 56, 3), 1, network)


@pytest.mark.parametrize("blocks", [21, 71])
def test_polishing_takes_no_longer_than_finding(blocks: int) -> None:
    """Schedules are within the gap after a fraction of a unit of work; each relaxation that could improve them takes more than one."""
    graph = residual(blocks)
    search = Search(graph, graph.no_recompute_peak // 2, time_limit=1000.0)
    auto(search)
    assert search.closed() and search.work.done < 1.0
