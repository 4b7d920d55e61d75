"""Modules of fake tensors are made, copied and converted like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from checkmate.torch import capture
from checkmate.torch.fake_tensors import FakeTensors
from checkmate.torch.internals import FakeTensor


@pytest.mark.parametrize(
    "convert",
    [nn.Module.half, nn.Module.double, lambda m: m.to("cpu"), lambda m: m.bfloat16().float(), lambda m: copy.deepcopy(m).half()],
    ids=["half", "double", "cpu", "twice", "copied"],
)
def test_modules_convert(convert: Callable[[nn.Module], nn.Module]) -> None:
    real = nn.Linear(4, 5)
    tied = nn.Linear(4, 5)
    tied.weight = real.weight
    with FakeTensors():
        made = nn.ModuleList([nn.Linear(4, 5), nn.Linear(4, 5)])
        made[1].weight = made[0].weight
        made = convert(made)
    expected = convert(nn.ModuleList([real, tied]))
    assert made[0].weight is made[1].weight
    for one, other in zip(made.parameters(), expected.parameters(), strict=True):
        assert isinstance(one, FakeTensor) and isinstance(one, nn.Parameter)
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)


def test_a_copy_is_another_tensor() -> None:
    with FakeTensors() as fake:
        tensor = torch.ones(3)
        weight = nn.Parameter(tensor, requires_grad=False)
    with fake:
        one, other, again = copy.deepcopy([weight, tensor, weight])
    assert one is again and one is not weight and other is not tensor
    assert isinstance(one, nn.Parameter) and not one.requires_grad
    assert isinstance(other, FakeTensor) and not isinstance(other, nn.Parameter)


def test_a_transformer_copies_its_layers() -> None:
    """Fifty gigabytes of parameters, in a type that is said last."""
    with FakeTensors():
        layer = nn.TransformerEncoderLayer(16384, 8, 65536, batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(torch.bfloat16)
        x = torch.randn(1, 4, 16384).to(torch.bfloat16)
    graph = capture(model, x, device="h100")
    assert 4e10 < graph.fixed_memory < 6e10
    assert graph.no_recompute_peak > 2 * graph.fixed_memory
