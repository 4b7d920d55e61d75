"""The parts of one round joined into one graph: one budget and one schedule for all of them.

A model that its framework hands over in several graphs runs their passes nested in each other: forward 1, forward 2, backward 2,
backward 1. Each such graph is a *part*, one run of a part's forward or backward pass an *event*, the two runs that belong together
a *pair*, and all events from a moment at which no backward pass is due to the next such moment a *round*.

The graph of a round has the ops of the parts in the order of the events. Where the user's script and automatic differentiation do
something between two events that memory depends on, a *gap op* of cost zero stands for it. It reads what the script still holds,
makes the gradients of outputs that the next backward pass begins with, and adds up gradients that meet. `stretches` cuts a
schedule of this graph back into one for each pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..errors import GraphError
from ..graph import Graph, Op, Value


@dataclass(frozen=True, slots=True)
class PartInput:
    """A storage that a part is called with.

    Attributes:
        size: bytes, counted in the `fixed_memory` of the part's graph.
        readers: ops of the part that read it.
        gradient: the value of the part that is its gradient; None if it gets none.
    """

    size: int
    readers: tuple[int, ...] = ()
    gradient: int | None = None


@dataclass(frozen=True)
class PartGraph:
    """One part alone.

    Attributes:
        graph: forward ops, the op `between`, backward ops; `fixed_memory` includes the bytes of the inputs.
        between: the op that stands for the script between the passes: it reads the outputs and makes their gradients, the
            *tangents*. None in a part without a backward pass.
        inputs: one for each storage that it is called with.
        outputs: for each tensor that the forward pass returns the value it lies in; None where that is no value of the part.
        tangents: for each output the value that is its gradient; None where it has none.
    """

    graph: Graph
    between: int | None
    inputs: tuple[PartInput, ...]
    outputs: tuple[int | None, ...]
    tangents: tuple[int | None, ...] = ()

    @property
    def forward_ops(self) -> range:
        return range(self.graph.num_ops if self.between is None else self.between)

    @property
    def backward_ops(self) -> range:
        return range(0) if self.between is None else range(self.between + 1, self.graph.num_ops)

    @cached_property
    def returned(self) -> frozenset[int]:
        """Values that the forward pass returns."""
        return frozenset(value for value in self.outputs if value is not None)

    @cached_property
    def gradients(self) -> frozenset[int]:
        """Values that the backward pass returns."""
        return frozenset(given.gradient for given in self.inputs if given.gradient is not None)

    @property
    def beside_inputs(self) -> int:
        """Bytes of the fixed memory that are no inputs, such as states of the random number generator."""
        return self.graph.fixed_memory - sum(given.size for given in self.inputs)

    @cached_property
    def across(self) -> tuple[frozenset[int], tuple[int, ...]]:
        """How the backward pass runs with the least held for it: values of the forward pass that cannot be computed again and
        are needed, and the ops of the forward pass that then run again."""
        if self.between is None:
            return frozenset(), ()
        ops, producer = self.graph.ops, self.graph.producer
        held, again = set(), set()
        needed = [*self.gradients, *(value for op in self.backward_ops for value in ops[op].inputs)]
        while needed:
            value = needed.pop()
            op = producer[value]
            if op < self.between and not ops[op].recomputable:
                held.add(value)
            elif op < self.between and op not in again:
                again.add(op)
                needed.extend(ops[op].inputs)
        return frozenset(held), tuple(sorted(again))


@dataclass(frozen=True, slots=True)
class Link:
    """An output of an earlier pair of the round: `value` of its part's graph."""

    pair: int
    value: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A run of a part's forward pass, and of its backward pass if that comes in the round.

    Attributes:
        part: its position among the parts.
        sources: for each input what it is called with: an output of an earlier pair, or a key. Storages with equal keys are one
            and the same (a parameter that two parts use) and live all the time.
        leaves: positions of the inputs whose gradient is kept (parameters). Other gradients flow on to the pair whose output the
            input is, or into the script, and die.
    """

    part: int
    sources: tuple[Hashable | Link, ...]
    leaves: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """One run of the forward or of the backward pass of a pair."""

    pair: int
    backward: bool = False


@dataclass(frozen=True)
class StepGraph:
    """The graph of a round, and what its ops are.

    Attributes:
        graph: to be scheduled in its own order (`order="given"`).
        parts, pairs, events: what it was made of.
        times: for each op when it runs first: 2 i in event i, 2 i + 1 in the gap after it.
        local: for each op its number in the graph of its part; None for a gap op.
    """

    graph: Graph
    parts: tuple[PartGraph, ...]
    pairs: tuple[Pair, ...]
    events: tuple[Event, ...]
    times: tuple[int, ...]
    local: tuple[int | None, ...]

    @property
    def alone(self) -> bool:
        """The round is one part, and the graph is the part's own."""
        return self.graph is self.parts[self.pairs[0].part].graph

    def pair_of(self, op: int) -> int | None:
        """The pair that an op belongs to; None for a gap op."""
        return None if self.local[op] is None else self.events[self.times[op] // 2].pair


def join(parts: Sequence[PartGraph], pairs: Sequence[Pair], events: Sequence[Event], name: str = "step") -> StepGraph:
    """The graph of a round. That of a single pair is the graph of its part, as it is.

    Raises:
        GraphError: the parts, pairs and events do not fit together.
    """
    _check(parts, pairs, events)
    given = tuple(parts), tuple(pairs), tuple(events)
    part = parts[pairs[0].part]
    if len(pairs) == 1 and len(events) == (1 if part.between is None else 2):
        between = part.graph.num_ops if part.between is None else part.between
        times = [0 if op < between else 1 if op == between else 2 for op in range(part.graph.num_ops)]
        return StepGraph(part.graph, *given, tuple(times), tuple(None if time == 1 else op for op, time in enumerate(times)))
    return _Joiner(*given).join(name)


def least_across(part: PartGraph, budget: int) -> tuple[Graph, int]:
    """The graph of one part whose schedules within `budget` hold as little as they can from the forward to the backward pass, and
    how many bytes that is, of what the backward pass needs and cannot compute again.

    The op between the passes takes all the room that is left: there is none for other values. Where the budget does not even leave
    room for these, the graph is the part's own.
    """
    if part.between is None:
        return part.graph, 0
    graph = part.graph
    between = graph.ops[part.between]
    held, _ = part.across
    early = {v for v, value in enumerate(graph.values) if value.keep and graph.producer[v] < part.between}
    there = graph.fixed_memory + _bytes(graph, held | early | {*between.inputs, *between.outputs})
    ops = list(graph.ops)
    ops[part.between] = replace(between, workspace=max(between.workspace, budget - there))
    return Graph(ops, graph.values, graph.fixed_memory, graph.name), _bytes(graph, held)


def _bytes(graph: Graph, values: frozenset[int] | set[int]) -> int:
    return sum(graph.values[value].size for value in values)


# --- joining ---


@dataclass
class _Gap:
    """What the script does between two events: the gap op under construction."""

    reads: dict[int, None] = field(default_factory=dict)
    makes: list[int] = field(default_factory=list)
    workspace: int = 0

    def read(self, value: int) -> None:
        if value not in self.makes:
            self.reads[value] = None

    @property
    def is_needed(self) -> bool:
        return bool(self.reads or self.makes or self.workspace)


class _Joiner:
    """Goes through the events of a round once, and notes the ops of each and of the gap after each."""

    def __init__(self, parts: tuple[PartGraph, ...], pairs: tuple[Pair, ...], events: tuple[Event, ...]):
        self.parts, self.pairs, self.events = parts, pairs, events
        self.part_of = [parts[pair.part] for pair in pairs]
        self.backward_at = {event.pair: number for number, event in enumerate(events) if event.backward}
        self.values: list[Value] = []
        self.kept: set[int] = set()
        #: For each pair: value of its part -> value of the step. A tangent that is another pair's gradient is that value.
        self.own: list[dict[int, int]] = [{} for _ in pairs]
        #: For each event its ops, each with its number in the part.
        self.ops: list[list[tuple[Op, int]]] = [[] for _ in events]
        #: Gap i follows event i.
        self.gaps = [_Gap() for _ in events]
        self.crossing: list[list[int]] = []  # values that each event returns
        #: Outputs that other pairs read: the script's frames hold them until the last forward pass that reads them, and on until a
        #: backward pass begins.
        self.in_frames: dict[Link, None] = {}
        self.last_reader = {
            source: number
            for number, event in enumerate(events)
            for source in pairs[event.pair].sources
            if isinstance(source, Link) and not event.backward
        }
        self.flows: dict[Link, int] = {}  # the gradient of an output so far
        self.sums: set[int] = set()  # gradients that were added up
        self.leaves: set[Hashable] = set()  # keys of inputs that have a gradient already

    def join(self, name: str) -> StepGraph:
        for number, event in enumerate(self.events):
            if event.backward:
                self._backward(number, event.pair)
            else:
                self._forward(number, event.pair)
        self._settle()
        return self._finish(name)

    # --- events, one by one ---

    def _forward(self, number: int, pair: int) -> None:
        part, own = self.part_of[pair], self.own[pair]
        self._add_ops(number, pair, part.forward_ops)
        links = (Link(pair, value) for value in part.outputs if value is not None)
        self.in_frames.update((link, None) for link in links if link in self.last_reader)
        self.crossing.append([own[v] for v in part.returned])
        if part.between is not None and pair not in self.backward_at:
            # Should its backward pass come after all, in another round, it must find what it needs.
            held, again = part.across
            self.kept.update(own[v] for v in held)
            late = {*again, *part.backward_ops}
            for given, source in zip(part.inputs, self.pairs[pair].sources, strict=True):
                if isinstance(source, Link) and not late.isdisjoint(given.readers):
                    self.kept.add(self.own[source.pair][source.value])

    def _backward(self, number: int, pair: int) -> None:
        gap = self.gaps[number - 1]
        self._make_tangents(pair, gap)
        if not self.events[number - 1].backward:
            for link in list(self.in_frames):
                gap.read(self.own[link.pair][link.value])
                if self.last_reader[link] < number:
                    del self.in_frames[link]
        self._add_ops(number, pair, self.part_of[pair].backward_ops)
        self._pass_gradients_on(number, pair)

    def _add_ops(self, number: int, pair: int, ops: range) -> None:
        part, own = self.part_of[pair], self.own[pair]
        read: dict[int, list[int]] = {}  # op -> outputs of other pairs
        for given, source in zip(part.inputs, self.pairs[pair].sources, strict=True):
            if isinstance(source, Link):
                for reader in given.readers:
                    read.setdefault(reader, []).append(self.own[source.pair][source.value])
        crossing = part.returned | part.gradients
        for index in ops:
            op = part.graph.ops[index]
            reads = dict.fromkeys([*(own[v] for v in op.inputs), *read.get(index, ())])
            for value in op.outputs:
                own[value] = self._new_value(pair, value)
            # What has left the part cannot be computed again there.
            again = op.recomputable and crossing.isdisjoint(op.outputs)
            joined = replace(
                op, name=f"{pair}.{op.name}", inputs=tuple(reads), outputs=tuple(own[v] for v in op.outputs), recomputable=again
            )
            self.ops[number].append((joined, index))

    def _new_value(self, pair: int, value: int) -> int:
        """A value of a part as a value of the step."""
        part = self.part_of[pair]
        given = part.graph.values[value]
        passed_on = Link(pair, value) in self.last_reader or (value in part.gradients and value not in part.returned)
        return self._make(f"{pair}.{given.name}", given.size, keep=given.keep and not passed_on)

    def _make(self, name: str, size: int, keep: bool = False) -> int:
        self.values.append(Value(name, size))
        if keep:
            self.kept.add(len(self.values) - 1)
        return len(self.values) - 1

    # --- gradients ---

    def _make_tangents(self, pair: int, gap: _Gap) -> None:
        """The gradients of a pair's outputs: those that other pairs have made, and the rest from the script."""
        part, own = self.part_of[pair], self.own[pair]
        assert part.between is not None
        between, sizes = part.graph.ops[part.between], part.graph.values
        output_of = {t: v for v, t in zip(part.outputs, part.tangents, strict=True) if t is not None}
        by_script = 0
        for tangent in between.outputs:
            output = output_of.get(tangent)
            flow = None if output is None else self.flows.get(Link(pair, output))
            siblings = [t for t, v in output_of.items() if v == output]
            if flow is not None and len(siblings) == 1 and self.values[flow].size == sizes[tangent].size:
                own[tangent] = flow
                continue
            own[tangent] = self._new_value(pair, tangent)
            gap.makes.append(own[tangent])
            if flow is not None:
                gap.read(flow)
            else:
                by_script += sizes[tangent].size
                if output is not None:
                    gap.read(own[output])
        for value in between.inputs:
            if Link(pair, value) not in self.last_reader:
                gap.read(own[value])
        total = _bytes(part.graph, set(between.outputs))
        gap.workspace += -(-between.workspace * by_script // total) if total else between.workspace

    def _pass_gradients_on(self, number: int, pair: int) -> None:
        """Each gradient goes to the parameter or to the pair it is for; there it may meet others."""
        part, own, gap = self.part_of[pair], self.own[pair], self.gaps[number]
        self.crossing.append([own[v] for v in part.gradients])
        for position, (given, source) in enumerate(zip(part.inputs, self.pairs[pair].sources, strict=True)):
            if given.gradient is None:
                continue
            gradient = own[given.gradient]
            if isinstance(source, Link):
                if self.backward_at.get(source.pair, -1) > number and self._has_tangent(source):
                    self._add_up(source, gradient, gap)
            elif position in self.pairs[pair].leaves:
                if source in self.leaves:
                    gap.read(gradient)  # added to the first one
                else:
                    self.leaves.add(source)
                    self.kept.add(gradient)

    def _has_tangent(self, link: Link) -> bool:
        part = self.part_of[link.pair]
        return any(v == link.value and t is not None for v, t in zip(part.outputs, part.tangents, strict=True))

    def _add_up(self, link: Link, gradient: int, gap: _Gap) -> None:
        """One more gradient of an output. The first sum is another value, for others may hold what is added; it takes in the rest."""
        before = self.flows.setdefault(link, gradient)
        if before == gradient:
            return
        gap.read(gradient)
        gap.read(before)
        if before not in self.sums:
            output = self.values[self.own[link.pair][link.value]]
            size = max(self.values[before].size, self.values[gradient].size, output.size)
            self.flows[link] = self._make(f"gradient of {output.name}", size)
            self.sums.add(self.flows[link])
            gap.makes.append(self.flows[link])

    # --- once all events are known ---

    def _settle(self) -> None:
        """What a forward pass is called with and what an event returns is there when it ends: if nobody reads it later, the gap after
        it does."""
        last: dict[int, int] = {}
        for number, (ops, gap) in enumerate(zip(self.ops, self.gaps, strict=True)):
            last.update((value, 2 * number) for op, _ in ops for value in op.inputs)
            last.update((value, 2 * number + 1) for value in gap.reads)
        for link, number in self.last_reader.items():
            self.crossing[number].append(self.own[link.pair][link.value])
        for number, (gap, crossing) in enumerate(zip(self.gaps, self.crossing, strict=True)):
            for value in crossing:
                if value not in self.kept and last.get(value, 0) <= 2 * number:
                    gap.read(value)

    def _finish(self, name: str) -> StepGraph:
        ops: list[Op] = []
        times: list[int] = []
        local: list[int | None] = []
        first_backward = min(self.backward_at.values(), default=len(self.events))
        for number, (own, gap) in enumerate(zip(self.ops, self.gaps, strict=True)):
            ops += [op for op, _ in own]
            local += [index for _, index in own]
            times += [2 * number] * len(own)
            if gap.is_needed:
                phase = "loss" if number < first_backward else "backward"
                what = f"script after event {number}"
                ops.append(Op(what, 0.0, tuple(gap.reads), tuple(gap.makes), gap.workspace, recomputable=False, phase=phase))
                local.append(None)
                times.append(2 * number + 1)
        values = [replace(value, keep=number in self.kept) for number, value in enumerate(self.values)]
        graph = Graph(ops, values, self._fixed_memory(), name)
        return StepGraph(graph, self.parts, self.pairs, self.events, tuple(times), tuple(local))

    def _fixed_memory(self) -> int:
        """Every storage that is nobody's output once, and what each pair has besides."""
        sizes: dict[Hashable, int] = {}
        for pair, part in zip(self.pairs, self.part_of, strict=True):
            for given, source in zip(part.inputs, pair.sources, strict=True):
                if not isinstance(source, Link):
                    sizes[source] = max(given.size, sizes.get(source, 0))
        return sum(sizes.values()) + sum(part.beside_inputs for part in self.part_of)


# --- checks ---


def _check(parts: Sequence[PartGraph], pairs: Sequence[Pair], events: Sequence[Event]) -> None:
    """What is joined fits together."""
    for number, part in enumerate(parts):
        _check_part(number, part)
    forward: set[int] = set()
    backward: set[int] = set()
    for event in events:
        if not 0 <= event.pair < len(pairs):
            raise GraphError(f"an event is of pair {event.pair}, but there are {len(pairs)} pairs")
        done = backward if event.backward else forward
        if event.pair in done:
            way = "backward" if event.backward else "forward"
            raise GraphError(f"pair {event.pair} runs its {way} pass twice: give each run a pair of its own")
        if event.backward and event.pair not in forward:
            raise GraphError(f"pair {event.pair} runs its backward pass before its forward pass")
        pair = pairs[event.pair]
        if not event.backward:
            _check_pair(event.pair, parts, pairs, forward)
        elif parts[pair.part].between is None:
            raise GraphError(f"pair {event.pair} runs a backward pass that part {pair.part} does not have")
        done.add(event.pair)
    if len(forward) != len(pairs) or not pairs:
        raise GraphError(
            f"{len(forward)} of {len(pairs)} pairs run their forward pass: each of a round does, and a round has one"
        )


def _check_part(number: int, part: PartGraph) -> None:
    if part.beside_inputs < 0:
        raise GraphError(f"the inputs of part {number} take more bytes than its fixed memory, which includes them")
    values, ops = range(part.graph.num_values), range(part.graph.num_ops)
    named = [*part.returned, *part.gradients, *(tangent for tangent in part.tangents if tangent is not None)]
    if any(value not in values for value in named) or any(op not in ops for given in part.inputs for op in given.readers):
        raise GraphError(f"part {number} names ops or values that its graph does not have")
    if part.between is None:
        return
    if len(part.tangents) != len(part.outputs):
        raise GraphError(f"part {number} has {len(part.outputs)} outputs but {len(part.tangents)} tangents")
    if not 0 <= part.between < part.graph.num_ops:
        raise GraphError(f"part {number} has no op {part.between} to stand between its passes")
    made = part.graph.ops[part.between].outputs
    if any(tangent is not None and tangent not in made for tangent in part.tangents):
        raise GraphError(f"a tangent of part {number} is not made by the op between its passes")
    if any(part.graph.producer[value] >= part.between for value in part.returned):
        raise GraphError(f"an output of part {number} is not made by its forward pass")


def _check_pair(number: int, parts: Sequence[PartGraph], pairs: Sequence[Pair], forward: set[int]) -> None:
    """A pair whose forward pass runs now; those of `forward` have run before."""
    pair = pairs[number]
    if not 0 <= pair.part < len(parts):
        raise GraphError(f"pair {number} is of part {pair.part}, but there are {len(parts)} parts")
    part = parts[pair.part]
    if len(pair.sources) != len(part.inputs):
        raise GraphError(f"pair {number} has {len(pair.sources)} sources, but part {pair.part} has {len(part.inputs)} inputs")
    for position, source in enumerate(pair.sources):
        if not isinstance(source, Link):
            continue
        if source.pair not in forward:
            raise GraphError(f"pair {number} reads an output of pair {source.pair}, whose forward pass has not run by then")
        if source.value not in parts[pairs[source.pair].part].returned:
            raise GraphError(f"pair {number} reads value {source.value} of pair {source.pair}, which is not an output of it")
        if position in pair.leaves:
            raise GraphError(f"input {position} of pair {number} is an output of pair {source.pair}, and so no leaf")
