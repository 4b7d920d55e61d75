"""Seconds and workspace of each op of a trace.

How measured costs are remembered and what happens where an op cannot be run is `checkmate.planning.op_costs`; here is how an op of
TensorFlow is told from another (type, shapes, element types, attributes, small constant inputs), run, and counted. Ops
with side effects are never run by themselves; for loops, branches and calls see `calls`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import tensorflow as tf

from ..planning import DeviceModel, OpCost, Work, available_processors, cost_environment, device_rates, find_op_costs, quickest
from ..planning.cost_cache import CostCache, open_cost_cache
from ..planning.roofline import Rates
from .internals import copy_op, eager_attributes, is_stateful, onednn_is_on, run_op
from .memory.made_up import constant_value, forget_made_up, made_up
from .memory.measure import counts_memory, default_device, exact_blocks, measure
from .ops.flops import flops, is_product, moved_bytes
from .ops.op_kinds import SMALL, held, is_opaque, tensor_bytes

_LONG = 0.2  # seconds of one run
_SMALL_SECONDS = 3e-6  # an op on small tensors costs about what it takes to start it


def profile_ops(
    ops: Sequence[tf.Operation],
    cost_model: str = "profile",
    progress: Callable[[int, int], None] | None = None,
    device: DeviceModel | None = None,
) -> dict[str, OpCost]:
    """The cost of each op, by name.

    Args:
        ops: of one trace. cost_model: "profile" or "flops".
        progress: called with (signatures measured, signatures to measure).
        device: what the step is meant for; then nothing is run.
    """
    kind = cost_model if device is None else "flops"
    return {op.name: cost for op, cost in find_op_costs(ops, _Operations(kind, device), kind, progress).items()}


class _Operations:
    """What `find_op_costs` asks about ops of a trace; see `checkmate.planning.op_costs.OpRunner`."""

    def __init__(self, cost_model: str, model: DeviceModel | None) -> None:
        self._runs = cost_model == "profile"
        self._model = model
        self._cache = open_cost_cache(tf_environment(default_device()))

    def known(self, op: tf.Operation) -> OpCost | None:
        found = held(op)
        if found is not None and found.seconds is not None and self._runs:
            return OpCost(found.seconds, found.workspace)
        small = max(map(tensor_bytes, (*op.inputs, *op.outputs)), default=0) <= SMALL and not is_opaque(op)
        if not small:
            return None
        return OpCost(_SMALL_SECONDS if self._model is None else self._model.rates("float32").latency, 0)

    def signature(self, op: tf.Operation) -> str | None:
        return None if is_opaque(op) or is_stateful(op) else signature(op)

    def cache(self, op: tf.Operation) -> CostCache:
        return self._cache

    @contextmanager
    def measuring(self, ops: Sequence[tf.Operation]) -> Iterator[None]:
        largest = max((tensor_bytes(tensor) for op in ops for tensor in op.outputs), default=0)
        try:
            with exact_blocks(largest):
                yield
        finally:
            forget_made_up()

    def measure(self, op: tf.Operation) -> OpCost | None:
        return _measured(op)

    def work(self, op: tf.Operation) -> Work:
        found = held(op)
        return Work(flops(op), moved_bytes(op), self._rates_of(op), found.workspace if found is not None else 0)

    def _rates_of(self, op: tf.Operation) -> Rates:
        if self._model is None:
            return self._rates
        kinds = [tensor.dtype.name for tensor in op.outputs if tensor.dtype.is_floating]
        kind = kinds[0] if kinds else "float32"
        rounds = kind == "float32" and is_product(op) and tf.config.experimental.tensor_float_32_execution_enabled()
        return self._model.rates("tf32" if rounds else kind)

    @cached_property
    def _rates(self) -> Rates:
        """What this machine reaches on a matrix product and on a copy; measured once and kept on disk."""
        return device_rates(self._cache, "float32", _measured_rates)


def signature(op: tf.Operation) -> str:
    """Everything that the cost of an op depends on."""
    parts = []
    for tensor in op.inputs:
        constant = constant_value(tensor)
        value = f"={constant.tolist()}" if constant is not None else ""
        parts.append(f"{tensor.dtype.name}{tensor.shape.as_list() if tensor.shape.rank is not None else '?'}{value}")
    attributes = [
        f"{name}:{attribute.SerializeToString(deterministic=True).hex()}"
        for name, attribute in sorted(op.node_def.attr.items())
        if not name.startswith("_")
    ]
    return f"{op.type}({', '.join(parts)}) {' '.join(attributes)}"


def _measured_rates() -> Rates:
    side, length = 1024, 1 << 24
    a, b = tf.ones((side, side)), tf.ones((length,))
    product = _quickest(lambda: tf.matmul(a, a))
    addition = _quickest(lambda: b + b)
    return Rates(2.0 * side**3 / product, 8.0 * length / addition, _SMALL_SECONDS)


def tf_environment(device: str) -> dict[str, Any]:
    """What costs and peaks depend on besides the ops."""
    threads = tf.config.threading
    return cost_environment(
        "tensorflow",
        tf.__version__,
        _device_name(device),
        threads.get_intra_op_parallelism_threads() or available_processors(),
        threads_between_ops=threads.get_inter_op_parallelism_threads() or available_processors(),
        precision=tf.config.experimental.tensor_float_32_execution_enabled(),
        onednn=onednn_is_on(),
        counted=counts_memory(device),
    )


def _device_name(device: str) -> str:
    """The model of a GPU; "cpu" for the CPU."""
    if device == "CPU:0":
        return "cpu"
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return str(details.get("device_name", device))


def _measured(op: tf.Operation) -> OpCost | None:
    """Run an op on made-up inputs; None where it cannot be run on them."""
    made = []
    for tensor in op.inputs:
        if not tensor.shape.is_fully_defined():
            return None
        constant = constant_value(tensor)
        made.append(tf.constant(constant, tensor.dtype) if constant is not None else made_up(tensor))
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
    def once() -> float:
        start = time.perf_counter()
        result = run()
        tf.nest.map_structure(lambda t: t.numpy() if t.shape.num_elements() == 1 else t.shape, result)
        seconds = time.perf_counter() - start
        del result
        return seconds

    return quickest(once, seconds=0.03, least=2, most=10)
