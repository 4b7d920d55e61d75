"""The parts that a framework hands over, and how they run in a round: who reads whose outputs, in which order.

A part is one graph, forward and backward pass. A model that comes in several parts runs their passes nested in each other:
forward 1, forward 2, backward 2, backward 1. One run of a part's forward or backward pass is an *event*, the two runs that belong
together are a *pair*, and all events from a moment at which no backward pass is due to the next such moment are a *round*.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..errors import GraphError
from ..graph import Graph


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
        lendable: ops that could run again if nobody but the parts that are called with what they make had it.
    """

    graph: Graph
    between: int | None
    inputs: tuple[PartInput, ...]
    outputs: tuple[int | None, ...]
    tangents: tuple[int | None, ...] = ()
    lendable: frozenset[int] = frozenset()

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
        borrowed: positions of the inputs that are just what an earlier pair has returned: computed again, that does as well.
    """

    part: int
    sources: tuple[Hashable | Link, ...]
    leaves: frozenset[int] = frozenset()
    borrowed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """One run of the forward or of the backward pass of a pair."""

    pair: int
    backward: bool = False


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
    there = graph.fixed_memory + bytes_of(graph, held | early | {*between.inputs, *between.outputs})
    ops = list(graph.ops)
    ops[part.between] = replace(between, workspace=max(between.workspace, budget - there))
    return Graph(ops, graph.values, graph.fixed_memory, graph.name), bytes_of(graph, held)


def bytes_of(graph: Graph, values: Iterable[int]) -> int:
    """Bytes of some values of a graph."""
    return sum(graph.values[value].size for value in values)


# --- checks ---


def check_round(parts: Sequence[PartGraph], pairs: Sequence[Pair], events: Sequence[Event]) -> None:
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
    run = [*part.lendable, *(op for given in part.inputs for op in given.readers)]
    if any(value not in values for value in named) or any(op not in ops for op in run):
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
