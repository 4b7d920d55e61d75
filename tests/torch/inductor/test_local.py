"""Ops that are copied to the kernels that read them: the graph computes the same, and takes no more memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from checkmate.planning import FREE, OpCost
from checkmate.planning.roofline import Rates
from checkmate.torch.graphs.capture import Captured, read_joint_graph
from checkmate.torch.inductor.inner import Inductor
from checkmate.torch.inductor.internals import decompositions, joint_passes
from checkmate.torch.inductor.kinds import Work
from checkmate.torch.ops.sizes import Number, elements, hint
from checkmate.torch.pytorch.internals import trace_and_compile

#: Of PyTorch, when Inductor is imported, and when its patterns are traced.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning", "ignore:.isinstance.treespec, LeafSpec:FutureWarning"
)

#: Bytes of what the networks below make, most of them.
WIDE = 4 * 64 * 4096


def same_rates(device: torch.device) -> Rates:
    """What pays depends on the machine, and on what else it does."""
    return Rates(2e11, 1e11, 1e-6)


def free(nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
    return dict.fromkeys(nodes, FREE)


class Traced(Exception):
    """Leaves the compiler with the joint graph."""

    def __init__(self, joint: fx.GraphModule, outputs: int):
        self.joint, self.outputs = joint, outputs


def joint_graph(step: Callable[..., Any], *inputs: Tensor) -> Traced:
    """The joint graph of a step as Inductor wants it."""

    def partition(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any) -> Any:
        raise Traced(joint_passes(joint), num_fwd_outputs)

    def backend(module: fx.GraphModule, example_inputs: Any) -> Any:
        def unused(module: fx.GraphModule) -> Any:
            raise NotImplementedError

        return torch.compiler.disable(
            lambda *given: trace_and_compile(module, given, partition, unused, unused, unused, decompositions())
        )

    try:
        torch.compile(step, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    except Traced as traced:
        return traced
    raise AssertionError("nothing was traced")


def read(traced: Traced, improve: bool = True) -> Captured:
    with nullcontext() if improve else patch("checkmate.torch.graphs.capture._JointReader.improve", lambda reader: False):
        return read_joint_graph(traced.joint, traced.outputs, free, inner=Inductor(free, same_rates))


def results(module: fx.GraphModule) -> list[Any]:
    """What a joint graph computes for made-up inputs, the same ones for each of its copies."""
    torch.manual_seed(0)
    given = []
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        real = torch.rand(value.shape, dtype=torch.float32).to(value.dtype)
        given.append(real if value.dtype.is_floating_point else torch.zeros(value.shape, dtype=value.dtype))
    made = fx.Interpreter(module).run(*given, enable_io_processing=False)
    return [x for x in (made if isinstance(made, (list, tuple)) else [made]) if isinstance(x, Tensor)]


class Normalized(nn.Module):
    """What is added is kept for the next block; what each block normalizes in between is not."""

    def __init__(self, blocks: int = 2, pool: bool = False):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2 * blocks))
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        for number in range(0, len(self.norms), 2):
            inner = F.relu(self.norms[number](self.convolutions[number](x)))
            if self.pool:
                inner = F.max_pool2d(inner, 3, 1, 1)
            x = F.relu(self.norms[number + 1](self.convolutions[number + 1](inner)) + x)
        return x.square().mean()


class Words(nn.Module):
    """The loss of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.head = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 4096)

    def forward(self, x: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x + F.gelu(self.up(self.norm(x)))), following)


class Halved(nn.Module):
    """Two halves of what is computed are summed by kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        left, right = (self.linear(x) + 1).chunk(2, 1)
        return (left.sum(0) * right.sum(1)[:32]).sum()


def normalized(**more: Any) -> tuple[nn.Module, Tensor]:
    return Normalized(**more), torch.rand(4, 8, 32, 32)


def half() -> tuple[nn.Module, Tensor]:
    model, x = normalized()
    return model.bfloat16(), x.bfloat16()


def words() -> tuple[nn.Module, Tensor, Tensor]:
    return Words(), torch.rand(64, 64), torch.zeros(64, dtype=torch.int64)


def halved() -> tuple[nn.Module, Tensor]:
    return Halved(), torch.rand(64, 64)


@pytest.mark.parametrize("made", [normalized, lambda: normalized(pool=True), half, words, halved])
def test_the_same_is_computed_in_no_more_memory(made: Callable[[], tuple[Any, ...]]) -> None:
    traced = joint_graph(*made())
    plain = copy.deepcopy(traced)
    one, other = read(traced), read(plain, improve=False)
    assert one.graph.num_ops > other.graph.num_ops, "nothing was copied"
    assert one.fusion is not None and other.fusion is not None
    assert one.fusion.graph.no_recompute_peak <= other.fusion.graph.no_recompute_peak
    for mine, theirs in zip(results(traced.joint), results(plain.joint), strict=True):
        assert torch.equal(mine, theirs)


def test_the_logarithms_of_a_cross_entropy_are_neither_kept_nor_written() -> None:
    traced = joint_graph(*words())
    other = read(copy.deepcopy(traced), improve=False).fusion
    one = read(traced).fusion
    assert one is not None and other is not None
    # With them: the logits, their logarithms, then the gradient. Without: the logits and the gradient.
    assert other.graph.no_recompute_peak - one.graph.no_recompute_peak >= WIDE - WIDE // 16


def test_masks_come_from_what_was_normalized() -> None:
    """The result of each ReLU is read by the convolution behind it, and by nothing else of the backward pass."""
    traced = joint_graph(*normalized())
    captured = read(traced)
    inner = [node for node in traced.joint.graph.nodes if node.name in ("relu", "relu_2")]
    assert len(inner) == 2
    for node in inner:
        value = captured.value[node]
        late = [op.name for op in captured.graph.ops if value in op.inputs and op.phase == "backward"]
        assert late and all(name.startswith("convolution_backward") for name in late), late


def test_nothing_more_is_kept_for_a_mask() -> None:
    """What comes behind an addition would take what was added, which nothing else of the backward pass reads."""
    traced = joint_graph(*normalized())
    plain = copy.deepcopy(traced)
    one, other = read(traced), read(plain, improve=False)

    def read_late(captured: Captured) -> set[str]:
        graph = captured.graph
        late = {value for op in graph.ops if op.phase == "backward" for value in op.inputs}
        return {graph.values[value].name for op in graph.ops if op.phase == "forward" for value in op.outputs if value in late}

    more = read_late(one) - read_late(other)
    sizes = {value.name: value.size for value in one.graph.values}
    assert sum(sizes[name] for name in more) <= 4096, more


def test_what_the_forward_pass_overwrites_is_not_read_later() -> None:
    class Moving(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(64))
            self.linear = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            scaled = F.relu(self.linear(x) + self.seen)
            self.seen.add_(1.0)
            return (scaled * scaled).mean()

    traced = joint_graph(Moving(), torch.rand(64, 64))
    captured = read(traced)
    overwritten = {node for entry in captured.inputs if entry.overwritten for node in entry.nodes}
    assert overwritten
    for op, node in zip(captured.graph.ops, captured.nodes, strict=True):
        assert op.phase != "backward" or node is None or overwritten.isdisjoint(node.all_input_nodes)


def flops_of(function: Callable[[Tensor], Tensor], target: str) -> float:
    """Of one element of what the op of this name makes in a step."""
    traced = joint_graph(lambda x: function(x).sum(), torch.rand(64, 64, requires_grad=True))
    nodes = [node for node in traced.joint.graph.nodes if str(node.target).split(".")[1:2] == [target]]
    return Work.of(nodes[:1], hint).flops / elements(nodes[0].meta["val"], hint)


@pytest.mark.parametrize(
    ("function", "target", "flops"),
    [
        (lambda x: F.dropout(x, 0.5), "inductor_random", 800),
        (lambda x: x.pow(2), "pow", 1),
        (lambda x: x.pow(2.5), "pow", 150),
        (lambda x: x.exp(), "exp", 30),
        (lambda x: (x + 1) * x, "add", 1),
    ],
)
def test_what_takes_long_has_its_price(function: Callable[[Tensor], Tensor], target: str, flops: float) -> None:
    assert flops_of(function, target) == flops
