"""Costs for a device that is not here: arithmetic of the op over the rate that is published for its element type."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from checkmate.graph import Graph
from checkmate.torch import capture
from checkmate.torch.pytorch.fake_tensors import FakeTensors

#: Large enough that nothing but arithmetic counts.
BATCH, WIDTH, SIDE = 512, 4096, 64


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def captured(kind: str, dtype: torch.dtype, device: str = "a100") -> Graph:
    with FakeTensors():
        model: nn.Module = nn.Linear(WIDTH, WIDTH, bias=False) if kind == "mm" else nn.Conv2d(256, 256, 3, bias=False, padding=1)
        x = torch.randn(BATCH * SIDE, WIDTH) if kind == "mm" else torch.randn(BATCH, 256, SIDE, SIDE)
        model, x = model.to(dtype), x.to(dtype)
    return capture(model, x, device=device)


def rate(kind: str, dtype: torch.dtype) -> float:
    """Operations per second of the forward product, a multiply-add counted as two."""
    graph = captured(kind, dtype)
    (op,) = (op for op in graph.ops if op.name in ("mm", "convolution") and op.phase == "forward")
    count = BATCH * SIDE * WIDTH * WIDTH if kind == "mm" else BATCH * SIDE * SIDE * 256 * 256 * 9
    return 2 * count / op.cost


def test_matrix_products_keep_float32_unless_the_user_lets_them_round() -> None:
    assert rate("mm", torch.float32) == pytest.approx(19.5e12, rel=0.01)
    torch.set_float32_matmul_precision("high")
    assert rate("mm", torch.float32) == pytest.approx(156e12, rel=0.01)


def test_convolutions_round_by_default() -> None:
    assert rate("conv", torch.float32) == pytest.approx(156e12, rel=0.01)


def test_short_numbers() -> None:
    assert rate("mm", torch.bfloat16) == pytest.approx(312e12, rel=0.05)
    assert rate("mm", torch.float64) == pytest.approx(9.7e12, rel=0.01)


@pytest.mark.parametrize(
    ("megabytes", "left"), [(0.5, 0), (8, 96 * 2**10), (11, 2**20), (13.25, 0.75 * 2**20), (12.5, 96 * 2**10), (14, 0)]
)
def test_what_the_allocator_does_not_split_off_is_counted(megabytes: float, left: float) -> None:
    size = int(megabytes * 2**20)
    graph = capture(nn.Sequential(nn.Linear(1, 1), nn.Tanh()), torch.ones(size // 4, 1), device="h100")
    assert {value.size - size for value in graph.values if value.size > 2**16} == {left}


def test_sizes_are_in_blocks_of_the_device() -> None:
    model, x = nn.Sequential(nn.Linear(3, 5), nn.Tanh()), torch.ones(2, 3)
    gpu, cpu = (capture(model, x, device=device) for device in ("h100", "cpu"))
    assert [-(-value.size // 512) * 512 for value in cpu.values] == [value.size for value in gpu.values]
    assert gpu.fixed_memory == 3 * 512 and cpu.fixed_memory == 4 * (15 + 5 + 6)
