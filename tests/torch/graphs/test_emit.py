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
from checkmate.torch.graphs.capture import Captured
from checkmate.torch.graphs.emit import Emitted, emit
from checkmate.torch.memory.script_memory import ScriptMemory
from checkmate.torch.pytorch.bindings import BINDINGS
from checkmate.torch.pytorch.internals import Boxed, boxed
from checkmate.torch.rounds.watch import Watch
from support import random_sequence
from torch_models import case, train, twin

#: Where the name that the test replaces is looked up.
HALVES = sys.modules["checkmate.torch.graphs.halves"]


@pytest.mark.parametrize("name", ["residual", "unet", "decoder"])
def test_any_schedule_gives_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which, seen, calls = case(name), list[Captured](), list[list[Any]]()

    def recorded(captured: Captured, steps: Sequence[Step]) -> Emitted:
        seen.append(captured)
        return emit(captured, steps)

    def run(self: Watch, event: int, function: Boxed, arguments: list[Any]) -> Any:
        calls.append(list(arguments))
        return function(arguments)

    monkeypatch.setattr(HALVES, "emit", recorded)
    monkeypatch.setattr(Watch, "run", run)
    monkeypatch.setattr(ScriptMemory, "engine_begins", lambda self, roots: False)  # else it runs the backward pass
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


class _Views(torch.nn.Module):
    """Views that look like what they are made from: read, returned, of an input, of a parameter, of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = (x @ self.weight.t().t()).sin()
        z = y.view(2, 12, 6).view(24, 6)
        return z.exp().t(), y, z, y.t().t(), x.t().t(), x.detach(), self.weight.view(6, 6), (x * z.detach()).view(24, 6)


def test_views_that_look_like_what_they_are_made_from_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[Any] = []

    def recorded(captured: Captured, steps: Sequence[Step]) -> Emitted:
        emitted = emit(captured, steps)
        modules.extend([emitted.forward, emitted.backward])
        return emitted

    monkeypatch.setattr(HALVES, "emit", recorded)
    plain = _Views()
    model, other = twin(plain), twin(plain)
    traced = torch.compile(model, backend="aot_eager", dynamic=False)  # which adds gradients up in the order of the trace, too
    compiled = checkmate.torch.compile(other, budget="1GiB", dynamic=False)
    for _ in range(2):
        inputs = [torch.randn(24, 6, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2)]
        both = [function(x) for function, x in zip((traced, compiled), inputs, strict=True)]
        assert len(set(map(id, both[1]))) == len(both[1]), "each output is a tensor of its own"
        expected = plain(inputs[0])
        for mine, wanted in zip(both[1], expected, strict=True):
            assert torch.equal(mine, wanted)
            assert (mine.stride(), mine.requires_grad) == (wanted.stride(), wanted.requires_grad)
        for outputs in both:
            sum(x.cos().sum() for x in outputs if x.requires_grad).backward()  # type: ignore[union-attr]
        assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]
        assert torch.equal(model.weight.grad, other.weight.grad)  # type: ignore[arg-type]
    for module in modules:
        (output,) = module.graph.find_nodes(op="output")
        returned = [node for node in output.args[0] if isinstance(node, torch.fx.Node)]
        twice = [node for node in module.graph.nodes if (source := _turned(node)) is not None and _turned(source) is not None]
        assert set(twice) <= set(returned), "what only other ops read is not turned twice"
    assert len(set(returned)) == len(returned)


def _turned(node: torch.fx.Node) -> torch.fx.Node | None:
    """What a transposition reads."""
    source = node.args[0] if node.target is torch.ops.aten.t.default else None
    return source if isinstance(source, torch.fx.Node) else None


def test_gradients_of_one_value_are_those_of_the_trace() -> None:
    """Autograd keeps what a backward pass returns and adds later gradients to it in place: even that stays as it is without a plan.

    (Two parameters whose gradients are views of one tensor, as here, get wrong ones from the second step on in plain training.)
    """

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return ((self.one.t().t() + self.other.view(4, 4)) * x).sum()

    model = Sum()
    compiled = checkmate.torch.compile(twin(model), budget="1GiB", dynamic=False)
    for x in torch.randn(3, 4, 4):
        model(x).backward()
        compiled(x).backward()
    for mine, plain in zip(compiled.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, plain.grad)  # type: ignore[arg-type]


def test_what_is_called_in_place_of_an_operator_does_the_same() -> None:
    a, b = torch.randn(2, 6, 6).unbind()
    weight, bias = torch.randn(2, 6).unbind()
    aten = torch.ops.aten
    given: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
        aten.add.Tensor: [((a, b), {}), ((a, 2), {}), ((a.int(), 2.5), {}), ((a, b), {"alpha": 3})],
        aten.addmm.default: [((bias, a, b), {}), ((bias, a, b), {"beta": 2, "alpha": 0.5})],
        aten.bmm.default: [((a[None], b[None]), {})],
        aten.mm.default: [((a, b.t()), {})],
        aten.mul.Tensor: [((a, b), {}), ((a.half(), 2.5), {}), ((a > 0, 3), {})],
        aten.native_layer_norm.default: [((a, [6], weight, bias, 1e-5), {}), ((a, [6, 6], None, None, 1e-5), {})],
        aten.permute.default: [((a, [1, 0]), {}), ((a[None], [-1, 0, 1]), {})],
        aten.t.default: [((a,), {}), ((bias,), {})],
        aten.transpose.int: [((a, 0, -1), {})],
        aten.view.default: [((a, [3, -1]), {}), ((a, [36]), {})],
    }
    assert set(given) == set(BINDINGS)
    for operator, calls in given.items():
        for arguments, keywords in calls:
            one, other = operator(*arguments, **keywords), BINDINGS[operator](*arguments, **keywords)
            for x, y in zip(*(x if isinstance(x, tuple) else (x,) for x in (one, other)), strict=True):
                assert torch.equal(x, y)
                assert (x.dtype, x.stride()) == (y.dtype, y.stride())
                assert (x.data_ptr() == y.data_ptr()) == (x.data_ptr() == a.data_ptr() or x.data_ptr() == bias.data_ptr())
