"""Ops whose output may take the storage of an input: eager autograd adds gradients up in place, and so does an emitted step.

Only ops that compute each element from the elements at its place, and those that change some places of their first input, through the form
that PyTorch has of them to write into a given tensor: the same kernel runs, so results are the same to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from ..pytorch.gradient_batches import keeps_graph
from .nodes import OpNode, tensors_of

_aten = torch.ops.aten


def _index_put_into(given: torch.Tensor, *arguments: Any, out: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """The `out=` form of `index_put` copies; `out` is where `given` is, too."""
    return _aten.index_put_(out, *arguments, **keywords)  # type: ignore[no-any-return]  # ops are untyped


#: Ops that change some places of their first input, and the form that writes there: eager autograd scatters the gradients of gathers and
#: of indexing into zeros that it has just made.
_SCATTERS: dict[Any, Any] = {
    _aten.scatter_add.default: _aten.scatter_add.out,
    _aten.scatter.src: _aten.scatter.src_out,
    _aten.scatter.value: _aten.scatter.value_out,
    _aten.scatter_reduce.two: _aten.scatter_reduce.two_out,
    _aten.index_add.default: _aten.index_add.out,
    _aten.index_put.default: _index_put_into,
}


@cache
def out_variant(target: Any) -> tuple[Any, str] | None:
    """The form of an op that writes into a given tensor, and the name of that argument; None if there is none."""
    if target in _SCATTERS:
        return _SCATTERS[target], "out"
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return None
    if len(target._schema.returns) != 1 or target._schema.is_mutable:
        return None
    wanted = [(argument.name, str(argument.type)) for argument in target._schema.arguments]
    packet = getattr(getattr(torch.ops, target.namespace), target._schema.name.split("::")[1])
    for name in packet.overloads():
        variant = getattr(packet, name)
        outs = [argument.name for argument in variant._schema.arguments if argument.is_out]
        given = [(argument.name, str(argument.type)) for argument in variant._schema.arguments if not argument.is_out]
        # A generated form computes a new tensor and copies it: it takes no less memory.
        if len(outs) == 1 and given == wanted and torch.Tag.generated not in variant.tags:
            return variant, outs[0]
    return None


def write_over_saved(
    storage: torch.Tensor, target: Any, variant: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """An op of the backward pass that writes in a tensor that the forward pass saved, unless that is read once more.

    Args:
        storage: to write in. target: the op. variant, name: as from `out_variant`.
    """
    if keeps_graph():
        return target(*arguments, **keywords)
    return variant(*arguments, **{**keywords, name: storage})


def like(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Element by element in the same places of storages of the same size, whatever the symbols are."""
    return _layout(one) == _layout(other)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    sizes = [*tensor.shape, *tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes()]
    return tensor.dtype, tensor.device, tensor.dim(), tensor.is_conj(), tensor.is_neg(), *map(_expanded, sizes)


def _expanded(size: Any) -> Any:
    """Equal for numbers that are: as a sum of products. Comparing symbols themselves would bind the trace to their values."""
    return str(size.node.expr.expand()) if isinstance(size, torch.SymInt) else str(size)


def writable_inputs(node: fx.Node) -> list[fx.Node]:
    """The inputs in which an op could write its output, as far as their layout goes."""
    made = tensors_of(node)
    if out_variant(node.target) is None or len(made) != 1:
        return []
    sources = node.all_input_nodes[:1] if node.target in _SCATTERS else node.all_input_nodes
    return [source for source in sources if (given := tensors_of(source)) and len(given) == 1 and like(given[0], made[0])]


def find_reuses(
    ops: Sequence[OpNode],
    value_of: Mapping[fx.Node, int],
    bases: Sequence[fx.Node],
    leaving: Collection[int | None],
    writable: Callable[[fx.Node], Iterable[fx.Node]],
) -> list[int | None]:
    """Per op the value in whose storage it may write: one that the same pass made, and that nothing else looks at.

    Args:
        value_of: for each node the value it reads. bases: for each value the node that holds all of it.
        leaving: values that a pass returns. writable: inputs in which an op could write its output.
    """
    readers = Counter(value for op in ops for value in op.reads)
    maker = {value: op for op in ops for value in op.makes}

    def may_write(op: OpNode, source: fx.Node) -> bool:
        value = value_of.get(source)
        if value is None or value in leaving or readers[value] > 1 or bases[value] is not source or op.node is None:
            return False
        # No second name of the same storage among the inputs, and nothing that autograd or the script made or hold on to.
        alone = sum(value_of.get(other) == value for other in op.node.all_input_nodes) == 1
        return alone and maker[value].node is not None and maker[value].phase == op.phase

    found: list[int | None] = []
    for op in ops:
        sources = writable(op.node) if op.node is not None and len(op.makes) == 1 else ()
        found.append(next((value_of[source] for source in sources if may_write(op, source)), None))
    return found
