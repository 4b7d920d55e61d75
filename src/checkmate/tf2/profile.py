"""Seconds and workspace of each op of a trace.

`cost_model="profile"` runs every distinct op (by signature: type, shapes, element types, attributes, small constant
inputs) on made-up inputs and remembers the result in memory and on disk. `cost_model="flops"` runs nothing: arithmetic
and bytes moved go through a roofline with this machine's rates, which are measured once. Ops that cannot be run by
themselves (control flow, side effects) take the second way always. Of several runs the quickest counts: other work on
the machine only adds.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from ..costs import CostCache, Rates, roofline_seconds
from .capture import OpCost
from .flops import flops, moved_bytes
from .internals import copy_op, eager_attributes, is_stateful, onednn_is_on, run_op
from .kinds import SMALL, is_opaque, is_shape, tensor_bytes
from .measure import counts_memory, default_device, exact_pieces, measure, outside
from .trace import shape_value

_SECONDS_PER_OP = 0.03  # time budget of one signature's timed runs ...
_MIN_RUNS, _MAX_RUNS = 2, 10  # ... within these limits
_LONG = 0.2  # seconds of one run
_SMALL_SECONDS = 3e-6  # an op on small tensors costs about what it takes to start it


def profile_ops(
    ops: Sequence[tf.Operation], cost_model: str = "profile", progress: Callable[[int, int], None] | None = None
) -> dict[str, OpCost]:
    """The cost of each op, by name.

    Args:
        ops: of one trace. cost_model: "profile" or "flops".
        progress: called with (signatures measured, signatures to measure).
    """
    costs: dict[str, OpCost] = {}
    groups: dict[str, list[tf.Operation]] = {}
    for op in ops:
        if max(map(tensor_bytes, (*op.inputs, *op.outputs)), default=0) <= SMALL and not is_opaque(op):
            costs[op.name] = OpCost(_SMALL_SECONDS, 0)
        elif cost_model == "flops" or is_opaque(op) or is_stateful(op):
            costs[op.name] = modelled(op)
        else:
            groups.setdefault(signature(op), []).append(op)
    if not groups:
        return costs
    cache = _cache(default_device())
    todo = [key for key in groups if cache.get(key) is None]
    largest = max((tensor_bytes(t) for key in todo for t in groups[key][0].outputs), default=0)
    try:
        with exact_pieces(largest):
            for number, key in enumerate(todo):
                measured = _measured(groups[key][0])
                if measured is not None:
                    cache.put(key, [measured.seconds, float(measured.workspace)])
                if progress is not None:
                    progress(number + 1, len(todo))
    finally:  # what was measured before an interrupt is worth keeping
        _random.cache_clear()  # these are live tensors too
        cache.save()
    for key, members in groups.items():
        row = cache.get(key)
        for op in members:
            costs[op.name] = OpCost(row[0], int(row[1])) if row is not None else modelled(op)
    return costs


def signature(op: tf.Operation) -> str:
    """Everything that the cost of an op depends on."""
    parts = []
    for tensor in op.inputs:
        constant = _constant(tensor)
        value = f"={constant.tolist()}" if constant is not None else ""
        parts.append(f"{tensor.dtype.name}{tensor.shape.as_list() if tensor.shape.rank is not None else '?'}{value}")
    attributes = [
        f"{name}:{attribute.SerializeToString(deterministic=True).hex()}"
        for name, attribute in sorted(op.node_def.attr.items())
        if not name.startswith("_")
    ]
    return f"{op.type}({', '.join(parts)}) {' '.join(attributes)}"


def modelled(op: tf.Operation) -> OpCost:
    """The cost by arithmetic and bytes moved; no workspace is known."""
    return OpCost(roofline_seconds(flops(op), moved_bytes(op), rates()), 0)


@lru_cache(maxsize=1)
def rates() -> Rates:
    """What this machine reaches on a matrix product and on a copy; measured once and kept on disk."""
    cache = _cache(default_device())
    row = cache.get("rates")
    if row is None:
        side, length = 1024, 1 << 24
        a, b = tf.ones((side, side)), tf.ones((length,))
        product = _quickest(lambda: tf.matmul(a, a))
        addition = _quickest(lambda: b + b)
        cache.put("rates", row := [2.0 * side**3 / product, 8.0 * length / addition])
        cache.save()
    return Rates(row[0], row[1], _SMALL_SECONDS)


@lru_cache
def _cache(device: str) -> CostCache:
    return CostCache(environment(device), width=2)


def environment(device: str) -> dict[str, Any]:
    """What costs and peaks depend on besides the ops."""
    return {
        "framework": "tensorflow",
        "version": tf.__version__,
        "device": device,
        "machine": platform.processor() or platform.machine(),
        "threads": tf.config.threading.get_intra_op_parallelism_threads() or "default",
        "precision": tf.config.experimental.tensor_float_32_execution_enabled(),
        "onednn": onednn_is_on(),
        "counted": counts_memory(device),
    }


def _constant(tensor: tf.Tensor) -> Any:
    """The value of a small tensor (a shape, an axis) that is known before the step runs; None otherwise."""
    if tensor.dtype.is_floating or tensor.dtype in (tf.resource, tf.variant) or tensor_bytes(tensor) > 1024:
        return None
    if is_shape(tensor.op):
        return shape_value(tensor)
    return tf.get_static_value(tensor)


def _measured(op: tf.Operation) -> OpCost | None:
    """Run an op on made-up inputs; None where it cannot be run on them."""
    made = []
    for tensor in op.inputs:
        if not tensor.shape.is_fully_defined():
            return None
        constant = _constant(tensor)
        made.append(tf.constant(constant, tensor.dtype) if constant is not None else _made_up(tensor))
    try:
        run = _runner(op, made)
        run()  # first runs choose kernels and allocate
        started = time.perf_counter()
        with measure() as seen:
            results = run()
            del results
        seconds = time.perf_counter() - started
    except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
        return None  # it does not run on such inputs, or not eagerly
    size = sum(tensor_bytes(t) for t in op.outputs)
    # What takes long enough is known well enough, and would take longest to run again.
    return OpCost(seconds if seconds > _LONG else min(seconds, _quickest(run)), max(0, (seen.added or 0) - size))


def _runner(op: tf.Operation, made: list[tf.Tensor]) -> Callable[[], list[tf.Tensor]]:
    """Runs an op on these inputs, with the kernel that a graph would run."""
    if not op.type.startswith("_"):
        attributes = eager_attributes(op)
        return lambda: run_op(op.type, made, attributes, len(op.outputs))

    # What graph rewriting makes has slower kernels outside of graphs.
    def single(*inputs: tf.Tensor) -> list[tf.Tensor]:
        return list(copy_op(op, inputs, "op").outputs)

    function = tf.function(single, autograph=False).get_concrete_function(*[tf.TensorSpec(t.shape, t.dtype) for t in made])
    return lambda: list(function(*made))


def _quickest(run: Callable[[], Any]) -> float:
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _SECONDS_PER_OP and len(seconds) < _MAX_RUNS):
        start = time.perf_counter()
        result = run()
        tf.nest.map_structure(lambda t: t.numpy() if t.shape.num_elements() == 1 else t.shape, result)
        seconds.append(time.perf_counter() - start)
        del result
    return min(seconds)


def _made_up(tensor: tf.Tensor) -> tf.Tensor:
    """Random numbers in (0.1, 1); zeros for integers, valid as indices; a mix of True and False."""
    shape = tuple(tensor.shape.as_list())
    return _random(shape, tensor.dtype)


@lru_cache(maxsize=8)
def _random(shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    generator = np.random.default_rng(0)
    if dtype.is_floating:
        made = generator.uniform(0.1, 1.0, shape).astype(dtype.as_numpy_dtype)
    elif dtype.is_bool:
        made = generator.uniform(size=shape) < 0.5
    else:
        made = np.zeros(shape, dtype.as_numpy_dtype)
    return outside(made, dtype) if default_device() == "CPU:0" else tf.constant(made, dtype)
