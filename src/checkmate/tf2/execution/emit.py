"""A schedule -> the nodes of a graph, in an order that TensorFlow keeps.

The order needs control edges: without them the copies of an op are merged into one, and gradients wait for each other.
"sparse" has the ops that take memory wait for those before them, and for small ops that read large values: for all, or for
those that must be over (see `overlap`); TensorFlow's graph rewriting still works on what is between. "full" chains every op.
Where ops run one by one, a small op that reads large values waits as well, for it may be the last to need them. Else it is chance
when they are freed: under one and the same plan, steps of the transformer of `benchmarks/keras_matrix.py` took 7.3 or 7.6 MiB.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import tensorflow as tf

from ...schedule import Compute, Step
from ..graphs.capture import Captured
from ..graphs.trace import is_fixed
from ..internals import is_stateful
from ..ops.functions import changes_something, draws, resources_of
from ..ops.nodes import Emitted, Nodes
from ..ops.op_kinds import (
    CALLS,
    SMALL,
    are_sizes_known,
    is_big,
    is_handle,
    is_one_kernel,
    is_shape,
    needs,
    root,
    shape_value,
    source,
    tensor_bytes,
)
from .overlap import one_by_one
from .replay import Run, replay

MODES = ("sparse", "full")

#: In the names of further copies of an op.
_AGAIN = "__again"

#: An op that waits for more others than this waits for one that waits for them.
_MANY = 3


def emit(
    captured: Captured,
    steps: Sequence[Step],
    mode: str = "sparse",
    dry: bool = False,
    waits: Sequence[int] | None = None,
    runs: Sequence[Run] | None = None,
) -> Emitted:
    """Emit the schedule.

    Args:
        mode: one of `MODES`.
        dry: leave out what changes variables; see `can_run_dry`. Outputs come with a few numbers more.
        waits: of `overlapping`; every op waits for all before it if there are none.
        runs: of `replay`, where they are known.
    """
    in_turn = waits is None
    if waits is None:
        waits = one_by_one(replay(captured, steps) if runs is None else runs)
    emitter = _Emitter(captured, mode, dry, waits, in_turn)
    seen: set[int] = set()
    for step in steps:
        if isinstance(step, Compute):
            group = captured.groups[step.op]
            for op in group.ops if step.op in seen else group.first:
                emitter.run(op)
            seen.add(step.op)
    outputs = [emitter.get(tensor) for tensor in captured.traced.outputs]
    traced = captured.traced
    arguments = {name.partition(":")[0]: tensor for name, tensor in zip(emitter.inputs, traced.inputs, strict=True)}
    made = [*outputs, *emitter.left_out]
    return Emitted(arguments, traced.captured, emitter.nodes.made, made, emitter.effects, traced.graph)


def original(name: str) -> str:
    """The op that the op of this name in an emitted graph is a copy of, if it is a copy."""
    return name.partition(_AGAIN)[0]


def can_run_dry(captured: Captured) -> bool:
    """The step changes nothing but variables, by ops of which at most small outputs are read: it can be tried out without them."""
    ops = (op for group in captured.groups for op in group.ops)
    return all(_can_be_left_out(op) for op in ops if _acts(op))


class _Emitter:
    def __init__(self, captured: Captured, mode: str, dry: bool, waits: Sequence[int], in_turn: bool):
        traced = captured.traced
        self.mode = mode
        self.dry = dry
        self.waits = waits
        self.in_turn = in_turn
        self.originals = traced.nodes
        self.nodes = Nodes()
        self.left_out: list[str] = []
        self.effects: list[str] = []
        self.inputs = [f"checkmate_input_{number}:0" for number in range(len(traced.inputs))]
        self.tensors = {inner.name: name for inner, name in zip(traced.inputs, self.inputs, strict=True)}
        self.views: dict[str, list[str]] = {}  # tensor -> what shares the memory of its latest copy
        pairs = [pair for group in captured.groups for pair in pairwise(group.ops) if is_one_kernel(*pair)]
        self.filters = {bias.name: filters for bias, filters in pairs}
        self.workspace = {name: cost.workspace for name, cost in captured.costs.items()}
        self.biases = {filters.name: bias for bias, filters in pairs}
        self.constants = _constants(traced.ops)
        anything = dry or any(is_big(op) and op.name in self.constants for op in traced.ops)
        self.flag = self._unknown(traced.inputs[: traced.argument_count]) if anything else None
        self.copies: Counter[str] = Counter()
        # Names of nodes and tensors stand for what was emitted.
        self.latest: dict[str, str] = {}
        self.readers: defaultdict[str, list[str]] = defaultdict(list)  # variable -> what computes with its value
        self.number = 0  # runs of ops so far
        self.waited_for: dict[int, tuple[str, int]] = {}  # run -> its copy, and how many runs are over when that begins
        self.over_after: dict[str, int] = {}  # tensor -> so many runs are over when its latest copy is there
        self.all_over: dict[int, str] = {}  # number -> an op that ends when so many runs are over
        self.changed: dict[str, str] = {}  # variable -> what changed it last
        self.used: defaultdict[str, list[str]] = defaultdict(list)  # variable -> what has read it since
        self.last_effect: str | None = None  # of those that concern no variable

    def get(self, tensor: tf.Tensor) -> str:
        """The latest copy of a tensor; constants and aliases are made when they are asked for."""
        stack = [tensor]
        while stack:
            wanted = stack[-1]
            passed_on = source(wanted)
            missing = [t for t in needs(wanted) if t.name not in self.tensors]
            if wanted.name in self.tensors:
                stack.pop()
            elif missing:
                stack.append(missing[0])
            elif passed_on is not wanted:
                self._is_now(wanted, self.tensors[passed_on.name])
            else:
                self._copy(wanted.op, [])
        return self.tensors[tensor.name]

    def run(self, op: tf.Operation) -> None:
        """Emit one op of the schedule."""
        for tensor in op.inputs:
            self.get(tensor)
        if op.type == "ReadVariableOp":
            self._copy(op, [])
            return
        number = self.number
        self.number += 1
        waits = number if self.mode == "full" else self.waits[number]
        # Graph rewriting, which only what runs in turn may meet, can drop what an op reads.
        known = 0 if self.in_turn else max((self.over_after.get(root(tensor).name, 0) for tensor in op.inputs), default=0)
        chained = self._is_chained(op)
        filters = self.filters.get(op.name)
        if filters is not None and self._is_chained(filters):
            before = self._edges(waits, (op, filters))
        elif chained:
            before = self._edges(waits, (self.biases.get(op.name), op), known)
        else:
            before, waits = [], 0
        if is_stateful(op):
            before = [*before, *self._ordered_before(op)]
            if waits < number:  # while its value is in use, TensorFlow would change a copy of a variable
                before += [copy for handle in filter(is_handle, op.inputs) for copy in self.readers[handle.name]]
        if self.mode == "full" and number:
            before = [*before, self.waited_for[number - 1][0]]
        if self.dry and _acts(op):
            self.latest[op.name] = self._leave_out(op, before)
        else:
            self._copy(op, before)
        new = self.latest[op.name]
        if chained or _reads_large(op):
            self.waited_for[number] = new, max(waits, known)
        over = max(waits, known)
        while over < number and over not in self.waited_for:
            over += 1
        over += over == number  # this run itself
        self.over_after.update((tensor.name, over) for tensor in op.outputs)

    def _is_chained(self, op: tf.Operation) -> bool:
        takes = is_big(op) or self.workspace[op.name] > SMALL
        return self.mode == "full" or takes or is_stateful(op) or (self.in_turn and _reads_large(op))

    def _edges(self, waits: int, together: tuple[tf.Operation | None, tf.Operation], known: int = 0) -> list[str]:
        """What an op of the chain waits for.

        Args:
            waits: so many runs have to be over. known: so many are over because of what it reads.
            together: the two gradients of a convolution with bias. oneDNN makes one kernel of them only if they wait for the same
                ops; what one of them reads is left out, for graph rewriting drops such an edge on one side and not on the other.
        """
        before = self._over(waits, known if together[0] is None else 0)
        if together[0] is None:
            if len(before) > _MANY:
                self.all_over[waits] = self.nodes.add("NoOp", [], self._over(waits, 0))  # for whatever others read
                return [self.all_over[waits]]
            return before
        read = {root(tensor).op.name for one in together if one is not None for tensor in one.inputs}
        return [copy for copy in before if not any(self.latest.get(name) == copy for name in read)]

    def _over(self, count: int, known: int) -> list[str]:
        """Ops at whose end the first `count` runs are over, if the first `known` are."""
        found: list[str] = []
        number = count
        while number > known:
            if number in self.all_over:
                found.append(self.all_over[number])
                break
            number -= 1
            if number in self.waited_for:
                copy, waits = self.waited_for[number]
                found.append(copy)
                known = max(known, waits)
        return found

    def _copy(self, op: tf.Operation, before: list[str]) -> None:
        if is_shape(op):
            for tensor in op.outputs:
                self.tensors[tensor.name] = self.nodes.constant(shape_value(tensor))
            return
        number = self.copies[op.name]
        self.copies[op.name] += 1
        new = f"{op.name}{_AGAIN}{number}" if number else str(op.name)
        inputs = [self.tensors[t.name] for t in op.inputs]
        if op.name in self.constants and is_big(op):
            inputs[0] = self._not_constant(inputs[0], op.inputs[0].dtype, before)
        if is_stateful(op):
            before = [*before, *self._in_turn_of_variables(op, new)]
        self.nodes.copy(self.originals[op.name], new, inputs, before)
        for place, old in enumerate(op.outputs):
            self._is_now(old, f"{new}:{place}")
        self.latest[op.name] = new
        for read in {base.op for base in map(root, op.inputs) if base.op.type == "ReadVariableOp"}:
            self.readers[read.inputs[0].name].append(new)

    def _in_turn_of_variables(self, op: tf.Operation, new: str) -> list[str]:
        """What has to be over so that variables are read and changed in the order of the schedule."""
        before: list[str] = []
        read, changed = resources_of(op)
        for handle in (*read, *changed):
            if handle.name in self.changed:
                before.append(self.changed[handle.name])
        for handle in read:
            self.used[handle.name].append(new)
        for handle in changed:
            before += self.used.pop(handle.name, [])
            self.changed[handle.name] = new
        if not read and not changed:
            before += [self.last_effect] if self.last_effect is not None else []
            self.last_effect = new
        if op.type != "ReadVariableOp":
            self.effects.append(new)
        return before

    def _unknown(self, arguments: Sequence[tf.Tensor]) -> str | None:
        """True or False, which only the batch can tell; None if nothing in it can."""
        for tensor, name in zip(arguments, self.inputs, strict=False):
            dtype = tensor.dtype
            if (dtype.is_floating or dtype.is_integer or dtype.is_bool) and tensor_bytes(tensor):
                number = self.nodes.first_number(name, dtype)
                scalar = self.nodes.add("Squeeze", [number], T=dtype)
                return self.nodes.add("Cast", [f"{scalar}:0"], SrcT=dtype, DstT=tf.bool, Truncate=False) + ":0"
        return None

    def _not_constant(self, tensor: str, dtype: tf.DType, before: list[str]) -> str:
        """The same numbers, of which TensorFlow cannot know that they are the same in every step."""
        if self.flag is None:
            return tensor
        return self.nodes.add("SelectV2", [self.flag, tensor, tensor], before, T=dtype) + ":0"

    def _is_now(self, old: tf.Tensor, fresh: str) -> None:
        """Note the newest copy of a tensor; views of the copy before are forgotten."""
        self.tensors[old.name] = fresh
        base = root(old)
        if base is old:
            for view in self.views.pop(old.name, ()):
                self.tensors.pop(view, None)
        else:
            self.views.setdefault(base.name, []).append(old.name)

    def _leave_out(self, op: tf.Operation, before: list[str]) -> str:
        """Something without effect in place of an op: it reads one number of each input, so that these are computed."""
        for tensor in op.outputs:
            zeros = self.nodes.constant(np.zeros(tensor.shape.as_list(), tensor.dtype.as_numpy_dtype))
            self._is_now(tensor, self._not_constant(zeros, tensor.dtype, before))
        for tensor in op.inputs:
            if not is_handle(tensor) and tensor_bytes(tensor):
                self.left_out.append(self.nodes.first_number(self.tensors[tensor.name], tensor.dtype, before))
        return self.left_out[-1].partition(":")[0] if self.left_out else self.nodes.add("NoOp", [], before)

    def _ordered_before(self, op: tf.Operation) -> list[str]:
        """Copies of the ops that `op` was made to wait for."""
        found: list[str] = []
        stack, seen = list(op.control_inputs), set()
        while stack:
            other = stack.pop()
            if other.name in seen:
                continue
            seen.add(other.name)
            if other.name in self.latest:
                found.append(self.latest[other.name])
            elif other.type == "NoOp":
                stack += other.control_inputs
        return found


def _acts(op: tf.Operation) -> bool:
    """It changes something outside of the graph that it is in: a rehearsal leaves it out."""
    return changes_something(op) and not draws(op)


def _can_be_left_out(op: tf.Operation) -> bool:
    """Nothing reads what it gives, or that is a few numbers, as the state of a generator, which it moves on."""
    numbers = all(tensor.dtype.is_numpy_compatible and tensor.dtype != tf.string for tensor in op.outputs)
    return not op.outputs or (op.type not in CALLS and numbers and are_sizes_known(op.outputs) and not is_big(op))


def _reads_large(op: tf.Operation) -> bool:
    """It may be the last to need a value that takes memory."""
    return any(not is_fixed(base) and is_big(base.op) for base in map(root, op.inputs))


def _constants(ops: Sequence[tf.Operation]) -> set[str]:
    """Names of the ops that compute the same in every step, such as the mask of causal attention.

    TensorFlow would compute a large one once, again for each place of the schedule, and keep all of them forever. A choice between
    equal inputs, by something that it cannot know beforehand, keeps it from that.
    """
    found: set[str] = set()
    for op in ops:
        known = all(t.op.name in found or t.op.type == "Const" or is_shape(t.op) for t in op.inputs)
        if known and op.inputs and not is_stateful(op):
            found.add(op.name)
    return found
