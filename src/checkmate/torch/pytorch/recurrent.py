"""nn.RNN, nn.GRU and nn.LSTM in a plan: one op for each layer, with the numbers of plain training.

PyTorch's compiler writes a recurrent layer out in single operations, which round differently from its own kernels. Here a
layer stays whole: the forward op runs PyTorch's layer, and the backward op runs it once more, with autograd, and
differentiates it. What the layer keeps inside lives only while one of the two runs, as workspace.

Limits: packed sequences run outside the plan (PyTorch compiles none of what makes them). On CUDA a stack with dropout between its layers draws from a generator that nothing can put back: PyTorch's own
writing-out is planned there, which is right up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey

aten = torch.ops.aten

_LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
#: What a script's own calls find switched on and off; taken when this module is imported.
_SWITCHES = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()

_INPUTS = "str kind, Tensor x, Tensor[] states, Tensor[] weights, bool biases, int layers, bool train, bool both_ways, bool learn"
_library = torch.library.Library("checkmate", "FRAGMENT")
_library.define(f"recurrent({_INPUTS}) -> (Tensor, Tensor, Tensor)")
_library.define(f"recurrent_backward(Tensor?[] gradients, {_INPUTS}) -> Tensor[]")


def _run(
    kind: str,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    train: bool,
    both_ways: bool,
    learn: bool,
) -> tuple[Tensor, ...]:
    start = list(states) if kind == "lstm" else states[0]
    return tuple(_LAYERS[kind](x, start, list(weights), biases, layers, 0.0, train, both_ways, False))


def _own_storages(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous, each with a storage of its own, as the compiler was told."""
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        own = tensor.contiguous()
        if own.untyped_storage()._cdata in seen:
            own = own.clone()
        seen.add(own.untyped_storage()._cdata)
        found.append(own)
    return found


def _as_in_training(
    kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *rest: Any
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Inputs that require a gradient, and results that autograd knows: without, PyTorch takes kernels that round differently."""
    with torch._C._ForceDispatchKeyGuard(*_SWITCHES), torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, *states, *weights)]
        after = 1 + len(states)
        return leaves, _run(kind, leaves[0], leaves[1:after], leaves[after:], *rest)


def _forward(kind: str, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    learn = rest[-1]
    if learn:
        _, results = _as_in_training(kind, x, *rest)
    else:
        with torch._C._ForceDispatchKeyGuard(*_SWITCHES), torch.no_grad():
            results = _run(kind, x, *rest)
    return tuple(_own_storages([*(result.detach() for result in results), x.new_empty(0)][:3]))


def _backward(gradients: Sequence[Tensor | None], *inputs: Any) -> list[Tensor]:
    leaves, results = _as_in_training(*inputs)
    pairs = [(result, g) for result, g in zip(results, gradients, strict=False) if g is not None]
    found = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return _own_storages([torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)])


def _shapes_forward(kind: str, x: Tensor, states: Sequence[Tensor], *rest: Any) -> Any:
    both_ways = rest[-2]
    out = x.new_empty(*x.shape[:-1], states[0].shape[-1] * (2 if both_ways else 1))
    return out, *([s.new_empty(s.shape) for s in states] + [x.new_empty(0)])[:2]


def _shapes_backward(
    gradients: Any, kind: str, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (x, *states, *weights)]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    kind, x, states, weights, *ctx.settings = inputs
    ctx.kind, ctx.count = kind, len(states)
    ctx.save_for_backward(x, *states, *weights)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.count], rest[ctx.count :]
    of_results = list(gradients if ctx.kind == "lstm" else gradients[:2])
    of_x, *found = torch.ops.checkmate.recurrent_backward(of_results, ctx.kind, x, states, weights, *ctx.settings)
    return None, of_x, found[: ctx.count], found[ctx.count :], *[None] * len(ctx.settings)


_library.impl("recurrent", _forward, "CompositeExplicitAutograd")
_library.impl("recurrent_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("checkmate::recurrent", _shapes_forward, lib=_library)
torch.library.register_fake("checkmate::recurrent_backward", _shapes_backward, lib=_library)
torch.library.register_autograd("checkmate::recurrent", _differentiate, setup_context=_keep_inputs, lib=_library)


def _layer_by_layer(
    kind: str,
    x: Tensor,
    given: Any,
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The layers of a stack one by one, as PyTorch trains them on the CPU; elsewhere it runs them as one."""
    states = list(given) if kind == "lstm" else [given]
    learn = torch.is_grad_enabled()
    at_once = 1 if x.device.type == "cpu" and (learn or (dropout and train)) else layers
    rows, tensors = at_once * (2 if both_ways else 1), at_once * len(weights) // layers
    x = x.transpose(0, 1) if batch_first else x
    last: list[tuple[Tensor, ...]] = []
    for index in range(layers // at_once):
        if index and dropout and train:
            x = torch.dropout(x, dropout, True)
        own = [state[index * rows : (index + 1) * rows] for state in states]
        of_layer = list(weights[index * tensors : (index + 1) * tensors])
        x, *after = torch.ops.checkmate.recurrent(kind, x, own, of_layer, biases, at_once, train, both_ways, learn)
        last.append(tuple(after[: len(states)]))
    out = x.transpose(0, 1) if batch_first else x
    return out, *(torch.cat(parts) for parts in zip(*last, strict=True))


@contextmanager
def whole_layers() -> Iterator[None]:
    """While a graph is traced, keep recurrent layers whole."""

    def run_as(kind: str, written_out: Any, x: Tensor, states: Any, weights: Any, *settings: Any) -> Any:
        _, _, dropout, train, _, _ = settings
        if x.device.type != "cpu" and dropout and train:
            return written_out(x, states, weights, *settings)
        return _layer_by_layer(kind, x, states, weights, *settings)

    with ExitStack() as stack:
        for kind in _LAYERS:
            op = getattr(aten, kind).input
            own = partial(run_as, kind, op.py_kernels[DispatchKey.CompositeImplicitAutograd])
            stack.callback(op._dispatch_cache.clear)
            keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
            stack.enter_context(patch.dict(op.py_kernels, dict.fromkeys(keys, own)))
            op._dispatch_cache.clear()
        yield
