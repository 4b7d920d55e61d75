"""Modules of fake tensors are made, copied and converted like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import checkmate
import checkmate.torch
from checkmate.torch import capture
from checkmate.torch.pytorch.fake_tensors import FakeTensors
from checkmate.torch.pytorch.internals import FakeTensor


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


class Tied(nn.Module):
    """A weight used twice, a buffer, and a tensor that is just an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.norm = nn.BatchNorm1d(16)
        self.scale = torch.ones(16)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.words(tokens).tanh()) * self.scale).logsumexp(-1).mean()


def made_on(device: str) -> tuple[nn.Module, torch.Tensor]:
    with torch.device(device):
        return Tied(), torch.zeros(64, dtype=torch.long)


def test_a_model_on_the_meta_device_is_planned_as_on_the_cpu() -> None:
    expected = capture(*made_on("cpu"), device="h100")
    assert expected.fixed_memory > 0
    model, tokens = made_on("meta")
    assert capture(model, tokens, device="h100") == expected
    assert all(tensor.device.type == "meta" for tensor in (*model.parameters(), *model.buffers(), tokens))  # it is left as it was
    model.norm = nn.BatchNorm1d(16)  # the rest of it has data
    statistics = model.norm.running_mean
    assert capture(model, torch.zeros(64, dtype=torch.long), device="h100") == expected
    assert model.norm.running_mean is statistics
    with FakeTensors():
        assert made_on("meta")[0].scale.device.type == "cpu"
        made = made_on("meta")
    assert capture(*made, device="h100") == expected


def test_nothing_trains_on_the_meta_device() -> None:
    model, tokens = made_on("meta")
    with pytest.raises(checkmate.CheckmateError, match="is on the meta device, where nothing has bytes"):
        checkmate.torch.compile(model, "1MB")(tokens)
    with pytest.raises(checkmate.CheckmateError, match="is on the meta device, where nothing has bytes"):
        capture(lambda x: model(x), tokens, device="h100")  # what a function holds is not known
