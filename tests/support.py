"""What the tests share: random graphs and schedules, a second simulator, and an exact brute force for tiny graphs."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from checkmate import Compute, Free, Graph, Op, Value
from checkmate.schedule import Step
from checkmate.units import BYTES_LIMIT

# --- the command line ---


def error_line(captured: str) -> str:
    """The text after the prefix, when standard error is exactly one clear line."""
    assert captured.startswith("checkmate: error: ")
    assert captured.endswith("\n")
    assert captured.count("\n") == 1
    assert "Traceback" not in captured
    return captured.removeprefix("checkmate: error: ").rstrip("\n")


# --- random graphs ---


def random_graph(rng: random.Random, max_ops: int = 12, min_ops: int = 1) -> Graph:
    """A random graph with `min_ops` to `max_ops` ops: a chain, a chain with skips, any DAG, or a training step.

    Each graph draws which of these it has: ops with several outputs (or none), kept values, workspaces, ops that must
    not be recomputed, fixed memory, ops of cost zero. Costs are whole numbers, so that sums of them are exact.
    """
    n = rng.randint(min_ops, max_ops)
    kind = rng.choice(["chain", "skips", "dag", "training"])
    several, keeps, workspaces, pinned, free_ops = (rng.random() < 0.5 for _ in range(5))
    values: list[Value] = []
    ops: list[Op] = []

    def make(inputs: set[int], phase: str = "forward", keep: bool = False) -> Op:
        count = rng.choice([0, 1, 1, 2, 2, 3]) if several else 1
        outputs = range(len(values), len(values) + count)
        for v in outputs:
            kept = keeps and (rng.random() < (0.5 if keep else 0.15))
            values.append(Value(f"v{v}", rng.choice([0, 1, 2, 3, 5, 8, 13, 20]) if several else rng.randint(1, 20), kept))
        op = Op(
            f"op{len(ops)}",
            0.0 if free_ops and rng.random() < 0.2 else float(rng.randint(1, 10)),
            tuple(sorted(inputs)),
            tuple(outputs),
            rng.randint(1, 15) if workspaces and rng.random() < 0.4 else 0,
            not (pinned and rng.random() < 0.2),
            phase,
        )
        ops.append(op)
        return op

    def some(pool: list[int], most: int) -> set[int]:
        return set(rng.sample(pool, min(len(pool), rng.randint(1, most)))) if pool else set()

    def latest() -> set[int]:
        return {len(values) - 1} if values else set()

    if kind != "training":
        for _ in range(n):
            pool = list(range(len(values)))
            if kind == "dag":
                make(some(pool, 3) if rng.random() < 0.85 else set())
            else:
                make(latest() | (some(pool, 2) if kind == "skips" and rng.random() < 0.4 else set()))
        return Graph(ops, values, rng.choice([0, 0, 7, 100]), f"random-{kind}")

    forward = [make(latest() | (some(list(range(len(values))), 1) if rng.random() < 0.3 else set())) for _ in range((n + 1) // 2)]
    for op in reversed(forward[len(forward) - n // 2 :]):
        # A backward op reads the gradient that flows in, and what its forward op read or made.
        saved = some(list(op.inputs), 2) | some(list(op.outputs), 1)
        make(latest() | saved, "backward", keep=True)
    return Graph(ops, values, rng.choice([0, 0, 7, 100]), "random-training")


def with_reuse(rng: random.Random, graph: Graph, share: float = 0.7) -> Graph:
    """The graph, in which about this share of the ops that could write in an input of theirs do so: an output is made as large."""
    readers = Counter(value for op in graph.ops for value in op.inputs)
    values, ops = list(graph.values), []
    for op in graph.ops:
        free = [value for value in op.inputs if readers[value] == 1 and not values[value].keep]
        if free and op.outputs and rng.random() < share:
            chosen, output = rng.choice(free), rng.choice(op.outputs)
            values[output] = replace(values[output], size=values[chosen].size)
            op = replace(op, reuses=chosen)
        ops.append(op)
    total = graph.fixed_memory + sum(value.size for value in values) + max((op.workspace for op in ops), default=0)
    return Graph(ops, values, graph.fixed_memory, graph.name) if total < BYTES_LIMIT else graph


def random_edge_case(rng: random.Random, max_ops: int = 12, min_ops: int = 1) -> Graph:
    """A `random_graph` with one to three things that real graphs seldom have: see the names below."""
    graph = random_graph(rng, max_ops, min_ops)
    ops, values = list(graph.ops), list(graph.values)
    kinds = [
        "zero costs",
        "equal costs",
        "uneven costs",
        "zero sizes",
        "equal sizes",
        "huge sizes",
        "kept",
        "workspaces",
        "pinned",
    ]
    for kind in rng.sample(kinds, rng.randint(1, 3)):
        match kind:
            case "zero costs":
                ops = [replace(op, cost=0.0) for op in ops]
            case "equal costs":
                ops = [replace(op, cost=0.1) for op in ops]
            case "uneven costs":  # no sum of these is exact
                ops = [replace(op, cost=10 ** rng.uniform(-6, 6)) for op in ops]
            case "zero sizes":
                values = [replace(value, size=0) for value in values]
            case "equal sizes":
                values = [replace(value, size=7) for value in values]
            case "huge sizes":  # all together below 2^53, huge workspaces too
                total = sum(value.size for value in values) + sum(op.workspace for op in ops) + len(values) + 1
                unit = 2**53 // (64 * total)
                values = [replace(value, size=value.size * unit + rng.randint(0, 1)) for value in values]
                ops = [replace(op, workspace=op.workspace * unit) for op in ops]
            case "kept":
                values = [replace(value, keep=rng.random() < 0.5) for value in values]
            case "workspaces":
                giant = 10 * max(value.size for value in values) if values else 10
                ops = [replace(op, workspace=giant if rng.random() < 0.3 else op.workspace) for op in ops]
            case "pinned":
                ops = [replace(op, recomputable=rng.random() < 0.5) for op in ops]
    return Graph(ops, values, graph.fixed_memory, f"{graph.name}-edge")


def random_step(rng: random.Random, min_ops: int = 12, max_ops: int = 90) -> Graph:
    """A training step of `min_ops` to `max_ops` ops: equal blocks of ops with skips within and between them, and back.

    A backward op reads the gradients of its forward op's outputs and some of what that op read and made; it makes one gradient for
    each input, and sometimes one of weights, which is kept.
    """
    count = rng.randint(min_ops, max_ops) // 2
    length = rng.randint(1, 5)
    unit = rng.choice([1, 1000, 2**20, 2**30 + 1])
    whole = rng.random() < 0.5
    sizes, costs = [rng.randint(1, 20) * unit for _ in range(length)], [float(rng.randint(0, 9)) for _ in range(length)]
    costs = costs if whole else [10 ** rng.uniform(-4, 0) for _ in range(length)]
    uneven, skips, saves, weights = (rng.random() < 0.4 for _ in range(4))
    values: list[Value] = []
    ops: list[Op] = []

    def value(name: str, size: int, keep: bool = False) -> int:
        values.append(Value(name, size, keep))
        return len(values) - 1

    made: list[int] = []
    reads: list[list[int]] = []
    for i in range(count):
        inputs = set(made[-1:])
        if skips and i >= length and rng.random() < 0.3:
            inputs.add(made[i - length])
        if skips and i > count // 2 and rng.random() < 0.3:
            inputs.add(made[count - 1 - i])
        factor = rng.choice([1, 2, 4]) if uneven else 1
        made.append(value(f"v{i}", sizes[i % length] * factor))
        reads.append(sorted(inputs))
        workspace = rng.randint(0, 5) * unit if rng.random() < 0.1 else 0
        ops.append(Op(f"op{i}", costs[i % length], tuple(reads[-1]), (made[-1],), workspace, rng.random() > 0.02))
    gradients: list[list[int]] = [[] for _ in made]
    for i in range(count - 1, -1, -1):
        saved = [v for v in (*reads[i], made[i]) if not saves or rng.random() < 0.6]
        outputs = [value(f"g{i}-{v}", values[v].size) for v in reads[i]]
        for v, gradient in zip(reads[i], outputs, strict=True):
            gradients[v].append(gradient)
        if weights and rng.random() < 0.5:
            outputs.append(value(f"w{i}", rng.randint(1, 5) * unit, keep=True))
        read = tuple(sorted({*gradients[i], *saved}))
        ops.append(Op(f"back{i}", 2 * costs[i % length], read, tuple(outputs), 0, True, "backward"))
    return Graph(ops, values, rng.choice([0, 50 * unit]), "random-step")


def graphs(max_ops: int = 12, min_ops: int = 1) -> st.SearchStrategy[Graph]:
    """`random_graph` as a hypothesis strategy."""
    return st.randoms(use_true_random=False).map(lambda rng: random_graph(rng, max_ops, min_ops))


def random_budget(rng: random.Random, graph: Graph) -> int:
    """Bytes from just below the minimum working set to just above the no-recompute peak; at least 1."""
    return max(1, rng.randint(graph.min_working_set - 2, graph.no_recompute_peak + 2))


def random_sequence(rng: random.Random, graph: Graph, repeats: float = 0.3) -> list[int]:
    """Ops in the graph's order with random recomputations between them: a legal input of `steps_from_sequence`."""
    sequence: list[int] = []
    for op in range(graph.num_ops):
        while op and rng.random() < repeats:
            again = rng.randrange(op)
            if graph.ops[again].recomputable:
                sequence.append(again)
        sequence.append(op)
    return sequence


def random_steps(rng: random.Random, graph: Graph) -> list[Step]:
    """A valid schedule: random recomputations, random frees, whatever is missing recomputed when it is needed.

    Values that only an op that must not be recomputed can bring back, and kept values, are never freed.
    """
    steps: list[Step] = []
    live: set[int] = set()

    def lost_for_good(value: int) -> bool:
        return graph.values[value].keep or not graph.ops[graph.producer[value]].recomputable

    def compute(op: int) -> None:
        for value in graph.ops[op].inputs:
            if value not in live:
                compute(graph.producer[value])
        steps.append(Compute(op))
        live.update(graph.ops[op].outputs)

    for op in range(graph.num_ops):
        if op and rng.random() < 0.3:
            again = rng.randrange(op)
            if graph.ops[again].recomputable:
                compute(again)
        compute(op)
        for value in sorted(live):
            if rng.random() < 0.3 and not lost_for_good(value):
                steps.append(Free(value))
                live.remove(value)
    return steps


def random_training(rng: random.Random, most: int) -> Graph:
    """A chain of 3 to `most` ops and back, with what real steps have besides: skip connections, values that only go forward,
    and gradients of weights, which are kept."""
    layers = rng.randint(3, most)
    n = 2 * layers
    cost, size = ([rng.randint(1, 9) for _ in range(n)] for _ in range(2))
    edges = {(i, i + 1) for i in range(n - 1)} | {(i - 1, n - 1 - i) for i in range(1, layers)}
    edges |= {(i, n - 1 - i) for i in range(layers - 1) if rng.random() < 0.4}
    edges |= {(i, i + 2) for i in range(layers - 2) if rng.random() < 0.2}
    graph = Graph.from_arrays(cost, size, sorted(edges), phases=["forward"] * layers + ["backward"] * layers)
    ops, values = list(graph.ops[:layers]), list(graph.values)
    for i in range(layers, n):
        ops.append(graph.ops[i])
        if layers < 5 and rng.random() < 0.5:
            values.append(Value(f"weight{i}", rng.randint(1, 9), keep=True))
            ops.append(Op(f"weight{i}", rng.randint(0, 4), (n - 1 - i, i), (len(values) - 1,), phase="backward"))
    return Graph(ops, values)


# --- a second simulator ---


def reference_trace(graph: Graph, steps: list[Step]) -> tuple[float, int] | None:
    """Cost and peak of a schedule, or None if it is not valid.

    Written from the words of DESIGN, not from `simulate`: it keeps a list of allocated blocks, adds all of them up at
    every moment, and looks up validity in sets.
    """
    blocks: list[tuple[int, int]] = []  # (value, bytes)
    computed: list[int] = []
    peaks = [graph.fixed_memory]
    for number, step in enumerate(steps):
        resident = {value for value, _ in blocks}
        match step:
            case Compute(op=i) if 0 <= i < len(graph.ops):
                op = graph.ops[i]
                if not set(op.inputs) <= resident or (i in computed and not op.recomputable):
                    return None
                computed.append(i)
                fresh = [(v, graph.values[v].size) for v in op.outputs]
                following = next((k for k, later in enumerate(steps) if k > number and isinstance(later, Compute)), len(steps))
                taken = [v for v in [op.reuses] if v is not None and Free(v) in steps[number:following]]
                shared = sum(graph.values[v].size for v in taken)
                peaks.append(graph.fixed_memory + sum(size for _, size in blocks + fresh) + op.workspace - shared)
                blocks = [block for block in blocks if block[0] not in op.outputs] + fresh
            case Free(value=v) if v in resident:
                blocks = [block for block in blocks if block[0] != v]
            case _:
                return None
    if set(computed) != set(range(len(graph.ops))):
        return None
    if not {v for v, value in enumerate(graph.values) if value.keep} <= {value for value, _ in blocks}:
        return None
    return sum(graph.ops[i].cost for i in computed), max(peaks)


# --- the truth for tiny graphs ---


def brute_force(graph: Graph, budget: int, order: str = "given") -> float | None:
    """`least_cost` as a float; exact where costs are whole numbers."""
    least = least_cost(graph, budget, order, [op.cost for op in graph.ops])
    return None if least is None else float(least)


def exact_least_cost(graph: Graph, budget: int, order: str = "given") -> Fraction | None:
    """`least_cost` in exact arithmetic."""
    least = least_cost(graph, budget, order, [Fraction(op.cost) for op in graph.ops])
    return None if least is None else Fraction(least)


def least_cost(graph: Graph, budget: int, order: str, costs: Sequence[float] | Sequence[Fraction]) -> float | Fraction | None:
    """The least cost of any valid schedule under `budget` bytes; None if there is none.

    With `order` "given", first computations come in the graph's order; with "any", in any order, but those of forward and
    loss ops that stand before all backward ops stay before those of backward ops. Any recomputation is allowed at any
    time, also after the last first computation. A* over (set of ops computed so far, set of live values); for at most
    about 8 ops.
    """
    n = graph.num_ops
    room = budget - graph.fixed_memory
    if room < 0:
        return None
    size = [value.size for value in graph.values]
    kept = _mask(v for v, value in enumerate(graph.values) if value.keep)
    reads = [_mask(op.inputs) for op in graph.ops]
    writes = [_mask(op.outputs) for op in graph.ops]
    needs = [op.workspace + sum(size[v] for v in op.outputs) for op in graph.ops]
    shares = [0 if op.reuses is None else 1 << op.reuses for op in graph.ops]
    bytes_of: dict[int, int] = {}  # live values -> their size
    before = [(1 << i) - 1 if order == "given" else 0 for i in range(n)]  # ops that must have run before
    backward = [i for i, op in enumerate(graph.ops) if op.phase == "backward"]
    for i in backward if order == "any" else []:
        before[i] = _mask(j for j in range(backward[0]) if graph.ops[j].phase in ("forward", "loss"))
    best: dict[tuple[int, int], float | Fraction] = {(0, 0): 0 * costs[0]}
    # (cost so far + cost of the ops to come, cost so far, ops computed, live values)
    queue: list[tuple[float | Fraction, float | Fraction, int, int]] = [(sum(costs), 0 * costs[0], 0, 0)]
    while queue:
        bound, cost, done, live = heapq.heappop(queue)
        if cost > best[done, live]:
            continue
        if done == (1 << n) - 1 and live & kept == kept:
            return cost
        for op in range(n):
            again = done >> op & 1
            if before[op] & ~done or (again and not graph.ops[op].recomputable) or reads[op] & ~live:
                continue
            # Old copies of its outputs go first: that costs nothing and they are live again afterwards.
            others = live & ~writes[op]
            if others not in bytes_of:
                bytes_of[others] = sum(size[v] for v in range(len(size)) if others >> v & 1)
            # What the op may write in is there afterwards, or it is not and took no room beside the output.
            for gone in {0, shares[op]}:
                excess = needs[op] + bytes_of[others] - room - (size[gone.bit_length() - 1] if gone else 0)
                droppable = [v for v in range(len(size)) if others & ~reads[op] & 1 << v and size[v]] if excess > 0 else []
                for dropped in _smallest_drops(droppable, size, excess):
                    state = (done | 1 << op, (others & ~dropped & ~gone) | writes[op])
                    new = cost + costs[op]
                    if state not in best or new < best[state]:
                        best[state] = new
                        heapq.heappush(queue, (bound + costs[op] if again else bound, new, *state))
    return None


def _mask(values: Iterator[int] | tuple[int, ...]) -> int:
    return sum(1 << v for v in values)


def _smallest_drops(values: list[int], size: list[int], excess: int) -> Iterator[int]:
    """Masks of the sets of values that free `excess` bytes and none of whose members could stay.

    Freeing more is never needed: what is live may still be freed later, at no cost.
    """
    if excess <= 0:
        yield 0
    elif sum(size[v] for v in values) >= excess:
        # Taken by falling size, the last one is the smallest: without it, and so without any other, it was not enough.
        first, *others = sorted(values, key=lambda v: -size[v])
        for chosen in _smallest_drops(others, size, excess - size[first]):
            yield chosen | 1 << first
        yield from _smallest_drops(others, size, excess)


# --- graphs with names ---


def training_chain(layers: int, size: int = 10, cost: float = 1.0) -> Graph:
    """Forward and backward of `layers` equal layers: backward op i reads the gradient, and the input of layer i."""
    n = 2 * layers
    edges = [(i, i + 1) for i in range(n - 1)] + [(i - 1, n - 1 - i) for i in range(1, layers)]
    phases = ["forward"] * layers + ["backward"] * layers
    return Graph.from_arrays([cost] * n, [size] * n, edges, name=f"chain{layers}", phases=phases)


def vgg19_like() -> Graph:
    """A VGG19-like step at batch 1: layer list with FLOP costs, float32 activations, weights as fixed memory."""
    plan = [64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0]
    side, channels, weights = 224, 3, 0
    cost, memory = [], []
    for width in plan:
        if width:
            cost.append(float(9 * channels * width * side * side))
            weights += 4 * 9 * channels * width
            channels = width
        else:
            side //= 2
            cost.append(float(channels * side * side))
        memory.append(4 * channels * side * side)
    features = channels * side * side
    for width in (4096, 4096, 1000):
        cost.append(float(features * width))
        weights += 4 * features * width
        memory.append(4 * width)
        features = width
    layers = len(cost)
    edges = [(i, i + 1) for i in range(2 * layers - 1)] + [(i - 1, 2 * layers - 1 - i) for i in range(1, layers)]
    both_cost = cost + [2 * c for c in reversed(cost)]
    both_memory = memory + list(reversed(memory))
    phases = ["forward"] * layers + ["backward"] * layers
    return Graph.from_arrays(both_cost, both_memory, edges, 2 * weights, "vgg19-like", phases=phases)


def renamed(graph: Graph, name: str) -> Graph:
    """The same graph under another name, made of new objects."""
    return Graph([replace(op) for op in graph.ops], [replace(value) for value in graph.values], graph.fixed_memory, name)
