"""What a thread allocates and releases on the CPU, from the events of torch's profiler.

The profiler's clock is not Python's: of things that happen microseconds apart, times of both do not tell which came first. So what
Python has to add, such as the release of a block that the profiler does not know, is written into the profiler's own sequence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

#: Bytes of what marks a moment.
_MARK = 1


@dataclass(frozen=True, slots=True)
class Change:
    """A block of memory.

    Attributes:
        when: nanoseconds since the epoch, by the profiler's clock.
        size: bytes; negative when they are released.
        address: of the block.
    """

    when: int
    size: int
    address: int


@dataclass(frozen=True, slots=True)
class Note:
    """What `AllocationLog.note` was given, and when."""

    when: int
    what: Any


class AllocationLog:
    """All that this thread allocates and releases from now to `stop`. A process has one profiler: see to it that none is running."""

    def __init__(self) -> None:
        # Without acc_events, PyTorch before 2.13 warns that a next cycle clears the events: there is none.
        self._session = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
        self._marks: list[tuple[torch.UntypedStorage, Any]] = []
        with _quiet_kineto():
            self._session.start()

    def note(self, what: Any) -> None:
        """Remember that something happens at this moment. To be called by the same thread."""
        # An allocation, so that the profiler sees it. It lives to the end, so that no later block has its address.
        self._marks.append((torch.UntypedStorage(_MARK), what))

    def stop(self) -> list[Change | Note]:
        """What happened, in the order in which it did. To be called by the same thread."""
        profiler = self._session.profiler
        assert profiler is not None
        # Nor does anybody want its own objects for the events: for 40,000 of them it makes half a million, in 9 s, which lie in memory
        # until Python's collector comes.
        profiler.acc_events = False
        with _quiet_kineto():
            self._session.stop()
        assert profiler.kineto_results is not None
        notes = {storage.data_ptr(): what for storage, what in self._marks}
        events: list[Change | Note] = []
        # Of the blocks at the address of a mark, the mark is the last one.
        for change in reversed(_changes(profiler.kineto_results.experimental_event_tree())):
            events.append(Note(change.when, notes.pop(change.address)) if change.address in notes else change)
        self._marks.clear()
        self._session.profiler = None  # what it has seen: the session refers to itself, and so waits for the collector
        return events[::-1]


def _changes(events: Sequence[Any]) -> list[Change]:
    kind = torch._C._profiler._EventType.Allocation
    seen: list[Change] = []
    stack = list(reversed(events))
    while stack:
        event = stack.pop()
        stack.extend(reversed(event.children))
        if event.tag == kind:
            fields: Any = event.extra_fields
            if fields.device.type == "cpu":
                seen.append(Change(event.start_time_ns, fields.alloc_size, fields.ptr))
    return sorted(seen, key=attrgetter("when"))


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep the profiler's start and stop notes off the user's terminal."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]
