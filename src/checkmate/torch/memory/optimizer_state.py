"""What an optimizer's step will hold and take, found out by making it on tensors without memory.

Most optimizers make their state in their first step. Here a copy of the optimizer, with fake tensors in the place of its own,
makes two: what the first one leaves in the copy's state is what the real one will, and the most that the second one
has at once besides is what every step takes. That works for any class that computes with tensors alone.

Limits: a step that needs a closure, sparse gradients, other objects (an optimizer within the optimizer, a process group) or
communication is not predicted. A step that asks for the value of a tensor is told 1 (one half, should it fail then): where the
size of the state depends on values, the prediction may be wrong. Kernels' own workspace is not seen.
"""

from __future__ import annotations

import enum
import random
import types
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from inspect import unwrap
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..pytorch.internals import FakeTensorMode, no_modes, takes_lists_of_tensors
from ..pytorch.random import preserved_random_state

__all__ = ["Prediction", "local_tensors", "predict", "tensors_in"]

_Bytes = dict[torch.device, int]


@dataclass(frozen=True)
class Prediction:
    """Bytes by device.

    Attributes:
        state: that the first step will add to the optimizer's state.
        peak: that a step has at its peak besides its state, the parameters and their gradients.
        complete: the peak could be found out.
    """

    state: _Bytes = field(default_factory=dict)
    peak: _Bytes = field(default_factory=dict)
    complete: bool = True


def predict(optimizer: torch.optim.Optimizer) -> Prediction:
    """What the next step of `optimizer` adds and takes; nothing where that cannot be found out.

    Nothing is allocated, no hook runs, and neither the optimizer nor any random generator changes.
    """
    python_state = random.getstate()
    devices = list({parameter.device for parameter in tensors_in(optimizer.param_groups)})
    try:
        # Warnings of the copy's step would tell the user of tensors that are not his.
        with preserved_random_state(devices), _as_between_steps(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in (1.0, 0.5):
                with suppress(Exception):  # of the user's optimizer, run where it does not expect to be
                    return _predict(optimizer, number)
        return Prediction(complete=False)
    finally:
        if random.getstate() != python_state:
            random.setstate(python_state)


def tensors_in(thing: Any) -> list[torch.Tensor]:
    """Tensors in nested dictionaries, lists, tuples and sets."""
    found: list[torch.Tensor] = []
    stack = [thing]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
    return found


def local_tensors(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """The dense tensors of this process that a tensor is made of: itself, a shard, indices and values."""
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        return (tensor,)
    return _inner(tensor)


_PLAIN = (torch.nn.Parameter, torch.Tensor)


def _inner(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # asked for in the line above
        parts = [getattr(tensor, name) for name in names]
        for part in parts:
            if isinstance(part, torch.Tensor):
                yield from local_tensors(part)
    elif tensor.layout is torch.strided:
        yield tensor


@contextmanager
def _as_between_steps(devices: Iterable[torch.device]) -> Iterator[None]:
    """Leave what the caller may be in the middle of: autocast, a trace, a block without gradients."""
    with ExitStack() as stack:
        stack.enter_context(no_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", *(device.type for device in devices)}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _predict(optimizer: torch.optim.Optimizer, number: float) -> Prediction:
    with FakeTensorMode(), _Allocations(number) as allocations:
        copy: Any = _copy(optimizer)
        before = _bytes(copy.state)
        copy.step()
        after = _bytes(copy.state)
        state = {device: size - before.get(device, 0) for device, size in after.items() if size > before.get(device, 0)}
        allocations.begin()
        try:
            copy.step()
        except Exception:  # noqa: BLE001 - as above; the state is known all the same
            return Prediction(state, complete=False)
        return Prediction(state, allocations.transient())


def _bytes(state: Any) -> _Bytes:
    storages = {t.untyped_storage()._cdata: (t.device, t.untyped_storage().nbytes()) for t in tensors_in(state)}
    total: _Bytes = defaultdict(int)
    for device, size in storages.values():
        total[device] += size
    return total


# --- a copy of the optimizer ---


def _copy(optimizer: torch.optim.Optimizer) -> Any:
    """The optimizer with fake tensors, as if `load_state_dict` had been called on a new one."""
    copy: Any = object.__new__(_without_hooks(type(optimizer)))
    copier = _Copier()
    # First the parameters, so that they get gradients wherever else they occur.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            copier.parameter(parameter)
    for name, value in vars(optimizer).items():
        if name.endswith("_hooks"):
            copy.__dict__[name] = OrderedDict()
        elif name != "step":  # schedulers put a function that counts in the place of the method
            copy.__dict__[name] = copier.copy(value)
    for group, original in zip(copy.param_groups, optimizer.param_groups, strict=True):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            # Whether it takes all parameters at once by default depends on their type, and here that is another one.
            group["foreach"] = takes_lists_of_tensors(original["params"], group.get("differentiable", False))
    return copy


def _without_hooks(kind: type) -> type:
    """The class with its own `step` and those of its bases as they were before PyTorch put the calls of hooks around them."""
    hooked = [base for base in kind.__mro__ if getattr(base.__dict__.get("step"), "hooked", False)]
    # Each stands before its base in the order in which methods are looked up, also for super().
    shields = [type(base.__name__, (base,), {"step": unwrap(base.__dict__["step"], stop=_is_plain)}) for base in hooked]
    return type(kind.__name__, tuple(shields) or (kind,), {})


def _is_plain(step: Any) -> bool:
    return not getattr(step, "hooked", False)


class _OutOfReach:
    """In the place of an object that a copy must not use: using it would have effects outside of the copy."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"a copy of the optimizer asks for {name!r} of an object that it does not have")

    def __bool__(self) -> bool:
        raise RuntimeError("a copy of the optimizer asks for an object that it does not have")


_CONSTANT = (
    *(int, float, complex, str, bytes, type, enum.Enum, type(None), types.BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class _Copier:
    """Copies containers and makes fake tensors of tensors; what is shared stays shared."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}

    def parameter(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self.made:
            copy = torch.nn.Parameter(self._fake(tensor), requires_grad=tensor.requires_grad)
            if tensor.requires_grad:
                copy.grad = torch.empty_like(copy, requires_grad=False)
            self.made[id(tensor)] = copy

    def copy(self, thing: Any) -> Any:
        if isinstance(thing, _CONSTANT):
            return thing
        if isinstance(thing, types.FunctionType):
            return _OutOfReach() if thing.__closure__ else thing
        if id(thing) not in self.made:
            self.made[id(thing)] = self._new(thing)
        return self.made[id(thing)]

    def _new(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return self._fake(thing)
        if isinstance(thing, dict):
            items = {self.copy(key): self.copy(value) for key, value in thing.items()}
            return defaultdict(thing.default_factory, items) if isinstance(thing, defaultdict) else items
        if type(thing) in (list, tuple, set):
            return type(thing)(self.copy(item) for item in thing)
        return _OutOfReach()

    @staticmethod
    def _fake(tensor: torch.Tensor) -> torch.Tensor:
        (local,) = local_tensors(tensor)
        return torch.empty_strided(local.shape, local.stride(), dtype=local.dtype, device=local.device)


# --- what its step allocates ---


class _Allocations(TorchDispatchMode):
    """Bytes of the tensors that ops make, while they live.

    Args:
        number: the value of every tensor, for Python code that asks for one.
    """

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._live: _Bytes = defaultdict(int)
        self._peak: _Bytes = {}

    def begin(self) -> None:
        self._peak = dict(self._live)

    def transient(self) -> _Bytes:
        """The most since `begin` that is no longer there."""
        return {device: peak - self._live[device] for device, peak in self._peak.items() if peak > self._live[device]}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise RuntimeError("no communication in a prediction")
        if func is torch.ops.aten._local_scalar_dense.default:
            return _as_number(self._number, args[0].dtype)
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        return results

    def _note(self, tensor: torch.Tensor) -> None:
        storage, device = tensor.untyped_storage(), tensor.device
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def release(_: Any) -> None:
            self._known.pop(key, None)
            self._live[device] -= size

        self._known[key] = weakref.ref(storage, release)
        self._live[device] += size
        self._peak[device] = max(self._peak.get(device, 0), self._live[device])


def _as_number(value: float, dtype: torch.dtype) -> Any:
    if dtype is torch.bool:
        return True
    if dtype.is_complex:
        return complex(value)
    return value if dtype.is_floating_point else 1
