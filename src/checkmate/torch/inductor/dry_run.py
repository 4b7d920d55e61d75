"""What a program of Inductor takes at its peak, found without a compiler and without running a kernel.

The program is Python code that allocates buffers, calls kernels and libraries, and drops buffers. It is executed with fake tensors,
which have sizes and no bytes, and with kernels that do nothing; what lives is counted after every step. What a call of a library takes
for itself is measured op by op, as for any plan.
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...planning import OpCost
from ..memory.caching_allocator import block_of, bytes_taken
from ..memory.measure import same_device
from ..ops.sizes import Number, hint
from .internals import Lowered, without_kernels

_LOG = logging.getLogger("checkmate")

#: Cost and workspace of nodes, as `capture.Profiler`.
Profiler = Callable[[Sequence[fx.Node], Number], Mapping[fx.Node, OpCost]]


@dataclass
class DryRun:
    """What a program did.

    Attributes:
        outputs: what it returned, as fake tensors.
        added: bytes that were live at its peak beyond what was live when it began.
        left: bytes of what it made that live on in its outputs.
    """

    outputs: list[Any]
    added: int
    left: int


def dry_run(lowered: Lowered, inputs: list[Any], mode: FakeTensorMode, device: torch.device, profile: Profiler) -> DryRun | None:
    """Execute a program on fake tensors; None if it cannot be executed so.

    Args:
        inputs: it is emptied; what nobody else holds dies when the program drops it.
    """
    if lowered.source is None:
        return None
    # A program may do anything that Inductor thinks of, and fake tensors refuse what depends on data: the step will be measured.
    try:
        call = _program(lowered)
        meter = _Meter(device)
        meter.watch(inputs, made=False)
        given = meter.known()
        with mode, meter:
            outputs = list(call(inputs))
        left = meter.made_here(outputs, given)
        added = meter.peak(profile)
    except Exception as error:  # noqa: BLE001 - as said above
        _LOG.info("what a compiled pass takes is seen when it runs: %s", error)
        return None
    return DryRun(outputs, added, left)


def _program(lowered: Lowered) -> Callable[[list[Any]], Any]:
    assert lowered.source is not None
    names: dict[str, Any] = {"__name__": "checkmate_dry_run"}
    with without_kernels():
        exec(compile(lowered.source, "<dry run>", "exec"), names)
    names.update(lowered.constants)
    for name in names:
        if name.startswith("empty_strided"):
            names[name] = partial(_empty, name.removeprefix("empty_strided").removeprefix("_"))
    names.update(reinterpret_tensor=_reinterpret, assert_size_stride=_nothing, assert_alignment=_nothing)
    return names["call"]  # type: ignore[no-any-return]  # a program has it


def _nothing(*arguments: Any) -> None:
    """A check that fake tensors need not pass."""


def _empty(kind: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, **keywords: Any) -> torch.Tensor:
    if kind in ("", "p2p"):
        return torch.empty_strided(size, stride, dtype=dtype, device=keywords.get("device", "cpu"))
    return torch.empty_strided(size, stride, dtype=dtype, device=kind.removesuffix("_pinned"))


def _reinterpret(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


@dataclass
class _Call:
    """A call of a library: the op with what it was given, and how much lives when it returns."""

    node: fx.Node
    live: int


class _Meter(TorchDispatchMode):
    """Counts the bytes of what lives on a device while a program runs.

    Attributes:
        live: bytes, beyond what lived when it began.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self.live = 0
        self._device = device
        self._most = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        self._calls: list[_Call] = []
        self._graph = fx.Graph()

    def watch(self, tensors: Any, *, made: bool) -> None:
        """Notice when these die; what is not known yet counts from now on if it was made here."""
        for tensor in tree_leaves(tensors):
            if not isinstance(tensor, torch.Tensor) or not same_device(tensor.device, self._device):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                size = self._taken(storage)
                self._known[storage._cdata] = weakref.ref(storage, partial(self._died, storage._cdata, size))
                self.live += size if made else 0
        self._most = max(self._most, self.live)

    def _taken(self, storage: torch.UntypedStorage) -> int:
        """Bytes that the device takes for a storage."""
        return bytes_taken(storage.nbytes(), block_of(self._device))

    def _died(self, key: int, size: int, reference: Any) -> None:
        if self._known.get(key) is reference:
            del self._known[key]
            self.live -= size

    def known(self) -> set[int]:
        """Identities of the storages that it has noticed and that live."""
        return set(self._known)

    def made_here(self, tensors: Any, before: set[int]) -> int:
        """Bytes of the storages behind tensors, those of `before` left out."""
        here = [x for x in tree_leaves(tensors) if isinstance(x, torch.Tensor) and same_device(x.device, self._device)]
        storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in here}
        return sum(self._taken(storage) for key, storage in storages.items() if key not in before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        made = func(*args, **keywords)
        self.watch(made, made=True)
        if func not in _NO_CALLS and not func.is_view:
            self._note(func, args, keywords, made)
        return made

    def _note(self, func: Any, args: Any, keywords: Any, made: Any) -> None:
        """Remember a call by what its cost depends on; nothing that it was given lives longer for it."""
        given, named = tree_map(self._stand_in, (list(args), dict(keywords)))
        node = self._graph.call_function(func, tuple(given), named)
        node.meta["val"] = tree_map(_like, made)
        if isinstance(made, (tuple, list)):  # all of it lives: none of it is workspace
            for position in range(len(made)):
                self._graph.call_function(operator.getitem, (node, position))
        self._calls.append(_Call(node, self.live))

    def _stand_in(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        node = self._graph.placeholder("x")
        node.meta["val"] = _like(leaf)
        return node

    def peak(self, profile: Profiler) -> int:
        """The most bytes that lived at any moment, with what the calls took for themselves."""
        costs = profile([call.node for call in self._calls], hint)
        return max([self._most, *(call.live + costs[call.node].workspace for call in self._calls)])


def _like(leaf: Any) -> Any:
    """A tensor of the same kind, which shares nothing with it."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


_aten = torch.ops.aten
#: What only takes memory.
_NO_CALLS = {_aten.empty_strided.default, _aten.empty.memory_format}
