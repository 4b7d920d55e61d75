"""Which graphs ran, in which order, and what they handed to each other.

A round begins with a forward pass while no other waits for its backward pass, and ends when the last one that waits has had its own:
forward and backward of a model of one graph; forward 1, forward 2, backward 2, backward 1 of a model with a graph break. A round is
what is planned in one piece; an optimizer step with several microbatches has a round for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from ...planning.parts import Event, Link
from ..graphs.forward_again import Called
from ..graphs.halves import Halves
from ..graphs.part import Left, Part, Ticket
from ..memory.script_memory import Script, ScriptMemory
from ..ops.sizes import Bindings
from .watch import WithoutPlan

#: What a round looks like, whatever the sizes: for each event the part, the number of the pass among those of the round, and
#: whether it is its backward pass.
Order = tuple[tuple[Part, int, bool], ...]


#: What a round runs under.
AnyPlan = TypeVar("AnyPlan")


class Run:
    """One forward pass, and the backward pass that belongs to it.

    Attributes:
        part: what ran. sizes: at which sizes. number: of the pass in its round.
        storages: of the inputs that lived before the round. identities: of the storages of all inputs; given: each once.
        event: number of its forward pass among the events of the round.
        bytes: of the storages, when it began. stream: of the device, that it runs on.
        borrowed: inputs that are, as they are, outputs of the runs that they come from; by position the number of the output.
        halves: what is run. called: with what; None where it is not kept.
    """

    def __init__(self, round: Round[Any], part: Part, sizes: Bindings, number: int):
        self.round = round
        self.runner = part.runner
        self.part = part
        self.sizes = sizes
        self.number = number
        self.storages: tuple[weakref.ref[Any], ...] = ()
        self.given: frozenset[int] = frozenset()
        self.borrowed: dict[int, int] = {}
        self.bytes: tuple[int, ...] = ()
        self.stream = 0
        self.halves: Halves | None = None
        self.called: Called | None = None
        self.event = len(round.events)
        self._inputs: Sequence[torch.Tensor] = ()
        self.identities: Sequence[int] = ()
        self._sources: tuple[Hashable | Link, ...] | None = None
        self._leaves: frozenset[int] | None = None
        self._ticket: weakref.ref[Ticket] | None = None
        self.done = False

    @property
    def sources(self) -> tuple[Hashable | Link, ...]:
        """For each input of the part where it came from: a `Link` to an earlier run of the round, or a key of what lived before."""
        if self._sources is None:  # all of them lived before
            self._sources = tuple((identity, number, self.event) for number, identity in enumerate(self.identities))
        return self._sources

    @property
    def leaves(self) -> frozenset[int]:
        """Inputs whose gradients the script keeps."""
        if self._leaves is None:
            self._leaves = frozenset(i for i, tensor in enumerate(self._inputs) if tensor.requires_grad and tensor.is_leaf)
        return self._leaves

    def note(
        self, inputs: Sequence[torch.Tensor], identities: Sequence[int], sources: tuple[Hashable | Link, ...] | None
    ) -> None:
        """It is called with these.

        Args:
            identities: of their storages. sources: None where all of them lived before.
        """
        self._inputs, self.identities, self._sources = inputs, identities, sources

    def settle(self, leaves: frozenset[int] | None) -> None:
        """Its inputs are not looked at any more.

        Args:
            leaves: if they are known.
        """
        self._leaves = self.leaves if leaves is None else leaves
        self._inputs = ()

    def leave(self, saved: Sequence[Any]) -> Ticket:
        """The forward pass has run: the ticket for its backward pass."""
        ticket = Ticket(self, saved)
        self._ticket = weakref.ref(ticket)
        return ticket

    def add(self, left: Left) -> None:
        """One more thing that is left for backward passes."""
        ticket = None if self._ticket is None else self._ticket()
        if ticket is not None:
            ticket.add(left)

    def let_go(self) -> Called | None:
        """Save nothing but what it was called with, which is returned; None if that is not known, or no backward pass may come."""
        called, self.called = self.called, None
        ticket = None if self._ticket is None else self._ticket()
        return called if called is not None and ticket is not None and not self.done and called.exchange(ticket) else None

    @property
    def saved(self) -> list[torch.Tensor]:
        """What waits for its backward pass."""
        ticket = None if self._ticket is None else self._ticket()
        saved = [x.tensor if isinstance(x, Left) else x for x in (ticket.saved if ticket is not None else None) or ()]
        return [x for x in saved if isinstance(x, torch.Tensor) and x.layout is torch.strided]

    @property
    def left(self) -> bool:
        """What its backward pass reads is still kept."""
        ticket = None if self._ticket is None else self._ticket()
        return ticket is not None and ticket.saved is not None

    @property
    def waiting(self) -> bool:
        """Its backward pass may still come."""
        return not self.done and (self._ticket is None or self._ticket() is not None)


@dataclass
class Round(Generic[AnyPlan]):
    """What has run so far.

    Attributes:
        plan: what the round runs under; None while its order is unknown. planned_for: the order of the plan that it began under.
        without_plan: measures it while it has no plan; None where that is not done.
        ended: what it has shown has been noted. twice: a backward pass has kept what it reads, to run once more.
        script: what the script takes between the passes; None where it is not looked at. later: not a round of the first step.
        intact: as far as was looked, what runs were called with was there when other backward passes began.
        handing: what runs have left for each other, under a plan of stages.
        held_by_script: what a run has returned was still there when the plan had it computed again.
        agreed: a plan, and how many of the events are known to come as planned at sizes that it is for.
        beside: graphs without gradients that ran between the passes: after which event, the bytes that they took, and the storages and
            bytes of what else they were given.
    """

    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    plan: AnyPlan | None = None
    planned_for: Order | None = None
    without_plan: WithoutPlan | None = None
    ended: bool = False
    twice: bool = False
    script: ScriptMemory | None = None
    later: bool = False
    intact: bool = True
    handing: Any = None
    held_by_script: bool = False
    agreed: tuple[AnyPlan | None, int] = (None, 0)
    beside: list[tuple[int, int, list[tuple[weakref.ref[Any], int]]]] = field(default_factory=list)
    _looks: dict[int, list[Any]] = field(default_factory=dict)  # of the outputs of each run
    _made: dict[int, tuple[weakref.ref[Any], Hashable | Link]] = field(default_factory=dict)
    _first: Run | None = None  # whose inputs are not in there yet: most rounds have no second run

    @property
    def waiting(self) -> bool:
        """A backward pass may still come."""
        return any(run.waiting for run in self.runs)

    @property
    def left(self) -> bool:
        """What a backward pass reads is still kept."""
        return any(run.left for run in self.runs)

    @property
    def held(self) -> int:
        """Bytes that the script was seen to hold besides."""
        return 0 if self.script is None else self.script.held

    @property
    def order(self) -> Order:
        """What has run so far, whatever the sizes."""
        return tuple((self.runs[event.pair].part, event.pair, event.backward) for event in self.events)

    def begin(self, part: Part, sizes: Bindings) -> Run:
        """A forward pass is about to run."""
        run = Run(self, part, sizes, len(self.runs))
        self.runs.append(run)
        self.events.append(Event(run.number, backward=False))
        return run

    def begin_backward(self, run: Run) -> int:
        """A backward pass is about to run; the number of the event."""
        self.events.append(Event(run.number, backward=True))
        return len(self.events) - 1

    def note_inputs(self, run: Run, inputs: Sequence[torch.Tensor]) -> None:
        """Find out where the inputs of a run come from.

        Args:
            inputs: one tensor for each input of the part that counts.
        """
        storages = [tensor.untyped_storage() for tensor in inputs]
        identities = [storage._cdata for storage in storages]
        run.given = frozenset(identities)
        if not self._made and self._first is None and len(run.given) == len(storages):  # nothing can come from elsewhere
            run.note(inputs, identities, None)
            self._first, before = run, storages
        else:
            run.note(inputs, identities, sources := tuple(map(self._source, storages)))
            before = [storage for storage, source in zip(storages, sources, strict=True) if not isinstance(source, Link)]
        run.storages = tuple(map(weakref.ref, before))
        run.bytes = tuple(map(torch.UntypedStorage.nbytes, before))

    def note_borrowed(self, run: Run, inputs: Sequence[torch.Tensor], whole: Sequence[bool]) -> None:
        """Find out which inputs are just what an earlier run has returned: neither seen in another way, nor changed since.

        Args:
            whole: for each input, the run reads it through this tensor alone, and does not overwrite it.
        """
        for position, (tensor, source) in enumerate(zip(inputs, run.sources, strict=True)):
            if whole[position] and isinstance(source, Link) and self.runs[source.pair].stream == run.stream:
                looks = self._looks[source.pair]
                if (look := _look(tensor)) is not None and look in looks:
                    run.borrowed[position] = looks.index(look)

    def note_stream(self, run: Run, device: torch.device) -> None:
        """Note where a run takes place."""
        run.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0

    def note_outputs(self, run: Run, outputs: Sequence[Any], values: Sequence[int | None]) -> None:
        """Note what a run made, so that later runs that read it are recognised.

        Args:
            values: for each output the value of the part that it lies in.
        """
        self._looks[run.number] = [None if value is None else _look(x) for x, value in zip(outputs, values, strict=True)]
        for output, value in zip(outputs, values, strict=True):
            if value is not None and isinstance(output, torch.Tensor):
                storage = output.untyped_storage()
                self._made[storage._cdata] = (weakref.ref(storage), Link(run.number, value))

    def note_intact(self) -> None:
        """A backward pass begins: see whether what waiting runs were called with is still there.

        Parameters that are gathered for each pass, and let go in between, are not.
        """
        for run in self.runs:
            if run.waiting:
                storages = [reference() for reference in run.storages]
                same = [s is None or s.nbytes() == before for s, before in zip(storages, run.bytes, strict=True)]
                self.intact &= all(same)

    def returned(self) -> list[weakref.ref[Any]]:
        """Storages that the forward passes gave to the script."""
        return [reference for reference, source in self._made.values() if isinstance(source, Link)]

    def alive(self, links: Sequence[Link]) -> set[int]:
        """Identities of the storages of these outputs, as far as they live."""
        return {key for key, (reference, source) in self._made.items() if source in links and reference() is not None}

    def storages(self) -> set[int]:
        """Identities of what the passes read and returned, as far as it lives."""
        return {key for key, (reference, _) in self._known().items() if reference() is not None}

    def kept(self) -> dict[int, torch.UntypedStorage]:
        """Storages that what has run so far has read, returned or saved, as far as they still live, by identity."""
        found = [storage for reference, _ in self._known().values() if (storage := reference()) is not None]
        found += [tensor.untyped_storage() for run in self.runs for tensor in run.saved]
        return {storage._cdata: storage for storage in found}

    def note_beside(self, taken: int, given: Mapping[int, torch.UntypedStorage]) -> None:
        """A graph without gradients runs between the passes.

        Args:
            taken: bytes besides its inputs. given: storages of the inputs by their identity, but for what training holds anyway.
        """
        own = self.storages()
        others = [(weakref.ref(storage), storage.nbytes()) for key, storage in given.items() if key not in own]
        self.beside.append((len(self.events) - 1, taken, others))

    def with_beside(self, script: Script) -> Script:
        """What is known of the script's memory, with what ran beside the round."""
        for event, taken, given in self.beside:
            gone = sum(size for reference, size in given if reference() is None)  # what still lives is seen as held by the script
            script = script.joined(Script(0, {event: script.during + taken + gone}))
        return script

    def _known(self) -> dict[int, tuple[weakref.ref[Any], Hashable | Link]]:
        """Where storages come from that passes have read or returned, by identity."""
        if self._first is not None:
            run, self._first = self._first, None
            given = zip(run.identities, zip(run.storages, run.sources, strict=True), strict=True)
            self._made = {**dict(given), **self._made}
        return self._made

    def _source(self, storage: torch.UntypedStorage) -> Hashable | Link:
        known = self._known().get(storage._cdata)
        if known is not None and known[0]() is not None:
            return known[1]
        # Not the address alone: another storage may have it later in the same round.
        key = (storage._cdata, len(self._made), len(self.events))
        self._made[storage._cdata] = (weakref.ref(storage), key)
        return key


def storage_of(source: Hashable | Link) -> int | None:
    """The identity of the storage that an input of a run came from; None for what an earlier run has made."""
    return source[0] if isinstance(source, tuple) else None


def _look(tensor: Any) -> Any:
    """What tells one tensor of a storage from another, and from itself before it was changed; None where nothing does."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_inference() or tensor.layout is not torch.strided:
        return None
    bits = tensor.is_conj(), tensor.is_neg()
    place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return *place, tensor.dtype, *bits, tensor._version


def largest(sizes: Sequence[Bindings]) -> Bindings:
    """In each place the largest of these."""
    return tuple(max(places) for places in zip(*sizes, strict=True))
