"""What Inductor makes of an op, and what a group of ops costs that it runs as one kernel.

A kernel costs its start, and what its arithmetic or its memory traffic takes, whichever is longer: the bytes are those of what the
group reads and makes, without what stays inside. A call of a library costs what it was measured to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from ...graph import Graph
from ...planning import OpCost
from ...planning.fusion import Fusion, Kind, fuse
from ...planning.roofline import roofline_seconds
from ..nodes import has_side_effects, is_random, tensors_of
from ..profile import rates_of
from ..sizes import Concrete, Number, storage_key
from .internals import is_library_call

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


def kind_of(node: fx.Node | None) -> Kind:
    """What Inductor makes of an op. None: the user's script."""
    if node is None or not isinstance(node.target, torch._ops.OpOverload) or has_side_effects(node) or is_random(node):
        return Kind.CALL
    if is_library_call(node.target):
        return Kind.CALL
    if torch.Tag.pointwise in node.target.tags or str(node.target) in _INLINE:
        return Kind.INLINE
    return Kind.KERNEL if str(node.target) in _REDUCTIONS else Kind.CALL


def fused(graph: Graph, nodes: Sequence[fx.Node | None], needed: Collection[int], number: Number) -> Fusion:
    """The graph of the groups that Inductor is expected to run as one kernel each.

    Args:
        nodes: of the ops. needed: values that are read by more than ops.
        number: what symbolic sizes are.
    """
    kinds = [kind_of(node) for node in nodes]

    def cost(group: Sequence[int], inside: bool) -> OpCost:
        if kinds[group[-1]] is Kind.CALL:
            op = graph.ops[group[-1]]
            return OpCost(op.cost, op.workspace)
        return _kernel_cost([node for op in group if (node := nodes[op]) is not None], number, inside)

    return fuse(graph, kinds, needed, cost)


def _kernel_cost(group: Sequence[fx.Node], number: Number, within: bool) -> OpCost:
    """Of ops that run as one kernel.

    Args:
        within: of another one, if they run once more: then their arithmetic is all that they add.
    """
    inside = {storage_key(tensor) for node in group for tensor in tensors_of(node)}
    moved = sum(_bytes(tensor, number) for tensor in tensors_of(group[-1]))
    read: dict[int, int] = {}  # by storage
    flops = 0.0
    for node in group:
        made = sum(_bytes(tensor, number) for tensor in tensors_of(node))
        flops += sum(_elements(tensor, number) for tensor in tensors_of(node))
        most = made if str(node.target) in _LOOKUPS else None
        for tensor in (tensor for source in node.all_input_nodes for tensor in tensors_of(source)):
            size = _bytes(tensor, number)
            read[storage_key(tensor)] = max(read.get(storage_key(tensor), 0), size if most is None else min(size, most))
    moved += sum(size for storage, size in read.items() if storage not in inside)
    last = tensors_of(group[-1])[0]
    rates = rates_of(last.device, last.dtype if last.dtype.is_floating_point else torch.float32)
    return OpCost(flops / rates.flops_per_second if within else roofline_seconds(flops, moved, rates), 0)


def _elements(tensor: torch.Tensor, number: Number) -> int:
    known = Concrete.of(tensor, number)
    count = 1
    for size in known.shape:
        count *= size
    return count


def _bytes(tensor: torch.Tensor, number: Number) -> int:
    """Of the elements, or of the storage where that is smaller (an expanded tensor)."""
    return min(_elements(tensor, number) * tensor.element_size(), Concrete.of(tensor, number).nbytes)
