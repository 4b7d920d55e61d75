"""One symbolic trace for all shapes: its numbers are those of a static trace at each, and so are the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import checkmate
import checkmate.torch
from checkmate.graph import Graph
from checkmate.planning import OpCost
from checkmate.planning.cost_cache import close_cost_caches
from checkmate.schedule import Step, steps_from_sequence
from checkmate.torch.graphs.capture import Captured
from checkmate.torch.ops.profile import profile_nodes
from checkmate.torch.ops.sizes import Bindings, Concrete, Number, Sizes
from support import random_sequence
from torch_models import Decoder, ResidualNet, UNet, identical, state, twin
from torch_symbolic import SymbolicTraining

Batches = Sequence[tuple[Any, ...]]


def images(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))) for batch, side in shapes]


def tokens(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randint(0, 50, shape), torch.randint(0, 50, shape)) for shape in shapes]


class Half(nn.Module):
    """bfloat16, and a slope that is worked out from the sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, dtype=torch.bfloat16), nn.Linear(16, 4, dtype=torch.bfloat16)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, int]:
        hidden = F.dropout(F.leaky_relu(self.first(x), 0.37 / x.shape[0]), 0.2)
        scores = self.second(hidden.flatten(0, 1)).float()
        return F.cross_entropy(scores, labels.flatten()), x.shape[0] * x.shape[1] + 1


def halves(*shapes: tuple[int, int]) -> Batches:
    return [(torch.randn(*shape, 8, dtype=torch.bfloat16), torch.randint(0, 4, shape)) for shape in shapes]


class Bag(nn.Module):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(50, 64, sparse=True), nn.Linear(64, 50)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids)
        for _ in range(4):
            x = x.exp().sin()
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batches]]] = {
    "attention": (lambda: Decoder(blocks=1), lambda: tokens((4, 32), (3, 17), (5, 8), (4, 32))),
    "batch norm": (lambda: ResidualNet(4, 1), lambda: images((4, 12), (3, 12), (7, 10))),
    "skips": (lambda: UNet(depth=1), lambda: [(torch.randn(n, 3, s, s),) for n, s in ((2, 16), (3, 16), (4, 24))]),
    "bfloat16": (Half, lambda: halves((4, 6), (3, 5), (9, 2))),
    "sparse": (Bag, lambda: tokens((4, 7), (3, 5), (2, 9))),
}


def trained(model: nn.Module, call: Callable[..., Any], batches: Batches) -> list[Tensor]:
    """What some steps of training give, with all that they change."""
    torch.manual_seed(1)
    found: list[Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in batches:
        optimizer.zero_grad()
        output = call(*batch)
        if isinstance(output, tuple):
            output, number = output
            found.append(torch.tensor(number))
        loss = output if output.dim() == 0 else output.square().mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(p.grad.to_dense().clone() for p in model.parameters() if p.grad is not None)]
    return [*found, *state(model), torch.get_rng_state()]


@pytest.mark.parametrize("name", CASES)
def test_one_trace_runs_any_schedule_at_any_size(name: str) -> None:
    torch.manual_seed(0)
    make, draw = CASES[name]
    model, batches, rng = make(), draw(), random.Random(0)

    def choose(graph: Graph) -> Sequence[Step]:
        return steps_from_sequence(graph, random_sequence(rng, graph, 0.3))

    other = twin(model)
    backend = SymbolicTraining(choose)
    torch._dynamo.reset()
    found = trained(other, torch.compile(other, backend=backend, dynamic=True), batches)
    expected = trained(model, model, batches)
    assert identical(found, expected)
    assert len(backend.captured) == 1
    assert len(set(backend.seen)) == len({tuple(batch[0].shape) for batch in batches})
    assert not backend.crossing


def captured_from(model: nn.Module, *batches: tuple[Any, ...], dynamic: bool = True) -> tuple[Captured, list[Bindings]]:
    """The step of a model, traced with or without symbols, and what they are for each batch."""
    backend = SymbolicTraining()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for batch in batches:
        compiled(*batch)
    (found,) = backend.captured
    return found, backend.seen


@pytest.mark.parametrize("name", [pytest.param("attention", marks=pytest.mark.slow), "batch norm", "bfloat16", "sparse"])
def test_at_any_size_the_graph_is_that_of_a_trace_with_fixed_sizes(name: str) -> None:
    torch.manual_seed(0)
    make, draw = CASES[name]
    model, batches = make(), draw()[:2]
    symbolic, seen = captured_from(twin(model), *batches)
    assert symbolic.sizes.hints == symbolic.bindings == seen[0]
    assert len(set(seen)) == 2
    for batch, bindings in zip(batches, seen, strict=True):
        fixed, unbound = captured_from(twin(model), batch, dynamic=False)
        assert fixed.sizes.symbols == fixed.bindings == unbound[0] == ()
        found = symbolic.at(bindings)
        assert found.bindings == bindings
        assert found.resident == fixed.resident
        assert found.graph.fixed_memory == fixed.graph.fixed_memory
        for one, other in zip(found.graph.ops, fixed.graph.ops, strict=True):  # the names alone may differ
            assert replace(one, name="") == replace(other, name="")
        assert [(v.size, v.keep) for v in found.graph.values] == [(v.size, v.keep) for v in fixed.graph.values]
        assert found.graph.no_recompute_peak == fixed.graph.no_recompute_peak
        assert [str(n and n.target) for n in found.nodes] == [str(n and n.target) for n in fixed.nodes]
        assert [i.size for i in found.inputs] == [i.size for i in fixed.inputs]
        assert [(i.readers, i.gradient) for i in found.inputs] == [(i.readers, i.gradient) for i in fixed.inputs]


def test_costs_are_those_of_the_sizes_or_of_a_larger_graph() -> None:
    asked: list[list[tuple[int, ...]]] = []

    def profile(nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
        asked.append([Concrete.of(node.meta["val"], number).shape for node in nodes if isinstance(node.meta["val"], Tensor)])
        return profile_nodes(nodes, "flops", number=number)

    backend = SymbolicTraining(profile=profile)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (x @ w).exp().sum(), backend=backend, dynamic=True)
    compiled(torch.ones(40, 30), torch.ones(30, 20, requires_grad=True))
    (large,) = backend.captured
    names = dict(zip(large.sizes.symbols, large.bindings, strict=True))
    assert sorted(names.values()) == [20, 30, 40]
    small = large.at(tuple({40: 8, 30: 6, 20: 4}[n] for n in large.bindings))
    assert (40, 20) in asked[0] and (8, 4) in asked[1] and (40, 20) not in asked[1]
    assert small.graph.ideal_cost < large.graph.ideal_cost
    borrowed = large.at(small.bindings, costs_of=large)
    assert len(asked) == 2
    assert [op.cost for op in borrowed.graph.ops] == [op.cost for op in large.graph.ops]
    assert borrowed.graph.values == small.graph.values
    assert small.graph.values[0].size == 4 * 8 * 4
    # What the loss outside needs follows the sizes in every case: nothing here, for the output is a scalar.
    assert small.between is not None
    assert small.graph.ops[small.between].workspace == 0


def test_measured_costs_run_at_the_given_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    backend = SymbolicTraining(profile=lambda nodes, number: profile_nodes(nodes, number=number))
    torch._dynamo.reset()
    x = torch.ones(50, 40, requires_grad=True)
    torch.compile(lambda x: x.exp().sum(), backend=backend, dynamic=True)(x)
    (captured,) = backend.captured
    rows = {50: 500, 40: 400}
    captured.at(tuple(rows[n] for n in captured.bindings))
    close_cost_caches()
    kept = "".join(path.read_text() for path in tmp_path.glob("costs-*.json"))
    assert "[50, 40]" in kept
    assert "[500, 400]" in kept


def test_the_backward_pass_gets_sizes_as_numbers_and_no_tensor_for_them() -> None:
    def f(x: Tensor) -> Tensor:
        return (x + 1).sum()  # its gradient has the shape of what is summed, which is gone by then

    backend = SymbolicTraining()
    torch._dynamo.reset()
    x = torch.randn(6, 5, requires_grad=True)
    loss = torch.compile(f, backend=backend, dynamic=True)(x)
    ((emitted, captured, saved),) = backend.crossing.values()
    assert saved == []
    assert emitted.backward is not None
    assert sorted(emitted.backward_numbers(captured.bindings)) == [5, 6]
    assert len(emitted.backward.graph.find_nodes(op="placeholder")) == 3  # after the gradient of the loss
    loss.backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(6, 5))


def test_sparse_gradients_train_under_a_budget() -> None:
    torch.manual_seed(0)
    batches = tokens((16, 32), (16, 32))
    model = Bag()
    other = checkmate.torch.compile(twin(model), budget="90%")
    assert identical(trained(other, other, batches), trained(model, model, batches))
    (plan,) = checkmate.torch.plans(other)
    graph = plan.graph
    (sparse,) = (op for op in graph.ops if "sparse_coo" in op.name)
    assert not sparse.recomputable
    assert [(graph.values[value].size, graph.values[value].keep) for value in sparse.outputs] == [(16 * 32 * (64 * 4 + 8), True)]
    assert plan.schedule.peak < graph.no_recompute_peak
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.predicted_peak


def test_sizes_are_returned_and_numbers_read_from_data_cross() -> None:
    def f(x: Tensor, slope: Tensor) -> tuple[Tensor, int]:
        return F.leaky_relu(x, slope.item()).sum(), x.shape[0] * x.shape[1] + 1

    backend = SymbolicTraining()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend=backend, dynamic=True, fullgraph=True)
        for shape in ((4, 5), (6, 7)):
            x, slope = torch.randn(shape, requires_grad=True), torch.tensor(1 / shape[0])
            loss, number = compiled(x, slope)
            assert number == shape[0] * shape[1] + 1
            loss.backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.where(x > 0, 1.0, slope).detach())
    (captured,) = backend.captured
    assert [isinstance(node.meta["val"], torch.SymInt) for node in captured.outputs] == [False, True]
    assert captured.outputs[1] in captured.scalars
    assert captured.returned[1] is captured.tangents[1] is None
    reads = [node for node in captured.nodes if node is not None and node.target is torch.ops.aten._local_scalar_dense.default]
    assert len(reads) == 1  # an op: it follows from no size


def test_symbols_that_the_compiler_finds_by_itself() -> None:
    """After the second shape PyTorch traces again, with a symbol for what has changed."""
    backend = SymbolicTraining()
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    compiled = torch.compile(model, backend=backend)
    for rows in (4, 6, 9, 7):
        x = torch.randn(rows, 5)
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            call(x).square().sum().backward()
            gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        assert identical(*gradients)
    assert [len(captured.sizes.symbols) for captured in backend.captured] == [0, 1]
    assert backend.seen == [(), (6,), (9,), (7,)]


def test_what_joins_graphs() -> None:
    """Inputs with their readers and gradients, outputs with theirs."""

    def f(x: Tensor, w: Tensor, counter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counter.add_(1)
        hidden = (x.t() @ w).exp()
        return hidden, x, hidden.detach().argmax()

    backend = SymbolicTraining()
    torch._dynamo.reset()
    x, w, counter = torch.randn(6, 5), torch.randn(6, 4, requires_grad=True), torch.zeros(3)
    torch.compile(f, backend=backend, dynamic=True)(x, w, counter)
    (captured,) = backend.captured
    inputs = {tensor.nodes[0].meta["val"].dim() * 100 + tensor.size: tensor for tensor in captured.inputs}
    given, weight, counted = inputs[200 + x.nbytes], inputs[200 + w.nbytes], inputs[100 + counter.nbytes]
    assert len(inputs) == 3
    names = [op.name for op in captured.graph.ops]
    assert captured.between is not None
    assert [names[op] for op in weight.readers] == ["mm"]
    assert captured.graph.ops[given.readers[0]].name == "mm"  # through the transposed view
    assert weight.gradient is not None
    assert captured.graph.values[weight.gradient].keep
    assert captured.graph.values[weight.gradient].size == w.nbytes
    assert given.gradient is counted.gradient is None
    assert [tensor.overwritten for tensor in (given, weight, counted)] == [False, False, True]
    makers = [None if value is None else captured.graph.producer[value] for value in captured.returned]
    assert "exp" in [names[op] for op in makers if op is not None]
    pairs = [(v, t) for v, t in zip(captured.returned, captured.tangents, strict=True) if t is not None]
    ((value, tangent),) = pairs  # only one output has a gradient
    assert value is not None
    assert names[captured.graph.producer[value]] == "exp"
    assert captured.graph.producer[tangent] == captured.between
    assert captured.graph.values[tangent].size == captured.graph.values[value].size == 4 * 5 * 4


def test_a_size_in_an_expression() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = dynamic(mode, torch.ones(7, 5))
    sizes = Sizes([3, x])
    assert sizes.hints == (7, 5)
    rows, columns = x.shape
    wanted = [rows, (rows + 1) // 2 * columns, 9, rows % 4, torch.sym_max(rows, columns), rows * columns - rows]
    function = sizes.function(wanted)
    assert function((7, 5)) == (7, 20, 9, 3, 7, 28)
    assert function((2, 9)) == (2, 9, 9, 2, 9, 16)
    assert sizes.bind([3, torch.ones(4, 6)]) == (4, 6)
    with mode:
        column = x.t()[1:]
    known = Concrete.of(column, sizes.at((4, 6)))
    assert known == Concrete((5, 4), (1, 6), 4 * 6 * 4, torch.float32, torch.device("cpu"))


def dynamic(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A fake tensor all of whose sizes are symbols."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context)


def test_sequences_that_differ_in_length_come_as_one_tensor() -> None:
    """`torch.jagged` puts a number into the trace that stands for all lengths and is none of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16))
    plain = twin(model)
    planned = checkmate.torch.compile(model, budget=1_050_000, time_limit=2)
    for lengths in ((400, 700, 300), (300, 500), (400, 700, 300)):
        x = torch.nested.nested_tensor([torch.randn(length, 16) for length in lengths], layout=torch.jagged)
        for one in (plain, planned):
            one(x).values().square().mean().backward()
    assert identical(*([p.grad for p in one.parameters() if p.grad is not None] for one in (plain, model)))
    plans = checkmate.torch.plans(planned)
    assert all(plan.measured_peak is not None and plan.measured_peak <= 1_050_000 for plan in plans)
    assert any(plan.schedule.num_recomputations for plan in plans)


def test_sequences_that_differ_in_length_may_need_a_gradient() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))
    planned = checkmate.torch.compile(twin(plain), budget="64MiB", time_limit=2)
    found = []
    for one in (plain, planned):
        torch.manual_seed(1)
        x = torch.nested.nested_tensor(
            [torch.randn(length, 16) for length in (20, 23, 29)], layout=torch.jagged, requires_grad=True
        )
        one(x).values().square().mean().backward()
        assert x.grad is not None
        found.append([x.grad.values(), *(parameter.grad for parameter in one.parameters())])
    assert identical(*found)
