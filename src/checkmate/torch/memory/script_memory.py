"""What the user's script itself takes on the CPU between the passes of a round, such as a loss or a head outside all graphs.

Nobody tells about it, so it is looked at once for each order of graphs, in its first round: what plain autograd nodes have saved
when autograd's engine begins, and what is allocated beside the passes while the engine runs. What these passes take is seen at the same
time, for there is one recording at a time. Nothing is recorded between the passes of the forward direction: what records must end
before anything that surrounds it does, and there it could not.

On CUDA the counters of the device see it in the rounds that are measured (`watch`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ...errors import CheckmateError
from ..pytorch.internals import around_backward, inside_backward
from .allocations import Change, Note
from .measure import Recording, storages_of
from .outside_graphs import nodes_outside, saved_outside


@dataclass(frozen=True)
class Script:
    """What the script took in rounds of one order, in bytes.

    Attributes:
        during: the most that it had of its own while a pass ran; what it gave to the pass is left out.
        gaps: by event, the most that it had of its own between the end of the event and the next.
    """

    during: int = 0
    gaps: Mapping[int, int] = field(default_factory=dict)

    def after(self, event: int) -> int:
        """The most that it had between this event and the next, beyond what it has while passes run."""
        return max(0, self.gaps.get(event, 0) - self.during)

    def joined(self, other: Script) -> Script:
        """The more of both."""
        gaps = {gap: max(self.gaps.get(gap, 0), other.gaps.get(gap, 0)) for gap in {*self.gaps, *other.gaps}}
        return Script(max(self.during, other.during), gaps)


#: As long as nothing is known.
NOTHING = Script()

#: So many further runs of the engine over what a round has left are recorded, then the 16th, the 32nd and so on, and the one that was the
#: last in a round before: a Jacobian has a run for each of its rows, which takes milliseconds, and a look at the script's memory a tenth of
#: a second.
_EACH_AGAIN = 8


@dataclass(frozen=True)
class _Begins:
    """A pass begins while the engine runs: which event it is, and the bytes of what it was given, by address."""

    event: int
    given: Mapping[int, int]


@dataclass(frozen=True)
class _Ends:
    """A pass has ended. `note` is to be called with the most bytes that it had beyond what it was given."""

    event: int
    note: Callable[[int], None] | None


@dataclass(frozen=True)
class _Dies:
    """A block that is older than the recording is released."""

    address: int


class ScriptMemory:
    """Looks at one round. It must live as long as the round.

    Attributes:
        seen: so far; recorded: anything was.
        counted: says of a storage, by identity, whether plans count it.
        known: losses that need not be recorded, as `nodes_outside` names them. losses: of this round.
        inside: the round runs inside of a backward pass, as in that of a `torch.autograd.Function` which computes its forward pass again.
        beside: finds storages that the script holds besides, by identity. held: their bytes, when the engine began.
        again: the most bytes that the script had of its own while backward passes ran once more, in the last such run of the engine.
        runs_again: such runs of the engine so far. last: how many there were in a round before.
    """

    def __init__(
        self,
        counted: Callable[[], Container[int]],
        known: Collection[tuple[str, ...]] = (),
        beside: Callable[[], Mapping[int, torch.UntypedStorage]] = dict,
        last: int = 0,
    ) -> None:
        self.seen, self.recorded = NOTHING, False
        self.counted = counted
        self.beside, self.held = beside, 0
        self.inside = inside_backward()
        self.known, self.losses = known, set[tuple[str, ...]]()
        self.again, self.runs_again, self.last = 0, 0, last
        self._may_run_again: Callable[[], bool] | None = None
        self._event = 0  # the last one that began
        self._recording: Recording | None = None
        self._watched: list[weakref.ref[Any]] = []
        self._own: dict[int, int] = {}  # bytes by address
        self._live = self._peak = 0
        self._then: Callable[[], None] | None = None
        _looking.at = weakref.ref(self)

    @property
    def recording(self) -> bool:
        """The engine runs and is recorded: a pass cannot be measured by itself."""
        return self._recording is not None

    def run(
        self, event: int, function: Callable[[list[Any]], Any], arguments: list[Any], note: Callable[[int], None] | None = None
    ) -> Any:
        """Run a pass.

        Args:
            note: called with what it took at most, beyond what it was given, when the engine's run has ended well; only if that is recorded.
        """
        self._event = event
        if self._recording is None:
            return function(arguments)
        recording = self._recording
        recording.note(_Begins(event, self._watch(storages_of(arguments).values())))
        results = function(arguments)
        recording.note(_Ends(event, note))
        return results

    def leave(self, may_run_again: Callable[[], bool] = lambda: False) -> None:
        """The round is over.

        Args:
            may_run_again: what its backward passes have read is still kept for that: they are looked at.
        """
        self._may_run_again = may_run_again
        self._look_no_more()

    def _look_no_more(self) -> bool:
        over = self._may_run_again is not None and not self._may_run_again()
        if over and _looking.at is not None and _looking.at() is self:
            _looking.at = None
        return over

    def put_off(self, then: Callable[[], None]) -> bool:
        """Have `then` called when the engine's run has ended, if that is being recorded."""
        if self.recording:
            self._then = then
        return self.recording

    # --- the run of the engine ---

    def engine_begins(self, roots: Sequence[Any]) -> bool:
        """Look at what is there. Whether the run is recorded."""
        if self._look_no_more() or not self._is_due():
            return False
        self.losses.add(loss := nodes_outside(roots))
        if loss in self.known:
            return False
        self.recorded, self.again = True, 0
        beside = self.beside()
        early, late = saved_outside(roots, self.counted())
        kept = {**beside, **early, **late}
        self.held = sum(storage.nbytes() for key, storage in beside.items() if key not in early and key not in late)
        self._own = self._watch(kept.values())
        self._live = self._peak = sum(self._own.values())
        self._see(Script(sum(storage.nbytes() for storage in early.values()), {self._event: self._live}))
        try:
            self._recording = Recording()
        except CheckmateError:  # the script measures or profiles this round itself
            return False
        return True

    def _is_due(self) -> bool:
        if self._may_run_again is None:
            return True
        self.runs_again = number = self.runs_again + 1
        return number <= _EACH_AGAIN or number.bit_count() == 1 or number == self.last

    def engine_ended(self, well: bool) -> None:
        """It has run all passes, or has failed."""
        self._watched.clear()
        recording, self._recording = self._recording, None
        events = recording.stop() if recording is not None else None
        if events is not None and well:
            self._replay(events)
        then, self._then = self._then, None
        if then is not None and well:
            then()

    def _watch(self, storages: Iterable[torch.UntypedStorage]) -> dict[int, int]:
        """The bytes of these by address. Of what is older than itself the profiler does not report the release: that is noted."""
        self._watched += [weakref.ref(storage, partial(self._released, storage.data_ptr())) for storage in storages]
        return {storage.data_ptr(): storage.nbytes() for storage in storages}

    def _released(self, address: int, _: Any) -> None:
        if self._recording is not None:
            self._recording.note(_Dies(address))

    # --- what was recorded ---

    def _replay(self, events: Sequence[Change | Note]) -> None:
        noted = [event.what for event in events if isinstance(event, Note)]
        gap = next((what.event - 1 for what in noted if isinstance(what, _Begins)), self._event)
        in_pass: _Pass | None = None
        for event in events:
            match event:
                case Note(what=_Begins(given=given)):
                    self._see(Script(0, {gap: self._peak}))
                    for address in given:  # the plan counts these
                        self._forget(address)
                    self._see(Script(self._live))
                    in_pass = _Pass(given)
                case Note(what=_Ends(event=gap, note=note)):
                    if in_pass is not None and note is not None:
                        note(in_pass.most)
                    in_pass, self._peak = None, self._live
                case Note(what=_Dies(address=address)):
                    self._forget(address)
                    if in_pass is not None:
                        in_pass.change(address, 0)
                case Change(size=size, address=address):
                    self._forget(address)
                    if in_pass is not None:  # what a pass allocates is in its plan
                        in_pass.change(address, size)
                    elif size > 0:
                        self._own[address] = size
                        self._live += size
                        self._peak = max(self._peak, self._live)
        self._see(Script(0, {gap: self._peak}))

    def _forget(self, address: int) -> None:
        self._live -= self._own.pop(address, 0)

    def _see(self, more: Script) -> None:
        if self._may_run_again is not None:
            self.again = max(self.again, more.during)
            return
        self.seen = self.seen.joined(more)


class _Pass:
    """What a pass has: what it was given and what it makes, as long as that lives.

    Attributes:
        most: bytes that it had at most, beyond what it was given.
    """

    def __init__(self, given: Mapping[int, int]):
        self._blocks = dict(given)
        self.most = self._more = 0

    def change(self, address: int, size: int) -> None:
        """A block is there with so many bytes, or with none or less any more."""
        self._more += max(0, size) - self._blocks.pop(address, 0)
        if size > 0:
            self._blocks[address] = size
        self.most = max(self.most, self._more)


class _Looking(threading.local):
    """What looks at the round of this thread."""

    at: weakref.ref[ScriptMemory] | None = None


_looking = _Looking()


def looked_at() -> bool:
    """A round of this thread is being looked at."""
    return _looking.at is not None and _looking.at() is not None


def _engine_begins(roots: Sequence[Any]) -> Callable[[bool], None] | None:
    looking = _looking.at() if _looking.at is not None else None
    if looking is None or inside_backward() != looking.inside:
        return None
    return looking.engine_ended if looking.engine_begins(roots) else None


around_backward(_engine_begins)
