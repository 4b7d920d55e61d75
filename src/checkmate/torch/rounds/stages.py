"""Functions for a round in which a backward pass computes again what another part has returned.

The schedule of such a round is not cut into schedules of its parts, but into stages, one for each event: the function of a backward
pass may compute ops of any part. A tensor that a stage leaves for later ones is in a box (`part.Left`), which the stage that reads it
last empties. The tickets of the passes hold the boxes, so they die when autograd lets go of the passes.

Where backward passes come in another order than planned, or once more, what they need is computed from what is left: such a function
is emitted when it is needed, and empties no box.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor, fx

from ...planning.parts import Event, Link
from ...planning.step_graph import StepGraph
from ...planning.stretches import stages
from ...schedule import Compute, Free, Step, freed_next
from ..graphs.capture import Captured
from ..graphs.emit import Function, PartEmitter
from ..graphs.halves import Halves, unready
from ..graphs.part import Left
from ..ops.nodes import tensors_of
from ..ops.sizes import Bindings, storage_key
from ..pytorch.gradient_batches import keeps_graph
from ..pytorch.internals import Boxed, boxed
from .rounds import Round, Run

#: Which stage leaves a tensor, and its place among those.
Key = tuple[int, int]


@dataclass(frozen=True)
class Stage:
    """What runs in an event.

    Attributes:
        function: what was left for it, then arguments or gradients, then numbers -> outputs or gradients, then what it leaves.
        reads: what was left for it. last: what no later stage reads. leaves: how many it leaves.
        numbers: from the sizes of the passes of the round.
        again: what passes have returned and it computes again.
    """

    function: Boxed
    reads: tuple[Key, ...]
    last: frozenset[Key]
    leaves: int
    numbers: Callable[[Sequence[Bindings]], list[Any]]
    again: tuple[Link, ...] = ()


class Stages:
    """The functions of a round.

    Args:
        joined: the graph of the round. captured: its parts. run: a schedule of it, as it runs.
        borrowed: for each pass, by position, which inputs are which outputs of the pass that they come from.
    """

    def __init__(
        self, joined: StepGraph, captured: Sequence[Captured], run: Sequence[Step], borrowed: Sequence[Mapping[int, int]]
    ):
        self.joined = joined
        self._captured = captured
        self._borrowed = borrowed
        emitters = self._emitters()
        #: For each pass the number of the stage of its backward pass, also where that does not come in the round.
        self.backward = {event.pair: number for number, event in enumerate(joined.events) if event.backward}
        # A backward pass that comes after all computes again whatever it needs, and draws the same numbers.
        may_come = any(part.between is not None and pair not in self.backward for pair, part in enumerate(captured))
        for op, count in Counter(step.op for step in run if isinstance(step, Compute)).items():
            if count > 1 or (may_come and joined.local[op] is not None):
                _emitter_of(joined, emitters, op).repeats(_local(joined, op))
        cut = stages(joined, run)
        made = [self._stage(emitters, number, steps) for number, steps in enumerate(cut)]
        for emitter in emitters:
            emitter.enter(Function())
        known = [(emitter.behind, emitter.first, emitter.states_behind) for emitter in emitters]
        for pair, part in enumerate(captured):
            if part.between is not None and pair not in self.backward:
                self.backward[pair] = len(made)
                late = self._emitters()
                for emitter, (behind, first, states) in zip(late, known, strict=True):
                    emitter.go_on(behind, first, states)
                made.append(self._from_what_is_left(late, pair))
                for emitter, other in zip(emitters, late, strict=True):
                    emitter.brings |= other.brings
        self._brings = [frozenset(emitter.brings) for emitter in emitters]
        self._keys: dict[fx.Node, Key] = {}
        self.stages = self._closed(made)
        for number, event in enumerate(joined.events):
            if event.backward:
                self.stages[number] = replace(self.stages[number], again=self._returned_again(cut[number]))
        self._others: dict[tuple[int, frozenset[Key]], Stage] = {}

    @cached_property
    def lent(self) -> dict[tuple[int, int], Link]:
        """By pass and position the inputs that may be computed again, and what they are."""
        joined, found = self.joined, {}
        for number, pair in enumerate(joined.pairs):
            for position in self._borrowed[number]:
                link = pair.sources[position]
                if isinstance(link, Link) and joined.graph.producer[joined.own[link.pair][link.value]] in joined.lent:
                    found[number, position] = link
        return found

    def instead(self, pair: int, left: frozenset[Key]) -> Stage:
        """A backward pass that makes do with what is left."""
        if (pair, left) not in self._others:
            emitters = self._emitters()
            for emitter, brings in zip(emitters, self._brings, strict=True):
                there = {what: copy for what, copy in brings if self._keys[copy] in left}
                emitter.go_on(there, there, there)
            function, results = self._from_what_is_left(emitters, pair)
            self._others[pair, left] = self._finished(function, results, [], frozenset())
        return self._others[pair, left]

    # --- emitting ---

    def _emitters(self) -> list[PartEmitter]:
        """One for each pass; an input that was lent can be had from that of the pass that it comes from."""
        emitters = [PartEmitter(part, number=number) for number, part in enumerate(self._captured)]
        for (pair, position), link in self.lent.items():
            (node,) = self._captured[pair].inputs[position].nodes
            output = self._captured[link.pair].outputs[self._borrowed[pair][position]]
            emitters[pair].lenders[node] = emitters[link.pair], output
        return emitters

    @cached_property
    def _holders(self) -> dict[int, list[tuple[int, list[fx.Node]]]]:
        """For each value of the round, by pass, the nodes that hold it."""
        found: dict[int, list[tuple[int, list[fx.Node]]]] = {}
        for pair, own in enumerate(self.joined.own):
            for value, joint in own.items():
                found.setdefault(joint, []).append((pair, self._captured[pair].holders[value]))
        for (pair, position), link in self.lent.items():
            part = self._captured[pair]
            (storage,) = {storage_key(tensor) for node in part.inputs[position].nodes for tensor in tensors_of(node)}
            nodes = [n for n in part.module.graph.nodes if any(storage_key(tensor) == storage for tensor in tensors_of(n))]
            found[self.joined.own[link.pair][link.value]].append((pair, nodes))
        return found

    def _stage(self, emitters: Sequence[PartEmitter], number: int, steps: Sequence[Step]) -> tuple[Function, list[Any]]:
        joined, event, function = self.joined, self.joined.events[number], Function()
        for emitter in emitters:
            emitter.enter(function)
        own = emitters[event.pair]
        if event.backward:
            own.take_gradients()
        else:
            own.take_inputs()
        for place, step in enumerate(steps):
            if isinstance(step, Free):
                self._forget(emitters, step.value)
                continue
            op = joined.graph.ops[step.op]
            for value in op.outputs:
                self._forget(emitters, value)
            in_place = op.reuses is not None and op.reuses in freed_next(steps, place)
            _emitter_of(joined, emitters, step.op).compute(_local(joined, step.op), in_place)
        return function, own.gradients() if event.backward else own.outputs()

    def _returned_again(self, steps: Sequence[Step]) -> tuple[Link, ...]:
        joined = self.joined
        made = {value for step in steps if isinstance(step, Compute) for value in joined.graph.ops[step.op].outputs}
        return tuple(link for link in dict.fromkeys(self.lent.values()) if joined.own[link.pair][link.value] in made)

    def _forget(self, emitters: Sequence[PartEmitter], value: int) -> None:
        for pair, nodes in self._holders.get(value, ()):
            emitters[pair].forget(nodes)

    @staticmethod
    def _from_what_is_left(emitters: Sequence[PartEmitter], pair: int) -> tuple[Function, list[Any]]:
        """A backward pass that computes whatever it does not find."""
        function, own = Function(), emitters[pair]
        for emitter in emitters:
            emitter.enter(function)
        own.take_gradients()
        between = own.captured.between
        assert between is not None
        for op in range(between + 1, own.captured.graph.num_ops):
            own.find(own.reads(op))
            own.compute(op, in_place=False)
        own.find([node for node in own.captured.gradients if node is not None])
        return function, own.gradients()

    # --- finishing ---

    def _closed(self, made: Sequence[tuple[Function, list[Any]]]) -> list[Stage]:
        found: list[Stage] = []
        for number, (function, results) in enumerate(made):
            later = [other for other, _ in made[number + 1 :]]
            leaves = list(dict.fromkeys(copy for other in later for copy in other.brought if copy.graph is function.graph))
            self._keys.update((copy, (number, place)) for place, copy in enumerate(leaves))
            last = frozenset(function.brought).difference(*(other.brought for other in later))
            found.append(self._finished(function, results, leaves, last))
        return found

    def _finished(self, function: Function, results: Sequence[Any], leaves: Sequence[fx.Node], last: frozenset[fx.Node]) -> Stage:
        return Stage(
            boxed(function.close((*results, *leaves))),
            tuple(self._keys[copy] for copy in function.brought),
            frozenset(self._keys[copy] for copy in last),
            len(leaves),
            self._numbers(function),
        )

    def _numbers(self, function: Function) -> Callable[[Sequence[Bindings]], list[Any]]:
        wanted: dict[int, list[int]] = {}  # for each pass the places of its numbers
        for place, (pair, _) in enumerate(function.numbers):
            wanted.setdefault(pair, []).append(place)
        nodes = [node for _, node in function.numbers]
        parts = [
            (pair, places, self._captured[pair].scalars.function([nodes[place] for place in places]))
            for pair, places in wanted.items()
        ]

        def numbers(sizes: Sequence[Bindings]) -> list[Any]:
            found: list[Any] = [None] * len(nodes)
            for pair, places, of in parts:
                for place, number in zip(places, of(sizes[pair]), strict=True):
                    found[place] = number
            return found

        return numbers


def _emitter_of(joined: StepGraph, emitters: Sequence[PartEmitter], op: int) -> PartEmitter:
    pair = joined.pair_of(op)
    assert pair is not None
    return emitters[pair]


def _local(joined: StepGraph, op: int) -> int:
    local = joined.local[op]
    assert local is not None
    return local


# --- running ---


class Handing:
    """One round under such a plan.

    Args:
        follows: the passes have come as planned so far.
    """

    def __init__(self, stages: Stages, round: Round[Any], follows: Callable[[], bool]):
        self.stages = stages
        self._round = round
        self._follows = follows
        self._left: weakref.WeakValueDictionary[Key, Left] = weakref.WeakValueDictionary()
        self._done: set[int] = set()

    def halves(self, run: Run) -> Halves:
        """What runs in one pass of the round."""
        number = self.stages.joined.events.index(Event(run.number))
        stage = self.stages.stages[number]
        return _StagedHalves(
            partial(self._forward, number),
            unready,
            lambda _: tuple(stage.numbers(self._sizes)),
            lambda _: (),
            handing=self,
            run=run,
        )

    @property
    def _sizes(self) -> list[Bindings]:
        return [run.sizes for run in self._round.runs]

    def _forward(self, number: int, given: list[Any]) -> list[Any]:
        outputs, _ = self._run(number, self.stages.stages[number], given)
        return [*outputs, *self._left.values()]

    def _backward(self, number: int, stage: Stage, given: list[Any]) -> list[Any]:
        gradients, made = self._run(number, stage, given)
        for left in made:
            for run in self._round.runs:
                run.add(left)
        return gradients

    def _run(self, number: int, stage: Stage, given: list[Any]) -> tuple[list[Any], list[Left]]:
        results = list(stage.function(given))
        made = [Left(results.pop()) for _ in range(stage.leaves)][::-1]
        self._left.update(((number, place), left) for place, left in enumerate(made))
        return results, made

    def backward(self, run: Run, tangents: Sequence[Any]) -> tuple[Boxed, list[Any]]:
        """What to run for a backward pass, and with what."""
        number = self.stages.backward[run.number]
        stage = self.stages.stages[number]
        there = {key for key, left in self._left.items() if left.full}
        planned = self._follows() and run.number not in self._done and len(self._round.events) == number + 1
        planned &= there.issuperset(stage.reads)
        self._done.add(run.number)
        if planned:
            self._round.held_by_script |= not self._boxed().issuperset(self._round.alive(stage.again))
        else:
            stage = self.stages.instead(run.number, frozenset(there))
        empties = planned and not keeps_graph()
        read = [self._left[key].take(empties and key in stage.last) for key in stage.reads]
        return partial(self._backward, number, stage), [*read, *tangents, *stage.numbers(self._sizes)]

    def _boxed(self) -> set[int]:
        """Identities of the storages that are left."""
        return {x.untyped_storage()._cdata for left in self._left.values() if isinstance(x := left.tensor, Tensor)}


@dataclass(frozen=True)
class _StagedHalves(Halves):
    """The two passes of one run in a round of stages."""

    handing: Handing = field(kw_only=True)
    run: Run = field(kw_only=True)

    def for_backward(self, sizes: Bindings, saved: list[Any], tangents: list[Any]) -> tuple[Boxed, list[Any]]:
        """The boxes that the ticket held do their work by being there until now."""
        return self.handing.backward(self.run, tangents)
