"""Joint graphs -> graphs to schedule: ops, values and bytes against what the model's own sizes say."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import checkmate.torch
from checkmate.errors import CheckmateError
from checkmate.graph import Graph
from checkmate.torch.graphs.capture import BETWEEN, RNG_STATE_BYTES, Captured, read_joint_graph
from checkmate.torch.ops.sizes import Number
from checkmate.torch.pytorch.internals import trace_and_compile

aten = torch.ops.aten


@dataclass(frozen=True)
class Fixed:
    seconds: float = 1.0
    workspace: int = 100


def fixed(nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, Fixed]:
    return dict.fromkeys(nodes, Fixed())


class Seen(Exception):
    pass


def traced(function: Callable[..., Any], *inputs: Tensor, between: int | None = None) -> Captured:
    """The joint graph of a function, as the compiler hands it over, read."""
    found: list[Captured] = []

    def partition(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any) -> Any:
        found.append(read_joint_graph(joint, num_fwd_outputs, fixed, between_workspace=between, name="g"))
        raise Seen

    def unused(module: fx.GraphModule) -> Any:
        raise AssertionError("no backward pass")

    def compiler(module: fx.GraphModule, example_inputs: Any) -> Any:
        return torch.compiler.disable(lambda *given: trace_and_compile(module, given, partition, unused, unused, unused))

    with pytest.raises(Seen):
        torch.compile(function, backend=compiler, fullgraph=True, dynamic=False)(*inputs)
    return found[0]


def names(graph: Graph, values: Sequence[int]) -> list[str]:
    return [graph.values[value].name for value in values]


def phase(captured: Captured, which: str) -> list[str]:
    """The operators of a phase, in order."""
    pairs = zip(captured.nodes, captured.graph.ops, strict=True)
    return [str(node.target) for node, op in pairs if op.phase == which and node is not None]


def test_views_are_neither_ops_nor_values() -> None:
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 5, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).t().reshape(4, 5).exp().view(-1).sum()

    captured = traced(f, x, w)
    graph = captured.graph
    # The reshape of a transposed matrix copies: an op of its own.
    assert phase(captured, "forward") == ["aten.mm.default", "aten.clone.default", "aten.exp.default", "aten.sum.default"]
    assert [value.size for value in graph.values[:4]] == [80, 80, 80, 4]
    assert graph.ops[1].inputs == (0,)  # read through the transposed view
    assert captured.resident == graph.fixed_memory == x.nbytes + w.nbytes
    transposed = next(node for node in captured.module.graph.nodes if node.target in (aten.t.default, aten.permute.default))
    # Of an input: no value. Of what an op made: that value.
    expected = {0} if captured.value.get(transposed.args[0]) == 0 else set()
    assert {captured.value[node] for node in [transposed] if node in captured.value} == expected
    for value, holders in enumerate(captured.holders):
        assert captured.bases[value] in holders
        assert all(captured.value[node] == value for node in holders)


def test_the_script_between_the_passes_and_what_is_kept() -> None:
    x = torch.randn(10, 3, requires_grad=True)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y.exp(), (y * 2).sum()

    for between in (None, 12345):
        captured = traced(f, x, between=between)
        graph = captured.graph
        assert captured.between is not None
        script = graph.ops[captured.between]
        assert (script.name, script.phase, script.recomputable) == (BETWEEN, "loss", False)
        # It reads both outputs and makes a gradient for each; the estimate is twice the bytes of those that are no scalars.
        assert sorted(graph.values[value].size for value in script.inputs) == [4, 120]
        assert sorted(graph.values[value].size for value in script.outputs) == [4, 120]
        assert script.workspace == (2 * 120 if between is None else between)
        outputs = {captured.value[node] for node in captured.outputs if node is not None}
        scalar = {value for value in script.outputs if graph.values[value].size == 4}
        gradients = {captured.value[node] for node in captured.gradients if node is not None}
        assert {i for i, value in enumerate(graph.values) if value.keep} == outputs | scalar | gradients
        assert [graph.values[value].size for value in gradients] == [x.nbytes]
        # What the caller holds cannot be dropped, so its op never runs again.
        makers = {op for op in range(graph.num_ops) if outputs & set(graph.ops[op].outputs)}
        assert {op for op in range(graph.num_ops) if not graph.ops[op].recomputable} == makers | {captured.between}


def test_an_op_with_several_outputs_makes_a_value_for_each_that_is_read() -> None:
    x = torch.randn(5, 8, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        values, _ = x.exp().sort(1)
        return torch.nn.functional.layer_norm(values, (8,)).sin()

    captured = traced(f, x)
    graph = captured.graph
    sizes = {
        str(node.target): [graph.values[value].size for value in op.outputs]
        for node, op in zip(captured.nodes, graph.ops, strict=True)
        if node is not None and op.phase == "forward"
    }
    assert sizes["aten.sort.default"] == [160, 320]  # floats, and the indices that the backward pass reads
    assert sizes["aten.native_layer_norm.default"] == [160, 20, 20]
    sort = next(op for op in graph.ops if op.name == "sort")
    assert all(str(captured.bases[value].target).endswith("getitem>") for value in sort.outputs)


def test_an_output_that_nobody_takes_is_no_value() -> None:
    x = torch.randn(5, 8)

    def f(x: Tensor) -> Tensor:
        return aten.sort.default(x)[0].exp()

    module = plain_graph(f, x)
    captured = read_joint_graph(module, 1, fixed)
    assert [[captured.graph.values[v].size for v in op.outputs] for op in captured.graph.ops] == [[160], [160]]
    assert captured.between is None
    assert all(op.phase == "forward" for op in captured.graph.ops)


def plain_graph(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """The graph of a function without a backward pass; its outputs are a tuple, as AOT autograd has them."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def outputs(*given: Tensor) -> tuple[Any, ...]:
        result = function(*given)
        return result if isinstance(result, tuple) else (result,)

    return make_fx(outputs, tracing_mode="fake")(*inputs)


@pytest.mark.parametrize("read", [False, True])
def test_batch_norm_runs_again_without_its_running_statistics(read: bool) -> None:
    x = torch.randn(4, 3, 6, 6, requires_grad=True)
    weight, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    mean, variance = torch.zeros(3), torch.ones(3)

    def f(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        loss = torch.nn.functional.batch_norm(x.sin(), mean, variance, weight, bias, training=True).exp().sum()
        return loss + mean.sum() + variance.sum() if read else loss

    captured = traced(f, x, weight, bias, mean, variance)
    graph = captured.graph
    norm = next(op for op in graph.ops if "batch_norm" in op.name and op.phase == "forward")
    assert norm.recomputable
    # The result and what the backward pass needs.
    assert [graph.values[value].size for value in norm.outputs] == [x.nbytes, 12, 12]
    inputs = sum(t.nbytes for t in (x, weight, bias, mean, variance))
    assert captured.resident == inputs
    assert sum(entry.overwritten for entry in captured.inputs) == 2
    # Statistics that something else reads are made anew, live all the time (2 x 12 bytes), and are copied over the old ones.
    assert len(captured.sticky) == len(captured.written) == (2 if read else 0)
    assert graph.fixed_memory == inputs + (24 if read else 0)


def test_what_reads_an_overwritten_input_runs_once() -> None:
    x, scale = torch.randn(7, requires_grad=True), torch.ones(7)

    def f(x: Tensor, scale: Tensor) -> Tensor:
        early = x * scale.clone()
        scale.add_(1.0)
        return (early.sin() * scale).sum()

    captured = traced(f, x, scale)
    graph = captured.graph
    overwritten = next(n for n in captured.module.graph.find_nodes(op="placeholder") if n.meta["val"].requires_grad is False)
    for node, op in zip(captured.nodes, graph.ops, strict=True):
        if node is not None and overwritten in node.all_input_nodes:
            assert not op.recomputable, op.name
            assert op.phase == "forward"  # the backward pass reads a copy, made in time
    assert any(node is not None and node.target is aten.clone.default for node in captured.nodes)
    sine = next(op for op in graph.ops if op.name == "sin")
    assert sine.recomputable
    # The new content is copied into the input after the forward pass: it is not held to the end.
    update = next(value for value, base in enumerate(captured.bases) if base.target is aten.add.Tensor)
    assert not graph.values[update].keep


def test_random_ops_keep_a_state_to_draw_again_from() -> None:
    x = torch.randn(6, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(torch.nn.functional.dropout(x, 0.5).sin(), 0.5).exp().sum()

    captured = traced(f, x)
    graph = captured.graph
    drawing = [op for op in graph.ops if "dropout" in op.name and op.phase == "forward"]
    assert len(drawing) == 2
    assert torch.get_rng_state().nbytes == RNG_STATE_BYTES
    assert all(op.recomputable and op.workspace == 100 + RNG_STATE_BYTES for op in drawing)
    assert graph.fixed_memory == x.nbytes + 2 * RNG_STATE_BYTES
    assert {op.workspace for op in graph.ops if op not in drawing and op.phase != "loss"} == {100}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_can_be_computed_again(dropout: float) -> None:
    x = torch.randn(1, 2, 8, 4, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=dropout).sin().sum()

    forward = [op for op in traced(f, x).graph.ops if op.phase == "forward"]
    assert any("attention" in op.name for op in forward) or dropout
    # What the script gets is computed once.
    assert [op.name for op in forward if not op.recomputable] == ["sum_1"]


def hand_made(device: str, *, random: bool = False) -> fx.GraphModule:
    """x -> exp or a random op -> sin, as fake tensors on a device that need not exist."""
    graph = fx.Graph()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(100, device=device)
        first = graph.call_function(aten.bernoulli.p if random else aten.exp.default, (x, 0.5) if random else (x,))
        first.meta["val"] = torch.empty(100, device=device)
        on_cpu = graph.call_function(aten._to_copy.default, (first,), {"device": torch.device("cpu")})
        on_cpu.meta["val"] = torch.empty(100)
        last = graph.call_function(aten.sin.default, (first,))
        last.meta["val"] = torch.empty(100, device=device)
    graph.output(((last, on_cpu),))
    return fx.GraphModule({}, graph)


def test_only_bytes_on_the_device_of_the_budget_count_in_its_blocks() -> None:
    captured = read_joint_graph(hand_made("cuda:1"), 2, fixed)
    assert captured.device == torch.device("cuda:1")
    assert [value.size for value in captured.graph.values] == [512, 0, 512]  # 400 bytes in blocks of 512; on the CPU none
    assert captured.resident == 512
    assert [value.size for value in read_joint_graph(hand_made("cpu"), 2, fixed).graph.values] == [400, 400, 400]


def test_random_ops_run_once_where_their_generator_is_not_known() -> None:
    for device, again, states in (("cpu", True, 1), ("cuda:0", True, 0), ("xpu:0", False, 0)):
        graph = read_joint_graph(hand_made(device, random=True), 2, fixed).graph
        assert graph.ops[0].recomputable == again, device
        assert graph.ops[0].workspace == 100 + states * RNG_STATE_BYTES
        assert graph.fixed_memory == (512 if device == "cuda:0" else 400) + states * RNG_STATE_BYTES


def test_a_size_that_depends_on_data_is_refused() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    graph = fx.Graph()
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.ones(5))
    with mode:
        found = graph.call_function(aten.nonzero.default, (x,))
        found.meta["val"] = aten.nonzero.default(x.meta["val"])
    graph.output(((found,),))
    with pytest.raises(CheckmateError, match="depends on data"):
        read_joint_graph(fx.GraphModule({}, graph), 1, fixed)


@functools.lru_cache(None)
def warning_once(logger: logging.Logger, message: str) -> None:
    """As Hugging Face's models log."""
    raise AssertionError(message)


@pytest.mark.parametrize("how", ["info", "warning_once", "print", "warn"])
def test_what_a_model_logs_is_no_obstacle_and_not_logged(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    logger: Any = logging.getLogger("a model")
    logger.setLevel(logging.INFO)
    says = {"print": print, "warn": warnings.warn}.get(how) or getattr(logger, how)

    class Talks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            says("a shape nobody expects")
            return self.last(x.tanh())  # type: ignore[no-any-return]

    silent = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    assert checkmate.torch.capture(Talks(), x).num_ops == checkmate.torch.capture(silent, x).num_ops
    assert not capsys.readouterr().out
    assert "a shape" not in caplog.text
    assert all(record.levelno < logging.ERROR for record in caplog.records)  # of PyTorch itself


def branches(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def breaks(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x.sin()


def selects(x: Tensor) -> Tensor:
    return x[x > 0]


def fails(x: Tensor) -> Tensor:
    raise LookupError("no such thing")


class Does(nn.Module):
    def __init__(self, what: Callable[[Tensor], Tensor]):
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(self.linear(x))


@pytest.mark.parametrize("what", [branches, breaks, selects])
def test_a_model_that_is_not_one_graph(what: Callable[[Tensor], Tensor]) -> None:
    """One line says where, as far as PyTorch knows it."""
    line = what.__code__.co_firstlineno + 1
    where = "" if what is selects else f", in test_capture.py, line {line}"
    with pytest.raises(
        CheckmateError, match=rf"^PyTorch cannot make one graph of this model.*[\w`)]{where}; change that part.*$"
    ) as caught:
        checkmate.torch.capture(Does(what), torch.randn(2, 4), cost_model="flops")
    assert "\n" not in str(caught.value) and isinstance(caught.value.__cause__, RuntimeError)


def test_what_a_model_raises_itself_is_not_said_to_be_several_graphs() -> None:
    with pytest.raises(RuntimeError, match="LookupError"):
        checkmate.torch.capture(Does(fails), torch.randn(2, 4), cost_model="flops")
