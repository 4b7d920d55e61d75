"""`measure` against sizes computed by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from checkmate.errors import CheckmateError
from checkmate.torch.memory.caching_allocator import bytes_taken
from checkmate.torch.memory.measure import live_storages, measure, reset_cuda_peak
from checkmate.torch.pytorch.living import instances

MB = 1_000_000


def floats(millions_of_bytes: float) -> torch.Tensor:
    return torch.empty(int(millions_of_bytes * MB) // 4)


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    """What other tests have left behind would count as held, and as released wherever it happens to be collected."""
    gc.collect()


def test_what_the_profiler_has_seen_is_gone_with_the_block() -> None:
    """Python's collector would free it later: a process with a hard limit dies of it before."""
    gc.disable()
    try:
        with measure("cpu"):
            for _ in range(10):
                floats(1)
        assert not list(instances(torch.autograd.profiler.profile, torch.autograd.profiler_util.FunctionEvent))
    finally:
        gc.enable()


def test_new_tensors_frees_and_what_stays() -> None:
    with measure("cpu") as m:
        first = floats(8)
        del first
        second = floats(4)
        third = floats(3)
        del second
    assert m.peak - m.base == 8 * MB
    assert m.timeline[0] == (0.0, m.base)
    assert m.timeline[-1][1] - m.base == 3 * MB == third.nbytes
    assert m.peak == max(live for _, live in m.timeline)
    seconds = [when for when, _ in m.timeline]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[-1] < 60


def test_base_counts_every_storage_once() -> None:
    with measure("cpu") as before:
        pass
    whole = floats(8)
    view = whole[10:20]
    again = whole.view(-1, 2).t()
    with measure("cpu") as m:
        pass
    assert m.base - before.base == 8 * MB
    assert m.peak == m.base
    del whole, again
    with measure("cpu") as m:  # a view holds the whole storage
        pass
    assert m.base - before.base == 8 * MB
    del view
    with measure("cpu") as m:
        pass
    assert m.base == before.base


def test_what_was_there_before_leaves_the_count_when_it_dies() -> None:
    old = floats(20)
    with measure("cpu") as m:
        high = floats(1)
        del high
        del old
        new = floats(10)
    assert m.peak - m.base == 1 * MB
    assert m.timeline[-1][1] - m.base == new.nbytes - 20 * MB


def test_a_gradient_that_python_never_touched_is_in_the_base_and_leaves_it() -> None:
    weight = nn.Parameter(torch.zeros(2 * MB // 4))
    with measure("cpu") as before:
        pass
    (weight * 2).sum().backward()
    with measure("cpu") as m:
        weight.grad = None
        other = floats(2)
    assert m.base - before.base == 2 * MB
    assert m.peak == m.base, "the gradient died before its equal was born"
    del other


def test_in_place_ops_take_nothing_and_out_of_place_ops_their_result() -> None:
    x = floats(4)
    with measure("cpu") as m:
        x.add_(x).mul_(x).relu_()
    assert m.peak - m.base < 64  # scalars
    with measure("cpu") as m:
        y = x + x
        y = y * x
    assert 8 * MB <= m.peak - m.base < 8 * MB + 64


def test_backward_of_a_chain() -> None:
    """y = x.exp().exp().exp(). In the second product of the backward live: the three results (y is still held), the
    tangent, and the gradients on both sides of the second exp."""
    size = 1 * MB
    x = torch.zeros(size // 4, requires_grad=True)
    with measure("cpu") as m:
        y = x.exp().exp().exp()
        y.backward(torch.ones_like(y))
        del y
    assert m.peak - m.base == 6 * size
    assert x.grad is not None
    assert m.timeline[-1][1] - m.base == x.grad.nbytes == size


def test_a_planted_leak_shows() -> None:
    held: list[torch.Tensor] = []
    with measure("cpu") as m:
        for _ in range(5):
            held.append(floats(1))
    assert m.timeline[-1][1] - m.base == 5 * MB


def test_nothing_is_kept_alive() -> None:
    kept = floats(1)
    reference = weakref.ref(kept)
    storage = weakref.ref(kept.untyped_storage())
    with measure("cpu") as m:
        inner = floats(1)
        inner_reference = weakref.ref(inner)
        del inner
        assert inner_reference() is None
        del kept
        assert reference() is None
        assert storage() is None
    assert m.timeline[-1][1] == m.base - 1 * MB


def test_compiled_module_and_second_use() -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = ((x + 1) * 2).sin()
            return y

    module = torch.compile(Doubling(), backend="aot_eager")
    x = torch.zeros(MB // 4, requires_grad=True)
    module(x).sum().backward()
    x.grad = None
    peaks: list[int] = []
    for _ in range(2):
        with measure("cpu") as m:
            module(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, 2 * torch.cos(torch.full_like(x, 2.0)))
        x.grad = None
        peaks.append(m.peak - m.base)
    assert peaks[0] == peaks[1]
    assert 2 * MB <= peaks[0] <= 4 * MB + 1024


def test_an_error_in_the_block_passes_through_and_the_measurement_is_complete() -> None:
    def fail() -> None:
        x = floats(6)
        del x
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), measure("cpu") as m:
        fail()
    assert m.peak - m.base == 6 * MB
    with measure("cpu") as m:  # the profiler was stopped
        pass


def test_not_inside_another_profiler() -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(CheckmateError, match="another profiler"),
        measure("cpu"),
    ):
        pass


def test_other_devices_are_refused() -> None:
    with pytest.raises(CheckmateError, match="'cpu' or 'cuda'"), measure("meta"):
        pass


def test_fake_tensors_own_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    before = set(live_storages())
    with FakeTensorMode():
        fake = torch.empty(MB)
    with FakeTensorMode(), FunctionalTensorMode():  # PyTorch's caches keep some, of functions with a derivative of their own
        traced = torch.empty(MB)
    meta = torch.empty(MB, device="meta")
    assert set(live_storages()) == before
    assert fake.shape == meta.shape == traced.shape


def test_odd_tensors_are_no_obstacle() -> None:
    """Those alive at entry without a storage of their own: of function transforms, sparse, not initialized."""
    held: list[torch.Tensor] = [torch.eye(3).to_sparse(), nn.parameter.UninitializedParameter()]

    def inside(x: torch.Tensor) -> torch.Tensor:
        held.append(x)
        with measure("cpu") as m:
            y = x * 2
        assert m.peak - m.base >= y.numel() * 4
        return y

    torch.vmap(inside)(torch.randn(3, 4))
    torch.func.functionalize(inside)(torch.randn(5))
    assert len(held) == 4


class Counters:
    """torch.cuda's memory counters as the allocator keeps them, for two devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.peak, self.current = [0, 0], [0, 0], 1
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.live[device.index])
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak[device.index])
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)

    def reset(self, device: torch.device) -> None:
        assert device.index is not None, "the current device may change: an index is needed"
        self.peak[device.index] = self.live[device.index]

    def take(self, size: int, index: int = 1) -> None:
        self.live[index] += size
        self.peak[index] = max(self.peak[index], self.live[index])


def test_cuda_peaks_survive_measurements_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters(monkeypatch)
    counters.take(100)
    counters.take(5000)
    counters.take(-5000)  # before the block: not its peak
    with measure("cuda") as whole:
        counters.take(50)
        counters.take(-50)
        with measure("cuda:1") as inner:  # as the first step of a plan does
            counters.take(10)
            counters.take(-5)
        reset_cuda_peak(torch.device("cuda:1"))  # as profiling does
        with measure("cuda:0") as elsewhere:
            counters.take(7, index=0)
        counters.current = 0  # the script moves on to another device
    assert (whole.device, whole.base, whole.peak) == (torch.device("cuda:1"), 100, 150)
    assert (inner.base, inner.peak) == (100, 110)
    assert (elsewhere.base, elsewhere.peak) == (0, 7)


def test_what_is_released_just_before_an_allocation_makes_room_for_it() -> None:
    """However little time lies between the two, and whichever clocks are at hand."""
    blocks = [torch.empty(100_000) for _ in range(200)]
    with measure("cpu") as seen:
        for i in range(len(blocks)):
            blocks[i] = torch.empty(0)
            blocks[i] = torch.empty(100_000)
    assert seen.peak == seen.base


#: What lived where a step of plain training peaked on an H100, from the allocator's own record of it: sizes of 1 MiB and more and how
#: many there were, bytes of smaller ones, and what the allocator counted beyond what it was asked for.
RECORDED = {
    "ResNet-50": (
        {4194304: 29, 1048576: 24, 2097152: 19, 8388608: 11, 16777216: 10, 4718592: 3, 4096000: 1, 33554704: 1},
        689_624,
        1_577_752,
    ),
    "GPT-2": ({1572864: 62, 6291456: 24, 4718592: 12, 205852672: 3}, 19_669_192, 7_746_319),
}


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_gpu_counts_is_close_to_what_its_allocator_counted(name: str) -> None:
    sizes, small, beyond = RECORDED[name]
    requested = small + sum(size * number for size, number in sizes.items())
    counted = small + sum(bytes_taken(size, 512) * number for size, number in sizes.items())
    assert requested + beyond <= counted <= 1.015 * (requested + beyond)
