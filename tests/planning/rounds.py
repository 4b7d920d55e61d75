"""Random parts and rounds of them, and a little machine that runs their schedules pass by pass, as a framework does."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from checkmate import Compute, Free, Graph, Op, Value
from checkmate.planning.parts import Event, Link, Pair, PartGraph, PartInput
from checkmate.planning.step_graph import StepGraph
from checkmate.schedule import Step

# --- random parts ---


def random_part(rng: random.Random, hidden: int, *, training: bool = True) -> PartGraph:
    """A few forward ops and their way back. Input 0 and the last output have `hidden` bytes, so that parts fit together."""
    return _PartMaker(rng, hidden).make(training)


class _PartMaker:
    def __init__(self, rng: random.Random, hidden: int):
        self.rng = rng
        self.hidden = hidden
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.sizes = [hidden] + [rng.choice([hidden, rng.randint(1, 30)]) for _ in range(rng.randint(0, 2))]
        self.readers: list[list[int]] = [[] for _ in self.sizes]
        self.gradients: list[int | None] = [None] * len(self.sizes)
        self.lendable: set[int] = set()

    def make(self, training: bool) -> PartGraph:
        rng = self.rng
        inputs_of: list[list[int]] = []
        count = rng.randint(1, 4)
        returned: list[int] = []
        for index in range(count):
            reads = {len(self.values) - 1} if self.values else set()
            if len(self.values) > 1 and rng.random() < 0.4:
                reads.add(rng.randrange(len(self.values)))
            inputs_of.append([0] if index == 0 else [i for i in range(len(self.sizes)) if rng.random() < 0.4])
            outputs = [self._value(f"v{index}-{k}") for k in range(rng.choice([0, 1]))]
            outputs.append(self._value(f"v{index}", self.hidden if index == count - 1 else None))
            self._op(f"f{index}", reads, outputs, inputs_of[index], "forward")
        forward = len(self.ops)
        returned = [len(self.values) - 1, *(v for v in range(len(self.values) - 1) if rng.random() < 0.15)]
        for v in returned:
            self._change_value(v, keep=not training or v == returned[0] or rng.random() < 0.8)  # else an update of a buffer
        for index, op in enumerate(self.ops):
            if not set(returned).isdisjoint(op.outputs):
                self._pin(index)
        outputs: list[int | None] = [*returned, *([None] if rng.random() < 0.2 else [])]
        if not training:
            return self._part(None, outputs, [])
        tangents: list[int | None] = [
            self._value(f"t{v}", rng.choice([self.values[v].size] * 4 + [1])) if self.values[v].keep else None for v in returned
        ]
        made = [t for t in tangents if t is not None]
        for t in made:
            self._change_value(t, keep=self.values[t].size == 1)
        self.ops.append(Op("between", 0.0, tuple(returned), tuple(made), rng.randint(0, 40), recomputable=False, phase="loss"))
        self._way_back(forward, inputs_of, {v: [t] for v, t in zip(returned, tangents, strict=True) if t is not None})
        if rng.random() < 0.1:
            if (replaced := self.gradients[0]) is not None:
                self._change_value(replaced, keep=False)
            self.gradients[0] = made[0]
            self._change_value(made[0], keep=True)
        return self._part(forward, outputs, [*tangents, *[None] * (len(outputs) - len(tangents))])

    def _way_back(self, forward: int, inputs_of: Sequence[Sequence[int]], flows: dict[int, list[int]]) -> None:
        rng = self.rng
        for index in reversed(range(forward)):
            op = self.ops[index]
            reads = {gradient for v in op.outputs for gradient in flows.get(v, [])}
            reads |= {v for v in (*op.inputs, *op.outputs) if rng.random() < 0.5}
            outputs = []
            for v in op.inputs:
                outputs.append(self._value(f"g{index}-{v}", self.values[v].size))
                flows.setdefault(v, []).append(outputs[-1])
            for position in inputs_of[index]:
                if self.gradients[position] is None and rng.random() < 0.8:
                    outputs.append(self._value(f"gradient{position}", self.sizes[position]))
                    self._change_value(outputs[-1], keep=True)
                    self.gradients[position] = outputs[-1]
            read = [i for i in range(len(self.sizes)) if i in inputs_of[index] and rng.random() < 0.6]
            self._op(f"b{index}", reads, outputs, read, "backward")

    def _part(self, between: int | None, outputs: Sequence[int | None], tangents: Sequence[int | None]) -> PartGraph:
        beside = self.rng.choice([0, 3])
        inputs = [PartInput(s, tuple(r), g) for s, r, g in zip(self.sizes, self.readers, self.gradients, strict=True)]
        graph = Graph(self.ops, self.values, sum(self.sizes) + beside, "part")
        return PartGraph(graph, between, tuple(inputs), tuple(outputs), tuple(tangents), frozenset(self.lendable))

    def _value(self, name: str, size: int | None = None) -> int:
        self.values.append(Value(name, self.rng.choice([self.hidden, self.rng.randint(0, 40)]) if size is None else size))
        return len(self.values) - 1

    def _change_value(self, value: int, keep: bool) -> None:
        self.values[value] = Value(self.values[value].name, self.values[value].size, keep)

    def _op(self, name: str, reads: set[int], outputs: Iterable[int], inputs: Iterable[int], phase: str) -> None:
        rng = self.rng
        for position in inputs:
            self.readers[position].append(len(self.ops))
        workspace = rng.choice([0, 0, rng.randint(1, 20)])
        cost, again = float(rng.randint(1, 9)), rng.random() < 0.9
        self.ops.append(Op(name, cost, tuple(sorted(reads)), tuple(outputs), workspace, again, phase))

    def _pin(self, index: int) -> None:
        op = self.ops[index]
        if op.recomputable:
            self.lendable.add(index)
        self.ops[index] = Op(op.name, op.cost, op.inputs, op.outputs, op.workspace, recomputable=False, phase=op.phase)


# --- random rounds ---


@dataclass
class Round:
    parts: list[PartGraph]
    pairs: list[Pair]
    events: list[Event]


def lending(made: Round) -> Round:
    """The round where every output may be computed again for those who are called with it."""
    borrowed = [frozenset(i for i, source in enumerate(pair.sources) if isinstance(source, Link)) for pair in made.pairs]
    pairs = [replace(pair, borrowed=own) for pair, own in zip(made.pairs, borrowed, strict=True)]
    return Round(made.parts, pairs, made.events)


def random_round(rng: random.Random) -> Round:
    """Up to three parts and up to four runs of them, nested in some way: F1 F2 B2 B1, F1 F1 B1 B1, F1 F2 B2 F3 B3 B1, ...

    Inputs are outputs of earlier runs, parameters (those of a part that runs twice, or that parts share), or other storages.
    """
    hidden = rng.choice([5, 20])
    parts = [random_part(rng, hidden, training=rng.random() < 0.85) for _ in range(rng.randint(1, 3))]
    pairs: list[Pair] = []
    events: list[Event] = []
    waiting: list[int] = []
    for number in range(rng.randint(1, 4)):
        chosen = rng.randrange(len(parts))
        part = parts[chosen]
        sources: list[Hashable | Link] = []
        leaves = set()
        for position, given in enumerate(part.inputs):
            earlier = [Link(p, v) for p in range(number) for v in sorted(parts[pairs[p].part].returned)]
            if earlier and rng.random() < (0.9 if position == 0 else 0.3):
                sources.append(earlier[-1] if rng.random() < 0.6 else rng.choice(earlier))
            elif rng.random() < 0.8:
                sources.append(f"weight {position} of {chosen}" if rng.random() < 0.7 else f"shared of {given.size}")
                if rng.random() < 0.8:
                    leaves.add(position)
            else:
                sources.append((number, position))
        pairs.append(Pair(chosen, tuple(sources), frozenset(leaves)))
        events.append(Event(number))
        if part.between is not None and rng.random() < 0.9:
            waiting.append(number)
        while waiting and rng.random() < 0.2:
            events.append(Event(waiting.pop(), backward=True))
    events += [Event(number, backward=True) for number in reversed(waiting)]
    return Round(parts, pairs, events)


# --- the machine ---


@dataclass(eq=False)
class Block:
    size: int
    holders: set[Hashable] = field(default_factory=set)


class Machine:
    """Runs the passes of a round one after another, each from its pair's own schedule, and counts blocks that anybody holds.

    Who holds a block: a function while it runs (its names go after their last use, those that the schedule frees earlier then);
    what the forward pass saves for the backward pass (what that reads before it computes it); the script; automatic
    differentiation, which hands gradients on; and `.grad` of the parameters.
    """

    def __init__(self, made: Round, schedules: Sequence[Sequence[Step]]):
        self.round = made
        self.part_of = [made.parts[pair.part] for pair in made.pairs]
        self.blocks: list[Block] = []
        keys: dict[Hashable, int] = {}
        for pair, part in zip(made.pairs, self.part_of, strict=True):
            self.blocks.append(Block(part.graph.fixed_memory - sum(given.size for given in part.inputs), {"always"}))
            for given, source in zip(part.inputs, pair.sources, strict=True):
                if not isinstance(source, Link):
                    keys[source] = max(keys.get(source, 0), given.size)
        self.blocks += [Block(size, {"always"}) for size in keys.values()]
        self.halves = []
        for part, steps in zip(self.part_of, schedules, strict=True):
            middle = len(steps) if part.between is None else list(steps).index(Compute(part.between))
            self.halves.append((list(steps[:middle]), list(steps[middle + 1 :])))
        self.linked = {s for pair in made.pairs for s in pair.sources if isinstance(s, Link)}
        self.returned: dict[Link, Block] = {}
        self.saved: list[dict[int, Block]] = [{} for _ in made.pairs]
        self.tangents: list[dict[int, Block]] = [{} for _ in made.pairs]
        self.flows: dict[Link, Block] = {}
        self.sums: list[Block] = []
        self.leaves: set[Hashable] = set()
        self.loose: list[Block] = []  # gradients that the script's own operations read next
        self.peak = self.live()
        self.before: list[int] = []  # live bytes when each event begins

    def live(self) -> int:
        return sum(block.size for block in self.blocks if block.holders)

    def look(self, workspace: int = 0) -> None:
        self.peak = max(self.peak, self.live() + workspace)

    def new(self, size: int, holder: Hashable) -> Block:
        self.blocks.append(Block(size, {holder}))
        return self.blocks[-1]

    def drop(self, holder: Hashable) -> None:
        for block in self.blocks:
            block.holders.discard(holder)

    def run(self) -> int:
        """The peak."""
        for number, event in enumerate(self.round.events):
            if event.backward:
                self.script(event.pair, after_forward=not self.round.events[number - 1].backward)
                self.before.append(self.live())
                self.backward(event.pair)
            else:
                self.drop("loose")
                self.before.append(self.live())
                self.forward(event.pair)
                to_come = self.round.events[number + 1 :]
                if not any(later.backward for later in to_come):
                    self.leave_frames(to_come)
            self.look()
        return self.peak

    def leave_frames(self, to_come: Sequence[Event]) -> None:
        """The script forgets outputs that none of these events is called with."""
        read = {s for event in to_come if not event.backward for s in self.round.pairs[event.pair].sources}
        for link, block in self.returned.items():
            if link not in read:
                block.holders.discard("frames")

    # --- passes ---

    def forward(self, pair: int) -> None:
        part, (early, late) = self.part_of[pair], self.halves[pair]
        frame: dict[int, Block] = {}
        self.execute(pair, early, frame, part.returned | set(self.reads_first(part, late)))
        for value in part.returned:
            self.returned[Link(pair, value)] = frame[value]
            if Link(pair, value) in self.linked:
                frame[value].holders.add("frames")
            elif part.graph.values[value].keep:
                frame[value].holders.add("user")
        if part.between is not None:
            for value in self.reads_first(part, late):
                if value in frame:
                    frame[value].holders.add(("ticket", pair))
                    self.saved[pair][value] = frame[value]
            for position in self.inputs_read(part, late):
                source = self.round.pairs[pair].sources[position]
                if isinstance(source, Link):
                    self.returned[source].holders.add(("ticket", pair))
        self.drop(("frame", pair))

    def script(self, pair: int, after_forward: bool) -> None:
        """What happens in front of a backward pass."""
        part = self.part_of[pair]
        assert part.between is not None
        between = part.graph.ops[part.between]
        by_script = 0
        for output, tangent in zip(part.outputs, part.tangents, strict=True):
            if tangent is None or output is None:
                continue
            size, flow = part.graph.values[tangent].size, self.flows.get(Link(pair, output))
            if flow is not None and flow.size == size:
                flow.holders.add(("tangent", pair))
                self.tangents[pair][tangent] = flow
                continue
            self.tangents[pair][tangent] = self.new(size, ("tangent", pair))
            if flow is None:
                by_script += size
            if part.graph.values[tangent].keep and tangent not in part.gradients:
                self.tangents[pair][tangent].holders.add("root")
        total = sum(part.graph.values[tangent].size for tangent in between.outputs)
        self.look(between.workspace * by_script // total if total else between.workspace)
        for output in part.returned:
            if Link(pair, output) in self.flows:
                self.drop(("flow", Link(pair, output)))
        self.drop("loose")
        if after_forward:
            self.leave_frames(self.round.events[len(self.before) :])

    def backward(self, pair: int) -> None:
        part, (_, late) = self.part_of[pair], self.halves[pair]
        frame = {**self.saved[pair], **self.tangents[pair]}
        for block in frame.values():
            block.holders.add(("frame", pair))
        for block in self.saved[pair].values():
            block.holders.discard(("ticket", pair))
        self.drop(("tangent", pair))
        self.execute(pair, late, frame, part.gradients, in_backward=True)
        self.pass_on(pair, {value: frame[value] for value in part.gradients})
        self.drop(("frame", pair))
        self.drop(("ticket", pair))

    def pass_on(self, pair: int, gradients: dict[int, Block]) -> None:
        """The gradients go to the parameters, to other pairs, or into the script."""
        part = self.part_of[pair]
        for position, (given, source) in enumerate(zip(part.inputs, self.round.pairs[pair].sources, strict=True)):
            if given.gradient is None:
                continue
            block = gradients[given.gradient]
            if isinstance(source, Link) and self.flows_to(pair, source):
                self.add_up(source, block)
            elif position in self.round.pairs[pair].leaves and source not in self.leaves:
                self.leaves.add(source)
                block.holders.add("grad")
            else:
                block.holders.add("loose")

    def flows_to(self, pair: int, link: Link) -> bool:
        """The pair's backward pass comes before that of the output's own pair, which takes a gradient for it."""
        events, part = self.round.events, self.part_of[link.pair]
        later = events[events.index(Event(pair, backward=True)) :]
        takes = {output for output, tangent in zip(part.outputs, part.tangents, strict=False) if tangent is not None}
        return Event(link.pair, backward=True) in later and link.value in takes

    def add_up(self, link: Link, block: Block) -> None:
        """The first gradient is handed on as it is. The second is added to it, into a new block, which takes in the others."""
        first = self.flows.get(link)
        if first is None:
            self.flows[link] = block
            block.holders.add(("flow", link))
        else:
            if first not in self.sums:
                self.flows[link] = self.new(max(first.size, block.size, self.returned[link].size), ("flow", link))
                self.sums.append(self.flows[link])
            self.look()
            if first not in self.sums:
                first.holders.discard(("flow", link))

    # --- inside a pass ---

    def execute(
        self, pair: int, steps: Sequence[Step], frame: dict[int, Block], returns: Iterable[int], *, in_backward: bool = False
    ) -> None:
        part, here, returns = self.part_of[pair], ("frame", pair), set(returns)
        graph = part.graph
        self.let_go(graph, steps, frame, returns, here)
        for number, step in enumerate(steps):
            if isinstance(step, Free):
                self.release(frame, step.value, here)
                continue
            op = graph.ops[step.op]
            assert all(value in frame for value in op.inputs)
            for given, source in zip(part.inputs, self.round.pairs[pair].sources, strict=True):
                if isinstance(source, Link) and step.op in given.readers:
                    assert self.returned[source].holders, "an output of another part is gone"
            old = [frame[value] for value in op.outputs if value in frame]
            for value in op.outputs:
                frame[value] = self.new(graph.values[value].size, here)
            self.look(op.workspace)
            for block in old:
                block.holders.discard(here)
            rest = steps[number + 1 :]
            self.let_go(graph, rest, frame, returns, here)
            if in_backward:  # the backward pass drops what it was called with after the last use, too
                still = {self.round.pairs[pair].sources[position] for position in self.inputs_read(part, rest)}
                for link in self.returned.keys() - still:
                    self.returned[link].holders.discard(("ticket", pair))

    def let_go(self, graph: Graph, rest: Sequence[Step], frame: dict[int, Block], returns: set[int], here: Hashable) -> None:
        """The names of values that the schedule never frees go after their last use."""
        read = {value for step in rest if isinstance(step, Compute) for value in graph.ops[step.op].inputs}
        for value in [v for v in frame if graph.values[v].keep and v not in read and v not in returns]:
            self.release(frame, value, here)

    @staticmethod
    def release(frame: dict[int, Block], value: int, here: Hashable) -> None:
        block = frame.pop(value, None)
        if block is not None and block not in frame.values():
            block.holders.discard(here)

    @staticmethod
    def reads_first(part: PartGraph, steps: Sequence[Step]) -> list[int]:
        """Values that steps read before they compute them."""
        found: dict[int, None] = {}
        made: set[int] = set()
        for step in steps:
            if isinstance(step, Compute):
                found.update((value, None) for value in part.graph.ops[step.op].inputs if value not in made)
                made.update(part.graph.ops[step.op].outputs)
        return list(found)

    @staticmethod
    def inputs_read(part: PartGraph, steps: Sequence[Step]) -> set[int]:
        run = {step.op for step in steps if isinstance(step, Compute)}
        return {position for position, given in enumerate(part.inputs) if not run.isdisjoint(given.readers)}


# --- the machine for stages ---

#: A value of a pair's part, and how many times it was computed before.
Version = tuple[int, int, int]


class StageMachine(Machine):
    """The same for a round whose stages run ops of any pair.

    Who holds a block between two passes: whatever a later stage reads is held from the stage that makes it to the beginning of the last
    stage that reads it. Inside a stage, a name goes after its last use.
    """

    def __init__(self, made: Round, step: StepGraph, stages: Sequence[Sequence[Step]]):
        least = [[*p.forward_ops, p.between, *p.across[1], *p.backward_ops] for p in (made.parts[q.part] for q in made.pairs)]
        super().__init__(made, [[Compute(op) for op in ops if op is not None] for ops in least])
        self.stages = [
            [(step.pair_of(one.op) or 0, step.local[one.op] or 0) for one in stage if isinstance(one, Compute)]
            for stage in stages
        ]
        self.current: dict[tuple[int, int], Block] = {}
        self.count: dict[tuple[int, int], int] = {}
        self.reads: list[list[list[Version]]] = []  # for each stage and each of its ops
        self.last: dict[Version, int] = {}  # the last stage that reads it
        counts: dict[tuple[int, int], int] = {}
        for number, stage in enumerate(self.stages):
            self.reads.append([])
            for pair, op in stage:
                read = [(*value, counts.get(value, 0)) for value in self.read_by(pair, op)]
                self.reads[-1].append(read)
                self.last.update((version, number) for version in read)
                for value in self.part_of[pair].graph.ops[op].outputs:
                    counts[pair, value] = counts.get((pair, value), 0) + 1

    def read_by(self, pair: int, op: int) -> list[tuple[int, int]]:
        part = self.part_of[pair]
        links = zip(part.inputs, self.round.pairs[pair].sources, strict=True)
        given = [(source.pair, source.value) for bound, source in links if isinstance(source, Link) and op in bound.readers]
        return [*((pair, value) for value in part.graph.ops[op].inputs), *given]

    def version(self, value: tuple[int, int]) -> Version:
        return (*value, self.count.get(value, 0))

    def forward(self, pair: int) -> None:
        number, part = len(self.before) - 1, self.part_of[pair]
        self.execute_stage(number, {(pair, value) for value in part.returned})
        for value in part.returned:
            link, block = Link(pair, value), self.current[pair, value]
            self.returned[link] = block
            if link in self.linked:
                block.holders.add("frames")
            elif part.graph.values[value].keep:
                block.holders.add("user")
        if part.between is not None and Event(pair, True) not in self.round.events:
            _, late = self.halves[pair]
            for value in self.reads_first(part, late):
                if (pair, value) in self.current:
                    self.current[pair, value].holders.add("never")
            for position in self.inputs_read(part, late):
                source = self.round.pairs[pair].sources[position]
                if isinstance(source, Link):
                    self.returned[source].holders.add("never")
        self.drop("stage")

    def execute_stage(self, number: int, returns: set[tuple[int, int]]) -> None:
        stage, reads = self.stages[number], self.reads[number]
        for version in {v for read in reads for v in read if v == self.version(v[:2]) and v[:2] in self.current}:
            block = self.current[version[:2]]
            assert block.holders, "what a stage reads is gone"
            block.holders.add("stage")
            if self.last[version] == number:
                block.holders.discard(("left", version))
        for place, (pair, op) in enumerate(stage):
            part = self.part_of[pair]
            assert all("stage" in self.current[version[:2]].holders for version in reads[place])
            assert all(version == self.version(version[:2]) for version in reads[place])
            made = [(pair, value) for value in part.graph.ops[op].outputs]
            old = [self.current[value] for value in made if value in self.current]
            for value in made:
                self.current[value] = self.new(part.graph.values[value[1]].size, "stage")
                self.count[value] = self.count.get(value, 0) + 1
            self.look(part.graph.ops[op].workspace)
            for block in old:
                block.holders.discard("stage")
            still = {version for read in reads[place + 1 :] for version in read}
            for value, block in self.current.items():
                if value in made and self.last.get(self.version(value), -1) > number:
                    block.holders.add(("left", self.version(value)))
                names = [other for other, same in self.current.items() if same is block]  # a gradient is another pair's tangent
                if "stage" in block.holders and returns.isdisjoint(names) and still.isdisjoint(map(self.version, names)):
                    block.holders.discard("stage")

    def backward(self, pair: int) -> None:
        number, part = len(self.before) - 1, self.part_of[pair]
        for tangent, block in self.tangents[pair].items():
            self.current[pair, tangent] = block
            block.holders.add("stage")
        self.drop(("tangent", pair))
        read = {version[:2] for one in self.reads[number] for version in one}
        wanted = {(pair, value) for value in part.gradients}
        for tangent, block in self.tangents[pair].items():
            if (pair, tangent) not in read | wanted:
                block.holders.discard("stage")
            elif self.last.get((pair, tangent, 0), -1) > number:
                block.holders.add(("left", (pair, tangent, 0)))
        self.execute_stage(number, wanted)
        gradients = {value: self.current[pair, value] for value in part.gradients}
        self.pass_on(pair, gradients)
        self.drop("stage")
