"""Seconds and workspace of each op of an ATen graph.

How measured costs are remembered and what happens where an op cannot be run is `checkmate.planning.op_costs`; here is how an op of
PyTorch is told from another (operator, shapes, strides, element types, constants), run on its device, and counted.

A step that works on more bytes than a processor's caches hold finds much of what an op reads in the memory, not in the caches. On the
CPU its ops are timed that way, too: something else is read before each run. Else pointwise ops and norms would look twice as cheap
as they are beside products and convolutions, and a plan would compute too many of them again.

Made-up inputs are random numbers in (0.1, 1), zeros for integers (valid as indices, classes and offsets) and a mix of
True and False for masks. Costs that depend on the data (sparse gradients, branches) are therefore approximate.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ...planning import FREE, DeviceModel, OpCost, Work, cost_environment, device_rates, find_op_costs, quickest, undisturbed
from ...planning.cost_cache import CostCache, open_cost_cache
from ...planning.roofline import Rates
from ...units import format_bytes
from ..memory.measure import reset_cuda_peak
from ..memory.transient import allocation_peak
from ..pytorch.random import draw, preserved_random_state
from .nodes import is_collective, is_random
from .op_work import (
    as_kernels_want,
    batch_of,
    bytes_of_rows,
    concrete_arguments,
    fake,
    fake_arguments,
    known_workspace,
    may_round,
    parts_of_batch,
    span,
    work_of,
)
from .sizes import Concrete, Number, hint, storage_bytes, storage_key
from .subgraphs import bytes_inside

__all__ = ["profile_nodes"]

_LOG = logging.getLogger("checkmate")
#: For timing one op, and all of them together, besides the two runs that each takes at least.
_SECONDS, _ALL_SECONDS = 0.05, 5.0
#: Bytes that do not fit into the caches of a processor together with anything else, and runs of an op that begin without caches.
_CACHES, _COLD_RUNS = 32 << 20, 5
#: Cycles that a GPU waits before it runs an op to be timed, a fifth of a millisecond on an H100: as in a large step, kernels are queued
#: by then. Else one of 2 microseconds looks like one of 24.
_HEAD_START = 400_000
#: Seconds of work that threads share.
_SHARED = 50e-6
#: What the signature of an op ends with where its time is one without caches.
_WITHOUT_CACHES = " without caches"
#: An op may need more workspace by so much for a whole batch than a part of it says: kernels are chosen by size.
_DIFFERENCE = 1.25


def profile_nodes(
    nodes: Sequence[Node],
    cost_model: str = "profile",
    progress: Callable[[int, int], None] | None = None,
    *,
    number: Number = hint,
    limit: int | None = None,
    device: DeviceModel | None = None,
) -> dict[Node, OpCost]:
    """The cost of each node.

    Nodes need `meta["val"]` (as AOTAutograd and make_fx leave it), and so do the nodes they read. Views, `getitem` and
    arithmetic on sizes cost nothing. Random generators, gradient mode and autocast are left as they were.

    Args:
        nodes: `call_function` nodes of an ATen graph.
        cost_model: "profile" or "flops".
        progress: called with (signatures measured, signatures to measure).
        number: what symbolic sizes are; by default what they were when the graph was traced.
        limit: bytes that running one op may take. One whose inputs and outputs alone need more is modelled, and that is said.
        device: what the step is meant for, whatever its tensors are on; then nothing is run.

    Raises:
        UnknownMethod: another cost model.
    """
    runs = cost_model == "profile" and device is None
    asked = _Nodes(number, limit, device, cold=runs and _bytes_made(nodes, number) > _CACHES)
    costs = find_op_costs(nodes, asked, cost_model if device is None else "flops", progress)
    if asked.too_large:
        said = "the budget leaves no room to run some ops, whose costs are estimated (%d; %s needs %s, and %s is left)"
        _LOG.warning(said, len(asked.too_large), *asked.largest())
    return {node: cost if _is_free(node) else _with_unread(cost, node, number) for node, cost in costs.items()}


def _with_unread(cost: OpCost, node: Node, number: Number) -> OpCost:
    return replace(cost, workspace=cost.workspace + _unread_bytes(node, number) + bytes_inside(node, number))


class _Nodes:
    """What `find_op_costs` asks about nodes; see `checkmate.planning.op_costs.OpRunner`."""

    def __init__(self, number: Number, limit: int | None, model: DeviceModel | None, cold: bool) -> None:
        self._number = number
        self._limit = limit
        self._seconds = _SECONDS
        self._model = model
        self._cold = cold
        self.too_large: dict[Node, int] = {}
        self._caches: dict[torch.device, CostCache] = {}

    def known(self, node: Node) -> OpCost | None:
        return FREE if _is_free(node) else None

    def signature(self, node: Node) -> str | None:
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        return _signature(node, self._number) + (_WITHOUT_CACHES if self._cold and _device_of(node).type == "cpu" else "")

    def cache(self, node: Node) -> CostCache:
        device = _device_of(node)
        if device not in self._caches:
            self._caches[device] = _cache(device)
        return self._caches[device]

    @contextmanager
    def measuring(self, nodes: Sequence[Node]) -> Iterator[None]:
        self._seconds = min(_SECONDS, _ALL_SECONDS / len(nodes))
        try:
            with _undisturbed({_device_of(node) for node in nodes}):
                yield
        finally:
            _random_block.cache_clear()  # these are live tensors too
            _something_else.cache_clear()

    def measure(self, node: Node) -> OpCost | None:
        if is_collective(node):
            return None  # the other processes would have to run it as often, and their timings differ
        least = _least_bytes(node, self._number)
        if self._limit is None or least <= self._limit:
            # Where there is no room to empty the caches, a time with them is still better than none.
            cold = self._cold and (self._limit is None or least + _CACHES <= self._limit)
            if not cold:
                _something_else.cache_clear()
            return _measured(node, self._number, self._seconds, cold=cold)
        _something_else.cache_clear()
        return self._measured_within(node, self._limit)

    def _measured_within(self, node: Node, limit: int) -> OpCost | None:
        """Of an op that might pass the limit: as it is after all if a part of its batch says so, else what that part says."""
        found = _measured_in_part(node, self._number, self._seconds, limit)
        alone = _given_and_made(node, self._number)
        more = known_workspace(node, alone) if found is None else int(_DIFFERENCE * found.workspace)
        if found is not None and alone + more <= limit:
            return _measured(node, self._number, self._seconds)
        self.too_large[node] = alone + more
        return found

    def work(self, node: Node) -> Work:
        return work_of(node, self._number, self._rates)

    def _rates(self, node: Node, dtype: torch.dtype) -> Rates:
        if self._model is None:
            return rates_of(_device_of(node), dtype, self._limit)
        return self._model.rates("tf32" if may_round(node, dtype) else str(dtype).removeprefix("torch."))

    def largest(self) -> tuple[str, str, str]:
        """The op that was furthest from fitting: its name, what it needs, and the limit."""
        assert self._limit is not None
        node = max(self.too_large, key=self.too_large.__getitem__)
        return node.name, format_bytes(self.too_large[node]), format_bytes(self._limit)


# --- what a node is ---


def _is_free(node: Node) -> bool:
    """Views, `getitem` and arithmetic on sizes: no kernel runs and no memory is taken."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return True  # operator.getitem, operator.mul on sizes, ...
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(node.meta.get("val"))):
        return not target._schema.is_mutable
    returns = target._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _device_of(node: Node) -> torch.device:
    tensors = [t for t in tree_leaves([fake(node), fake_arguments(node)]) if isinstance(t, torch.Tensor)]
    devices = [tensor.device for tensor in tensors]
    accelerators = [device for device in devices if device.type != "cpu"]
    return (accelerators or devices or [torch.device("cpu")])[0]


def _describe(leaf: Any, number: Number) -> str:
    if isinstance(leaf, torch.Tensor):
        known = Concrete.of(leaf, number)
        kind = "" if leaf.layout is torch.strided else f" {leaf.layout}"
        return f"{str(leaf.dtype).removeprefix('torch.')}@{leaf.device.type}{list(known.shape)}/{list(known.stride)}{kind}"
    return repr(number(leaf))


def _signature(node: Node, number: Number) -> str:
    arguments, keywords = fake_arguments(node)
    parts = [_flat(a, number) for a in arguments] + [f"{k}={_flat(v, number)}" for k, v in sorted(keywords.items())]
    return f"{node.target}({', '.join(parts)})"


def _flat(argument: Any, number: Number) -> str:
    if isinstance(argument, (tuple, list)):
        return "[" + ", ".join(_flat(item, number) for item in argument) + "]"
    return _describe(argument, number)


def _storage_bytes(values: Iterable[Any], without: Iterable[Any] = (), number: Number = hint) -> int:
    """Bytes of the distinct storages of tensors, those of `without` left out."""
    seen = {storage_key(t) for t in tree_leaves(list(without)) if isinstance(t, torch.Tensor)}
    total = 0
    for tensor in tree_leaves(list(values)):
        if isinstance(tensor, torch.Tensor) and (key := storage_key(tensor)) not in seen:
            seen.add(key)
            total += int(number(storage_bytes(tensor)))
    return total


def _bytes_made(nodes: Sequence[Node], number: Number) -> int:
    """Of all that the ops of a graph yield."""
    return _storage_bytes([fake(node) for node in nodes], number=number)


def _given_and_made(node: Node, number: Number) -> int:
    """Bytes of the inputs of an op, as made up, and of its outputs."""
    tensors = [leaf for leaf in tree_leaves(fake_arguments(node)) if isinstance(leaf, torch.Tensor)]
    given = sum(span(Concrete.of(tensor, number)) * tensor.element_size() for tensor in tensors)
    return given + _storage_bytes([fake(node)], without=[tensors], number=number)


def _least_bytes(node: Node, number: Number) -> int:
    """What running the op takes at least: inputs as made up, outputs, and what it is known to need besides."""
    alone = _given_and_made(node, number)
    return alone + known_workspace(node, alone)


def _unread_bytes(node: Node, number: Number) -> int:
    """Outputs of a tuple op that no `getitem` reads: they live until the op has returned, like workspace."""
    value = fake(node)
    if not isinstance(value, (tuple, list)):
        return 0
    if any(user.target is not operator.getitem for user in node.users):
        return 0  # the tuple as a whole goes somewhere
    read = {user.args[1] for user in node.users}
    kept = [item for index, item in enumerate(value) if index in read]
    unread = [item for index, item in enumerate(value) if index not in read]
    return _storage_bytes(unread, without=[kept, fake_arguments(node)], number=number)


# --- running it ---


def _measured(node: Node, number: Number, seconds: float, rows: int | None = None, cold: bool = False) -> OpCost | None:
    """Cost from running the op on made-up inputs; None if it does not run on them.

    Args:
        rows: of the batch, if not all. cold: on the CPU, time it without what it reads in the caches.
    """
    target: Any = node.target
    device = _device_of(node)
    # An op may refuse made-up inputs in any way it likes (wrong values, no kernel, no memory), each with its own type
    # of exception; all mean the same here. Interrupts pass through.
    try:
        arguments, keywords = tree_map(_made_up, as_kernels_want(node, concrete_arguments(node, number, rows)))
        expected = _storage_bytes([fake(node)], without=[fake_arguments(node)], number=number)

        def call() -> Any:
            return draw(None, device, target, arguments, keywords) if is_random(node) else target(*arguments, **keywords)

        if device.type == "cuda":
            return _measured_cuda(call, (arguments, keywords), expected, device, seconds)
        return _measured_cpu(call, (arguments, keywords), expected, seconds, cold)
    except Exception:  # noqa: BLE001 - as said above
        return None


def _measured_in_part(node: Node, number: Number, seconds: float, limit: int) -> OpCost | None:
    """An estimate of the cost of an op from running it on a part of its batch; None if it has no batch, or does not run so."""
    batch = batch_of(node, number)
    for rows in parts_of_batch(node, number):
        if (least := bytes_of_rows(node, number, rows)) + known_workspace(node, least) > limit:
            continue
        part = _measured(node, number, seconds, rows)
        return None if part is None else OpCost(part.seconds * batch / rows, -(-part.workspace * batch // rows), estimated=True)
    return None


def _measured_cpu(call: Callable[[], Any], inputs: Any, expected: int, seconds: float, cold: bool) -> OpCost:
    # Twice: the first call also sets up what the library caches, and may take more memory than later ones.
    workspace, taken = 0, math.inf
    for _ in range(2):
        started = time.perf_counter()
        result, peak = allocation_peak(call)
        taken = min(taken, time.perf_counter() - started)
        workspace = max(workspace, peak - min(expected, _storage_bytes([result], without=[inputs])))
        del result

    def once() -> float:
        if cold:
            _something_else().sum()
        started = time.perf_counter()
        result = call()
        took = time.perf_counter() - started
        del result
        return took

    # What takes as long as all its runs may is timed well enough by now: counting allocations takes microseconds.
    if taken > seconds:
        return OpCost(taken, workspace)
    least = undisturbed(once, lambda: _work_of_one_thread(call), seconds, most=_COLD_RUNS if cold else 20)
    return OpCost(least, workspace)


def _work_of_one_thread(call: Callable[[], Any]) -> float:
    """Seconds that a processor works on the op, shared out among the threads that there are; other processes do not count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:

        def once() -> float:
            started = time.thread_time()
            result = call()
            took = time.thread_time() - started
            del result
            return took

        seconds = quickest(once, least=2, most=5)
    finally:
        torch.set_num_threads(threads)
    return seconds / threads if seconds > _SHARED else seconds


def _measured_cuda(call: Callable[[], Any], inputs: Any, expected: int, device: torch.device, seconds: float) -> OpCost:
    workspace = 0
    for _ in range(2):
        reset_cuda_peak(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        top = torch.cuda.max_memory_allocated(device)
        made = min(expected, _storage_bytes([result], without=[inputs]))
        del result
        # What is still there, a library keeps for all its ops.
        workspace = max(workspace, top - max(before, torch.cuda.memory_allocated(device)) - made)
    cuda: Any = torch.cuda  # partly untyped

    def once() -> float:
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda._sleep(_HEAD_START)
        start.record()
        result = call()
        end.record()
        end.synchronize()
        del result
        return float(start.elapsed_time(end)) / 1e3

    with torch.cuda.device(device):
        return OpCost(quickest(once, seconds), workspace)


def _made_up(leaf: Any) -> Any:
    """A real input of the same signature as a tensor; everything else as it is."""
    if not isinstance(leaf, Concrete):
        return leaf
    if len(leaf.shape) == 0:
        whole = torch.empty((), dtype=leaf.dtype, device=leaf.device)
        flat = whole.view(1)
    else:
        flat = torch.empty(span(leaf), dtype=leaf.dtype, device=leaf.device)
        whole = flat.as_strided(leaf.shape, leaf.stride)
    if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype == torch.bool:
        source = _random_block(leaf.dtype, leaf.device)
        blocks = flat.numel() // source.numel()
        filled = blocks * source.numel()
        flat[:filled].view(blocks, source.numel()).copy_(source)
        flat[filled:].copy_(source[: flat.numel() - filled])
    else:
        flat.zero_()
    return whole


@lru_cache(maxsize=1)
def _something_else() -> torch.Tensor:
    """What fills the caches when it is read."""
    return torch.ones(_CACHES // 4, dtype=torch.float32, device="cpu")


@lru_cache(maxsize=16)
def _random_block(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers to fill inputs from: drawing them once is much faster than for every input."""
    cpu = torch.device("cpu")  # said, because scripts can set another default
    generator = torch.Generator(cpu).manual_seed(0)
    block = torch.rand(1 << 16, generator=generator, dtype=torch.float32, device=cpu) * 0.9 + 0.1
    return (block > 0.55 if dtype == torch.bool else block.to(dtype)).to(device)


@contextmanager
def _undisturbed(devices: set[torch.device]) -> Iterator[None]:
    """Run ops for real and leave no trace: no modes, gradients or autocast; random states put back afterwards."""
    with _disable_current_modes(), torch.no_grad(), preserved_random_state(list(devices)):
        kinds = sorted({device.type for device in devices})
        with _without_autocast(kinds):
            yield


@contextmanager
def _without_autocast(kinds: list[str]) -> Iterator[None]:
    if not kinds:
        yield
        return
    with torch.autocast(kinds[0], enabled=False), _without_autocast(kinds[1:]):
        yield


# --- what the device reaches ---


def rates_of(device: torch.device, dtype: torch.dtype, limit: int | None = None) -> Rates:
    """Peak numbers of a device for an element type, measured once by two tiny benchmarks, which keep to the limit."""
    halvings = 0
    while limit is not None and halvings < _MOST_HALVINGS and _bytes_for_rates(device, dtype, halvings) > limit:
        halvings += 1
    name = f"{dtype} in 1/{1 << halvings} of the room" if halvings else str(dtype)  # small tensors may stay in a cache
    return device_rates(_cache(device), name, lambda: _measured_rates(device, dtype, halvings))


#: Below a thousandth of their usual room the benchmarks take a few kilobytes on the CPU, and would measure nothing.
_MOST_HALVINGS = 10


def _benchmark_sizes(device: torch.device, halvings: int) -> tuple[int, int]:
    """Rows of a square matrix and elements of a vector."""
    rows, elements = (512, 1 << 22) if device.type == "cpu" else (4096, 1 << 27)
    return rows >> (halvings + 1) // 2, elements >> halvings


def _bytes_for_rates(device: torch.device, dtype: torch.dtype, halvings: int) -> int:
    rows, elements = _benchmark_sizes(device, halvings)
    return (2 * rows**2 + 2 * elements) * dtype.itemsize  # what is read, and results


def _measured_rates(device: torch.device, dtype: torch.dtype, halvings: int) -> Rates:
    rows, elements = _benchmark_sizes(device, halvings)
    with _undisturbed({device}):
        square = torch.ones(rows, rows, dtype=dtype, device=device)
        vector = torch.ones(elements, dtype=dtype, device=device)
        single = torch.ones(1, dtype=dtype, device=device)
        matmul = quickest(lambda: _seconds(lambda: square @ square, device))
        negate = quickest(lambda: _seconds(lambda: vector.neg(), device))
        latency = quickest(lambda: _seconds(lambda: single.neg(), device))
    return Rates(2 * rows**3 / matmul, 2 * vector.nbytes / negate, latency)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


# --- remembering it ---


def _cache(device: torch.device) -> CostCache:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return open_cost_cache(cost_environment("torch", torch.__version__, name, torch.get_num_threads(), **_switches()))


def _switches() -> dict[str, Any]:
    """What changes which kernel runs."""
    return {
        "cuda": torch.version.cuda,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }
