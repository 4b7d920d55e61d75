"""The functions that run a schedule."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import pytest
from torch import fx

import checkmate
import checkmate.torch
from checkmate.schedule import Step, steps_from_sequence
from checkmate.torch.capture import Captured
from support import random_sequence
from torch_models import case, identical, train, twin

#: Where the name that the test replaces is looked up.
BACKEND = sys.modules["checkmate.torch.backend"]


def test_inputs_of_the_backward_pass_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated code of an input whose name is not its target assigns twice, and can overwrite another input in between."""
    which = case("decoder")
    expected = train(which, twin(which.model), steps=2)
    seen: list[Captured] = []
    emit = BACKEND.emit

    def recorded(captured: Captured, steps: Sequence[Step]) -> tuple[fx.GraphModule, fx.GraphModule | None]:
        seen.append(captured)
        found: tuple[fx.GraphModule, fx.GraphModule | None] = emit(captured, steps)
        return found

    monkeypatch.setattr(BACKEND, "emit", recorded)
    model = checkmate.torch.compile(twin(which.model), budget="60%", method="greedy")
    assert identical(train(which, model, steps=2), expected)
    (captured,) = seen
    rng = random.Random(0)
    for _ in range(10):
        sequence = random_sequence(rng, captured.graph)
        for one in emit(captured, steps_from_sequence(captured.graph, sequence)):
            inputs = one.graph.find_nodes(op="placeholder")
            assert [node.target for node in inputs] == [node.name for node in inputs]
