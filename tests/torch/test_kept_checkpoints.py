"""`torch.utils.checkpoint` inside a model: removed, or kept where the user asks for that; with the same numbers either way."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import checkmate.torch
from torch_models import identical

FLOPS: dict[str, Any] = {"cost_model": "flops", "time_limit": 2.0}

#: PyTorch looks whether what one graph hands to the next has a gradient.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Block(nn.Module):
    def __init__(self, reentrant: bool, width: int = 16):
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.3)
        self.reentrant = reentrant

    def inner(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(torch.tanh(self.wide(x))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return out


class Net(nn.Module):
    def __init__(self, reentrant: bool, depth: int = 3):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(reentrant) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(x).square().mean()
        return out


def net(reentrant: bool) -> Net:
    torch.manual_seed(0)
    return Net(reentrant)


def step(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    x = torch.randn(64, 16, requires_grad=True)  # what a reentrant checkpoint needs
    loss = model(x)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), x.grad, *[p.grad for p in model.parameters() if p.grad is not None], torch.get_rng_state()]


def recomputed(plan: checkmate.torch.Plan) -> list[str]:
    """Ops that a plan runs more than once."""
    runs = [step.op for step in plan.schedule.steps if hasattr(step, "op")]
    return [op.name for number, op in enumerate(plan.graph.ops) if runs.count(number) > 1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_removed_unless_they_are_to_be_kept(reentrant: bool) -> None:
    plain = step(net(reentrant))
    peaks = []
    for keep in (False, True):
        model = checkmate.torch.compile(net(reentrant), budget="64MiB", keep_checkpoints=keep, **FLOPS)
        assert identical(step(model), plain)
        (plan,) = checkmate.torch.plans(model)
        assert len([name for name in recomputed(plan) if "tanh" in name]) == 3 * keep
        assert (plan.schedule.num_recomputations > 0) == keep
        peaks.append(plan.measured_peak)
    assert peaks[1] < peaks[0]


class Broken(Net):
    """Two graphs."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        out: Tensor = self.blocks[2](self.blocks[1](x)).square().mean()
        return out


def test_kept_checkpoints_of_several_graphs() -> None:
    torch.manual_seed(0)
    model = checkmate.torch.compile(Broken(False), budget="64MiB", keep_checkpoints=True, **FLOPS)
    for _ in range(3):
        model.zero_grad()
        results = step(model)
    plan = max(checkmate.torch.plans(model), key=lambda plan: plan.executions)
    assert plan.num_graphs == 2 and plan.executions > 0
    assert len([name for name in recomputed(plan) if "tanh" in name]) == 3
    assert identical(results, step(net(False)))


def policy(context: Any, op: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    saved = op is torch.ops.aten.tanh.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(Block):
    def forward(self, x: Tensor) -> Tensor:
        contexts = partial(create_selective_checkpoint_contexts, policy)
        out: Tensor = checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)
        return out.square().mean()


def test_what_a_policy_saves_is_not_computed_again() -> None:
    torch.manual_seed(0)
    model = checkmate.torch.compile(Selective(False), budget="64MiB", keep_checkpoints=True, **FLOPS)
    step(model)
    (plan,) = checkmate.torch.plans(model)
    assert not [name for name in recomputed(plan) if "tanh" in name]
    assert plan.schedule.num_recomputations > 0  # the dropout
