"""Devices that a plan can be made for without having one: published peak rates, for the roofline.

Dense rates (no sparsity) as the makers publish them; no kernel reaches them, but what a plan needs is how the ops compare. Vector units
compute float32 and float64, matrix units tf32 and what is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UnknownMethod
from ..text import printable
from .roofline import Rates

#: Seconds to start an op. Source: A. Gray, "Getting Started with CUDA Graphs" (NVIDIA, 2019), which measures 3.8 microseconds for each
#: of many small kernels that are started without waiting.
_LATENCY = 3.8e-6


@dataclass(frozen=True)
class DeviceModel:
    """A device as its maker publishes it.

    Attributes:
        name: as users write it. title: what it is.
        memory: bytes; None where they are not the device's own.
        flops: floating-point operations per second by element type, a multiply-add counted as two; float32 stands for the rest.
        bytes_per_second: memory traffic. block: memory is taken in multiples of so many bytes.
        source: of these figures.
    """

    name: str
    title: str
    memory: int | None
    flops: Mapping[str, float]
    bytes_per_second: float
    block: int
    source: str

    def rates(self, element_type: str) -> Rates:
        """For ops on "float32", "bfloat16" and so on; "tf32": float32 where matrix units may round it."""
        return Rates(self.flops.get(element_type, self.flops["float32"]), self.bytes_per_second, _LATENCY)


def _gpu(
    name: str, title: str, gigabytes: int, flops: tuple[float, float, float, float], traffic: float, source: str
) -> DeviceModel:
    kinds = ("float64", "float32", "tf32", "bfloat16", "float16")
    rates = {kind: tera * 1e12 for kind, tera in zip(kinds, (*flops, flops[-1]), strict=True)}
    return DeviceModel(name, title, gigabytes * 10**9, rates, traffic * 1e9, 512, source)


_MODELS = (
    _gpu(
        "h100",
        "NVIDIA H100 SXM, 80 GB",
        80,
        (33.5, 66.9, 494.7, 989.4),
        3350,
        "NVIDIA H100 Tensor Core GPU architecture white paper, 2023",
    ),
    _gpu("a100", "NVIDIA A100 SXM, 80 GB", 80, (9.7, 19.5, 156.0, 312.0), 2039, "NVIDIA A100 Tensor Core GPU data sheet, 2021"),
    _gpu(
        "rtx4090",
        "NVIDIA GeForce RTX 4090, 24 GB",
        24,
        (1.29, 82.6, 82.6, 165.2),
        1008,
        "NVIDIA Ada GPU architecture white paper, 2023, appendix A (sums in float32)",
    ),
    DeviceModel(
        "cpu",
        "Intel Xeon Platinum 8380, 40 cores",
        None,
        # Two units of 16 float32 multiply-adds per core and cycle, at the base frequency of 2.3 GHz.
        {"float64": 40 * 2.3e9 * 32, "float32": 40 * 2.3e9 * 64},
        8 * 25.6e9,
        1,
        "Intel product specifications, 2021: cores, frequency, AVX-512 units, eight channels of DDR4-3200",
    ),
)
DEVICE_MODELS: Mapping[str, DeviceModel] = {model.name: model for model in _MODELS}


def device_model(name: str) -> DeviceModel:
    """The device model of this name.

    Raises:
        UnknownMethod: there is none.
    """
    if name not in DEVICE_MODELS:
        raise UnknownMethod(f"unknown device model {printable(repr(name), 60)}: choose one of {', '.join(DEVICE_MODELS)}")
    return DEVICE_MODELS[name]
