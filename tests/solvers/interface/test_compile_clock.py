"""What kernels take to compile is not taken from the time for a search."""

from __future__ import annotations

import time

from numba import njit

from checkmate.solvers.interface.compile_clock import clock


def test_the_clock_stands_still_while_kernels_compile() -> None:
    @njit
    def kernel(count: int) -> int:
        total = 0
        for number in range(count):
            total += number * number % 7
        return total

    began = time.perf_counter()
    with clock() as elapsed:
        kernel(3)
        compiled, seconds = time.perf_counter() - began, elapsed()
        kernel(3)
        time.sleep(0.05)
        assert elapsed() >= seconds + 0.05
    assert compiled > 0.05  # or there is nothing to see
    assert 0 <= seconds < 0.5 * compiled
