"""What an op of an ATen graph does, read from its fake tensors: arithmetic, bytes, the copies it is known to make, its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ...planning import Work
from ...planning.roofline import Rates
from ..pytorch.internals import convolution_kernel
from .sizes import Concrete, Number

__all__ = [
    "batch_of",
    "bytes_of_rows",
    "concrete_arguments",
    "fake",
    "fake_arguments",
    "known_workspace",
    "may_round",
    "span",
    "work_of",
]

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Copying:
    """An op that copies what it reads or makes.

    Attributes:
        given: positions of arguments with a row for each example of the batch; a number there says how many they are.
        made: positions of such outputs.
    """

    given: tuple[int, ...]
    made: tuple[int, ...] = (0,)


_COPYING = {
    _aten.convolution: _Copying((0,)),
    _aten.convolution_backward: _Copying((0, 1)),
    _aten.native_batch_norm_backward: _Copying((0, 1)),
    _aten.native_group_norm_backward: _Copying((0, 1, 2, 3, 5)),
    _aten.native_dropout: _Copying((0,), (0, 1)),
    _aten.native_dropout_backward: _Copying((0, 1)),
    _aten._safe_softmax: _Copying((0,)),
    _aten._scaled_dot_product_flash_attention_for_cpu: _Copying((0, 1, 2), (0, 1)),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _Copying((0, 1, 2, 3, 4, 5), (0, 1, 2)),
}
#: Of convolutions: where input and weight are among the arguments, then stride, padding, dilation, whether it is transposed, the padding
#: of what it makes, and groups. Which kernel runs does not depend on there being a bias.
_CONVOLUTIONS = {_aten.convolution: (0, 1, *range(3, 9)), _aten.convolution_backward: (1, 2, *range(4, 10))}
#: Their state of the random generator is on the host (while no CUDA graph is recorded), whatever PyTorch's compiler says.
_STATE_ON_HOST = (_aten._scaled_dot_product_efficient_attention_backward, _aten._efficient_attention_backward)
#: Their statistics are of the type of their weights on the CPU, whatever PyTorch's compiler says.
_NORMS = (_aten.native_batch_norm_backward, _aten.native_layer_norm_backward, _aten.native_group_norm_backward)


def fake(node: Node) -> Any:
    return node.meta.get("val")


def fake_arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with nodes replaced by their fake values."""
    return torch.fx.node.map_arg((node.args, dict(node.kwargs)), fake)


def span(tensor: Concrete) -> int:
    """Elements from the first to the last of a tensor."""
    if not all(tensor.shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))


def work_of(node: Node, number: Number, rates_of: Callable[[Node, torch.dtype], Rates]) -> Work:
    """Arithmetic of the op, and bytes of its inputs and outputs."""
    with _disable_current_modes():
        (arguments, keywords), outputs = tree_map(partial(_plain_meta, number), (fake_arguments(node), fake(node)))
    packet = _packet(node)
    if packet in flop_registry:
        flops = float(flop_registry[packet](*arguments, **keywords, out_val=outputs))
    else:
        flops = float(sum(t.numel() for t in tree_leaves(outputs) if isinstance(t, torch.Tensor)))
    moved = sum(t.nbytes for t in tree_leaves([arguments, keywords, outputs]) if isinstance(t, torch.Tensor))
    tensors = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    rates = rates_of(node, tensors[0].dtype if tensors else torch.float32)
    return Work(flops, moved, rates, known_workspace(node, moved))


def may_round(node: Node, dtype: torch.dtype) -> bool:
    """PyTorch lets matrix units round the op's float32 inputs: those of convolutions by default, others if the user allows it."""
    packet = getattr(node.target, "overloadpacket", None)
    if dtype != torch.float32 or packet not in flop_registry:
        return False
    if packet in (_aten.convolution, _aten.convolution_backward):
        return torch.backends.cudnn.allow_tf32
    return torch.get_float32_matmul_precision() != "highest"


def known_workspace(node: Node, moved: int) -> int:
    """Workspace of ops that are known to copy, from the bytes that they read and write.

    Convolutions copy inputs and results into layouts of their own, dropout turns masks into numbers, and so on. The most seen is
    1.3 times what they read and write (transposed convolutions); most take far less.
    """
    return 3 * moved // 2 if _packet(node) in _COPYING else 0


def batch_of(node: Node, number: Number) -> int:
    """Examples that an op which copies works on, each by itself; 0 where that is not known."""
    copying = _COPYING.get(_packet(node))
    if copying is None:
        return 0
    first = fake_arguments(node)[0][copying.given[0]]
    return int(number(first.shape[0])) if isinstance(first, torch.Tensor) and first.dim() > 0 else 0


def bytes_of_rows(node: Node, number: Number, rows: int) -> int:
    """Bytes of inputs and outputs of an op that copies, with so many rows of its batch."""
    given = [leaf for leaf in tree_leaves(concrete_arguments(node, number, rows)) if isinstance(leaf, Concrete)]
    made = fake(node) if isinstance(fake(node), (tuple, list)) else [fake(node)]
    scaled = _COPYING[_packet(node)].made
    outputs = [
        _with_rows(Concrete.of(tensor, number), rows) if position in scaled else Concrete.of(tensor, number)
        for position, tensor in enumerate(made)
        if isinstance(tensor, torch.Tensor)
    ]
    return sum(span(tensor) * tensor.dtype.itemsize for tensor in (*given, *outputs))


def parts_of_batch(node: Node, number: Number) -> Iterator[int]:
    """Half of the batch of an op, a quarter and so on, as far as that is known, and it runs the kernel that the whole batch does.

    The one for a single small convolution takes ten times the workspace of that for several.
    """
    rows = batch_of(node, number)
    kernel = _kernel_of(node, number, rows)
    while (rows := rows // 2) and _kernel_of(node, number, rows) == kernel:
        yield rows


def _kernel_of(node: Node, number: Number, rows: int) -> Any:
    """What tells apart the kernels that an op runs by its sizes, where that is known: of convolutions on the CPU."""
    if (positions := _CONVOLUTIONS.get(_packet(node))) is None:
        return None
    arguments, _ = concrete_arguments(node, number, rows)
    given, weight, *rest = (arguments[position] for position in positions)
    if given.device.type != "cpu":
        return None
    # Tensors of one number, however large they look.
    given, weight = (torch.empty(1, dtype=x.dtype, device="cpu").expand(x.shape) for x in (given, weight))
    return convolution_kernel(given, weight, rest)


def concrete_arguments(node: Node, number: Number, rows: int | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of an op with `Concrete` in place of tensors, and numbers in place of symbols.

    Args:
        rows: of its batch, if not all; then it is an op with a `batch_of`.

    Raises:
        NotImplementedError: an argument is sparse.
    """
    arguments, keywords = tree_map(partial(_concrete, number), fake_arguments(node))
    found = list(arguments)
    if rows is not None:
        for position in _COPYING[_packet(node)].given:
            argument = found[position]
            found[position] = _with_rows(argument, rows) if isinstance(argument, Concrete) else rows
    return found, keywords


def as_kernels_want(node: Node, given: tuple[list[Any], dict[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments where kernels want others than PyTorch's compiler says they get.

    Memory-efficient attention hands the state of the random generator to its backward pass on the host; a kernel that looks for it on the
    device ends the process. Norms under autocast hand on statistics of the type of their weights, not of their input, on the CPU.
    """
    arguments, keywords = given
    packet, names = _packet(node), [argument.name for argument in cast(Any, node.target)._schema.arguments]
    named = dict(zip(names, arguments, strict=False))
    changed: dict[str, dict[str, Any]]
    if packet in _STATE_ON_HOST:
        changed = {name: {"device": torch.device("cpu")} for name in ("philox_seed", "philox_offset")}
    elif packet in _NORMS and isinstance(weight := named["weight"], Concrete) and weight.device.type == "cpu":
        changed = {name: {"dtype": weight.dtype} for name in ("save_mean", "save_invstd", "mean", "rstd")}
    else:
        return given

    def wanted(name: str, value: Any) -> Any:
        return replace(value, **changed[name]) if name in changed and isinstance(value, Concrete) else value

    return [wanted(*pair) for pair in named.items()], {name: wanted(name, value) for name, value in keywords.items()}


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _with_rows(tensor: Concrete, rows: int) -> Concrete:
    return replace(tensor, shape=(rows, *tensor.shape[1:]))


def _concrete(number: Number, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return number(leaf)
    if leaf.layout is not torch.strided:
        raise NotImplementedError("sparse inputs are not made up")
    return Concrete.of(leaf, number)


def _plain_meta(number: Number, leaf: Any) -> Any:
    """The same shape and type with plain numbers: formulas must not add guards to symbolic sizes."""
    if isinstance(leaf, torch.Tensor):
        known = Concrete.of(leaf, number)
        return torch.empty_strided(known.shape, known.stride, dtype=leaf.dtype, device="meta")
    return number(leaf)
