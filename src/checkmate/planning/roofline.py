"""Time of an op from its arithmetic and its memory traffic, for ops that cannot be or should not be run.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (CACM 2009): an op is bound
either by the device's arithmetic or by its memory, whichever takes longer. The latency term is ours: small ops cost what
it takes to start them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import CheckmateError


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak numbers of one device for one element type.

    Attributes:
        flops_per_second: arithmetic, one multiply-add counted as two.
        bytes_per_second: memory traffic, reads plus writes.
        latency: seconds to start one op.
    """

    flops_per_second: float
    bytes_per_second: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        rates = (self.flops_per_second, self.bytes_per_second)
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise CheckmateError(f"rates of a device must be positive and finite, not {rates}")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise CheckmateError(f"latency must be a finite number of seconds >= 0, not {self.latency}")


def roofline_seconds(flops: float, moved: float, rates: Rates) -> float:
    """Seconds of one op.

    Args:
        flops: floating-point operations. moved: bytes read and written. rates: of the device.
    """
    return rates.latency + max(flops / rates.flops_per_second, moved / rates.bytes_per_second)
