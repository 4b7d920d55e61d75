"""Counting work: what the phases of a search may do, whatever the clock says."""

from __future__ import annotations

import math

from checkmate import networks
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.default.auto import auto
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Limits, Work, highs, highs_calls
from checkmate.solvers.representation.graph_arrays import Problem
from support import training_chain


def test_what_a_part_spends_the_whole_has_spent() -> None:
    whole = Work(5.0)
    part = whole.part(2.0)
    inner = part.part(10.0)
    assert (whole.left, part.left, inner.left) == (5.0, 2.0, 2.0)
    inner.spend(1.5)
    assert (whole.done, part.done, inner.done) == (1.5, 1.5, 1.5) and not inner.used_up
    whole.spend(3.0)
    assert part.left == 0.5 and whole.part(math.inf).left == 0.5
    part.spend(1.0)
    assert part.used_up and whole.used_up and part.left == whole.left == 0.0


def test_limits_end_by_work_or_when_told() -> None:
    told = False
    limits = Limits(Work(1.0), lambda: told)
    assert not limits.over()
    told = True
    assert limits.over()
    told = False
    limits.work.spend(1.0)
    assert limits.over()


def test_highs_stops_at_the_same_point_in_every_run() -> None:
    """A program that takes much longer than it may: same bound, same solution, about as much work as it may do."""
    graph = networks.unet()
    problem, limit = Problem(graph), int(1.02 * (graph.min_working_set - graph.fixed_memory))
    stages = list(range(25, 70, 3))
    runs = [SnapshotRelaxation(problem).solve(limit, stages, 300.0, 0.0, windows=False, work=0.2) for _ in range(2)]
    assert not runs[0].exact and runs[0].work == runs[1].work
    assert 0.2 <= runs[0].work < 0.3
    assert (runs[0].bound, runs[0].cost) == (runs[1].bound, runs[1].cost)
    longer = SnapshotRelaxation(problem).solve(limit, stages, 300.0, 0.0, windows=False, work=0.6)
    assert longer.work > runs[0].work and longer.bound >= runs[0].bound


def test_highs_reaches_its_first_linear_program() -> None:
    assert highs_calls(10**9, 0.0) >= 3 and highs(1000, 10) > 0.0


def test_a_search_ends_when_its_work_is_used_up() -> None:
    graph = networks.mobilenet()
    search = Search(graph, int(1.03 * graph.min_working_set - 0.03 * graph.fixed_memory), gap=0.0, time_limit=300, work=Work(0.3))
    auto(search)
    assert search.work.used_up and not search.closed() and search.time_left() > 0
    assert 0.3 <= search.work.done < 3.0


def test_the_clock_decides_nothing_but_the_end() -> None:
    """A search whose clock shows random times, as on a machine that is busy now and then."""
    graph = training_chain(60)
    budget = graph.min_working_set + (graph.no_recompute_peak - graph.min_working_set) // 5

    class Jumping(Search):
        asked = 0

        def seconds(self) -> float:
            self.asked += 1
            return (self.asked * 7919 % 1000) / 1000 * 0.9 * self.time_limit

    plain = Search(graph, budget, gap=0.0, time_limit=100.0, work=Work(1.0))
    jumping = Jumping(graph, budget, gap=0.0, time_limit=100.0, work=Work(1.0))
    for search in (plain, jumping):
        auto(search)
    assert plain.best is not None and list(plain.best) == list(jumping.best or ())
    assert (plain.lower_bound, plain.work.done) == (jumping.lower_bound, jumping.work.done)
