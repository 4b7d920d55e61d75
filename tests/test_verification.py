"""The last check of every schedule agrees with the simulator and with a third judge, and shares code with neither."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

import checkmate
from checkmate import Compute, Free, InvalidSchedule, simulate
from checkmate.schedule import Step, steps_from_sequence
from checkmate.verification import in_order, verify
from support import random_edge_case, random_graph, random_sequence, random_steps, reference_trace, training_chain

PACKAGE = Path(checkmate.__file__).parent


@pytest.mark.parametrize("block", range(4))
def test_three_judges_agree(block: int) -> None:
    """On valid schedules, and on the same ones with a step left out, repeated, or moved."""
    valid = broken = 0
    for seed in range(150 * block, 150 * block + 150):
        rng = random.Random(seed)
        graph = (random_edge_case if seed % 2 else random_graph)(rng, 10)
        steps = random_steps(rng, graph) if seed % 3 else steps_from_sequence(graph, random_sequence(rng, graph))
        for change in ("none", "drop", "repeat", "move"):
            changed = list(steps)
            place = rng.randrange(len(steps))
            if change in ("drop", "move"):
                taken = changed.pop(place)
                changed.insert(rng.randint(0, len(changed)), taken) if change == "move" else None
            elif change == "repeat":
                changed.insert(rng.randint(0, len(changed)), steps[place])
            third = reference_trace(graph, changed)
            if third is None:
                broken += 1
                for judge in (verify, simulate):
                    with pytest.raises(InvalidSchedule):
                        judge(graph, changed)
            else:
                valid += 1
                trace = simulate(graph, changed)
                assert verify(graph, changed) == (trace.cost, trace.peak) and trace.peak == third[1]
    assert valid >= 150 and broken >= 50


def test_order() -> None:
    graph = training_chain(3)
    given: list[Step] = [Compute(op) for op in range(6)]
    other: list[Step] = [Compute(op) for op in (1, 0, 2, 3, 4, 5)]
    mixed: list[Step] = [Compute(op) for op in (0, 1, 3, 2, 4, 5)]
    assert in_order(graph, [*given, Compute(0)], "given") and in_order(graph, given, "any")
    assert not in_order(graph, other, "given") and in_order(graph, other, "any")
    assert not in_order(graph, mixed, "any"), "a backward op before the last forward one"


def test_names_what_is_wrong() -> None:
    graph = training_chain(2)
    for steps, words in (
        ([Compute(1)], "without 'op0'"),
        ([Free(0)], "not live"),
        ([Compute(0)], "'op1' runs 0 times"),
    ):
        with pytest.raises(InvalidSchedule, match=words):
            verify(graph, steps)


def test_no_method_imports_it() -> None:
    """Only `solve` does, and it imports nothing of theirs, nor the simulator."""
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("verification"):
                importing.add(path.relative_to(PACKAGE).as_posix())
    assert importing == {"solvers/solving.py"}
    tree = ast.parse((PACKAGE / "verification.py").read_text(encoding="utf-8"))
    own = {
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for name in node.names
    }
    assert own == {
        ("errors", "InvalidSchedule"),
        ("graph", "Graph"),
        ("schedule", "Compute"),
        ("schedule", "Free"),
        ("schedule", "Step"),
    }
