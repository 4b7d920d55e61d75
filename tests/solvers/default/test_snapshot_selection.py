"""Snapshots that are chosen one by one."""

from __future__ import annotations

import numpy as np
import pytest

from checkmate import solve
from checkmate.networks.layers import Layers, build
from checkmate.solvers.bounds.snapshot_relaxation import Relaxed
from checkmate.solvers.default.auto import _Engine
from checkmate.solvers.default.common_state import State
from checkmate.solvers.default.relaxation_rounds import RelaxationRounds
from checkmate.solvers.default.schedules_from_relaxations import Reader
from checkmate.solvers.default.snapshot_selection import Snapshots, SnapshotSelection
from checkmate.solvers.default.tuning import TUNING
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.interface.work_limits import Limits, Work

FIRST = 5


def a_search(work: float = 100.0) -> Search:
    """Convolutions with some residual connections, at a budget that asks for recomputation."""

    def network(net: Layers) -> None:
        x = net.conv("stem", net.input, 16)
        for block in range(4):
            y = net.activation(f"relu{block}", net.conv(f"conv{block}_1", x, 16))
            x = net.add(f"add{block}", x, net.conv(f"conv{block}_2", y, 16)) if block % 2 else y

    graph = build("convolutions", (28, 28, 3), 1, network)
    budget = graph.min_working_set + (graph.no_recompute_peak - graph.min_working_set) // 5
    return Search(graph, budget, time_limit=1000.0, gap=0.0, work=Work(work))


def selection(search: Search) -> SnapshotSelection:
    state = State(search, None, TUNING)
    return SnapshotSelection(state, Reader(state))


def test_the_bound_is_above_that_of_one_snapshot_and_below_the_optimum() -> None:
    search = a_search()
    chosen = selection(search)
    state = chosen.state
    one = state.relaxation.solve(state.capacity, list(chosen.snapshots), 100.0, 1e-7)
    chosen.run()
    optimum = solve(search.graph, search.budget, method="milp", gap=0.0)
    assert len(chosen.snapshots) > 1
    assert 1.0001 * one.bound < search.lower_bound == chosen.bound <= optimum.cost * (1 + 1e-9)


def scripted(monkeypatch: pytest.MonkeyPatch, bounds: dict[Snapshots, float], works: dict[Snapshots, float]) -> SnapshotSelection:
    """A selection that begins with `FIRST`, whose relaxations prove what is said here, in shares of the ideal cost, in one unit or so many;
    schedules break the budget wherever a set here has a snapshot more."""
    chosen = selection(a_search(1000.0))
    chosen.snapshots = (FIRST,)
    ideal = chosen.state.graph.ideal_cost

    def solved(_: SnapshotSelection, snapshots: Snapshots, work: float) -> Relaxed:
        needed = works.get(snapshots, 1.0)
        if needed > work:
            return Relaxed(ideal, None, ideal, False, work)
        cost = ideal * bounds.get(snapshots, 1.0)
        return Relaxed(cost, None, cost, True, needed)

    def breaking(*_: object) -> tuple[dict[int, float], set[tuple[int, int]]]:
        more = [set(one) - set(chosen.snapshots) for one in bounds if set(one) > set(chosen.snapshots)]
        return {stage: float(stage) for one in more for stage in one}, set()

    monkeypatch.setattr(SnapshotSelection, "_solve", solved)
    monkeypatch.setattr(Reader, "read", lambda *_: [])
    monkeypatch.setattr("checkmate.solvers.default.snapshot_selection.breaking", breaking)
    return chosen


def step(chosen: SnapshotSelection) -> None:
    chosen._step(Limits(chosen.state.search.work))


def test_the_one_that_proves_most_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = scripted(monkeypatch, {(FIRST,): 1.01, (3, FIRST): 1.02, (FIRST, 8): 1.03}, {})
    step(chosen)
    assert chosen.snapshots == (FIRST, 8)
    assert chosen.state.search.lower_bound == chosen.bound == pytest.approx(1.03 * chosen.state.graph.ideal_cost)


def test_what_proves_little_more_for_much_more_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = scripted(monkeypatch, {(FIRST,): 1.01, (3, FIRST): 1.02, (FIRST, 8): 1.021}, {(FIRST, 8): 3.9})
    step(chosen)
    assert chosen.snapshots == (3, FIRST)


@pytest.mark.parametrize(("without", "expected"), [(1.0295, (6, 9)), (1.025, (FIRST, 6, 9))])
def test_what_lies_beside_the_new_one_is_left_out_if_it_says_no_more(
    monkeypatch: pytest.MonkeyPatch, without: float, expected: Snapshots
) -> None:
    """Of the new one's gain of 0.01, a tenth may be lost."""
    bounds = {(FIRST, 9): 1.02, (FIRST, 6, 9): 1.03, (6, 9): without, (FIRST, 6): 1.0}
    chosen = scripted(monkeypatch, bounds, {})
    chosen.snapshots = (FIRST, 9)
    step(chosen)
    assert chosen.snapshots == expected


def test_what_is_not_solved_in_time_has_more_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = scripted(monkeypatch, {(FIRST,): 1.01, (FIRST, 8): 1.03}, {(FIRST, 8): 10.0})
    chosen.run()
    assert chosen.snapshots == (FIRST, 8) and chosen.exhausted  # with both, schedules keep to the budget
    assert chosen.state.search.work.done == pytest.approx(1 / 2 + (4 + 8 + 10) / 2 + 1 / 2)


def test_a_share_that_is_too_small_for_one_relaxation_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = scripted(monkeypatch, {(FIRST,): 1.01, (FIRST, 8): 1.03}, {(FIRST, 8): 110.0})
    assert TUNING.selection.share * 1000 < 110
    for _ in range(3):
        chosen.run()
    assert chosen.snapshots == (FIRST, 8)


def test_rounds_that_cannot_keep_up_are_kept_short() -> None:
    search = a_search()
    state = State(search, None, TUNING)
    rounds = RelaxationRounds(state, Reader(state))
    given_up = Relaxed(1.01 * search.graph.ideal_cost, None, np.inf, False, 6.0)
    search.raise_bound(1.02 * search.graph.ideal_cost, "test")
    assert rounds.prepare_next(given_up, [], vain=True, led=True, polished=0)
    assert rounds._limit == TUNING.relaxations.lower_limit
    assert rounds.prepare_next(given_up, [], vain=True, led=False, polished=0)
    assert rounds._limit == 2 * TUNING.relaxations.lower_limit


@pytest.mark.parametrize(("bound", "exact", "leads"), [(1.01, False, True), (1.018, False, False), (1.01, True, False)])
def test_it_leads_where_it_proves_much_more_than_a_round(
    monkeypatch: pytest.MonkeyPatch, bound: float, exact: bool, leads: bool
) -> None:
    """Its bound is 1.02, of 1.03 found: rounds cannot keep up where they prove less than half of that distance below."""
    chosen = scripted(monkeypatch, {(FIRST,): 1.01, (FIRST, 8): 1.02}, {})
    chosen.run()
    ideal = chosen.state.graph.ideal_cost
    chosen.state.search.best_cost = 1.03 * ideal
    assert chosen.leads(Relaxed(bound * ideal, None, np.inf, exact)) is leads


@pytest.mark.parametrize(
    ("rounds", "gap", "exact", "runs"), [(2, 0.005, False, 1), (1, 0.005, False, 0), (2, 0.02, False, 0), (2, 0.005, True, 0)]
)
def test_it_waits_for_rounds_and_for_a_narrow_gap(
    monkeypatch: pytest.MonkeyPatch, rounds: int, gap: float, exact: bool, runs: int
) -> None:
    search = a_search()
    engine = _Engine(search, None, TUNING)
    ran: list[int] = []
    monkeypatch.setattr(SnapshotSelection, "run", lambda _: ran.append(1))
    search.best_cost, engine.slow_rounds = (1 + gap) * search.lower_bound, rounds
    engine._choose_snapshots(Relaxed(search.lower_bound, None, np.inf, exact))
    assert len(ran) == runs
