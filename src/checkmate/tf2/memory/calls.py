"""What loops, branches and calls of other graphs hold: found by running each of them, on made-up numbers.

The graph of a step tells the shapes of tensors, but not what is in the lists through which a loop hands its iterations on to the
gradient, nor what a loop takes while it runs. So every such op is run by itself, in the order of the step, and is given the lists
that those before it have made, and small whole numbers as they are, for they may say how often a loop goes round. What its outputs
hold is seen by where it lies, for TensorFlow does not count small blocks, and by what becomes free when they are dropped; what was live
beyond that is its workspace. What changes a variable is not run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import tensorflow as tf

from ...planning.cache_files import load, store
from ...version import __version__
from ..internals import (
    captured_in,
    copy_functions,
    copy_op,
    eager_attributes,
    ended_after,
    is_stateful,
    run_op,
    variable_type,
)
from ..ops.functions import called, changes_something, digest, element_types
from ..ops.op_kinds import CALLS, CHOICES, Held, is_shape, note_held, tensor_bytes
from .branch_memory import branch_held
from .made_up import constant_value, forget_made_up, made_up
from .measure import bytes_in_use, counts_memory, default_device, exact_blocks, measure

_KIND = "calls"

#: A loop that does not end by itself on made-up numbers is ended after so many seconds.
_LONGEST = 20.0

#: Loops, branches and calls are run so many times as long as that takes no more than these seconds: ops inside overlap as chance wills, and
#: what takes longer meets it often in one run. Of 40 runs of the gradient of a branch of four products, on two cores, 11 took 4.6 MiB, most
#: others 5.7 to 7.4, and three 9.7.
_OFTEN, _SECONDS = 30, 0.3

#: Tensors by name; as many as the op that makes them has choices among graphs.
_Known: TypeAlias = dict[str, list[tf.Tensor]]


def find_calls(ops: Sequence[tf.Operation], environment: Mapping[str, Any]) -> None:
    """Note what loops, branches, calls and ops on lists hold; see `op_kinds.held`. What cannot be run is left out.

    Args:
        ops: of one trace, in order. environment: what bytes depend on besides the ops.
    """
    if known := {op.name: held for op in ops if (held := branch_held(op)) is not None}:
        note_held(ops[0].graph, known)
    calls = [op for op in ops if (op.type in CALLS or _has_lists(op)) and not changes_something(op)]
    if not calls or not counts_memory(default_device()):
        return
    signatures = _Signatures()
    key = json.dumps([__version__, dict(environment), [signatures.of(op) for op in calls]], sort_keys=True, default=str)
    rows = load(_KIND, key)
    if not _is_valid(rows, calls):
        trial = _Trial(calls)
        try:
            with exact_blocks(max(tensor_bytes(tensor) for op in calls for tensor in (*op.inputs, *op.outputs))):
                rows = [trial.run(number, op) for number, op in enumerate(calls)]
        finally:
            forget_made_up()
        store(_KIND, key, rows)
    found = {op.name: row for op, row in zip(calls, rows, strict=True) if row is not None}
    note_held(
        calls[0].graph,
        {
            name: Held(row[0], row[1], tuple(one[0] for one in row[2]), tuple(one[1] for one in row[2]))
            for name, row in found.items()
        },
    )


class _Trial:
    """Runs calls one after the other; what one makes for others stays while they need it."""

    def __init__(self, calls: Sequence[tf.Operation]):
        self._last = {t.name: number for number, op in enumerate(calls) for t in op.inputs if t.dtype == tf.variant}
        self._known: _Known = {}
        self._counted: dict[str, int] = {}  # list -> bytes of it that TensorFlow counts

    def run(self, number: int, op: tf.Operation) -> list[Any] | None:
        """Seconds, workspace, and of each output its bytes and those that TensorFlow counts; None if it cannot be run."""
        try:
            return self._run(op)
        except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
            return None  # it does not run on such inputs
        finally:
            for name in {tensor.name for tensor in op.inputs if self._last.get(tensor.name) == number}:
                for kept in (self._known, self._counted):
                    kept.pop(name, None)

    def _run(self, op: tf.Operation) -> list[Any] | None:
        lists = [tensor.name for tensor in op.inputs if tensor.dtype == tf.variant]
        if any(name not in self._known for name in lists):
            return None
        seconds, workspace, sizes = [], 0, [(0, 0)] * len(op.outputs)
        for choice in _choices(op):
            made = [_value(tensor, self._known, choice or 0) for tensor in op.inputs if tensor.dtype != tf.resource]
            if choice is not None:
                made[0] = tf.cast(choice, op.inputs[0].dtype)
            run = _runner(op, made)
            with ended_after(_LONGEST):
                results = run()  # the first run makes constants, and takes longer
            kinds = [element_types(tensor) if tensor.dtype == tf.variant else None for tensor in (*op.inputs, *op.outputs)]
            read = [kind for tensor, kind in zip(op.inputs, kinds, strict=False) if tensor.dtype != tf.resource]
            shared = {where for given, kind in zip(made, read, strict=True) for where in _blocks(given, kind, set()) or ()}
            shared.update(where for value in _variables(op) for where in _blocks(value, None, set()) or ())
            blocks = [_blocks(result, kind, shared) for result, kind in zip(results, kinds[len(op.inputs) :], strict=True)]
            for tensor, result in zip(op.outputs, results, strict=True):
                if tensor.name in self._last or _is_small_number(tensor):
                    self._known.setdefault(tensor.name, []).append(result)
            took, added, results = _measured(run, op)
            counted = _dropped(results)
            found = [_sizes(t, c, own) for t, c, own in zip(op.outputs, counted, blocks, strict=True)]
            sizes = [max(both) for both in zip(sizes, found, strict=True)]
            self._counted.update((tensor.name, size) for tensor, size in zip(op.outputs, counted, strict=True))
            taken = added - sum(counted)
            if op.type in CALLS and (held := sum(self._counted.get(name, 0) for name in lists)):
                # While a loop takes a list apart its elements go; not here, where it is held.
                run = self._with_lists(op, choice or 0)
                with ended_after(_LONGEST):
                    run()
                taken = min(taken, _measured(run, op)[1] - held - sum(counted))
            seconds.append(took)
            workspace = max(workspace, taken)
        return [min(seconds), workspace, sizes]

    def _with_lists(self, op: tf.Operation, choice: int) -> Callable[[], list[tf.Tensor]]:
        """Runs an op after those that make the lists it reads."""
        order: dict[str, tf.Operation] = {}
        stack = [op]
        while stack:
            one = stack[-1]
            before = [t.op for t in one.inputs if t.dtype == tf.variant and t.op.name not in order]
            stack += before
            if not before:
                order[stack.pop().name] = one
        numbers = {t.name: t for one in order.values() for t in one.inputs if t.dtype not in (tf.variant, tf.resource)}
        made = {name: _value(tensor, self._known, choice) for name, tensor in numbers.items()}
        made |= {one.inputs[0].name: tf.cast(choice, one.inputs[0].dtype) for one in order.values() if one.type in CHOICES}
        return _function(list(order.values()), made)


def _value(tensor: tf.Tensor, known: _Known, choice: int) -> tf.Tensor:
    """What an op is run on: what is known, or follows from that by small whole numbers, and is made up otherwise."""
    stack = [tensor]
    while stack:
        wanted = stack[-1]
        if wanted.name in known:
            stack.pop()
        elif (constant := constant_value(wanted)) is not None:
            known[wanted.name] = [tf.constant(constant, wanted.dtype)]
        elif not _is_small_number(wanted) or is_stateful(wanted.op) or not all(map(_is_small_number, wanted.op.inputs)):
            if wanted is tensor:
                return made_up(tensor)
            known[wanted.name] = [made_up(wanted)]
        elif missing := [one for one in wanted.op.inputs if one.name not in known]:
            stack += missing
        else:
            inputs = [known[one.name][0] for one in wanted.op.inputs]
            results = run_op(wanted.op.type, inputs, eager_attributes(wanted.op), len(wanted.op.outputs))
            known.update((output.name, [result]) for output, result in zip(wanted.op.outputs, results, strict=True))
    return known[tensor.name][min(choice, len(known[tensor.name]) - 1)]


def _is_small_number(tensor: tf.Tensor) -> bool:
    return (tensor.dtype.is_integer or tensor.dtype.is_bool) and tensor.shape.is_fully_defined() and tensor_bytes(tensor) <= 1024


def _choices(op: tf.Operation) -> list[int | None]:
    if op.type not in CHOICES or constant_value(op.inputs[0]) is not None:
        return [None]
    return list(range(len(called(op))))


def _runner(op: tf.Operation, made: Sequence[tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    """Runs an op on these inputs, variables left out."""
    if op.type not in CALLS:
        attributes = eager_attributes(op)
        return lambda: run_op(op.type, made, attributes, len(op.outputs))
    names = [tensor.name for tensor in op.inputs if tensor.dtype != tf.resource]
    return _function([op], dict(zip(names, made, strict=True)))


def _function(ops: Sequence[tf.Operation], made: Mapping[str, tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    """Runs ops as a step would, loops taken apart and variables where they are; it gives what the last of them makes."""
    graph, last, variables = ops[0].graph, ops[-1], _handles(ops[0].graph)

    def step(*given: tf.Tensor) -> list[tf.Tensor]:
        copy_functions(graph)
        tensors = dict(zip(made, given, strict=True))
        for op in ops:
            for handle in op.inputs:
                if handle.dtype == tf.resource and handle.name not in tensors:
                    tensors[handle.name] = captured_in(variables[handle.name])
            copy = copy_op(op, [tensors[tensor.name] for tensor in op.inputs], op.name)
            tensors.update((old.name, new) for old, new in zip(op.outputs, copy.outputs, strict=True))
        return [tensors[tensor.name] for tensor in last.outputs if tensor.dtype != tf.resource]

    if any(t.dtype == tf.resource and t.name not in variables for op in ops for t in op.inputs):
        raise NotImplementedError(f"{last.name} reads what the step makes itself")
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in made.values()]
    function = tf.function(step, autograph=False).get_concrete_function(*specs)

    def run() -> list[tf.Tensor]:
        results = iter(function(*made.values()))
        return [None if tensor.dtype == tf.resource else next(results) for tensor in last.outputs]

    return run


def _handles(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """What stands for variables in a graph, and their handles."""
    return {inner.name: outer for outer, inner in getattr(graph, "captures", ()) if inner.dtype == tf.resource}


def _variables(op: tf.Operation) -> list[tf.Tensor]:
    """Values of the variables that an op may read."""
    handles = _handles(op.graph)
    found = [(handles[tensor.name], variable_type(tensor)) for tensor in op.inputs if tensor.name in handles]
    return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle, dtype in found if dtype is not None]


def _measured(run: Callable[[], list[tf.Tensor]], op: tf.Operation) -> tuple[float, int, list[Any]]:
    """Seconds of a run of an op, the most bytes that were live beyond what was there before in any of several runs, and the results."""
    seconds: list[float] = []
    most, results = 0, list[Any]()
    while not seconds or (op.type in CALLS and len(seconds) < _OFTEN and sum(seconds) < _SECONDS):
        results = []  # as long as they are there, they count as what was there before
        started = time.perf_counter()
        with ended_after(_LONGEST), measure() as seen:
            results = run()
        seconds.append(time.perf_counter() - started)
        most = max(most, seen.added or 0)
    return min(seconds), most, results


def _dropped(results: list[Any]) -> list[int]:
    """Bytes that become free when one result after the other goes, the last one first: each has what those before it do not share."""
    sizes = []
    while results:
        before = bytes_in_use()
        results.pop()
        sizes.append(max(0, before - bytes_in_use()))
    return sizes[::-1]


def _sizes(tensor: tf.Tensor, counted: int, blocks: Mapping[int, int] | None) -> tuple[int, int]:
    """Bytes of a tensor or list, none if it is only passed on; and those that TensorFlow counts, which leaves out small blocks."""
    if blocks is not None:
        size = sum(blocks.values())
        return size, min(size, counted)
    known = tensor_bytes(tensor)
    size = (known if counted > known // 2 else 0) if known else counted
    return size, size


def _blocks(result: Any, kind: tuple[bool, tf.DType] | None, shared: set[int]) -> dict[int, int] | None:
    """Where the numbers of a tensor or list are, and bytes of each block, without those `shared`; they are added there.

    None where that cannot be told, as outside of the CPU.
    """
    found: dict[int, int] = {}
    try:
        for tensor in _elements(result, kind):
            where = _address(tensor)
            if where not in shared:
                shared.add(where)
                found[where] = int(tf.size(tensor)) * tensor.dtype.size
    except NotImplementedError:
        return None
    return found


def _elements(result: Any, kind: tuple[bool, tf.DType] | None) -> Iterator[tf.Tensor]:
    """A tensor itself, or what is in a list; what a list only says to be zero, which takes nothing, has another place each time.

    Args:
        kind: of `element_types`.
    """
    if result is None or result.dtype != tf.variant:
        yield from () if result is None else (result,)
        return
    if kind is None or kind[1] == tf.variant:
        raise NotImplementedError("what is in it is not known")
    is_list, dtype = kind
    read = _element if is_list else _optional
    for number in range(int(tf.raw_ops.TensorListLength(input_handle=result)) if is_list else 1):
        with suppress(tf.errors.OpError):  # there is nothing yet
            one, same = read(result, dtype, number), read(result, dtype, number)
            if _address(one) == _address(same):
                yield one


def _element(result: tf.Tensor, dtype: tf.DType, number: int) -> tf.Tensor:
    return tf.raw_ops.TensorListGetItem(input_handle=result, index=number, element_shape=-1, element_dtype=dtype)


def _optional(result: tf.Tensor, dtype: tf.DType, _: int) -> tf.Tensor:
    return tf.raw_ops.OptionalGetValue(optional=result, output_types=[dtype], output_shapes=[tf.TensorShape(None)])[0]


def _address(tensor: tf.Tensor) -> int:
    """Where the numbers of a tensor are."""
    if tensor.dtype in (tf.variant, tf.resource, tf.string) or default_device() != "CPU:0":
        raise NotImplementedError("only what lies on the CPU can be looked at")
    return int(tensor._numpy().__array_interface__["data"][0])


class _Signatures:
    """Everything that bytes depend on: the op, what it calls, its inputs, and for lists how they were made."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, op: tf.Operation) -> str:
        if op.name not in self._known:
            parts = [op.type, digest(op)]
            for tensor in op.inputs:
                constant = None if tensor.dtype == tf.resource else constant_value(tensor)
                made = f"{tensor.value_index} of {self.of(tensor.op)}" if tensor.dtype == tf.variant else ""
                parts.append(f"{tensor.dtype.name}{tensor.shape}{'' if constant is None else constant.tolist()}{made}")
            self._known[op.name] = " ".join(parts)
        return self._known[op.name]


def _has_lists(op: tf.Operation) -> bool:
    return not is_shape(op) and any(tensor.dtype == tf.variant for tensor in (*op.inputs, *op.outputs))


def _is_valid(rows: Any, calls: Sequence[tf.Operation]) -> bool:
    if not isinstance(rows, list) or len(rows) != len(calls):
        return False
    try:
        for row, op in zip(rows, calls, strict=True):
            if row is not None:
                seconds, workspace, sizes = row
                whole = all(0 <= counted <= size for _, (size, counted) in zip(op.outputs, sizes, strict=True))
                if not whole or not seconds >= 0 or not workspace >= 0:
                    return False
    except (TypeError, ValueError):
        return False
    return True
