"""What Inductor makes of an op, and what a group of ops costs that it runs as one kernel.

A kernel costs its start, and what its arithmetic or its memory traffic takes, whichever is longer: the bytes are those of what the
group reads and makes, without what stays inside. A call of a library costs what it was measured to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from ...graph import Graph
from ...planning import OpCost
from ...planning.fusion import Fusion, Kind, fuse
from ...planning.roofline import Rates, roofline_seconds
from ..ops.nodes import has_side_effects, is_random, tensors_of
from ..ops.sizes import Concrete, Number, elements, storage_key
from .internals import can_be_added_to, is_library_call

#: What a device reaches with float32.
RatesOf: TypeAlias = Callable[[torch.device], Rates]

#: Read from other places than that of the element: they move what they make, however large the table is.
_LOOKUPS = {"aten.gather.default", "aten.index.Tensor", "aten.embedding.default", "prims.inductor_lookup_seed.default"}
#: Elementwise for Inductor, though not tagged so.
_INLINE = _LOOKUPS | {
    "prims.convert_element_type.default",
    "prims.iota.default",
    "prims.inductor_random.default",
    "aten.clone.default",
    "aten._to_copy.default",
    "aten.full.default",
    "aten.full_like.default",
    "aten.scalar_tensor.default",
    "aten.constant_pad_nd.default",
    "aten.repeat.default",
    "aten.slice_scatter.default",
    "aten.select_scatter.default",
    "prims._low_memory_max_pool_offsets_to_indices.default",
}
#: Of one element, where it is more than about one, by the op's name: as many as take as long as the op, at the rate at which matrices are
#: multiplied. Random numbers take 4.0 ns each on two cores that reach 211 GFLOP/s, a power 0.85 ns, an exponential 0.16 ns.
_FLOPS = {
    "inductor_random": 800.0,
    **dict.fromkeys(("pow", "tanh", "sin", "cos", "atan2"), 150.0),
    **dict.fromkeys(("exp", "log", "erf", "erfc", "sigmoid", "log1p", "expm1"), 30.0),
}
#: Sums over elements and the like, which compute what they read by themselves.
_REDUCTIONS = {
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.mean.default",
    "aten.mean.dim",
    "aten.var.correction",
    "aten.var_mean.correction",
    "aten.amax.default",
    "aten.amin.default",
    "aten.max.default",
    "aten.min.default",
    "aten.any.default",
    "aten.any.dim",
    "aten.prod.default",
    "prims.prepare_softmax_online.default",
}
#: Computes what it is given in the places of its result: nothing of that is in memory besides.
_CONCATENATION = "aten.cat.default"
#: The same in a copy of the first input. Those that add up are left to a library on CPUs, where several threads could add at a time.
_ADDED_UP = {"aten.scatter_add.default", "aten.scatter_reduce.two"}
_SCATTERS = _ADDED_UP | {
    "aten._unsafe_index_put.default",
    "aten._unsafe_masked_index_put_accumulate.default",
    "aten.index_put.default",
    "aten.scatter.src",
    "aten.scatter.value",
}


def kind_of(node: fx.Node | None) -> Kind:
    """What Inductor makes of an op. None: the user's script."""
    if node is None or not isinstance(node.target, torch._ops.OpOverload) or has_side_effects(node) or is_random(node):
        return Kind.CALL
    if is_library_call(node.target):
        return Kind.CALL
    name = str(node.target)
    if torch.Tag.pointwise in node.target.tags or name in _INLINE:
        return Kind.INLINE
    kernel = name in _REDUCTIONS or name == _CONCATENATION or (name in _SCATTERS and not _by_library(node))
    return Kind.KERNEL if kernel else Kind.CALL


def is_reduction(node: fx.Node) -> bool:
    """It makes sums over elements, or the like."""
    return str(node.target) in _REDUCTIONS


def is_scatter(node: fx.Node) -> bool:
    """It writes in places of a copy of its first input, or of that itself where nothing else reads it."""
    return str(node.target) in _SCATTERS


def _by_library(node: fx.Node) -> bool:
    """A scatter that Inductor leaves to a library."""
    (made,) = tensors_of(node)
    indices = [one for given in node.args if isinstance(given, (list, tuple)) for one in given if isinstance(one, fx.Node)]
    masks = any(tensor.dtype in (torch.bool, torch.uint8) for index in indices for tensor in tensors_of(index))
    on_cpu = str(node.target) in _ADDED_UP and made.device.type == "cpu"
    return masks or on_cpu or torch.are_deterministic_algorithms_enabled() or not can_be_added_to(made.dtype)


def fused(graph: Graph, nodes: Sequence[fx.Node | None], needed: Collection[int], number: Number, rates_of: RatesOf) -> Fusion:
    """The graph of the groups that Inductor is expected to run as one kernel each.

    Args:
        nodes: of the ops. needed: values that are read by more than ops.
        number: what symbolic sizes are. rates_of: of a device, for float32.
    """
    kinds = [kind_of(node) for node in nodes]

    def cost(group: Sequence[int], inside: bool) -> OpCost:
        if kinds[group[-1]] is Kind.CALL:
            op = graph.ops[group[-1]]
            return OpCost(op.cost, op.workspace)
        return _kernel_cost([node for op in group if (node := nodes[op]) is not None], number, inside, rates_of)

    return fuse(graph, kinds, needed, cost)


def _kernel_cost(group: Sequence[fx.Node], number: Number, within: bool, rates_of: RatesOf) -> OpCost:
    """Of ops that run as one kernel.

    Args:
        within: of another one, if they run once more: then their arithmetic is all that they add.
    """
    work, rates = Work.of(group, number), kernel_rates(group[-1], rates_of)
    moved = work.made + sum(work.read.values())
    return OpCost(work.flops / rates.flops_per_second if within else roofline_seconds(work.flops, moved, rates), 0)


def kernel_rates(node: fx.Node, rates_of: RatesOf) -> Rates:
    """Of the device that runs a kernel; whatever the types of what it reads, it computes in float32."""
    return rates_of(tensors_of(node)[0].device)


@dataclass(frozen=True)
class Work:
    """What a kernel does.

    Attributes:
        flops: its arithmetic. made: bytes that it writes. read: bytes that it reads, by storage.
    """

    flops: float
    made: int
    read: Mapping[int, int]

    @classmethod
    def of(cls, group: Sequence[fx.Node], number: Number) -> Work:
        """Of ops in their order, of which the last makes what is written."""
        inside = {storage_key(tensor) for node in group for tensor in tensors_of(node)}
        read: dict[int, int] = {}
        flops = 0.0
        for node in group:
            results = tensors_of(node)
            flops += _flops_of_element(node) * sum(elements(tensor, number) for tensor in results)
            most = sum(_bytes(tensor, number) for tensor in results) if str(node.target) in _LOOKUPS else None
            for tensor in (tensor for source in node.all_input_nodes for tensor in tensors_of(source)):
                key, size = storage_key(tensor), _bytes(tensor, number)
                if key not in inside:
                    read[key] = max(read.get(key, 0), size if most is None else min(size, most))
        return cls(flops, sum(_bytes(tensor, number) for tensor in tensors_of(group[-1])), read)


def _flops_of_element(node: fx.Node) -> float:
    name = str(node.target).split(".")[1]
    if name == "pow" and len(node.args) > 1 and node.args[1] in (2, 3):  # written out as products
        return 1.0
    return _FLOPS.get(name, 1.0)


def is_heavy(node: fx.Node) -> bool:
    """The arithmetic of an elementwise op takes as long as its memory traffic."""
    return _flops_of_element(node) > 1


def _bytes(tensor: torch.Tensor, number: Number) -> int:
    """Of the elements, or of the storage where that is smaller (an expanded tensor)."""
    return min(elements(tensor, number) * tensor.element_size(), Concrete.of(tensor, number).nbytes)
