"""Ops of an emitted step that write in an input that dies: which do, that results are the same, and what memory it saves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import checkmate
from checkmate.graph import Graph
from checkmate.schedule import steps_from_sequence
from checkmate.torch import Plan, measure
from checkmate.torch.memory.measure import measure_pass
from checkmate.torch.ops.in_place import like, out_variant
from checkmate.torch.rounds import step_plan

aten = torch.ops.aten


def test_elementwise_ops_have_a_form_that_writes_into_a_tensor() -> None:
    assert out_variant(aten.add.Tensor) == (aten.add.out, "out")
    assert out_variant(aten.where.self) == (aten.where.self_out, "out")
    assert out_variant(aten.gelu_backward.default) == (aten.gelu_backward.grad_input, "grad_input")
    for other in (aten.mm.default, aten.sum.dim_IntList, aten.add_.Tensor, aten.view.default, len):
        assert out_variant(other) is None


def elementwise() -> Iterator[tuple[Any, int]]:
    """Every elementwise op of PyTorch that takes nothing but tensors, and how many."""
    for name in (name for name in dir(aten) if not name.startswith("__")):
        for overload in getattr(aten, name).overloads() if isinstance(getattr(aten, name), torch._ops.OpOverloadPacket) else ():
            op = getattr(getattr(aten, name), overload)
            needed = [argument for argument in op._schema.arguments if not argument.has_default_value()]
            if out_variant(op) is not None and all(str(argument.type) == "Tensor" for argument in needed):
                yield op, len(needed)


def test_writing_in_place_takes_less_by_the_output() -> None:
    checked = 0
    for op, count in elementwise():
        given = [torch.rand(64, 64) for _ in range(count)]
        variant, name = out_variant(op) or (None, "")
        try:
            with measure_pass(torch.device("cpu"), given) as plain:
                made = op(*given)
        except (RuntimeError, NotImplementedError):  # of another type of numbers
            continue
        if made.dtype == torch.float32 and made.shape == (64, 64):
            with measure_pass(torch.device("cpu"), given) as seen:
                variant(*given, **{name: given[0]})
            few = 64  # bytes, of numbers as tensors
            assert seen.peak - seen.base <= max(0, plain.peak - plain.base - made.nbytes) + few, op
            checked += 1
        del made
    assert checked > 60


def test_only_the_same_places_of_equal_storages_are_alike() -> None:
    x = torch.zeros(4, 6)
    assert like(x, torch.ones(4, 6))
    for other in (x.T, x[:2], x.double(), torch.zeros(24), torch.zeros(5, 6)[1:], torch.zeros(4, 1).expand(4, 6)):
        assert not like(x, other)


class Branches(nn.Module):
    """The gradient of `x` is a sum of many."""

    def __init__(self, width: int = 64, branches: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        return sum((branch(x).sin().sum() for branch in self.branches), torch.zeros(()))


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if op.reuses is not None]


def test_gradients_add_up_in_one_buffer(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    with measure() as before:  # what other tests have left
        pass
    torch.manual_seed(0)
    plain, x = Branches(), torch.randn(512, 64)
    graph = checkmate.torch.capture(plain, x)
    assert sum(name.startswith("add") for name in names(graph)) >= 3
    apart = Graph([replace(op, reuses=None) for op in graph.ops], graph.values, graph.fixed_memory)
    assert checkmate.minimum_budget(graph)[1] < checkmate.minimum_budget(apart)[0]

    model = checkmate.torch.compile(plain, budget=checkmate.minimum_budget(graph)[1] + 4096)
    for _ in range(2):
        model.zero_grad()
        with measure() as taken:
            model(x).backward()
    (plan,) = checkmate.torch.plans(model)
    assert taken.peak - before.base <= plan.budget
    again = Branches()
    again.load_state_dict(plain.state_dict())
    again(x).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), again.parameters(), strict=True))


def scattered(name: str, x: Tensor, places: Tensor) -> Tensor:
    """Something that scatters, in the forward or in the backward pass."""
    rows = places % len(x)
    return {
        "gather": lambda: x.gather(0, rows[:, None].expand(-1, x.shape[1])),
        "index": lambda: x[rows],
        "scatter_add": lambda: torch.zeros_like(x).scatter_add(0, rows[:, None].expand_as(x), x),
        "scatter": lambda: (x * 2).scatter(0, rows[:, None].expand_as(x)[:1], x[:1]),
        "scatter_value": lambda: (x * 2).scatter(0, rows[:, None].expand_as(x)[:1], 0.5),
        "scatter_reduce": lambda: (x * 2).scatter_reduce(0, rows[:, None].expand_as(x), x, "sum"),
        "index_add": lambda: (x * 2).index_add(0, rows, x),
        "index_put": lambda: (x * 2).index_put((rows,), x, accumulate=True),
    }[name]()


@pytest.mark.parametrize(
    "name", ["gather", "index", "scatter_add", "scatter", "scatter_value", "scatter_reduce", "index_add", "index_put"]
)
def test_what_is_scattered_goes_into_what_was_there(name: str) -> None:
    torch.manual_seed(0)
    places = torch.randint(0, 1000, (512,))

    class Scatter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return scattered(name, self.first(x).sin(), places).tanh().square().sum()

    plain, x = Scatter(), torch.randn(512, 64)
    graph = checkmate.torch.capture(plain, x)
    assert any(found.startswith(("scatter", "index")) for found in names(graph))
    plain(x).backward()
    expected = [parameter.grad for parameter in plain.parameters()]
    plain.zero_grad()
    model = checkmate.torch.compile(plain, "110%", time_limit=2)
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
    assert all(torch.equal(parameter.grad, other) for parameter, other in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("last", ["returned", "kept by the script", "read twice", "a view is read"])
def test_what_somebody_else_may_look_at_is_left_alone(last: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        inner = x.cos()
        outer = inner.neg()
        if last == "returned":
            return outer, inner
        if last == "kept by the script":
            return (outer,)
        if last == "read twice":
            return (outer.exp().sum() + inner.sum(),)
        return (outer.exp().sum() + inner.t().mm(inner).sum(),)

    class Function(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return f(x)

    graph = checkmate.torch.capture(Function(), torch.randn(8, 8, requires_grad=True))
    neg = next(op for op in graph.ops if op.name == "neg")
    assert neg.reuses is None or last == "kept by the script"


def test_a_second_backward_pass_finds_what_the_forward_pass_saved() -> None:
    torch.manual_seed(0)
    plain, x = Branches(), torch.randn(64, 64)
    ours = Branches()
    ours.load_state_dict(plain.state_dict())
    ours = checkmate.torch.compile(ours, budget="10MiB")
    for model in (plain, ours):
        loss = model(x)
        loss.backward(retain_graph=True)
        loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), ours.parameters(), strict=True))


class Doubled(nn.Module):
    """Between two layers an op that is done again in no time; going back, the largest gradient is there first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 64), nn.Linear(64, 1), nn.Linear(2048, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(2 * self.first(x)).t())  # type: ignore[no-any-return]  # modules return Any


def test_what_the_forward_pass_saved_is_written_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may keep what an op reads and do the op again, where what it reads dies: the model counts one buffer then."""
    torch.manual_seed(0)
    plain, x = Doubled(), torch.randn(2048, 64)
    make_plan = step_plan.make_plan

    def with_doubling_again(graph: Graph, *arguments: Any, **keywords: Any) -> Plan:
        plan = make_plan(graph, *arguments, **keywords)
        (doubling,) = (number for number, op in enumerate(graph.ops) if op.name.endswith("mul") and op.phase == "forward")
        reader = next(
            number
            for number, op in enumerate(graph.ops)
            if op.phase == "backward" and not set(op.inputs).isdisjoint(graph.ops[doubling].outputs)
        )
        steps = steps_from_sequence(graph, [*range(reader), doubling, *range(reader, graph.num_ops)])
        plan.schedule = replace(plan.schedule, steps=steps)
        return plan

    monkeypatch.setattr(step_plan, "make_plan", with_doubling_again)
    ours = checkmate.torch.compile(copy.deepcopy(plain), budget="64MiB")
    for model in (plain, ours):
        model(x).sum().backward()
    (plan,) = checkmate.torch.plans(ours)
    assert plan.schedule.num_recomputations == 1
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.modelled_peak < plan.measured_peak + 2048 * 64
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), ours.parameters(), strict=True))
