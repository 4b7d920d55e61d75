"""Published rates of devices, by name."""

from __future__ import annotations

import pytest

from checkmate.errors import UnknownMethod
from checkmate.planning.device_models import DEVICE_MODELS, device_model


def test_rates_depend_on_the_element_type() -> None:
    h100 = device_model("h100")
    assert (
        h100.rates("bfloat16").flops_per_second
        == 2 * h100.rates("tf32").flops_per_second
        > h100.rates("float32").flops_per_second
    )
    assert h100.rates("int8") == h100.rates("float32"), "what is not published counts as float32"
    assert h100.rates("float64").bytes_per_second == 3.35e12


def test_a_cpu_knows_no_tf32() -> None:
    cpu = device_model("cpu")
    assert cpu.rates("tf32") == cpu.rates("float32")
    assert cpu.rates("float32").flops_per_second == pytest.approx(5.888e12), "40 cores at 2.3 GHz, 64 operations per cycle"
    assert cpu.rates("float32").bytes_per_second == pytest.approx(204.8e9), "as Intel publishes it"


def test_gpus_differ_as_their_makers_say() -> None:
    """The RTX 4090 has more float32 arithmetic than the A100, and half its memory traffic."""
    a100, rtx4090 = device_model("a100").rates("float32"), device_model("rtx4090").rates("float32")
    assert rtx4090.flops_per_second > 4 * a100.flops_per_second
    assert rtx4090.bytes_per_second < a100.bytes_per_second / 2


def test_names() -> None:
    assert list(DEVICE_MODELS) == ["h100", "a100", "rtx4090", "cpu"]
    assert all(model.source for model in DEVICE_MODELS.values()), "every figure comes from somewhere"
    with pytest.raises(UnknownMethod, match="unknown device model 'b200': choose one of h100, a100, rtx4090, cpu"):
        device_model("b200")
