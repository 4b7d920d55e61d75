"""The graph of one training step: ops in order, the values they produce, what each costs and how much memory it takes."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from .errors import GraphError
from .files import write_file
from .text import printable
from .units import BYTES_LIMIT, format_bytes

FORMAT = "checkmate-graph"
VERSION = 1

#: What all costs add up to, unless they are all zero: far from where sums and products of floating-point numbers overflow or
#: lose digits.
LEAST_COST, MOST_COST = 1e-100, 1e100


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor storage that an op produces.

    Attributes:
        name: unique among the values of the graph.
        size: bytes.
        keep: it must be live when the schedule ends (a gradient, an output).
    """

    name: str
    size: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of the step.

    Attributes:
        name: unique among the ops of the graph.
        cost: seconds, or FLOPs; one unit for the whole graph.
        inputs: ids of the values it reads. Views count as their base value; parameters and inputs are fixed memory.
        outputs: ids of the values it produces.
        workspace: bytes it needs beyond inputs and outputs while it runs.
        recomputable: False for an op that must run exactly once (side effects, communication).
        phase: "forward" or "backward" ("loss" and "op" in instance files).
        reuses: id of an input in whose storage the op may write an output of the same size. Where a schedule frees that input right
            after the op, the two are one buffer: the output needs no memory of its own while the op runs. The op is the only reader
            of that input, which is not kept. None: every output needs a buffer.
        layer: where the op comes from in the user's own model: the path of a module ("transformer.h.3.mlp") or the name of a layer
            ("conv5_block3_out"); an op of the backward pass has that of its forward op. "": not known. For people alone: no schedule
            depends on it.
    """

    name: str
    cost: float
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    workspace: int = 0
    recomputable: bool = True
    phase: str = "forward"
    reuses: int | None = None
    layer: str = ""


class Graph:
    """Ops in a topological order (forward, then backward) and the values between them. Immutable.

    Args:
        ops: in execution order: every input of an op is produced by an earlier op.
        values: value ids are positions in this sequence.
        fixed_memory: bytes live during the whole step (parameters, buffers, inputs).
        name: for messages, files and plots.

    Raises:
        GraphError: a cycle, an op before its producer, dangling ids, negative or non-finite numbers, duplicate names; sizes that
            add up to 2**53 bytes or more; costs whose sum is beyond what floating-point numbers can work with.
    """

    def __init__(self, ops: Iterable[Op], values: Iterable[Value], fixed_memory: int = 0, name: str = "graph"):
        self.ops: tuple[Op, ...] = tuple(ops)
        self.values: tuple[Value, ...] = tuple(values)
        self.fixed_memory = _whole(fixed_memory, "fixed_memory")
        self.name = name
        self.producer: tuple[int, ...] = _validate(self.ops, self.values)
        _check_sums(self.ops, self.values, self.fixed_memory)

    # --- size, cost, memory ---

    @property
    def num_ops(self) -> int:
        return len(self.ops)

    @property
    def num_values(self) -> int:
        return len(self.values)

    @cached_property
    def ideal_cost(self) -> float:
        """Cost of computing every op once: no schedule is cheaper."""
        return math.fsum(op.cost for op in self.ops)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """For each value the last op that reads it; its producer if none does."""
        last = list(self.producer)
        for index, op in enumerate(self.ops):
            for value in op.inputs:
                last[value] = index
        return tuple(last)

    @cached_property
    def no_recompute_profile(self) -> tuple[int, ...]:
        """Bytes live while each op runs, fixed memory and workspace included, when every op runs once in order."""
        dying: list[int] = [0] * self.num_ops
        for value, last in enumerate(self.last_use):
            if not self.values[value].keep:
                dying[last] += self.values[value].size
        profile, live = [], self.fixed_memory
        for index, op in enumerate(self.ops):
            live += sum(self.values[v].size for v in op.outputs)
            # What an op reuses has no other reader: it dies here.
            profile.append(live + op.workspace - self.reusable(index))
            live -= dying[index]
        return tuple(profile)

    @cached_property
    def no_recompute_peak(self) -> int:
        """Peak bytes when every op runs once in order and values die after their last use; fixed memory included."""
        return max(self.no_recompute_profile, default=self.fixed_memory)

    @cached_property
    def min_working_set(self) -> int:
        """Bytes that the largest op alone needs (inputs, outputs, workspace, fixed memory): no schedule peaks lower."""
        sizes = [value.size for value in self.values]
        kept = sum(value.size for value in self.values if value.keep)
        # An op reads no value that it makes, and names none twice.
        largest = max(
            (
                op.workspace + sum(map(sizes.__getitem__, (*op.inputs, *op.outputs))) - self.reusable(index)
                for index, op in enumerate(self.ops)
            ),
            default=0,
        )
        return self.fixed_memory + max(largest, kept)

    def working_set(self, op: int) -> int:
        """Bytes that one op needs live while it runs at least, fixed memory not included."""
        touched = {*self.ops[op].inputs, *self.ops[op].outputs}
        return self.ops[op].workspace + sum(self.values[v].size for v in touched) - self.reusable(op)

    def reusable(self, op: int) -> int:
        """Bytes that one op needs less if what it reuses dies with it."""
        value = self.ops[op].reuses
        return 0 if value is None else self.values[value].size

    # --- making graphs ---

    @classmethod
    def from_arrays(
        cls,
        cost: Sequence[float],
        memory: Sequence[int],
        edges: Iterable[Sequence[int]],
        fixed_memory: int = 0,
        name: str = "graph",
        *,
        names: Sequence[str] | None = None,
        phases: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
    ) -> Graph:
        """A graph with one value per op; value i is op i's and none is kept.

        Args:
            cost: per op. memory: bytes of each op's value. edges: (producer, consumer) pairs of op positions.
            names, phases, layers: per op; by default "op" and its position, "forward", and none.
        """
        n = len(cost)
        for what, entries in (("memory", memory), ("names", names), ("phases", phases), ("layers", layers)):
            if entries is not None and len(entries) != n:
                raise GraphError(f"cost has {n} entries but {what} has {len(entries)}: give one of each per op")
        inputs: list[dict[int, None]] = [{} for _ in range(n)]
        for number, edge in enumerate(edges):
            try:
                u, v = (_index(end) for end in edge)
            except (TypeError, ValueError):
                raise GraphError(f"edge {number} is {edge!r}: an edge is a pair [producer, consumer] of op positions") from None
            if not (0 <= u < n and 0 <= v < n):
                raise GraphError(f"edge {number} ({u}, {v}) names an op that does not exist: there are {n} ops, 0 to {n - 1}")
            inputs[v][u] = None
        labels = list(names) if names is not None else [f"op{i}" for i in range(n)]
        passes = phases if phases is not None else ["forward"] * n
        origins = layers if layers is not None else [""] * n
        ops = [
            Op(labels[i], _number(cost[i], "cost"), tuple(inputs[i]), (i,), phase=passes[i], layer=origins[i]) for i in range(n)
        ]
        return cls(ops, [Value(labels[i], memory[i]) for i in range(n)], fixed_memory, name)

    def scaled(self, batch: float) -> Graph:
        """The graph at `batch` times the batch size: cost, value sizes and workspace scale, fixed memory does not."""
        if isinstance(batch, bool) or not (isinstance(batch, (int, float)) and math.isfinite(batch) and batch > 0):
            raise GraphError(f"batch must be a positive number, not {batch!r}")
        try:
            ops = [replace(op, cost=op.cost * batch, workspace=math.ceil(op.workspace * batch)) for op in self.ops]
            values = [replace(value, size=math.ceil(value.size * batch)) for value in self.values]
        except OverflowError:
            raise GraphError(f"a batch of {batch!r} makes sizes that are not finite") from None
        return Graph(ops, values, self.fixed_memory, self.name)

    # --- files ---

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Read a graph from JSON: this package's format, or nodes/edges (one value per op).

        The nodes/edges form is `{name, fixed_memory, nodes: [{name, cost, memory, phase, layer}], edges: [[producer,
        consumer], ...]}` with nodes in topological order.

        Raises:
            GraphError: the file is missing, is not JSON, or does not describe a graph.
        """
        where = printable(Path(path))
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise GraphError(f"cannot read {where}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise GraphError(f"{where} is not valid JSON: {error}") from None
        try:
            return cls.from_dict(data)
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as JSON, whole or not at all; `Graph.load` reads it back equal.

        Raises:
            OSError: the file cannot be written; an old one stays as it is.
        """
        write_file(path, json.dumps(self.to_dict(), separators=(",", ":")) + "\n")

    def to_dict(self, *, names: bool = True) -> dict[str, Any]:
        """The graph as plain JSON data.

        Args:
            names: False leaves out what ops and values are called and where they come from, for keys of what is kept about a graph: two
                networks that differ in names alone are one problem.
        """
        values: list[dict[str, Any]] = [
            {"name": v.name, "size": v.size, **({"keep": True} if v.keep else {})} for v in self.values
        ]
        ops = list(map(_op_to_dict, self.ops))
        data = {"format": FORMAT, "version": VERSION, "name": self.name, "fixed_memory": self.fixed_memory}
        for one in [] if names else [data, *values, *ops]:
            one.pop("name")
            one.pop("layer", None)
        return {**data, "values": values, "ops": ops}

    @classmethod
    def from_dict(cls, data: Any) -> Graph:
        """The inverse of `to_dict`; also reads the nodes/edges form (see `load`)."""
        if not isinstance(data, dict):
            raise GraphError("a graph is a JSON object with 'ops' and 'values', or with 'nodes' and 'edges'")
        try:
            name, fixed = str(data.get("name", "graph")), data.get("fixed_memory", 0)
            if "nodes" in data:
                nodes = data["nodes"]
                return cls.from_arrays(
                    [node["cost"] for node in nodes],
                    [node["memory"] for node in nodes],
                    data["edges"],
                    fixed,
                    name,
                    names=[str(node.get("name", f"op{i}")) for i, node in enumerate(nodes)],
                    phases=[str(node.get("phase", "op")) for node in nodes],
                    layers=[node.get("layer", "") for node in nodes],
                )
            if data.get("version", VERSION) != VERSION:
                raise GraphError(f"format version {data['version']!r} is not known: this release reads version {VERSION}")
            values = [Value(str(v["name"]), v["size"], _flag(v.get("keep", False), "keep")) for v in data["values"]]
            ops = [
                Op(
                    str(op["name"]),
                    op["cost"],
                    tuple(op.get("inputs", ())),
                    tuple(op.get("outputs", ())),
                    op.get("workspace", 0),
                    _flag(op.get("recomputable", True), "recomputable"),
                    str(op.get("phase", "forward")),
                    op.get("reuses"),
                    op.get("layer", ""),
                )
                for op in data["ops"]
            ]
        except KeyError as error:
            raise GraphError(f"the entry {error} is missing") from None
        except (TypeError, AttributeError) as error:
            raise GraphError(f"an entry has the wrong type: {error}") from None
        return cls(ops, values, fixed, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.name, self.fixed_memory, self.num_ops, self.num_values))

    def __repr__(self) -> str:
        peak = format_bytes(self.no_recompute_peak)
        return f"Graph({self.name!r}, {self.num_ops} ops, {self.num_values} values, no-recompute peak {peak})"


def common_layer(layers: Iterable[str]) -> str:
    """The innermost layer that all these are in, by their paths; "" if there is none."""
    levels = zip(*(layer.split(".") for layer in layers), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _op_to_dict(op: Op) -> dict[str, Any]:
    data: dict[str, Any] = {"name": op.name, "cost": op.cost, "inputs": list(op.inputs), "outputs": list(op.outputs)}
    if op.workspace:
        data["workspace"] = op.workspace
    if not op.recomputable:
        data["recomputable"] = False
    data["phase"] = op.phase
    if op.reuses is not None:
        data["reuses"] = op.reuses
    if op.layer:
        data["layer"] = op.layer
    return data


def _number(x: Any, what: str) -> float:
    if isinstance(x, (bool, str)) or not hasattr(x, "__float__"):
        raise GraphError(f"{what} must be a number, not {x!r}")
    try:
        return float(x)
    except (TypeError, OverflowError) as error:
        raise GraphError(f"{what} must be a finite number: {error}") from None


def _flag(x: Any, what: str) -> bool:
    if not isinstance(x, bool):
        raise GraphError(f"{what} must be true or false, not {x!r}")
    return x


def _index(x: Any) -> int:
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        raise TypeError(f"{x!r} is not an id")
    return int(x.__index__())


def _whole(x: Any, what: str) -> int:
    """A byte count: a non-negative whole number."""
    if isinstance(x, float) and x.is_integer():
        x = int(x)
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        raise GraphError(f"{what} must be a whole number of bytes, not {x!r}")
    if x < 0:
        raise GraphError(f"{what} must not be negative, but is {x}")
    return int(x.__index__())


def _validate(ops: tuple[Op, ...], values: tuple[Value, ...]) -> tuple[int, ...]:
    """Check everything a graph promises; returns the producer of every value."""
    for kind, names in (("op", [op.name for op in ops]), ("value", [value.name for value in values])):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise GraphError(f"two {kind}s are called {name!r}: names must be unique")
            seen.add(name)
    for value in values:
        # Sizes from NumPy arrays are normalised here, once, so that byte counts are exact everywhere else.
        object.__setattr__(value, "size", _whole(value.size, f"size of value {value.name!r}"))
    producer = [-1] * len(values)
    for index, op in enumerate(ops):
        cost = _number(op.cost, f"cost of op {op.name!r}")
        if not (math.isfinite(cost) and cost >= 0):
            raise GraphError(f"cost of op {op.name!r} must be a finite number >= 0, not {op.cost!r}")
        if not isinstance(op.layer, str):
            raise GraphError(f"layer of op {op.name!r} must be a string, not {op.layer!r}")
        object.__setattr__(op, "cost", cost)
        object.__setattr__(op, "workspace", _whole(op.workspace, f"workspace of op {op.name!r}"))
        try:
            object.__setattr__(op, "inputs", tuple(_index(v) for v in op.inputs))
            object.__setattr__(op, "outputs", tuple(_index(v) for v in op.outputs))
        except TypeError as error:
            raise GraphError(f"inputs and outputs of op {op.name!r} must be ids of values: {error}") from None
        for v in (*op.inputs, *op.outputs):
            if not 0 <= v < len(values):
                raise GraphError(f"op {op.name!r} names value {v}, which does not exist: there are {len(values)} values")
        if len(set(op.inputs)) != len(op.inputs) or len(set(op.outputs)) != len(op.outputs):
            raise GraphError(f"op {op.name!r} names a value twice: list each input and each output once")
        for v in op.outputs:
            if producer[v] >= 0:
                other = ops[producer[v]].name
                raise GraphError(f"value {values[v].name!r} is produced by two ops, {other!r} and {op.name!r}")
            producer[v] = index
    for v, index in enumerate(producer):
        if index < 0:
            raise GraphError(f"value {values[v].name!r} is produced by no op: count inputs of the step as fixed_memory")
    for index, op in enumerate(ops):
        for v in op.inputs:
            if producer[v] >= index:
                _explain_order(ops, producer, index, producer[v])
    _check_reuse(ops, values)
    return tuple(producer)


def _check_reuse(ops: tuple[Op, ...], values: tuple[Value, ...]) -> None:
    """What an op writes in the storage of an input is as large, and nobody else needs the input."""
    if all(op.reuses is None for op in ops):
        return
    readers = Counter(value for op in ops for value in op.inputs)
    for op in ops:
        if op.reuses is None:
            continue
        if isinstance(op.reuses, bool) or op.reuses not in op.inputs:
            raise GraphError(f"op {op.name!r} reuses {op.reuses!r}: it must be the id of one of its inputs")
        value = values[op.reuses]
        if value.keep or readers[op.reuses] > 1:
            why = "is kept" if value.keep else "has another reader"
            raise GraphError(f"op {op.name!r} must not reuse the storage of value {value.name!r}, which {why}")
        if all(values[output].size != value.size for output in op.outputs):
            raise GraphError(
                f"op {op.name!r} reuses the storage of value {value.name!r}, but has no output of {value.size} bytes"
            )


def _check_sums(ops: tuple[Op, ...], values: tuple[Value, ...], fixed_memory: int) -> None:
    """Sums of sizes and of costs stay where the arithmetic of every method is safe."""
    total = fixed_memory + sum(value.size for value in values) + max((op.workspace for op in ops), default=0)
    if total >= BYTES_LIMIT:
        raise GraphError(
            f"fixed_memory, sizes and the largest workspace add up to {total} bytes: they must stay below 2**53 (8 PiB)"
        )
    try:
        cost = math.fsum(op.cost for op in ops)
    except OverflowError:
        cost = math.inf
    if cost and not LEAST_COST <= cost <= MOST_COST:
        raise GraphError(
            f"costs add up to {cost:g}: use a unit in which the sum is 0 or between {LEAST_COST:g} and {MOST_COST:g}"
        )


def _explain_order(ops: tuple[Op, ...], producer: list[int], index: int, late: int) -> None:
    """Op `index` reads a value that op `late` >= index produces: say whether that is a cycle or only a bad order."""
    stack, seen = [late], {late}
    while stack:
        for value in ops[stack.pop()].inputs:
            if producer[value] not in seen:
                seen.add(producer[value])
                stack.append(producer[value])
    if index in seen:
        raise GraphError(f"the graph has a cycle through ops {ops[index].name!r} and {ops[late].name!r}: break it")
    raise GraphError(
        f"op {ops[index].name!r} comes before op {ops[late].name!r}, whose value it reads: list ops in topological order"
    )
