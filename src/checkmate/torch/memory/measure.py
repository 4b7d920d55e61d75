"""The true peak of live tensor bytes on one device while a block of code runs.

CPU: allocation events of `torch.profiler` (every allocation and release of torch's CPU allocator, with its time), on top
of the bytes of all tensor storages alive at entry. CUDA: the counters of torch's caching allocator.

Limits on the CPU: memory that other libraries allocate (NumPy, Python) is not tensor memory and is not counted. Tensors
that only an autograd graph holds at entry (a forward whose backward is still to come) cannot be seen from Python: enter
before the forward. Other threads are not watched, neither what they allocate nor what they release; autograd's own are.
At entry `measure` looks through all objects of the process. Python code of other threads can fail while it does ("bad argument
to internal function": a tuple that they are building is referenced): enter before they start. Plans measure without that.

Limit on CUDA: the counters are the device's. What other threads run on the same device meanwhile is part of the peak.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ...errors import CheckmateError
from ..pytorch.internals import is_wrapper
from ..pytorch.living import with_subclasses
from .allocations import AllocationLog, Change, Note

__all__ = ["Measurement", "Recording", "live_storages", "measure"]


@dataclass
class Measurement:
    """What `measure` saw; complete once the block has ended.

    Attributes:
        device: where.
        base: bytes of live tensors at entry.
        peak: the most bytes of live tensors at any moment of the block, those alive at entry included.
        timeline: (seconds since entry, live bytes) after every change, on the CPU; empty on CUDA.
    """

    device: torch.device
    base: int = 0
    peak: int = 0
    timeline: list[tuple[float, int]] = field(default_factory=list, repr=False)


@contextmanager
def measure(device: torch.device | str | None = None) -> Iterator[Measurement]:
    """Measure the peak of live tensor bytes: `with measure() as m: step()`, then `m.peak`.

    It slows the block down (the CPU profiler runs), so take times and peaks in different runs. On CUDA it resets the
    device's peak statistics; measurements may lie inside each other there. The block may raise; the measurement is complete then too.

    Args:
        device: "cpu", "cuda", "cuda:1"; by default the current CUDA device if the process uses CUDA, else the CPU.

    Raises:
        CheckmateError: another profiler or measurement is running, or the device is of another kind.
    """
    where = torch.device(device) if device is not None else _default_device()
    with _measure(where, "block", lambda: live_storages(where)) as result:
        yield result


@contextmanager
def measure_pass(device: torch.device, inputs: Sequence[Any]) -> Iterator[Measurement]:
    """`measure` for one pass of a planned graph: what it adds to its inputs, which it may release.

    On the CPU `base` is the bytes of the inputs, and passes are measured one after the other: those of other threads end soon.

    Raises:
        CheckmateError: a profiler or a `measure` block is running, in whatever thread: their end may be far away.
    """

    with _measure(device, "pass", lambda: storages_of(inputs, device)) as result:
        yield result


class Recording:
    """What this thread allocates and releases on the CPU from now to `stop`.

    It must end before anything that surrounds it: profiled regions begun within it have to be over by then.

    Raises:
        CheckmateError: a profiler or a measurement is running.
    """

    def __init__(self) -> None:
        _begin("pass")  # of the engine
        self._log = AllocationLog()
        self.note = self._log.note

    def stop(self) -> list[Change | Note]:
        """What happened, in the order in which it did. To be called by the same thread."""
        events = self._log.stop()
        _end()
        return events


def passing(events: Sequence[Change | Note]) -> int:
    """The most bytes that were there during a recording, without what was left at its end."""
    live = most = 0
    for _, change in _sizes(events):
        live += change
        most = max(most, live)
    return most - live


def reset_cuda_peak(device: torch.device) -> None:
    """Begin the device's peak counter anew. Measurements under way keep what it has shown so far."""
    with _cuda_lock:
        peak = torch.cuda.max_memory_allocated(device)
        for measurement in _on_cuda:
            if same_device(measurement.device, device):
                measurement.peak = max(measurement.peak, peak)
        torch.cuda.reset_peak_memory_stats(device)


def cuda_bytes(device: torch.device, of: str = "allocated", when: str = "peak") -> int:
    """What the counters of the device say. Quick enough to be asked in every step.

    Args:
        of: "allocated" or "reserved". when: "peak", since they began anew, or "current".
    """
    counted = torch.cuda.memory_stats_as_nested_dict(device)  # nothing where CUDA is not in use yet
    return int(counted[f"{of}_bytes"]["all"][when]) if counted else 0


def same_device(device: torch.device, wanted: torch.device) -> bool:
    """Whether `device` is the wanted one; without an index, any of that type is wanted."""
    return device.type == wanted.type and wanted.index in (None, device.index)


def main_device(tensors: Iterable[torch.Tensor]) -> torch.device:
    """The device of what these tensors are parts of: an accelerator if any of them is on one.

    Raises:
        CheckmateError: all of them are on the meta device.
    """
    devices = dict.fromkeys(tensor.device for tensor in tensors)
    if devices and all(device.type == "meta" for device in devices):
        raise CheckmateError(
            "the model is on the meta device, where nothing has bytes: move it to another one to train it (model.to_empty(device=...)), or plan "
            "it, as a torch.nn.Module, with checkmate.torch.capture"
        )
    return next((device for device in devices if device.type not in ("cpu", "meta")), torch.device("cpu"))


def live_storages(device: torch.device | str = "cpu") -> dict[int, torch.UntypedStorage]:
    """Storages of all tensors that Python can reach on a device, gradients included, by identity.

    Fake and meta tensors own no bytes and are left out; so are sparse tensors and wrappers (the plain tensors inside a wrapper are
    found on their own).
    """
    where = torch.device(device)
    found: dict[int, torch.UntypedStorage] = {}
    # The type of an object, not isinstance: that would call into lazy proxies of other libraries. A set is quicker to ask than `issubclass`.
    kinds = with_subclasses(torch.Tensor)
    tensors = [o for o in gc.get_objects() if type(o) in kinds]
    for tensor in tensors:
        _add_storage(found, tensor, where)
        # A gradient that Python never touched has no Python object of its own.
        if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None:
            _add_storage(found, tensor.grad, where)
    return found


def storages_of(values: Iterable[Any], device: torch.device | str = "cpu") -> dict[int, torch.UntypedStorage]:
    """Storages on a device of the tensors among these, by identity; as in `live_storages`."""
    where = torch.device(device)
    found: dict[int, torch.UntypedStorage] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            _add_storage(found, value, where)
    return found


def _default_device() -> torch.device:
    cuda: Any = torch.cuda  # partly untyped
    if cuda.is_initialized():
        return torch.device("cuda", cuda.current_device())
    return torch.device("cpu")


@contextmanager
def _measure(
    device: torch.device, kind: Literal["block", "pass"], at_entry: Callable[[], dict[int, torch.UntypedStorage]]
) -> Iterator[Measurement]:
    if device.type == "cuda":
        # The current device may be another one when the block ends: fix the index now.
        where = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        with _measure_cuda(where) as result:
            yield result
    elif device.type == "cpu":
        with _alone(kind), _measure_cpu(device, at_entry()) as result:
            yield result
    else:
        raise CheckmateError(f"cannot measure memory on a {device.type!r} device: use 'cpu' or 'cuda'")


_cuda_lock = threading.Lock()
_on_cuda: list[Measurement] = []


@contextmanager
def _measure_cuda(device: torch.device) -> Iterator[Measurement]:
    reset_cuda_peak(device)
    base = torch.cuda.memory_allocated(device)
    result = Measurement(device, base, base)
    with _cuda_lock:
        _on_cuda.append(result)
    try:
        yield result
    finally:
        with _cuda_lock:
            # By identity: two measurements with the same numbers are equal.
            _on_cuda[:] = [other for other in _on_cuda if other is not result]
            result.peak = max(result.peak, torch.cuda.max_memory_allocated(device))


#: What is measured on the CPU now, if anything: a process has one profiler session, a second one crashes it.
_running: str | None = None
_by: int | None = None  # which thread
_ended = threading.Condition()
#: Seconds to wait for a pass in another thread. One that takes longer may itself be waiting for this thread.
_PATIENCE = 60.0


@contextmanager
def _alone(kind: Literal["block", "pass"]) -> Iterator[None]:
    with _ended:
        _ended.wait_for(lambda: _running != "pass" or _by == threading.get_ident(), _PATIENCE)
        _begin(kind)
    try:
        yield
    finally:
        _end()


def _begin(kind: str) -> None:
    global _running, _by
    with _ended:
        autograd: Any = torch.autograd
        if _running is not None or autograd.profiler._is_profiler_enabled or autograd._profiler_enabled():
            raise CheckmateError("cannot measure memory while another profiler or measurement is running: stop it first")
        _running, _by = kind, threading.get_ident()


def _end() -> None:
    global _running
    with _ended:
        _running = None
        _ended.notify_all()


@contextmanager
def _measure_cpu(device: torch.device, storages: dict[int, torch.UntypedStorage]) -> Iterator[Measurement]:
    base = sum(storage.nbytes() for storage in storages.values())
    result = Measurement(device, base, base)
    log = AllocationLog()
    # The profiler does not report the release of blocks older than itself: watch those with weak references. They do
    # not keep anything alive, and fire when the storage itself dies, whoever held it last.
    watched = [weakref.ref(storage, _on_release(log, storage.nbytes())) for storage in storages.values()]
    storages.clear()  # nothing is kept alive, whoever else has the dict
    started = time.time_ns()
    try:
        yield result
    finally:
        # Before the log ends: it takes no more notes then.
        watched.clear()
        live = base
        result.timeline.append((0.0, live))
        for when, change in _sizes(log.stop()):
            live += change
            result.timeline.append((max(0, when - started) / 1e9, live))
        result.peak = max(live for _, live in result.timeline)


def _on_release(log: AllocationLog, size: int) -> Callable[[Any], None]:
    thread = threading.get_ident()

    def note(_: Any) -> None:
        if threading.get_ident() == thread:
            log.note(size)

    return note


def _sizes(events: Sequence[Change | Note]) -> Iterator[tuple[int, int]]:
    """(nanoseconds since the epoch, bytes; negative for a release) of blocks allocated since the log began, and of noted releases."""
    # A release of an older block is reported now and then, with the size of whatever an earlier session saw at that
    # address. Such blocks are watched in another way, so only blocks of this session count here.
    own: dict[int, int] = {}
    for event in events:
        if isinstance(event, Note):
            yield event.when, -event.what
        elif event.size > 0:
            own[event.address] = event.size
            yield event.when, event.size
        elif size := own.pop(event.address, 0):
            yield event.when, -size


def _add_storage(found: dict[int, torch.UntypedStorage], tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.layout is not torch.strided or is_wrapper(tensor):
        return
    try:
        storage = tensor.untyped_storage()
        size = 0 if tensor._is_zerotensor() else storage.nbytes()  # zeros of forward-mode derivatives have no block
    except (NotImplementedError, RuntimeError, ValueError):  # wrappers of function transforms, uninitialized parameters
        return
    if same_device(storage.device, device) and size:
        found.setdefault(storage._cdata, storage)
