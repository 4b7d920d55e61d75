"""Seconds and workspace of each op of an ATen graph.

How measured costs are remembered and what happens where an op cannot be run is `checkmate.planning.op_costs`; here is how an op of
PyTorch is told from another (operator, shapes, strides, element types, constants), run on its device, and counted.

Made-up inputs are random numbers in (0.1, 1), zeros for integers (valid as indices, classes and offsets) and a mix of
True and False for masks. Costs that depend on the data (sparse gradients, branches) are therefore approximate.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ..planning import FREE, OpCost, Work, cost_environment, device_rates, find_op_costs, quickest
from ..planning.cost_cache import CostCache, open_cost_cache
from ..planning.roofline import Rates
from .capture import is_random
from .measure import reset_cuda_peak
from .random import draw, preserved_random_state
from .transient import allocation_peak

__all__ = ["profile_nodes"]

_aten = torch.ops.aten


def profile_nodes(
    nodes: Sequence[Node], cost_model: str = "profile", progress: Callable[[int, int], None] | None = None
) -> dict[Node, OpCost]:
    """The cost of each node.

    Nodes need `meta["val"]` (as AOTAutograd and make_fx leave it), and so do the nodes they read. Symbolic sizes take
    their hints. Views, `getitem` and arithmetic on sizes cost nothing. Random generators, gradient mode and autocast
    are left as they were.

    Args:
        nodes: `call_function` nodes of an ATen graph.
        cost_model: "profile" or "flops".
        progress: called with (signatures measured, signatures to measure).

    Raises:
        UnknownMethod: another cost model.
    """
    costs = find_op_costs(nodes, _Nodes(), cost_model, progress)
    return {node: cost if _is_free(node) else _with_unread(cost, node) for node, cost in costs.items()}


def _with_unread(cost: OpCost, node: Node) -> OpCost:
    return OpCost(cost.seconds, cost.workspace + _unread_bytes(node))


class _Nodes:
    """What `find_op_costs` asks about nodes; see `checkmate.planning.op_costs.OpRunner`."""

    def __init__(self) -> None:
        self._caches: dict[torch.device, CostCache] = {}

    def known(self, node: Node) -> OpCost | None:
        return FREE if _is_free(node) else None

    def signature(self, node: Node) -> str | None:
        return _signature(node) if isinstance(node.target, torch._ops.OpOverload) else None

    def cache(self, node: Node) -> CostCache:
        device = _device_of(node)
        if device not in self._caches:
            self._caches[device] = _cache(device)
        return self._caches[device]

    @contextmanager
    def measuring(self, nodes: Sequence[Node]) -> Iterator[None]:
        try:
            with _undisturbed({_device_of(node) for node in nodes}):
                yield
        finally:
            _random_block.cache_clear()  # these are live tensors too

    def measure(self, node: Node) -> OpCost | None:
        return _measured(node, _device_of(node))

    def work(self, node: Node) -> Work:
        return _work(node, _device_of(node))


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
    tensors = [t for t in tree_leaves([_fake(node), _fake_arguments(node)]) if isinstance(t, torch.Tensor)]
    devices = [tensor.device for tensor in tensors]
    accelerators = [device for device in devices if device.type != "cpu"]
    return (accelerators or devices or [torch.device("cpu")])[0]


def _fake(node: Node) -> Any:
    return node.meta.get("val")


def _fake_arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with nodes replaced by their fake values."""
    return torch.fx.node.map_arg((node.args, dict(node.kwargs)), _fake)


def _hint(number: Any) -> Any:
    """A plain number for a symbolic one; 1 where nothing is known about it."""
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        known = number.node.hint
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(number)]
        return kind(1 if known is None else known)
    return number


def _sizes(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(_hint(n) for n in tensor.shape), tuple(_hint(n) for n in tensor.stride())


def _describe(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        shape, stride = _sizes(leaf)
        return f"{str(leaf.dtype).removeprefix('torch.')}@{leaf.device.type}{list(shape)}/{list(stride)}"
    return repr(_hint(leaf))


def _signature(node: Node) -> str:
    arguments, keywords = _fake_arguments(node)
    parts = [_flat(a) for a in arguments] + [f"{k}={_flat(v)}" for k, v in sorted(keywords.items())]
    return f"{node.target}({', '.join(parts)})"


def _flat(argument: Any) -> str:
    if isinstance(argument, (tuple, list)):
        return "[" + ", ".join(_flat(item) for item in argument) + "]"
    return _describe(argument)


def _storage_bytes(values: Iterable[Any], without: Iterable[Any] = ()) -> int:
    """Bytes of the distinct storages of tensors, those of `without` left out."""
    seen = {t.untyped_storage()._cdata for t in tree_leaves(list(without)) if isinstance(t, torch.Tensor)}
    total = 0
    for tensor in tree_leaves(list(values)):
        if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in seen:
            seen.add(key)
            total += int(_hint(tensor.untyped_storage().nbytes()))
    return total


def _unread_bytes(node: Node) -> int:
    """Outputs of a tuple op that no `getitem` reads: they live until the op has returned, like workspace."""
    value = _fake(node)
    if not isinstance(value, (tuple, list)):
        return 0
    if any(user.target is not operator.getitem for user in node.users):
        return 0  # the tuple as a whole goes somewhere
    read = {user.args[1] for user in node.users}
    kept = [item for index, item in enumerate(value) if index in read]
    unread = [item for index, item in enumerate(value) if index not in read]
    return _storage_bytes(unread, without=[kept, _fake_arguments(node)])


# --- running it ---


def _measured(node: Node, device: torch.device) -> OpCost | None:
    """Cost from running the op on made-up inputs; None if it does not run on them."""
    target: Any = node.target
    # An op may refuse made-up inputs in any way it likes (wrong values, no kernel, no memory), each with its own type
    # of exception; all mean the same here. Interrupts pass through.
    try:
        arguments, keywords = tree_map(_made_up, _fake_arguments(node))
        expected = _storage_bytes([_fake(node)], without=[_fake_arguments(node)])

        def call() -> Any:
            return draw(None, device, target, arguments, keywords) if is_random(node) else target(*arguments, **keywords)

        if device.type == "cuda":
            return _measured_cuda(call, (arguments, keywords), expected, device)
        return _measured_cpu(call, (arguments, keywords), expected)
    except Exception:  # noqa: BLE001 - as said above
        return None


def _measured_cpu(call: Callable[[], Any], inputs: Any, expected: int) -> OpCost:
    # Twice: the first call also sets up what the library caches, and may take more memory than later ones.
    workspace = 0
    for _ in range(2):
        result, peak = allocation_peak(call)
        workspace = max(workspace, peak - min(expected, _storage_bytes([result], without=[inputs])))
        del result

    def once() -> float:
        started = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - started
        del result
        return seconds

    return OpCost(quickest(once), workspace)


def _measured_cuda(call: Callable[[], Any], inputs: Any, expected: int, device: torch.device) -> OpCost:
    workspace = 0
    for _ in range(2):
        reset_cuda_peak(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        top = torch.cuda.max_memory_allocated(device) - before
        workspace = max(workspace, top - min(expected, _storage_bytes([result], without=[inputs])))
        del result
    event: Any = torch.cuda.Event  # untyped in torch

    def once() -> float:
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        result = call()
        end.record()
        end.synchronize()
        del result
        return float(start.elapsed_time(end)) / 1e3

    with torch.cuda.device(device):
        return OpCost(quickest(once), workspace)


def _made_up(leaf: Any) -> Any:
    """A real input of the same signature as a fake one."""
    if not isinstance(leaf, torch.Tensor):
        return _hint(leaf)
    shape, stride = _sizes(leaf)
    if len(shape) == 0:
        whole = torch.empty((), dtype=leaf.dtype, device=leaf.device)
        flat = whole.view(1)
    else:
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0
        flat = torch.empty(span, dtype=leaf.dtype, device=leaf.device)
        whole = flat.as_strided(shape, stride)
    if leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype == torch.bool:
        source = _random_block(leaf.dtype, leaf.device)
        for start in range(0, flat.numel(), source.numel()):
            piece = flat[start : start + source.numel()]
            piece.copy_(source[: piece.numel()])
    else:
        flat.zero_()
    return whole


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


# --- modelling it ---


def _work(node: Node, device: torch.device) -> Work:
    """Arithmetic of the op, and bytes of its inputs and outputs."""
    with _disable_current_modes():
        (arguments, keywords), outputs = tree_map(_plain_meta, (_fake_arguments(node), _fake(node)))
    target: Any = node.target
    packet = getattr(target, "overloadpacket", None)
    if packet in flop_registry:
        flops = float(flop_registry[packet](*arguments, **keywords, out_val=outputs))
    else:
        flops = float(sum(t.numel() for t in tree_leaves(outputs) if isinstance(t, torch.Tensor)))
    moved = sum(t.nbytes for t in tree_leaves([arguments, keywords, outputs]) if isinstance(t, torch.Tensor))
    tensors = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    rates = _rates(device, tensors[0].dtype if tensors else torch.float32)
    # Convolutions copy inputs and results into layouts of their own, dropout turns masks into numbers, and so on. The most
    # seen is 1.3 times what they read and write (transposed convolutions).
    return Work(flops, moved, rates, 3 * moved // 2 if packet in _COPYING else 0)


_COPYING = {
    _aten.convolution,
    _aten.convolution_backward,
    _aten.native_batch_norm_backward,
    _aten.native_group_norm_backward,
    _aten.native_dropout,
    _aten.native_dropout_backward,
    _aten._safe_softmax,
    _aten._scaled_dot_product_flash_attention_for_cpu,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward,
}


def _plain_meta(leaf: Any) -> Any:
    """The same shape and type with plain numbers: formulas must not add guards to symbolic sizes."""
    if isinstance(leaf, torch.Tensor):
        return torch.empty_strided(*_sizes(leaf), dtype=leaf.dtype, device="meta")
    return _hint(leaf)


def _rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Peak numbers of a device for an element type, measured once by two tiny benchmarks."""
    return device_rates(_cache(device), str(dtype), lambda: _measured_rates(device, dtype))


def _measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    n = 512 if device.type == "cpu" else 4096
    with _undisturbed({device}):
        square = torch.ones(n, n, dtype=dtype, device=device)
        vector = torch.ones(1 << (22 if device.type == "cpu" else 27), dtype=dtype, device=device)
        single = torch.ones(1, dtype=dtype, device=device)
        matmul = quickest(lambda: _seconds(lambda: square @ square, device))
        negate = quickest(lambda: _seconds(lambda: vector.neg(), device))
        latency = quickest(lambda: _seconds(lambda: single.neg(), device))
    return Rates(2 * n**3 / matmul, 2 * vector.nbytes / negate, latency)


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
