"""`allocation_peak` against sizes computed by hand."""

from __future__ import annotations

import pytest
import torch

from checkmate.torch.memory.transient import allocation_peak


def chain() -> torch.Tensor:
    first = torch.empty(1000)
    second = torch.empty(500)
    del first
    third = torch.empty(250)
    del second
    return third


def test_peak_and_result() -> None:
    result, peak = allocation_peak(chain)
    assert (result.nbytes, peak) == (1000, 6000)


def test_inside_a_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        result, peak = allocation_peak(chain)
    assert (result.nbytes, peak) == (1000, 6000)


def test_releases_of_older_tensors_do_not_count() -> None:
    held = [torch.empty(10_000)]
    assert allocation_peak(held.clear)[1] == 0


def test_no_gradients_and_errors_pass_through() -> None:
    x = torch.ones(3, requires_grad=True)
    assert not allocation_peak(lambda: x * 2)[0].requires_grad
    with pytest.raises(ZeroDivisionError):
        allocation_peak(lambda: 1 / 0)
    assert allocation_peak(chain)[1] == 6000
