"""What may run at the same time stays within the limit in whatever order it begins and ends."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from checkmate.planning import Allowance, OpCost, Options
from checkmate.schedule import Step
from checkmate.tf2.execution.emit import emit, original
from checkmate.tf2.execution.overlap import one_by_one, overlapping
from checkmate.tf2.execution.plan import make_plan
from checkmate.tf2.execution.priority import in_order_of_priority, prioritized
from checkmate.tf2.execution.replay import Run, peak_of, replay
from checkmate.tf2.graphs.capture import Captured
from checkmate.tf2.graphs.trace import is_fixed
from checkmate.tf2.internals import is_stateful
from checkmate.tf2.ops.nodes import Emitted
from checkmate.tf2.ops.op_kinds import IN_PLACE, is_big, is_handle, is_one_kernel, root
from checkmate.tf2.step import _Shaped
from tf2_models import captured_case


def planned(name: str, share: float) -> tuple[Captured, list[Step]]:
    _, _, captured = captured_case(name)
    allowance = Allowance(int(share * captured.graph.no_recompute_peak))
    return captured, make_plan(captured, Options(time_limit=3, gap=0.02), allowance).schedule.steps


def largest(captured: Captured, steps: list[Step], waits: list[int], randomness: random.Random) -> tuple[int, int]:
    """Runs begin and end at random, as early as they may: the most bytes that are live, and the most runs at a time."""
    runs = replay(captured, steps)
    for bias, filters in pairwise(runs):
        if is_one_kernel(bias.op, filters.op):
            bias.workspace = 0  # there is one for both
    readers = Counter(copy for run in runs for copy in set(run.reads))
    newest = {copy[0]: copy for run in runs for copy in run.made}
    kept = {newest.get(root(t).name) for t in captured.traced.outputs}
    begun, over, running = set(), set(), []
    size: dict[tuple[str, int], int] = {}
    live = peak = captured.graph.fixed_memory
    most = prefix = 0
    while len(over) < len(runs):
        # Those that could begin: with a chance of waiting, so that later ones overtake.
        for number, run in enumerate(runs[prefix : prefix + 60], prefix):
            if number in begun or waits[number] > prefix or any(maker not in over for _, maker in run.reads):
                continue
            if running and randomness.random() < 0.2:
                continue
            begun.add(number)
            running.append(number)
            own = sum(run.made.values())
            for copy in set(run.reads):
                alone = readers[copy] == 1 and run.reads.count(copy) == 1 and copy not in kept
                if run.op.type in IN_PLACE and alone and size[copy] == own:
                    live -= own
                    size[copy] = 0
                    break
            live += own + run.workspace
            size.update(run.made)
        peak, most = max(peak, live), max(most, len(running))
        number = running.pop(randomness.randrange(len(running)))
        run = runs[number]
        live -= run.workspace
        over.add(number)
        for copy in set(run.reads):
            readers[copy] -= 1
            if not readers[copy] and copy not in kept:
                live -= size[copy]
        live -= sum(size[copy] for copy in run.made if not readers[copy] and copy not in kept)
        while prefix in over:
            prefix += 1
    return peak, most


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param("transformer", 1.0, marks=pytest.mark.slow),
        ("transformer", 0.6),
        pytest.param("unet", 0.8, marks=pytest.mark.slow),
        ("conv", 0.6),
    ],
)
def test_no_order_passes_the_limit(name: str, share: float) -> None:
    captured, steps = planned(name, share)
    filters = [op.name for group in captured.groups for op in group.ops if op.type == "Conv2DBackpropFilter"]
    captured.costs = {**captured.costs, **dict.fromkeys(filters, OpCost(0.0, 2**18))}
    alone = peak_of(captured, replay(captured, steps))
    fixed = captured.graph.fixed_memory
    widest = []
    for limit in (0, alone, fixed + int(1.15 * (alone - fixed)), 2 * alone):
        runs = replay(captured, steps)
        waits = overlapping(runs, limit)
        for number, first in enumerate(waits):
            beside = sum(run.takes for run in runs[first : number + 1])
            assert first >= number - 1 or runs[first].before + beside <= limit
        seen = [largest(captured, steps, waits, random.Random(seed)) for seed in range(20)]
        assert max(peak for peak, _ in seen) <= max(limit, alone)
        widest.append(max(most for _, most in seen))
    assert widest[0] <= 2  # the two gradients that are one kernel
    assert widest[0] < widest[-1]


def test_what_must_wait() -> None:
    captured, steps = planned("unet", 0.8)
    runs = replay(captured, steps)
    waits = overlapping(runs, 2**60)
    pairs = {n for n in range(1, len(runs)) if is_one_kernel(runs[n - 1].op, runs[n].op)}
    newest: dict[str, int] = {}
    again = 0
    for number, run in enumerate(runs):
        before = newest.get(run.op.name, -1)
        again += before >= 0
        if number not in pairs:
            anything = is_stateful(run.op) and not any(map(is_handle, run.op.inputs))
            assert waits[number] == (number if anything else before + 1)
        newest[run.op.name] = number
    assert again > 0
    assert any(is_stateful(run.op) for run in runs)
    assert [w for n, w in enumerate(one_by_one(runs)) if n not in pairs] == [n for n in range(len(runs)) if n not in pairs]


def placed(captured: Captured, emitted: Emitted) -> tf.Graph:
    """A graph with the nodes that were emitted, each under its own name."""
    graph = tf.Graph()
    with graph.as_default():
        arguments = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in captured.traced.inputs]
        given = {f"{name}:0": tensor for name, tensor in zip(emitted.arguments, arguments, strict=True)}
        read = {edge for node in emitted.nodes for edge in node.input}
        definition = tf.compat.v1.GraphDef(node=emitted.nodes)
        tf.graph_util.import_graph_def(definition, {name: t for name, t in given.items() if name in read}, name="")
    return graph


def all_before(graph: tf.Graph) -> dict[str, set[str]]:
    """Name of an op -> names of all that are over when it begins."""
    found: dict[str, set[str]] = {}
    missing = list(graph.get_operations())
    while missing:
        later = []
        for op in missing:
            others = {t.op.name for t in op.inputs} | {other.name for other in op.control_inputs}
            if others <= found.keys():
                found[op.name] = others.union(*(found[name] for name in others))
            else:
                later.append(op)
        assert len(later) < len(missing)
        missing = later
    return found


def names_of(runs: list[Run]) -> list[str]:
    """Of the ops that runs are in an emitted graph."""
    copies: Counter[str] = Counter()
    names = []
    for run in runs:
        count = copies[run.op.name]
        copies[run.op.name] += 1
        names.append(f"{run.op.name}__again{count}" if count else run.op.name)
    return names


def reads_large(op: tf.Operation) -> bool:
    return any(not is_fixed(r) and is_big(r.op) for r in map(root, op.inputs))


@pytest.mark.parametrize("prioritize", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_graph_waits_as_it_must(prioritize: bool) -> None:
    captured, steps = planned("transformer", 0.6)
    # Small results of large work, such as the gradient of a convolution's filters.
    heavy = {op.name: OpCost(0.0, 2**20) for group in captured.groups for op in group.ops if op.type == "Sum"}
    captured.costs = {**captured.costs, **heavy}
    fixed = captured.graph.fixed_memory
    alone = peak_of(captured, replay(captured, steps))
    waits = overlapping(replay(captured, steps), fixed + int(1.15 * (alone - fixed)))
    emitted = emit(captured, steps, waits=waits)
    if prioritize:
        emitted = prioritized(
            emitted, lambda name: captured.costs[original(name)].seconds if original(name) in captured.costs else 0
        )
    graph = placed(captured, emitted)
    before = all_before(graph)
    runs = replay(captured, steps)
    names = names_of(runs)
    kept = []  # numbers of the runs that take or free memory
    for number, run in enumerate(runs):
        chained = is_big(run.op) or run.op.name in heavy or is_stateful(run.op)
        if chained:
            missing = [names[other] for other in kept if other < waits[number] and names[other] not in before[names[number]]]
            assert not missing, (names[number], missing)
        if chained or reads_large(run.op):
            kept.append(number)
    assert max(Counter(run.op.name for run in runs).values()) > 1
    # A variable that changes while its value is in use would be copied.
    changed = 0
    for op in graph.get_operations():
        if op.type == "ReadVariableOp":
            readers = [one for one in graph.get_operations() if any(root(t).op is op for t in one.inputs)]
            for change in graph.get_operations():
                if "Assign" in change.type and change.inputs[0] is op.inputs[0] and op.name in before[change.name]:
                    changed += 1
                    earlier = names[: names.index(change.name)]
                    assert {one.name for one in readers if one.name in earlier} <= before[change.name]
    assert changed > 5


def test_one_by_one_what_frees_memory_has_its_turn_as_well() -> None:
    """Else a step takes more in one run than in another."""
    captured, steps = planned("transformer", 0.6)
    before = all_before(placed(captured, emit(captured, steps)))
    runs = replay(captured, steps)
    earlier: list[str] = []
    small = 0
    for name, run in zip(names_of(runs), runs, strict=True):
        if is_big(run.op) or reads_large(run.op):
            assert set(earlier) <= before[name], name
            earlier.append(name)
            small += not is_big(run.op)
    assert small > 5


def test_order_of_priority() -> None:
    # a is read by b (short), by c (long, through d), and e stands alone.
    before = {"a": [], "c": ["a"], "b": ["a"], "d": ["c"], "e": [], "end": ["b", "d", "e"]}
    seconds = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 4.0, "e": 3.0, "end": 0.5}
    assert in_order_of_priority(before, seconds.__getitem__) == ["e", "a", "b", "c", "d", "end"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_priority_is_topological(seed: int) -> None:
    randomness = random.Random(seed)
    before = {str(n): sorted({str(randomness.randrange(n)) for _ in range(3)}) if n else [] for n in range(60)}
    order = in_order_of_priority(before, lambda name: randomness.random())
    assert sorted(order) == sorted(before)
    place = {name: number for number, name in enumerate(order)}
    assert all(place[other] < place[name] for name, others in before.items() for other in others)


def executor(cost: float, seconds: float | None, wanted: int, margin: int = 100) -> Any:
    plan = SimpleNamespace(budget=3300, margin=margin, schedule=SimpleNamespace(cost=cost))
    return SimpleNamespace(plan=plan, rehearsed_seconds=seconds, wanted_room=wanted, added_in_turn=1, overlaps=not wanted)


def shaped(made: list[Any], asked: list[int], rehearsed: list[Any]) -> Any:
    """A step whose plans are these ones, one after the other."""
    one: Any = object.__new__(_Shaped)
    plans = iter(made)
    one.make = lambda budget, margin, again: asked.append(margin) or next(plans)
    one.rehearse = rehearsed.append
    one._seen = lambda candidate, added: candidate
    one._overlapped = lambda candidate: iter(())
    return one


@pytest.mark.parametrize(
    ("cost", "before", "seconds", "tried", "taken"),
    [
        (1.01, 1.0, 2.0, True, True),
        (1.01, None, None, True, True),
        (1.04, 1.0, 0.9, True, True),
        (1.04, 1.0, 0.97, True, False),
        (1.04, 1.0, None, True, False),
        (1.04, None, 0.5, False, False),  # nobody could tell
        (1.06, 1.0, 0.5, False, False),
    ],
)
def test_a_plan_with_more_room_costs_little_or_is_quicker(
    cost: float, before: float | None, seconds: float | None, tried: bool, taken: bool
) -> None:
    first, other = executor(1.0, before, 50), executor(cost, seconds, 0)
    asked: list[int] = []
    rehearsed: list[Any] = []
    best = list(shaped([other], asked, rehearsed).improve(first))[-1:] or [first]
    assert best == [other if taken else first]
    assert asked[0] == 200  # what is wanted, in whole parts of the budget
    assert bool(rehearsed) == tried


def test_more_room_is_left_until_ops_overlap() -> None:
    first, other, last = executor(1.0, None, 50), executor(1.005, None, 120, margin=200), executor(1.01, None, 0, margin=400)
    asked: list[int] = []
    assert list(shaped([other, last], asked, []).improve(first)) == [first, first, last]
    assert asked == [200, 400]
    never = [executor(1.0, None, 50) for _ in range(9)]
    asked.clear()
    assert set(map(id, shaped(never, asked, []).improve(first))) == {id(first)}
    assert 1 < len(asked) < 5
