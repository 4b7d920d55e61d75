"""Parts of a round joined into one graph, and its schedules cut back into schedules of the parts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkmate
from checkmate import Compute, Free, Graph, InfeasibleBudget, Op, Value, simulate
from checkmate.errors import CheckmateError, Contradiction, GraphError
from checkmate.planning.parts import Event, Link, Pair, PartGraph, PartInput, least_across
from checkmate.planning.step_graph import StepGraph, join
from checkmate.planning.stretches import Again, as_run, bytes_before, cut, lends, peak_as_run, stages
from checkmate.schedule import Step, steps_from_sequence
from planning.rounds import Machine, Round, StageMachine, lending, random_part, random_round
from support import random_sequence, reference_trace

EVERYTHING = 2**52
seeds = st.integers(0, 2**32 - 1)


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
    steps = steps_from_sequence(part.graph, [0, 1, 2, 0, 3, 4])
    assert cut(step, steps) == [steps]
    assert as_run(step, steps) == steps
    assert bytes_before(step, steps) == (14, 14 + 10 + 10)  # y and its gradient


def test_a_chain_has_the_ops_of_its_parts_and_what_the_script_does() -> None:
    step = joined(chain(2))
    graph = step.graph
    assert [op.name for op in graph.ops] == [
        *("0.up", "0.down", "1.up", "1.down", "script after event 1", "1.down back", "1.up back"),
        *("0.down back", "0.up back", "script after event 3"),
    ]
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


def test_ops_of_a_joined_graph_keep_their_layers() -> None:
    """What the script does belongs to none."""
    made = chain(2)
    part = made.parts[0]
    ops = [replace(op, layer="" if op.name == "between" else f"net.{op.name.split()[0]}") for op in part.graph.ops]
    made.parts[0] = replace(part, graph=Graph(ops, part.graph.values, part.graph.fixed_memory, part.graph.name))
    layers = {op.name: op.layer for op in joined(made).graph.ops}
    assert layers["0.up"] == layers["1.up"] == layers["1.up back"] == "net.up"
    assert layers["0.down"] == layers["0.down back"] == "net.down"
    assert layers["script after event 1"] == layers["script after event 3"] == ""


def test_what_the_script_was_seen_to_take_counts() -> None:
    made = chain(2)
    graph = join(made.parts, made.pairs, made.events, beside=[7, 100, 0, 50]).graph
    gaps = {op.name: op.workspace for op in graph.ops if op.name.startswith("script")}
    # What it takes after event 1 includes the gradient that it hands over.
    assert gaps == {"script after event 0": 7, "script after event 1": 100 - 10, "script after event 3": 50}
    assert simulate(graph, steps_from_sequence(graph, range(graph.num_ops))).peak > joined(made).graph.no_recompute_peak
    part = layer()
    alone = join([part], [Pair(0, ("x", "w"))], [Event(0), Event(0, True)], beside=[100, 0])
    assert alone.alone and alone.graph.ops[2].workspace == 90
    assert join([part], [Pair(0, ("x", "w"))], [Event(0), Event(0, True)], beside=[25, 0]).graph is part.graph  # estimated so


def test_gradients_that_meet_are_added_up_and_the_first_sum_is_a_new_value() -> None:
    """Three layers read the output of the first."""
    pairs = [Pair(0, (Link(0, 1) if i else "x", f"w{i}"), frozenset([1])) for i in range(4)]
    events = [Event(i) for i in range(4)] + [Event(i, True) for i in reversed(range(4))]
    graph = join([layer()], pairs, events).graph
    names = {value.name: number for number, value in enumerate(graph.values)}
    by_name = {op.name: op for op in graph.ops}
    total = names["gradient of 0.y"]
    assert by_name["script after event 5"].inputs[:2] == (names["2.dx"], names["3.dx"])
    assert total in by_name["script after event 5"].outputs
    assert by_name["script after event 6"].inputs == (names["1.dx"], total)
    assert by_name["script after event 6"].outputs == ()
    assert by_name["0.down back"].inputs[0] == total


def test_the_gradient_of_a_leaf_used_twice_is_added_to_the_first() -> None:
    pairs = [Pair(0, (Link(0, 1) if i else "x", "tied"), frozenset([1])) for i in range(2)]
    graph = join([layer()], pairs, [Event(0), Event(1), Event(1, True), Event(0, True)]).graph
    names = {value.name: number for number, value in enumerate(graph.values)}
    assert graph.fixed_memory == 10 + 4  # x, and the weight once
    assert graph.values[names["1.dw"]].keep and not graph.values[names["0.dw"]].keep
    assert names["0.dw"] in graph.ops[-1].inputs


def test_a_gradient_of_another_size_becomes_the_tangent_in_the_script() -> None:
    """A gradient may be a small tensor that is expanded, or lie in a storage that holds more."""
    small = layer()
    values = [replace(value, size=1) if value.name == "dx" else value for value in small.graph.values]
    small = replace(small, graph=Graph(small.graph.ops, values, small.graph.fixed_memory, "small"))
    made = chain(2)
    graph = join([layer(), small], [made.pairs[0], replace(made.pairs[1], part=1)], made.events).graph
    names = {value.name: number for number, value in enumerate(graph.values)}
    (gap,) = (op for op in graph.ops if op.name == "script after event 2")
    assert (gap.inputs, gap.outputs, gap.workspace) == ((names["1.dx"],), (names["0.dy"],), 0)


def test_a_pass_whose_backward_never_comes_holds_what_cannot_be_had_again() -> None:
    ops = [op if op.name != "up" else replace(op, recomputable=False) for op in layer().graph.ops]
    pinned = replace(layer(), graph=Graph(ops, layer().graph.values, 14, "pinned"))
    for part, held in ((layer(), set()), (pinned, {"0.inner"})):
        pairs = [Pair(0, ("x", "w")), Pair(1, (Link(0, 1), "v"), frozenset([1]))]
        step = join([part, layer()], pairs, [Event(0), Event(1), Event(1, True)])
        assert {value.name for value in step.graph.values if value.keep} == {"1.y", "1.dw"} | held
        steps = steps_from_sequence(step.graph, range(step.graph.num_ops))
        first, second = cut(step, steps)
        assert [s.op for s in first if isinstance(s, Compute)] == ([0, 1, 2, 3, 4] if held else [0, 1, 2, 0, 3, 4])
        assert [s.op for s in second if isinstance(s, Compute)] == [0, 1, 2, 3, 4]


def test_a_part_without_a_backward_pass() -> None:
    ops, values = layer().graph.ops[:2], layer().graph.values[:2]
    teacher = PartGraph(Graph(ops, values, 14, "teacher"), None, layer().inputs[:0], (1,))
    alone = join([teacher], [Pair(0, ())], [Event(0)])
    assert alone.graph is teacher.graph
    step = join(
        [teacher, layer()], [Pair(0, ()), Pair(1, (Link(0, 1), "w"), frozenset([1]))], [Event(0), Event(1), Event(1, True)]
    )
    assert not step.graph.values[1].keep
    steps = steps_from_sequence(step.graph, range(step.graph.num_ops))
    assert [s for s in cut(step, steps)[0] if isinstance(s, Compute)] == [Compute(0), Compute(1)]


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_a_round_is_a_graph_with_everything_once(seed: int) -> None:
    rng = random.Random(seed)
    made = random_round(rng)
    step = joined(made)
    part_of = [made.parts[pair.part] for pair in made.pairs]
    expected = [
        (event.pair, op)
        for event in made.events
        for op in (part_of[event.pair].backward_ops if event.backward else part_of[event.pair].forward_ops)
    ]
    ops = range(step.graph.num_ops)
    assert [(step.pair_of(op), step.local[op]) for op in ops if step.local[op] is not None] == expected
    assert list(step.times) == sorted(step.times)
    if not step.alone:
        storages: dict[object, int] = {}
        for pair, part in zip(made.pairs, part_of, strict=True):
            for bound, source in zip(part.inputs, pair.sources, strict=True):
                if not isinstance(source, Link):
                    storages[source] = max(bound.size, storages.get(source, 0))
        beside = sum(part.graph.fixed_memory - sum(bound.size for bound in part.inputs) for part in part_of)
        assert step.graph.fixed_memory == beside + sum(storages.values())
    once = random_sequence(rng, step.graph, 0)
    assert once == list(ops)  # in their order, ops have what they read
    assert simulate(step.graph, steps_from_sequence(step.graph, once)).peak == step.graph.no_recompute_peak


# --- cutting ---


def run_and_compare(made: Round, step: StepGraph, steps: list[Step], limit: int) -> tuple[int, int]:
    """Peaks of the machine that runs the parts one by one, and of the round's schedule."""
    run, local = as_run(step, steps, limit), cut(step, steps, limit)
    whole = simulate(step.graph, run)
    assert whole.peak <= max(limit, simulate(step.graph, steps).peak)
    cost = 0.0
    for pair, own in zip(made.pairs, local, strict=True):
        found = reference_trace(made.parts[pair.part].graph, own)
        assert found is not None
        cost += found[0]
    if {event.pair for event in made.events if event.backward} == {
        n for n, p in enumerate(made.pairs) if made.parts[p.part].between
    }:
        assert cost == whole.cost
    assert whole.cost <= simulate(step.graph, steps).cost
    machine = Machine(made, local)
    peak = machine.run()
    assert peak <= whole.peak
    assert all(live <= said for live, said in zip(machine.before, bytes_before(step, steps, limit), strict=True))
    return peak, whole.peak


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_parts_that_run_by_their_own_schedules_keep_to_the_peak_of_the_round(seed: int) -> None:
    rng = random.Random(seed)
    made = random_round(rng)
    step = joined(made)
    for repeats in (0.0, 0.3, 0.6):
        steps = steps_from_sequence(step.graph, random_sequence(rng, step.graph, repeats))
        run_and_compare(made, step, steps, EVERYTHING)


@pytest.mark.parametrize("seed", range(12))
def test_solved_rounds_keep_to_their_budget(seed: int) -> None:
    rng = random.Random(seed)
    made = random_round(rng)
    step = joined(made)
    budget = (step.graph.min_working_set + 3 * step.graph.no_recompute_peak) // 4
    try:
        schedule = checkmate.solve(step.graph, budget, time_limit=5)
    except InfeasibleBudget as error:
        budget = error.smallest_found
        schedule = checkmate.solve(step.graph, budget, time_limit=5)
    peak, _ = run_and_compare(made, step, schedule.steps, budget)
    assert peak <= budget


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_chain_takes_exactly_what_its_schedule_says(count: int) -> None:
    made = chain(count)
    step = joined(made)
    plain = steps_from_sequence(step.graph, range(step.graph.num_ops))
    peak, said = run_and_compare(made, step, plain, 0)
    assert peak == said == step.graph.no_recompute_peak
    if count > 1:
        schedule = checkmate.solve(step.graph, step.graph.no_recompute_peak - 26, time_limit=5)
        assert schedule.num_recomputations >= 1
        peak, said = run_and_compare(made, step, schedule.steps, 0)
        assert peak == said


def test_a_recomputation_waits_for_its_own_part() -> None:
    step = joined(chain(2))
    # The first layer's inner value is computed again while the second layer's way back runs.
    steps = steps_from_sequence(step.graph, [0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9])
    sequence = [s.op for s in as_run(step, steps) if isinstance(s, Compute)]
    assert sequence == [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9]
    first, second = cut(step, steps)
    assert [s.op for s in first if isinstance(s, Compute)] == [0, 1, 2, 0, 3, 4]
    assert [s.op for s in second if isinstance(s, Compute)] == [0, 1, 2, 3, 4]
    assert bytes_before(step, steps)[3] == 10 + 4 + 4 + 10 + 4 + 10  # x, weights, 1.y, 1.dw, 1.dx; not the inner value


def test_a_recomputation_that_nobody_reads_is_left_out() -> None:
    step = joined(chain(2))
    steps = steps_from_sequence(step.graph, [0, 1, 2, 0, 3, 4, 5, 0, 6, 0, 7, 0, 8, 9])
    assert [s.op for s in as_run(step, steps) if isinstance(s, Compute)] == [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9]


def test_where_waiting_takes_more_than_the_schedule_it_is_said() -> None:
    """A value is computed again early so that the much larger one that it is made from can go before another part's heavy op."""
    wide = layer(100, inner=5)
    ops = [replace(op, workspace=500 if op.name == "up back" else op.workspace) for op in wide.graph.ops]
    heavy = replace(wide, graph=Graph(ops, wide.graph.values, wide.graph.fixed_memory, "heavy"))
    made = chain(3)
    step = join([wide, heavy], [*made.pairs[:2], replace(made.pairs[2], part=1)], made.events)
    # Ops 2 and 6: the first op of layer 1, and the script before the way back. Ops 7 and 8: the way back of layer 2.
    sequence = [0, 1, 2, 3, 4, 5, 6, 2, 7, 8, *range(9, step.graph.num_ops)]
    steps = steps_from_sequence(step.graph, sequence)
    with pytest.raises(CheckmateError, match=r"\(\d+ bytes\), 95 more than it may: plan with so many bytes less"):
        cut(step, steps)
    peak = simulate(step.graph, steps).peak
    assert simulate(step.graph, as_run(step, steps, limit=peak + 95)).peak == peak + 95
    assert [s.op for s in cut(step, steps, peak + 95)[1] if isinstance(s, Compute)] == [0, 1, 2, 0, 3, 4]


def test_what_backward_passes_keep_to_run_once_more_counts() -> None:
    step = joined(chain(1))
    plain = steps_from_sequence(step.graph, range(5))
    fixed, inner, y = 14, 30, 10
    assert peak_as_run(step, plain) == fixed + inner + y + 10 + 30  # "down back" makes the inner gradient from dy
    # "up back" makes dx and dw from the inner gradient, and the inner value is still there.
    assert peak_as_run(step, plain, Again()) == fixed + y + 30 + 10 + 4 + inner
    assert peak_as_run(step, plain, Again(20)) == fixed + inner + y + 10 + 30 + 20  # "down back" once more
    recomputing = steps_from_sequence(step.graph, [0, 1, 2, 0, 3, 4])
    assert peak_as_run(step, plain, Again(0, 7)) == peak_as_run(step, plain, Again()) + 7
    assert peak_as_run(step, recomputing, Again()) == peak_as_run(step, recomputing)  # nothing is left to be kept
    again = joined(chain(3))
    assert (
        peak_as_run(again, steps_from_sequence(again.graph, range(again.graph.num_ops)), Again()) > again.graph.no_recompute_peak
    )


def test_events_come_in_their_order() -> None:
    step = join([layer()], [Pair(0, ("x", "w")), Pair(0, ("z", "w"))], [Event(0), Event(1), Event(1, True), Event(0, True)])
    steps = steps_from_sequence(step.graph, [2, 3, 0, 1, *range(4, step.graph.num_ops)])
    with pytest.raises(CheckmateError, match="takes its events in another order: plan it with order='given'"):
        cut(step, steps)


def test_a_part_never_computes_while_another_runs() -> None:
    step = joined(chain(2))
    ops = [replace(op, recomputable=op.recomputable or op.name == "0.down") for op in step.graph.ops]
    wrong = replace(step, graph=Graph(ops, step.graph.values, step.graph.fixed_memory, "wrong"))
    steps = steps_from_sequence(wrong.graph, [0, 1, 0, 1, *range(2, step.graph.num_ops)])
    with pytest.raises(Contradiction, match="op '0.up' is computed while another part runs: .* please report it"):
        cut(wrong, steps)


# --- lending ---


def lending_chain(count: int, **sizes: int) -> Round:
    """The same where the output of a layer can be computed again for the next one."""
    made = chain(count, **sizes)
    return lending(replace(made, parts=[replace(made.parts[0], lendable=frozenset([1]))]))


def run_stages(made: Round, step: StepGraph, steps: list[Step], limit: int) -> int:
    """The peak of the machine that runs the stages."""
    run = as_run(step, steps, limit)
    whole = simulate(step.graph, run)
    assert whole.peak <= max(limit, simulate(step.graph, steps).peak)
    assert whole.cost <= simulate(step.graph, steps).cost
    cut_up = stages(step, run)
    for index, op in enumerate(step.graph.ops):
        if step.local[index] is None and op.name.startswith("script after event "):
            last = {one.value: one for one in cut_up[int(op.name.split()[-1])] if isinstance(one, Free)}
            made_again = {
                v for one in cut_up[int(op.name.split()[-1])] if isinstance(one, Compute) for v in step.graph.ops[one.op].outputs
            }
            assert not (last.keys() & set(op.inputs)) - made_again, "the script reads what an event has freed"
    machine = StageMachine(made, step, cut_up)
    peak = machine.run()
    assert peak <= whole.peak
    assert all(live <= said for live, said in zip(machine.before, bytes_before(step, steps, limit), strict=True))
    computed = sum(op.cost for stage in machine.stages for op in (step.parts[made.pairs[p].part].graph.ops[o] for p, o in stage))
    assert computed == whole.cost
    return peak


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_stages_keep_to_the_peak_of_the_round(seed: int) -> None:
    rng = random.Random(seed)
    made = lending(random_round(rng))
    step = joined(made)
    for repeats in (0.0, 0.3, 0.6):
        steps = steps_from_sequence(step.graph, random_sequence(rng, step.graph, repeats))
        if lends(step, as_run(step, steps, EVERYTHING)):
            with pytest.raises(Contradiction):
                cut(step, steps, EVERYTHING)
            run_stages(made, step, steps, EVERYTHING)
        else:
            run_and_compare(made, step, steps, EVERYTHING)


def test_an_output_that_only_parts_read_may_be_computed_again() -> None:
    made = lending_chain(3)
    step = joined(made)
    assert {step.graph.ops[op].name for op in step.lent} == {"0.down", "1.down"}
    assert all(step.graph.ops[op].recomputable for op in step.lent)
    # Ops 0 to 5: the way there. Then the script, the way back of layer 2 (7, 8), of layer 1 and of layer 0.
    sequence = [*range(7), 0, 1, 2, 3, 4, *range(7, step.graph.num_ops)]
    steps = steps_from_sequence(step.graph, sequence)
    found = [[s.op for s in stage if isinstance(s, Compute)] for stage in stages(step, as_run(step, steps))]
    assert found == [[0, 1], [2, 3], [4, 5], [0, 1, 2, 3, 4, 7, 8], [9, 10], [11, 12]]
    run_stages(made, step, steps, 0)


def test_what_the_script_holds_is_not_computed_again() -> None:
    step = joined(lending_chain(2))
    steps = steps_from_sequence(step.graph, [0, 1, 2, 1, 3, 1, *range(4, step.graph.num_ops)])
    run = as_run(step, steps, EVERYTHING)
    assert [s.op for s in run if isinstance(s, Compute)] == list(range(step.graph.num_ops))
    assert not lends(step, run)


def test_what_others_hold_too_is_not_lent() -> None:
    made = lending_chain(3)
    seen = replace(made.pairs[1], borrowed=frozenset())  # as a view, say
    assert set(joined(replace(made, pairs=[made.pairs[0], seen, made.pairs[2]])).lent) == {3}
    assert set(joined(replace(made, events=made.events[:-1])).lent) == {3}  # no way back that it could be needed for
    assert not joined(replace(made, parts=[layer()])).lent


@pytest.mark.parametrize("count", [3, 5])
def test_a_chain_that_lends_needs_less(count: int) -> None:
    made = lending_chain(count, hidden=30, inner=90)
    step, own = joined(made).graph, joined(chain(count, hidden=30, inner=90)).graph
    with pytest.raises(InfeasibleBudget) as caught:
        checkmate.solve(own, own.min_working_set, time_limit=5)
    budget = caught.value.proven_minimum - 1
    schedule = checkmate.solve(step, budget, time_limit=5)
    run = as_run(joined(made), schedule.steps, budget)
    assert lends(joined(made), run)
    assert run_stages(made, joined(made), list(schedule.steps), budget) <= budget


# --- the plan of one part that holds least ---


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_least_across_leaves_room_for_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    part = random_part(rng, 20)
    assert part.between is not None
    needed, again = part.across
    budget = 3 * part.graph.no_recompute_peak
    graph, held = least_across(part, budget)
    assert held == sum(part.graph.values[value].size for value in needed)
    assert (graph.num_ops, graph.values, graph.fixed_memory) == (part.graph.num_ops, part.graph.values, part.graph.fixed_memory)
    least = steps_from_sequence(graph, [*range(part.between + 1), *again, *part.backward_ops])
    assert simulate(graph, least).peak == budget
    with_least = _live_between(graph, least, part.between)
    for _ in range(5):
        steps = steps_from_sequence(graph, random_sequence(rng, graph))
        assert (simulate(graph, steps).peak <= budget) == (_live_between(graph, steps, part.between) <= with_least)


def _live_between(graph: Graph, steps: list[Step], between: int) -> int:
    return simulate(graph, steps).during[steps.index(Compute(between))]


def test_least_across_leaves_a_part_as_it_is_where_there_is_no_room() -> None:
    part = layer()
    assert least_across(part, 14 + 10 + 10 + 20) == (part.graph, 0)
    raised, _ = least_across(part, 14 + 10 + 10 + 21)
    assert raised.ops[2].workspace == 21
    ops, values = part.graph.ops[:2], part.graph.values[:2]
    teacher = PartGraph(Graph(ops, values, 14), None, part.inputs[:0], (1,))
    assert least_across(teacher, 10**6) == (teacher.graph, 0)


# --- what does not fit together ---

ONE = Pair(0, ("x", "w"))
TWO = Pair(0, (Link(0, 1), "w"))


@pytest.mark.parametrize(
    ("pairs", "events", "message"),
    [
        ([], [], "a round has one"),
        ([ONE, ONE], [Event(0)], "1 of 2 pairs run their forward pass"),
        ([ONE], [Event(1)], "an event is of pair 1, but there are 1 pairs"),
        ([ONE], [Event(0), Event(0)], "pair 0 runs its forward pass twice"),
        ([ONE], [Event(0), Event(0, True), Event(0, True)], "pair 0 runs its backward pass twice"),
        ([ONE], [Event(0, True)], "pair 0 runs its backward pass before its forward pass"),
        ([Pair(2, ())], [Event(0)], "pair 0 is of part 2, but there are 2 parts"),
        ([Pair(0, ("x",))], [Event(0)], "pair 0 has 1 sources, but part 0 has 2 inputs"),
        ([ONE, TWO], [Event(1), Event(0)], "reads an output of pair 0, whose forward pass has not run by then"),
        ([ONE, Pair(0, (Link(0, 0), "w"))], [Event(0), Event(1)], "reads value 0 of pair 0, which is not an output of it"),
        (
            [ONE, replace(TWO, leaves=frozenset([0]))],
            [Event(0), Event(1)],
            "input 0 of pair 1 is an output of pair 0, and so no leaf",
        ),
        ([Pair(1, ())], [Event(0), Event(0, True)], "pair 0 runs a backward pass that part 1 does not have"),
    ],
)
def test_rounds_that_do_not_fit_together(pairs: list[Pair], events: list[Event], message: str) -> None:
    teacher = PartGraph(Graph([Op("f", 1.0, (), (0,))], [Value("y", 1, keep=True)]), None, (), (0,))
    with pytest.raises(GraphError, match=message):
        join([layer(), teacher], pairs, events)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (PartInput(15), PartInput(0))}, "the inputs of part 0 take more bytes than its fixed memory"),
        ({"inputs": (PartInput(10, (7,)), PartInput(4))}, "part 0 names ops or values that its graph does not have"),
        ({"outputs": (9,)}, "part 0 names ops or values that its graph does not have"),
        ({"tangents": ()}, "part 0 has 1 outputs but 0 tangents"),
        ({"between": 8}, "part 0 has no op 8 to stand between its passes"),
        ({"tangents": (3,)}, "a tangent of part 0 is not made by the op between its passes"),
        ({"outputs": (4,)}, "an output of part 0 is not made by its forward pass"),
    ],
)
def test_parts_that_contradict_themselves(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        join([replace(layer(), **change)], [ONE], [Event(0), Event(0, True)])
