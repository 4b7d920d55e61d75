"""A schedule as TensorFlow runs it: op by op, where a graph knows groups only.

A schedule is made for the worst case: every value lives until it is freed, and an op's results stand beside its inputs.
TensorFlow does better in two ways that depend on the schedule: a tensor dies with its last reader, and an elementwise op
writes over an input that nothing reads afterwards. And it does worse in one: where a variable changes while something still has to
read what it was, both are in memory. The replay counts all three.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ...schedule import Compute, Step
from ..graphs.capture import Captured
from ..graphs.trace import is_fixed
from ..ops.functions import changes_something
from ..ops.op_kinds import IN_PLACE, counted_bytes, is_handle, root, tensor_bytes


@dataclass(slots=True)
class Run:
    """One run of one op.

    Attributes:
        reads: copies of tensors, each as its name and the number of the run that made it. made: bytes of each copy it makes.
        workspace: bytes. before: bytes live when it begins, fixed memory included. during: bytes live while it runs.
        takes: bytes that it adds at most, in whatever order runs end. outdated: bytes of former values of variables that are
            live while it runs. moved: variables that lie elsewhere after it, by the names of their handles, and their bytes.
    """

    op: tf.Operation
    reads: list[tuple[str, int]]
    made: dict[tuple[str, int], int]
    workspace: int
    before: int = 0
    during: int = 0
    takes: int = 0
    outdated: int = 0
    moved: dict[str, int] = field(default_factory=dict)

    @property
    def largest_block(self) -> int:
        """Bytes of the largest block of memory that it asks for."""
        return max(self.workspace, *self.made.values(), 0)


def replay(captured: Captured, steps: Sequence[Step], size_of: Callable[[tf.Tensor], int] | None = None) -> list[Run]:
    """The runs of ops that a schedule asks for, one after the other. Reads of variables take nothing and are left out.

    Args:
        size_of: bytes of a tensor, if not all of them are to be looked at.
    """
    size_of = size_of or tensor_bytes
    runs: list[Run] = []
    values = _Values(size_of)
    latest: dict[str, int] = {}  # tensor -> the run that made its newest copy
    last: dict[tuple[str, int], int] = {}  # copy -> the run that reads it last
    readers: Counter[tuple[str, int]] = Counter()  # runs that read a copy
    for step in steps:
        if not isinstance(step, Compute):
            continue
        for op in captured.groups[step.op].first:
            number = len(runs)
            values.note(op, number)
            if op.type == "ReadVariableOp":
                continue
            reads = [(r.name, latest[r.name]) for r in map(root, op.inputs) if not is_fixed(r)]
            for copy in dict.fromkeys(reads):
                last[copy] = number
                readers[copy] += 1
            made = {(t.name, number): size_of(t) for t in op.outputs}
            latest.update((t.name, number) for t in op.outputs)
            runs.append(Run(op, reads, made, captured.costs[op.name].workspace))
    for tensor in map(root, captured.traced.outputs):
        values.last[tensor.name] = len(runs)
        if not is_fixed(tensor):
            last[tensor.name, latest[tensor.name]] = len(runs)
            readers[tensor.name, latest[tensor.name]] += 1
    size: dict[tuple[str, int], int] = {}
    live = captured.graph.fixed_memory
    outdated = values.outdated()
    ending: Counter[int] = Counter()  # run -> bytes of former values that it reads last
    former = 0
    for number, run in enumerate(runs):
        run.before = live + former
        if run.op.type == "AssignVariableOp":
            run.moved[run.op.inputs[0].name] = tensor_bytes(run.op.inputs[1])
        for variable, last_reader, bytes_ in outdated.get(number, ()):
            former += bytes_
            ending[last_reader] += bytes_
            run.takes += bytes_
            run.moved[variable] = bytes_
        run.outdated = former
        dying = {copy for copy in run.reads if last[copy] == number}
        own = sum(run.made.values())
        in_place = False
        if run.op.type in IN_PLACE:
            fitting = [copy for copy in dying if size[copy] == own and run.reads.count(copy) == 1]
            if fitting:
                dying.discard(fitting[0])
                live -= own
            in_place = any(readers[copy] == 1 for copy in fitting)
        run.takes += run.workspace + (0 if in_place else own)
        live += own
        run.during = live + former + run.workspace
        size.update(run.made)
        live -= sum(size[copy] for copy in dying)
        live -= sum(bytes_ for copy, bytes_ in run.made.items() if copy not in last)
        former -= ending[number]
    return runs


class _Values:
    """Values of variables: when they are read first and last, and when the variables change."""

    def __init__(self, size_of: Callable[[tf.Tensor], int]):
        self._size_of = size_of
        self.read: dict[tf.Operation, int] = {}  # op that reads a variable -> runs before it
        self.last: dict[str, int] = {}  # tensor -> the run that reads it last
        self.changes: defaultdict[str, list[int]] = defaultdict(list)  # variable -> runs that change it

    def note(self, op: tf.Operation, number: int) -> None:
        if op.type == "ReadVariableOp":
            self.read.setdefault(op, number)  # it is not read again
            return
        self.last.update((root(tensor).name, number) for tensor in op.inputs)
        if changes_something(op):
            for handle in filter(is_handle, op.inputs):
                self.changes[handle.name].append(number)

    def outdated(self) -> dict[int, list[tuple[str, int, int]]]:
        """For runs that change a variable of which something still has to read what it was: its handle, when that ends, and bytes.

        TensorFlow leaves the former value where it is and makes a new one elsewhere.
        """
        lasts: dict[tuple[int, str], tuple[int, int]] = {}
        for op, read in self.read.items():
            (handle,), (value,) = op.inputs, op.outputs
            last = self.last.get(value.name, 0)
            change = next((number for number in self.changes[handle.name] if read <= number < last), None)
            if change is not None:
                lasts[change, handle.name] = max((last, self._size_of(value)), lasts.get((change, handle.name), (0, 0)))
        found: defaultdict[int, list[tuple[str, int, int]]] = defaultdict(list)
        for (change, variable), ending in lasts.items():
            found[change].append((variable, *ending))
        return found


def peak_of(captured: Captured, runs: Sequence[Run]) -> int:
    """Peak bytes of the runs of a replay when nothing overlaps, fixed memory included."""
    return max((run.during for run in runs), default=captured.graph.fixed_memory)


def uncounted(captured: Captured, steps: Sequence[Step], peak: int) -> int:
    """Bytes of the schedule's peak that TensorFlow's counter does not see where it leaves out small blocks."""
    return max(0, peak - peak_of(captured, replay(captured, steps, counted_bytes)))
