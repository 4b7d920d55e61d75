"""The functions that run a schedule: whatever is recomputed, and wherever, the numbers are the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import checkmate
import checkmate.torch
from checkmate.schedule import Step, steps_from_sequence
from checkmate.torch.capture import Captured
from checkmate.torch.emit import Emitted, emit
from checkmate.torch.internals import Boxed, boxed
from checkmate.torch.watch import Watch
from support import random_sequence
from torch_models import case, train, twin

#: Where the name that the test replaces is looked up.
STEP_PLAN = sys.modules["checkmate.torch.step_plan"]


@pytest.mark.parametrize("name", ["residual", "unet", "decoder"])
def test_any_schedule_gives_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which, seen, calls = case(name), list[Captured](), list[list[Any]]()

    def recorded(captured: Captured, steps: Sequence[Step]) -> Emitted:
        seen.append(captured)
        return emit(captured, steps)

    def run(self: Watch, event: int, function: Boxed, arguments: list[Any]) -> Any:
        calls.append(list(arguments))
        return function(arguments)

    monkeypatch.setattr(STEP_PLAN, "emit", recorded)
    monkeypatch.setattr(Watch, "run", run)
    train(which, checkmate.torch.compile(twin(which.model), budget="1GiB", dynamic=False), steps=1)
    (captured,), (inputs, (*_, tangent)) = seen, calls
    given = [argument for argument in inputs if isinstance(argument, Tensor)]
    before = [argument.detach().clone() for argument in given]

    def numbers(sequence: Sequence[int]) -> list[Tensor]:
        emitted = emit(captured, steps_from_sequence(captured.graph, sequence))
        forward, backward = emitted.forward, emitted.backward
        assert backward is not None
        for part in (forward, backward):  # otherwise the generated code can overwrite one input with another
            assert all(node.target == node.name for node in part.graph.find_nodes(op="placeholder"))
        for argument, old in zip(given, before, strict=True):
            argument.data.copy_(old)  # what the step overwrites, like statistics
        torch.manual_seed(7)
        outputs = boxed(forward)(list(inputs))
        count = len(captured.outputs)
        results = [*outputs[:count], *boxed(backward)([*outputs[count:], tangent.clone()])]
        return [result.clone() for result in results if isinstance(result, Tensor)]

    rng = random.Random(0)
    with torch.no_grad():
        expected = numbers(range(captured.graph.num_ops))
        for repeats in (0.1, 0.3, 0.5) * 4:
            found = numbers(random_sequence(rng, captured.graph, repeats))
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
