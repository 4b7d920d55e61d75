"""The parts of one round joined into one graph: one budget and one schedule for all of them.

The graph of a round has the ops of the parts in the order of the events. Where the user's script and automatic differentiation do
something between two events that memory depends on, a *gap op* of cost zero stands for it. It reads what the script still holds,
makes the gradients of outputs that the next backward pass begins with, and adds up gradients that meet. `stretches` cuts a
schedule of this graph back into one for each pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..graph import Graph, Op, Value
from .parts import Event, Link, Pair, PartGraph, bytes_of, check_round


@dataclass(frozen=True)
class StepGraph:
    """The graph of a round, and what its ops are.

    Attributes:
        graph: to be scheduled in its own order (`order="given"`).
        parts, pairs, events: what it was made of.
        times: for each op when it runs first: 2 i in event i, 2 i + 1 in the gap after it.
        local: for each op its number in the graph of its part; None for a gap op.
        own: for each pair which value of the step a value of its part is.
        lent: ops that make what other pairs are called with, and may run again all the same: in any backward pass, see `stretches`.
    """

    graph: Graph
    parts: tuple[PartGraph, ...]
    pairs: tuple[Pair, ...]
    events: tuple[Event, ...]
    times: tuple[int, ...]
    local: tuple[int | None, ...]
    own: tuple[Mapping[int, int], ...] = ()
    lent: frozenset[int] = frozenset()

    @property
    def alone(self) -> bool:
        """The round is one part, and the graph is the part's own."""
        return self.graph is self.parts[self.pairs[0].part].graph

    def pair_of(self, op: int) -> int | None:
        """The pair that an op belongs to; None for a gap op."""
        return None if self.local[op] is None else self.events[self.times[op] // 2].pair


def join(
    parts: Sequence[PartGraph], pairs: Sequence[Pair], events: Sequence[Event], name: str = "step", beside: Sequence[int] = ()
) -> StepGraph:
    """The graph of a round. That of a single pair is the graph of its part.

    Args:
        beside: for each event the bytes that the script was seen to take between it and the next, beyond what it hands over; the
            estimates of the parts are not lowered.

    Raises:
        GraphError: the parts, pairs and events do not fit together.
    """
    check_round(parts, pairs, events)
    given = tuple(parts), tuple(pairs), tuple(events)
    part = parts[pairs[0].part]
    if len(pairs) == 1 and len(events) == (1 if part.between is None else 2):
        between = part.graph.num_ops if part.between is None else part.between
        if part.between is not None and beside:
            part = _with_script(part, beside[0])
            given = (part, *given[0][1:]), *given[1:]
        times = [0 if op < between else 1 if op == between else 2 for op in range(part.graph.num_ops)]
        return StepGraph(part.graph, *given, tuple(times), tuple(None if time == 1 else op for op, time in enumerate(times)))
    return _Joiner(*given).join(name, beside)


def _with_script(part: PartGraph, taken: int) -> PartGraph:
    """The part, where the script takes so many bytes between its passes."""
    graph = part.graph
    assert part.between is not None
    between = graph.ops[part.between]
    workspace = max(between.workspace, taken - bytes_of(graph, between.outputs))
    if workspace == between.workspace:
        return part
    ops = list(graph.ops)
    ops[part.between] = replace(between, workspace=workspace)
    return replace(part, graph=Graph(ops, graph.values, graph.fixed_memory, graph.name))


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
        #: Outputs that all who are called with them could as well be called with once more.
        unlike = {s for pair in pairs for i, s in enumerate(pair.sources) if isinstance(s, Link) and i not in pair.borrowed}
        self.again = self.last_reader.keys() - unlike
        self.lent: set[tuple[int, int]] = set()  # pair and op of its part
        self.flows: dict[Link, int] = {}  # the gradient of an output so far
        self.sums: set[int] = set()  # gradients that were added up
        self.leaves: set[Hashable] = set()  # keys of inputs that have a gradient already

    def join(self, name: str, beside: Sequence[int]) -> StepGraph:
        for number, event in enumerate(self.events):
            if event.backward:
                self._backward(number, event.pair)
            else:
                self._forward(number, event.pair)
        for gap, taken in zip(self.gaps, beside, strict=False):
            gap.workspace = max(gap.workspace, taken - sum(self.values[value].size for value in gap.makes))
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
            # What has left the part cannot be computed again, unless it is read by parts alone.
            again = op.recomputable and crossing.isdisjoint(op.outputs)
            if self._is_lent(pair, index):
                self.lent.add((pair, index))
                again = True
            reuses = None if op.reuses is None else own[op.reuses]
            outputs = tuple(own[v] for v in op.outputs)
            joined = replace(
                op, name=f"{pair}.{op.name}", inputs=tuple(reads), outputs=outputs, recomputable=again, reuses=reuses
            )
            self.ops[number].append((joined, index))

    def _is_lent(self, pair: int, op: int) -> bool:
        """Other pairs are called with what the op makes, and it can run again for them."""
        part = self.part_of[pair]
        made = part.graph.ops[op].outputs
        leaving = [Link(pair, value) for value in made if value in part.returned]
        own = pair in self.backward_at and op in part.lendable and part.gradients.isdisjoint(made)
        return own and bool(leaving) and self.again.issuperset(leaving)

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
            # What an input is overwritten with is copied into it right after the forward pass.
            if Link(pair, value) not in self.last_reader and part.graph.values[value].keep:
                gap.read(own[value])
        total = bytes_of(part.graph, set(between.outputs))
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
        before = self.flows.get(link)
        if before is None:
            self.flows[link] = gradient
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
        readers = Counter(value for op in ops for value in op.inputs)
        # What an op of a part may write in may be needed elsewhere in the step.
        ops = [
            replace(op, reuses=None) if op.reuses is not None and (op.reuses in self.kept or readers[op.reuses] > 1) else op
            for op in ops
        ]
        lent = set()
        for number, index in enumerate(local):
            if index is not None and (self.events[times[number] // 2].pair, index) in self.lent:
                if self.kept.isdisjoint(ops[number].outputs):
                    lent.add(number)
                else:
                    ops[number] = replace(ops[number], recomputable=False)
        values = [replace(value, keep=number in self.kept) for number, value in enumerate(self.values)]
        graph = Graph(ops, values, self._fixed_memory(), name)
        ops_are = tuple(times), tuple(local)
        return StepGraph(graph, self.parts, self.pairs, self.events, *ops_are, tuple(self.own), frozenset(lent))

    def _fixed_memory(self) -> int:
        """Every storage that is nobody's output once, and what each pair has besides."""
        sizes: dict[Hashable, int] = {}
        for pair, part in zip(self.pairs, self.part_of, strict=True):
            for given, source in zip(part.inputs, pair.sources, strict=True):
                if not isinstance(source, Link):
                    sizes[source] = max(given.size, sizes.get(source, 0))
        return sum(sizes.values()) + sum(part.beside_inputs for part in self.part_of)
