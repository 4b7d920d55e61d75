"""The paper's program: how large it is before it is made, where it is made, and what is refused."""

from __future__ import annotations

import os
import random

import pytest

import checkmate
from checkmate import CheckmateError, Graph
from checkmate.networks import mobilenet, unet
from checkmate.solvers import registry
from checkmate.solvers.interface.running_search import Search
from checkmate.solvers.mixed_integer import cbc, dispatch
from checkmate.solvers.mixed_integer.program import Answer, ProgramArrays
from checkmate.solvers.paper import checkmate_milp, two_phase_rounding
from checkmate.solvers.paper.checkmate_milp import Formulation
from checkmate.solvers.paper.staged_program import StagedProgram
from checkmate.solvers.representation.graph_arrays import Problem
from support import random_graph, training_chain


def dense(ops: int) -> Graph:
    """Every op reads two in five of the values before it."""
    rng = random.Random(0)
    edges = [(value, op) for op in range(ops) for value in range(op) if rng.random() < 0.4]
    return Graph.from_arrays([1.0] * ops, [1] * ops, edges)


@pytest.fixture
def only_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program counts as large, and none may be made in this process."""

    def here(*_: object) -> ProgramArrays:
        raise AssertionError(f"made in process {os.getpid()}")

    monkeypatch.setattr(dispatch, "_SMALL", 0)
    monkeypatch.setattr(StagedProgram, "arrays", here)
    monkeypatch.setattr(cbc, "write_mps", here)


def test_how_large_a_program_is_is_known_before_it_is_made() -> None:
    """Variables to the last one, nonzeros not too few, and for networks at most a tenth too many."""
    graphs = [unet(), mobilenet(), dense(20), *(random_graph(random.Random(seed), max_ops=30) for seed in range(100))]
    made = 0
    for graph in graphs:
        for share in (0.5, 0.9):
            budget = int(share * (graph.no_recompute_peak - graph.fixed_memory))
            program = Formulation(Problem(graph), budget, integral=False).program
            arrays = program.arrays()
            assert program.num_variables == len(arrays.cost) == arrays.matrix.num_columns
            assert arrays.matrix.num_entries <= program.num_nonzeros
            if arrays.matrix.num_entries > 10_000:
                assert program.num_nonzeros <= 1.1 * arrays.matrix.num_entries
                made += 1
    assert made >= 5


@pytest.mark.parametrize("method", ["milp", "milp-cbc", "lp-rounding", "lp-rounding-randomized"])
@pytest.mark.usefixtures("only_elsewhere")
def test_large_programs_are_made_where_that_can_be_stopped(method: str) -> None:
    """In this process nothing would look at the clock meanwhile."""
    graph = training_chain(8)
    schedule = checkmate.solve(graph, "75%", method, time_limit=600)
    assert schedule.cost > graph.ideal_cost


@pytest.mark.parametrize("method", ["milp", "milp-cbc", "milp-gurobi", "lp-rounding"])
def test_a_program_that_no_memory_holds_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the number of its coefficients, which is counted: there are few ops."""
    graph = dense(250)
    monkeypatch.setattr(StagedProgram, "arrays", lambda _: pytest.fail("made, and it takes gigabytes"))
    with pytest.raises(
        CheckmateError, match=r"about \d+ million coefficients for this graph, .* beyond 20 million: use method 'auto'"
    ):
        checkmate.solve(graph, "60%", method)
    monkeypatch.setattr(checkmate_milp, "_MOST_NONZEROS", 10**12)
    assert Formulation(Problem(graph), int(0.6 * graph.no_recompute_peak)).program.num_nonzeros > 2 * 10**7


def test_rounding_ends_within_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over while one is computed, nothing more is done with it."""
    graph = training_chain(40)
    search = Search(graph, int(0.6 * graph.no_recompute_peak))

    def answered(program: StagedProgram, *_: object) -> Answer:
        return Answer(program.arrays().lower, 0.0, 0.0, False, True)

    answers = iter([False])
    monkeypatch.setattr(two_phase_rounding, "solve_with_highs", answered)
    monkeypatch.setattr(search, "stopped", lambda: next(answers, True))
    monkeypatch.setattr(two_phase_rounding, "evaluate", lambda *_: pytest.fail("there was no time for that"))
    registry.run(search, "lp-rounding")
    assert search.best is None
