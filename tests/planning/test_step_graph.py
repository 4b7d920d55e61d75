"""Parts of a round joined into one graph, and its schedules cut back into schedules of the parts."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning.rounds import Machine, Round, random_part, random_round
from support import random_sequence, reference_trace

import checkmate
from checkmate import Compute, Graph, InfeasibleBudget, Op, Schedule, Value, simulate
from checkmate.errors import CheckmateError, GraphError
from checkmate.planning.step_graph import Event, Link, Pair, PartGraph, PartInput, StepGraph, join, least_across
from checkmate.planning.stretches import as_run, bytes_before, cut
from checkmate.schedule import steps_from_sequence

EVERYTHING = 2**52
rngs = st.randoms(use_true_random=False)


def joined(made: Round) -> StepGraph:
    return join(made.parts, made.pairs, made.events)


def layer(hidden: int = 10, *, weight: int = 4, inner: int = 30) -> PartGraph:
    """Two ops and back: x -> inner -> y. The way back needs the inner value, which can be computed again from x."""
    ops = [
        Op("up", 1.0, (), (0,)),
        Op("down", 1.0, (0,), (1,), recomputable=False),
        Op("between", 0.0, (1,), (2,), 2 * hidden, recomputable=False, phase="loss"),
        Op("down back", 2.0, (2, 0), (3,), phase="backward"),
        Op("up back", 2.0, (3,), (4, 5), phase="backward"),
    ]
    values = [
        Value("inner", inner),
        Value("y", hidden, keep=True),
        Value("dy", hidden),
        Value("dinner", inner),
        Value("dx", hidden, keep=True),
        Value("dw", weight, keep=True),
    ]
    inputs = (PartInput(hidden, (0,), 4), PartInput(weight, (0, 4), 5))
    return PartGraph(Graph(ops, values, hidden + weight, "layer"), 2, inputs, (1,), (2,))


def chain(count: int, **sizes: int) -> Round:
    """A layer run `count` times, each on the output of the one before, and all the way back."""
    pairs = [Pair(0, (Link(i - 1, 1) if i else "x", f"w{i}"), frozenset([1])) for i in range(count)]
    events = [Event(i) for i in range(count)] + [Event(i, True) for i in reversed(range(count))]
    return Round([layer(**sizes)], pairs, events)


# --- joined graphs ---


def test_a_single_pair_is_its_part() -> None:
    part = layer()
    step = join([part], [Pair(0, ("x", "w"))], [Event(0), Event(0, True)])
    assert step.graph is part.graph
    steps = steps_from_sequence(part.graph, [0, 1, 0, 2, 0, 3, 4])
    assert cut(step, steps) == [steps]
    assert as_run(step, steps) == steps
    assert bytes_before(step, steps) == (14, 14 + 10 + 30 + 10)


def test_a_chain_has_the_ops_of_its_parts_and_what_the_script_does() -> None:
    step = joined(chain(2))
    graph = step.graph
    assert [op.name for op in graph.ops] == [
        *("0.up", "0.down", "1.up", "1.down", "script after event 1", "1.down back", "1.up back"),
        *("script after event 2", "0.down back", "0.up back", "script after event 3"),
    ][: graph.num_ops] or graph.num_ops == 10
    assert graph.fixed_memory == 10 + 4 + 4
    names = {value.name: number for number, value in enumerate(graph.values)}
    by_name = {op.name: op for op in graph.ops}
    # The script holds the boundary value and the last output when the way back begins.
    assert by_name["script after event 1"].inputs == (names["1.y"], names["0.y"])
    assert by_name["script after event 1"].outputs == (names["1.dy"],)
    assert by_name["script after event 1"].workspace == 20
    # The gradient of the boundary value is the one that the second layer makes.
    assert "0.dy" not in names
    assert by_name["0.down back"].inputs == (names["1.dx"], names["0.inner"])
    assert {value.name for value in graph.values if value.keep} == {"1.y", "0.dw", "1.dw"}
    assert not by_name["0.down"].recomputable and not by_name["1.up back"].recomputable
    assert by_name["1.up"].recomputable and by_name["1.down back"].recomputable


