"""Batch norm on CUDA in a plan, with the numbers of plain training.

Where cuDNN has kernels for a batch norm (float32 inputs, and float16 ones with float32 weights), eager training runs those; PyTorch's
compiler writes down kernels of its own, which round differently. Here they are put back: the joint graph gets ops that run cuDNN's.
The forward op leaves one more tensor for the backward op, cuDNN's reserve, which some of its kernels fill.

AOT autograd has a batch norm make new running statistics, and copies them over the old ones. Kernels, here and everywhere else, can write
them where they belong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

from .outputs import drop_written, outputs_of
from .sizes import Concrete, hint

aten = torch.ops.aten
_EVALUATION = aten._native_batch_norm_legit_no_training.default
_FUNCTIONAL, _IN_PLACE = aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.default

_library = torch.library.Library("checkmate", "FRAGMENT")
_library.define(
    "batch_norm(Tensor x, Tensor weight, Tensor bias, Tensor? mean, Tensor? variance, float momentum, float eps, int reserve)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "batch_norm_in_place(Tensor x, Tensor weight, Tensor bias, Tensor(a!) mean, Tensor(b!) variance, float momentum, float eps,"
    " int reserve) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "batch_norm_backward(Tensor gradient, Tensor x, Tensor weight, Tensor mean, Tensor rstd, float eps, Tensor reserve)"
    " -> (Tensor, Tensor, Tensor)"
)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, variance: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    """As `aten._native_batch_norm_legit_functional` in training: result, mean, 1 / deviation, new running statistics; and the reserve."""
    new_mean, new_variance = (None if given is None else given.clone() for given in (mean, variance))
    *made, nothing, empty, kept = _forward_in_place(x, weight, bias, new_mean, new_variance, *rest)
    return *made, nothing if new_mean is None else new_mean, empty if new_variance is None else new_variance, kept


def _forward_in_place(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    momentum: float,
    eps: float,
    reserve: int,
) -> tuple[Tensor, ...]:
    """The same, which overwrites the running statistics: in their place there is nothing."""
    x = x.contiguous(memory_format=suggest_memory_format(x))
    out, batch_mean, rstd, kept = aten.cudnn_batch_norm(x, weight, bias, mean, variance, True, momentum, eps)
    return out, batch_mean, rstd, x.new_empty(0), x.new_empty(0), kept


def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, eps: float, reserve: Tensor
) -> tuple[Tensor, ...]:
    layout = suggest_memory_format(x)
    x, gradient = x.contiguous(memory_format=layout), gradient.contiguous(memory_format=layout)
    return tuple(aten.cudnn_batch_norm_backward(x, gradient, weight, None, None, mean, rstd, eps, reserve))


def _shapes_forward(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, variance: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *_, reserve = rest
    out = torch.empty_like(x, memory_format=suggest_memory_format(x))
    running = (x.new_empty(0) if given is None else torch.empty_like(given) for given in (mean, variance))
    return out, torch.empty_like(weight), torch.empty_like(weight), *running, x.new_empty(reserve, dtype=torch.uint8)


def _shapes_in_place(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _shapes_forward(x, weight, bias, None, None, *rest)


def _shapes_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x, memory_format=suggest_memory_format(x)), torch.empty_like(weight), torch.empty_like(weight)


_library.impl("batch_norm", _forward, "CompositeExplicitAutograd")
_library.impl("batch_norm_in_place", _forward_in_place, "CompositeExplicitAutograd")
_library.impl("batch_norm_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("checkmate::batch_norm", _shapes_forward, lib=_library)
torch.library.register_fake("checkmate::batch_norm_in_place", _shapes_in_place, lib=_library)
torch.library.register_fake("checkmate::batch_norm_backward", _shapes_backward, lib=_library)

FORWARD, BACKWARD = torch.ops.checkmate.batch_norm.default, torch.ops.checkmate.batch_norm_backward.default
_FORWARD_IN_PLACE = torch.ops.checkmate.batch_norm_in_place.default
#: What writes running statistics where they belong, and does the same otherwise.
_WRITING = {_FUNCTIONAL: _IN_PLACE, FORWARD: _FORWARD_IN_PLACE}


def is_batch_norm(node: fx.Node) -> bool:
    """Training-mode batch norm with running statistics: recomputed without them."""
    return node.target in (FORWARD, _FORWARD_IN_PLACE) or (node.target in (_FUNCTIONAL, _IN_PLACE) and bool(node.args[5]))


def writes_statistics(node: fx.Node) -> bool:
    """It is a batch norm that overwrites its running statistics."""
    return is_batch_norm(node) and node.target in _WRITING.values()


def write_statistics(module: fx.GraphModule, count: int) -> None:
    """Have batch norms write running statistics that nothing else reads, nor their new contents. The graph is changed in place.

    Args:
        count: so many of its outputs the forward pass returns; what it writes into inputs is lifted, see `outputs`.
    """
    outputs = outputs_of(module, count)
    new = dict(zip(outputs.written, outputs.forward[count:], strict=True))
    done: set[Any] = set()
    for node in module.graph.nodes:
        if node.target not in _WRITING or not is_batch_norm(node):
            continue
        items = {user.args[1]: user for user in node.users}
        contents, statistics = [items.get(3), items.get(4)], list(node.args[3:5])
        if all(
            content is not None and len(content.users) == 1 and len(given.users) == 1 and new.get(given) is content
            for content, given in zip(contents, statistics, strict=True)
        ):
            node.target, made = _WRITING[node.target], node.meta["val"]
            node.meta["val"] = (*made[:3], *[made[0].new_empty(0)] * 2, *made[5:]) if len(made) > 5 else tuple(made[:3])
            done.update(contents)
    drop_written(module, done)
    for content in done:
        module.graph.erase_node(content)


def without_statistics(node: fx.Node) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
    """A batch norm that runs again: the same numbers, and no running statistics to read or to update.

    Returns: what to call, its arguments (nodes as in the graph), and the fake tensors that it yields.
    """
    if node.target in (FORWARD, _FORWARD_IN_PLACE):
        return FORWARD, (*node.args[:3], None, None, *node.args[5:]), node.meta["val"]
    return aten._native_batch_norm_legit.no_stats, (*node.args[:3], True, *node.args[6:8]), tuple(node.meta["val"][:3])


def restore_kernels(module: fx.GraphModule) -> None:
    """Put cuDNN's batch norms where eager training would run them. The graph is changed in place."""
    for node in list(module.graph.nodes):
        given, training = _arguments(node), node.target is not _EVALUATION
        if given is None or not _on_cudnn(given, training):
            continue
        x, weight, bias, mean, variance, momentum, eps = given
        if not training:
            # Its backward pass is PyTorch's own in eager training, too.
            node.target, node.args = aten.cudnn_batch_norm.default, (x, weight, bias, mean, variance, False, momentum, eps)
            continue
        size = _reserve_bytes(x.meta["val"])
        node.target, node.args = FORWARD, (x, weight, bias, mean, variance, momentum, eps, size)
        made = [*node.meta["val"], *[x.meta["val"].new_empty(0)] * 2][:5]
        node.meta["val"] = (*made, x.meta["val"].new_empty(size, dtype=torch.uint8))
        _restore_backward(module, node)


def _arguments(node: fx.Node) -> tuple[Any, ...] | None:
    """x, weight, bias, running statistics, momentum and eps of a batch norm that PyTorch's kernels would run."""
    if node.target is _FUNCTIONAL and node.args[5]:
        return (*node.args[:5], *node.args[6:8])
    if node.target is aten._native_batch_norm_legit.no_stats and node.args[3]:
        return (*node.args[:3], None, None, *node.args[4:6])
    if node.target is _EVALUATION:
        return tuple(node.args[:7])
    return None


def _on_cudnn(given: tuple[Any, ...], training: bool) -> bool:
    x, weight, bias, mean, variance, _, eps = given
    if weight is None or bias is None or x.meta["val"].device.type != "cuda":
        return False
    value = x.meta["val"]
    if value.stride() != torch.empty_like(value, memory_format=suggest_memory_format(value)).stride():
        return False  # kernels differ in the layout of their results
    tensors = [None if node is None else _concrete(node.meta["val"]) for node in (x, weight, bias, mean, variance)]
    chosen = torch._C._select_batch_norm_backend(*tensors, training, eps)  # type: ignore[attr-defined]
    return bool(chosen == torch._C._BatchNormBackend.Cudnn)  # type: ignore[attr-defined]


def _concrete(value: Tensor) -> Tensor:
    """A fake tensor without symbols."""
    known = Concrete.of(value, hint)
    with FakeTensorMode():
        return torch.empty_strided(known.shape, known.stride, dtype=known.dtype, device=known.device)


def _reserve_bytes(x: Tensor) -> int:
    """What cuDNN's forward kernel leaves for its backward kernel."""
    if not torch.cuda.is_available():  # planned elsewhere: it is a small part of x, or nothing
        return 0
    return int(torch._C._get_cudnn_batch_norm_reserve_space_size(_concrete(x), True))  # type: ignore[attr-defined]


def _restore_backward(module: fx.GraphModule, norm: fx.Node) -> None:
    """The backward ops of a batch norm that is cuDNN's by now."""
    items = {user.args[1]: user for user in norm.users}
    statistics = [items[index] for index in (1, 2) if index in items]
    for node in dict.fromkeys(user for item in statistics for user in item.users):
        if node.target is not aten.native_batch_norm_backward.default:
            continue
        gradient, x, weight, _, _, mean, rstd, _, eps, _ = node.args
        if 5 not in items:
            with module.graph.inserting_after(norm):
                items[5] = module.graph.call_function(operator.getitem, (norm, 5))
            items[5].meta = {**norm.meta, "val": norm.meta["val"][5]}
        node.target, node.args = BACKWARD, (gradient, x, weight, mean, rstd, eps, items[5])
