"""Ops that run as one kernel are planned as one op, and written out again afterwards."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from checkmate import Compute, Free, Graph, Op, Value, simulate
from checkmate.planning import OpCost
from checkmate.planning.fusion import Fusion, Kind, fuse
from checkmate.planning.parts import PartGraph, PartInput
from checkmate.schedule import steps_from_sequence
from support import random_sequence

seeds = st.integers(0, 2**32 - 1)


def fusion(graph: Graph, kinds: str, needed: set[int] = frozenset()) -> Fusion:  # type: ignore[assignment]
    """`kinds` has a letter for each op: i, k or c. A group costs 1 for each op, and 100 where it is computed in others."""
    letters = {"i": Kind.INLINE, "k": Kind.KERNEL, "c": Kind.CALL}
    return fuse(
        graph, [letters[letter] for letter in kinds], needed, lambda group, within: OpCost(100.0 if within else len(group), 0)
    )


def chain(*reads: tuple[int, ...], keep: tuple[int, ...] = (), late: int = 99, once: tuple[int, ...] = ()) -> Graph:
    """One op for each entry, which makes value i of 10 + i bytes and reads these."""
    ops = [
        Op(f"op {i}", 1.0, given, (i,), recomputable=i not in once, phase="backward" if i >= late else "forward")
        for i, given in enumerate(reads)
    ]
    return Graph(ops, [Value(f"value {i}", 10 + i, i in keep) for i in range(len(reads))], 5)


def test_elementwise_ops_join_the_one_kernel_that_reads_them() -> None:
    made = fusion(chain((), (0,), (1,), (2,), keep=(3,)), "ciik")
    assert made.members == ((0,), (1, 2, 3))
    assert made.values == (0, 3)
    joined = made.graph.ops[1]
    assert (joined.inputs, joined.outputs, joined.cost) == ((0,), (1,), 3.0)
    assert [value.size for value in made.graph.values] == [10, 13]
    steps = [Compute(0), Compute(1), Free(0)]
    assert made.expand(steps) == [Compute(0), Compute(1), Compute(2), Free(1), Compute(3), Free(2), Free(0)]


def test_what_is_read_in_two_places_takes_memory() -> None:
    assert fusion(chain((), (0,), (1,), (1,), keep=(2, 3)), "ciik").members == ((0,), (1,), (2,), (3,))


def test_two_ways_into_one_kernel_are_one() -> None:
    """A value that two ops of the same group read stays inside."""
    assert fusion(chain((), (0,), (1,), (1,), (2, 3), keep=(4,)), "ciiik").members == ((0,), (1, 2, 3, 4))


def test_calls_read_and_make_memory() -> None:
    assert fusion(chain((), (0,), (1,), (2,), keep=(3,)), "cicc").members == ((0,), (1,), (2,), (3,))


def test_what_somebody_else_needs_is_not_inside() -> None:
    assert len(fusion(chain((), (0,), (1,), keep=(1, 2)), "cik").members) == 3
    assert len(fusion(chain((), (0,), (1,), keep=(2,)), "cik", {1}).members) == 3
    assert len(fusion(chain((), (0,), (1,), keep=(2,)), "cik").members) == 2


def test_no_kernel_is_in_two_passes() -> None:
    assert len(fusion(chain((), (0,), (1,), keep=(2,), late=2), "cik").members) == 3


def test_what_runs_once_joins_nothing() -> None:
    """Its group could run again; a group with such an op at its end runs once as a whole."""
    assert len(fusion(chain((), (0,), (1,), keep=(2,), once=(1,)), "cik").members) == 3
    made = fusion(chain((), (0,), (1,), keep=(2,), once=(2,)), "cik")
    assert [op.recomputable for op in made.graph.ops] == [True, False]


def test_to_be_computed_in_kernels_of_the_backward_pass_has_another_price() -> None:
    by_kernel = fusion(chain((), (0,), (1,), (1, 2), keep=(3,), late=3), "cick")
    assert [op.cost for op in by_kernel.graph.ops] == [1.0, 100.0, 1.0, 1.0]
    by_call = fusion(chain((), (0,), (1,), (1, 2), keep=(3,), late=3), "cicc")
    assert [op.cost for op in by_call.graph.ops] == [1.0, 1.0, 1.0, 1.0]


def test_storage_that_an_op_inside_may_take() -> None:
    ops = [Op("a", 1.0, (), (0,)), Op("b", 1.0, (0,), (1,), reuses=0), Op("c", 1.0, (1,), (2,), reuses=1)]
    graph = Graph(ops, [Value("0", 8), Value("1", 8), Value("2", 8, keep=True)])
    assert fusion(graph, "cii").graph.ops[1].reuses == 0
    assert fusion(graph, "cik").graph.ops[1].reuses is None  # a sum does not go element by element


def test_a_group_has_the_layer_of_the_op_that_it_is_called_after() -> None:
    """Or else of the last one that has any."""

    def layer(*layers: str) -> str:
        graph = chain((), (0,), (1,), (2,), keep=(3,))
        ops = [replace(op, layer=layer) for op, layer in zip(graph.ops, ("input", *layers), strict=True)]
        made = fusion(Graph(ops, graph.values, 5), "ciik").graph
        assert [op.name for op in made.ops] == ["op 0", "op 3"] and made.ops[0].layer == "input"
        return made.ops[1].layer

    assert layer("a", "b", "c") == "c"
    assert layer("a", "b", "") == "b"
    assert layer("", "", "") == ""


def test_parts_are_translated() -> None:
    graph = Graph(
        [
            Op("a", 1.0, (), (0,)),
            Op("b", 1.0, (0,), (1,)),
            Op("c", 1.0, (1,), (2,), recomputable=False),
            Op("between", 0.0, (2,), (3,), recomputable=False, phase="loss"),
            Op("d", 1.0, (3, 0), (4,), phase="backward"),
            Op("e", 1.0, (4,), (5,), phase="backward"),
        ],
        [Value("0", 8), Value("1", 8), Value("2", 8, keep=True), Value("3", 8), Value("4", 8), Value("5", 8, keep=True)],
        16,
    )
    made = fusion(graph, "cikcik")
    part = made.part(PartGraph(graph, 3, (PartInput(16, (1, 2, 5), 5),), (2,), (3,)))
    assert made.members == ((0,), (1, 2), (3,), (4, 5))
    assert part.between == 2
    assert part.inputs == (PartInput(16, (1, 3), 3),)
    assert (part.outputs, part.tangents) == ((1,), (2,))
    assert made.whole_groups({0, 1, 4, 5}) == {0, 3}


@given(seeds)
def test_a_schedule_of_groups_is_one_of_ops(seed: int) -> None:
    """It runs, and what lives between groups is what was planned."""
    rng = random.Random(seed)
    size = rng.randint(1, 12)
    reads = [tuple(sorted(rng.sample(range(i), rng.randint(0, min(i, 3))))) for i in range(size)]
    keep = tuple(rng.sample(range(size), rng.randint(0, size // 3)))
    once = tuple(rng.sample(range(size), rng.randint(0, size // 4)))
    graph = chain(*reads, keep=keep, late=rng.randint(0, size), once=once)
    made = fusion(graph, "".join(rng.choice("iiikc") for _ in reads))
    assert sorted(op for members in made.members for op in members) == list(range(size))
    steps = steps_from_sequence(made.graph, random_sequence(rng, made.graph))
    planned, run = simulate(made.graph, steps), simulate(graph, made.expand(steps))
    assert planned.memory[-1] == run.memory[-1]
    assert planned.peak <= run.peak  # values inside groups take memory where single ops run
