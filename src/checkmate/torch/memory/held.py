"""What training holds on a device besides the step, in bytes.

Parameters and buffers that the step does not read, gradients of earlier microbatches, the optimizer's state, averaged copies
of the model, frozen parameters of others (teachers, encoders), the buckets of DistributedDataParallel, the shards of `fully_shard` and
its buffers. Nobody has to say where they are: PyTorch tells all optimizers' steps to a hook, and what was made before is found among
the objects of the process, by class.

Limits: frozen parameters, and copies of the model that do not train, are seen if they were there when a plan was made; what a
communication hook keeps is not. Tensors beside a model are for others to see (`beside`).
What `gc.freeze` hides cannot be found among the objects; optimizers still are, by their next step. The older
FullyShardedDataParallel (one flat parameter) is not known.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

from ..pytorch.living import instances
from .measure import same_device
from .optimizer_state import local_tensors, tensors_in
from .sharded import Sharded
from .watched_optimizer import WatchedOptimizer

__all__ = ["Held", "bytes_on", "note_parameters"]

_Optimizer = torch.optim.Optimizer
#: Storages by identity.
_Storages = dict[int, torch.UntypedStorage]
_PLAIN = (nn.Parameter, torch.Tensor)


class Held:
    """What is held for the parameters that some graphs read. Every method may be called from any thread.

    Attributes:
        steps: of known optimizers so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._lock = threading.RLock()
        #: Parameters by identity: those of graphs, of modules and of optimizers.
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        #: Other tensors that graphs read and that gradients are wanted for: parameters, too, if an optimizer has them.
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._modules: list[weakref.ref[nn.Module]] = []
        self._averaged: list[weakref.ref[nn.Module]] = []
        #: Parameters of others that do not train.
        self._frozen: list[weakref.ref[torch.Tensor]] = []
        #: Parameters and buffers of modules and averaged copies. None: to be read from them again.
        self._tensors: list[weakref.ref[torch.Tensor]] | None = None
        self._optimizers: dict[int, WatchedOptimizer] = {}
        #: What their state was when it was read last, and its bytes by device.
        self._states_read: list[tuple[int, int, int]] = []
        self._state_bytes: dict[torch.device, int] = {}
        #: Wrappers for several processes, with the bytes of their buckets by device once they are complete.
        self._wrappers: weakref.WeakKeyDictionary[nn.Module, _Buckets] = weakref.WeakKeyDictionary()
        self._sharded = Sharded()
        #: Modules that were made since and may turn out to be ours.
        self._made: list[weakref.ref[nn.Module]] = []
        self._callbacks: list[weakref.ref[Callable[[], None]]] = []
        _listen(self)

    def watch(self, tensors: Iterable[Any]) -> None:
        """Know parameters; a graph's inputs may be given as they are."""
        with self._lock:
            given = list(tensors)
            note_parameters(self._parameters, given)
            leaves = [x for x in given if type(x) is torch.Tensor and x.is_leaf and x.requires_grad]
            self._leaves.update((id(tensor), weakref.ref(tensor)) for tensor in leaves)

    def watch_module(self, module: nn.Module) -> None:
        """Know a module: its parameters, and its buffers."""
        with self._lock:
            if not any(known() is module for known in self._modules):
                self._modules.append(weakref.ref(module))
                self._tensors = None
            self.watch(module.parameters())

    def on_step(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after every step of an optimizer of known parameters; it is held weakly."""
        reference: Any = weakref.WeakMethod(callback) if isinstance(callback, MethodType) else weakref.ref(callback)
        with self._lock:
            self._callbacks.append(reference)

    def now(self, device: torch.device, own: Container[int] = ()) -> int:
        """Bytes held on `device` at this moment.

        Args:
            own: identities of storages that the step counts itself (`_cdata` of `untyped_storage()`).
        """
        with self._lock:
            self._admit_made()
            known = self._known_tensors()
            storages: _Storages = {}
            _add(storages, known)
            _add(storages, _gradients(known))
            _add(storages, self._sharded.gradients())
            _add(storages, [parameter for reference in self._frozen if (parameter := reference()) is not None])
            total = bytes_on(storages, device, own) + self._state(device, storages) + self._sharded.buffers(device, self.knows)
            return total + sum(buckets.held(wrapper, device) for wrapper, buckets in list(self._wrappers.items()))

    def storages(self) -> set[int]:
        """Identities of the storages of known parameters, buffers, averaged copies, and their gradients."""
        with self._lock:
            known = self._known_tensors()
            storages: _Storages = {}
            _add(storages, known)
            _add(storages, _gradients(known))
            return set(storages)

    def gradients(self, device: torch.device) -> int:
        """Bytes of the gradients among what is held now."""
        with self._lock:
            storages: _Storages = {}
            _add(storages, [*_gradients(self._known_tensors()), *self._sharded.gradients()])
            return bytes_on(storages, device)

    def trained(self, device: torch.device) -> int:
        """Bytes that the gradients of all known parameters take."""
        with self._lock:
            storages: _Storages = {}
            _add(storages, [tensor for tensor in self._known_tensors() if tensor.is_leaf and tensor.requires_grad])
            return bytes_on(storages, device)

    def absorb(self, other: Held) -> None:
        """Know what another one knows."""
        with self._lock, other._lock:
            self.watch(tensor for tensor in other._known_tensors())
            self._leaves.update(other._leaves)
            for reference in other._modules:
                if (module := reference()) is not None:
                    self.watch_module(module)

    def optimizers(self) -> set[int]:
        """Known ones, by identity."""
        return {id(watched.optimizer()) for watched in self._live_optimizers()}

    def to_train(self) -> set[int]:
        """Identities of the storages of what known modules and optimizers have to train."""
        with self._lock:
            optimizers = [optimizer for watched in self._optimizers.values() if (optimizer := watched.optimizer()) is not None]
            modules = [module for reference in self._modules if (module := reference()) is not None]
        optimized = [parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]
        found = [parameter for parameter in optimized if type(parameter) in _PLAIN]
        found += [parameter for module in modules for parameter in module.parameters()]
        return {p.untyped_storage()._cdata for p in found if p.requires_grad and p.layout is torch.strided}

    def expected(self, device: torch.device, *, look: bool = True) -> int:
        """Bytes that will be held on `device` once training is under way: the state of optimizers that have made no step yet.

        Args:
            look: through the objects of the process, for what is not known yet; it takes a tenth of a second where these are many.
        """
        if look:
            self.look()
        # What two optimizers of the same parameters will hold counts once: one of them replaces or wraps the other.
        by_parameters: dict[frozenset[int], int] = {}
        for watched in self._live_optimizers():
            if not watched.steps:
                prediction = watched.prediction()
                size = sum(size for where, size in prediction.state.items() if same_device(where, device))
                key = watched.parameters()
                by_parameters[key] = max(by_parameters.get(key, 0), size)
        return sum(by_parameters.values())

    def step_peak(self, device: torch.device) -> int:
        """The most bytes on `device` that the step of a known optimizer takes besides its state, predicted; 0 if it cannot be."""
        peaks = [watched.prediction().peak for watched in self._live_optimizers()]
        predicted = max((size for peak in peaks for where, size in peak.items() if same_device(where, device)), default=0)
        return max(predicted, *(watched.measured for watched in self._live_optimizers() if device.type == "cpu"), 0)

    def look(self) -> None:
        """Find optimizers, averaged copies and wrappers of known parameters, and frozen ones, among the objects of the process."""
        self._find()
        if self._frozen:
            gc.collect()  # of models that are gone only Python's collector knows

    def _find(self) -> None:
        # A function of its own: what it still refers to at its end would live through the collection.
        with self._lock:
            own = {type(module) for reference in self._modules if (module := reference()) is not None}
        found = instances(_Optimizer, AveragedModel, DistributedDataParallel, nn.Parameter, *own)
        with self._lock:
            self._tensors = None
            self._known_tensors()
            self.watch(self._sharded.look(self.knows))  # optimizers hold shards of the parameters that graphs read
            self._frozen = []
            for thing in found:
                if isinstance(thing, nn.Parameter):
                    if not (
                        thing.requires_grad or thing.grad is not None or self.knows(thing)
                    ):  # with a gradient it trains at times
                        self._frozen.append(weakref.ref(thing))
                elif isinstance(thing, _Optimizer):
                    self._admit_optimizer(thing)
                elif isinstance(thing, (AveragedModel, DistributedDataParallel)) or _rests(thing):
                    self._admit_module(thing)

    # --- what is known ---

    def knows(self, tensor: torch.Tensor) -> bool:
        """A tensor is a parameter of graphs, modules or optimizers that are known."""
        return _has(self._parameters, tensor)

    def _known_tensors(self) -> list[torch.Tensor]:
        """Every tensor that is known, alive, once."""
        tensors = [tensor for reference in self._tensors if (tensor := reference()) is not None] if self._tensors else []
        if self._tensors is None or len(tensors) != len(self._tensors):
            tensors = self._read_modules()
        parameters = [parameter for reference in self._parameters.values() if (parameter := reference()) is not None]
        if len(parameters) != len(self._parameters):
            self._parameters = {id(parameter): weakref.ref(parameter) for parameter in parameters}
        return tensors + parameters

    def _read_modules(self) -> list[torch.Tensor]:
        self._modules = [reference for reference in self._modules if reference() is not None]
        self._averaged = [reference for reference in self._averaged if reference() is not None]
        tensors: list[torch.Tensor] = []
        for reference in self._modules:
            if (module := reference()) is not None:
                self.watch(module.parameters())
                tensors += module.buffers()
        for reference in self._averaged:
            if (module := reference()) is not None:
                tensors += chain(module.parameters(), module.buffers())
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        return tensors

    def _state(self, device: torch.device, other: _Storages) -> int:
        """Bytes of the optimizers' state on a device; they are counted after steps only, and when a state was loaded."""
        states = []
        for watched in self._live_optimizers():
            if (optimizer := watched.optimizer()) is not None:
                states.append((getattr(optimizer, "state", {}), watched.steps))
        reading = [(id(state), len(state), steps) for state, steps in states]
        if reading != self._states_read:
            self._states_read, self._state_bytes = reading, {}
            storages: _Storages = {}
            for state, _ in states:
                _add(storages, tensors_in(state))
            for key, storage in storages.items():
                if key not in other:
                    self._state_bytes[storage.device] = self._state_bytes.get(storage.device, 0) + storage.nbytes()
        return sum(size for where, size in self._state_bytes.items() if same_device(where, device))

    def _live_optimizers(self) -> list[WatchedOptimizer]:
        with self._lock:
            return [watched for watched in list(self._optimizers.values()) if watched.optimizer() is not None]

    # --- what is found ---

    def steps_now(self, optimizer: _Optimizer) -> None:
        """An optimizer, of whatever parameters, is about to make a step without a closure."""
        with self._lock:
            watched = self._optimizers.get(id(optimizer))
        if watched is not None:
            watched.begins()

    def stepped(self, optimizer: _Optimizer) -> None:
        """An optimizer, of whatever parameters, has made a step."""
        with self._lock:
            watched = self._admit_optimizer(optimizer)
            if watched is None:
                return
            watched.ended()
            self.steps += 1
            callbacks = [callback for reference in self._callbacks if (callback := reference()) is not None]
            if len(callbacks) != len(self._callbacks):
                self._callbacks = [reference for reference in self._callbacks if reference() is not None]
        for callback in callbacks:
            callback()

    def made(self, module: nn.Module) -> None:
        """A module of one of the wanted classes is being made."""
        with self._lock:
            self._made.append(weakref.ref(module))

    def _admit_made(self) -> None:
        made, self._made = self._made, []
        for reference in made:
            if (module := reference()) is not None:
                self._admit_module(module)

    def _admit_optimizer(self, optimizer: _Optimizer) -> WatchedOptimizer | None:
        watched = self._optimizers.get(id(optimizer))
        if watched is not None and watched.optimizer() is optimizer:
            return watched
        try:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        except (AttributeError, KeyError, TypeError):  # it is being made, or only looks like one
            return None
        if not any(self.knows(parameter) or _has(self._leaves, parameter) for parameter in parameters):
            return None
        self._parameters.update((id(x), weakref.ref(x)) for x in parameters if isinstance(x, torch.Tensor))
        watched = WatchedOptimizer(optimizer, self._forget_optimizer)
        self._optimizers[id(optimizer)] = watched
        return watched

    def _forget_optimizer(self, key: int) -> None:
        # No lock: it may be called in the middle of anything.
        self._optimizers.pop(key, None)

    def _admit_module(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        if isinstance(module, DistributedDataParallel):
            if module not in self._wrappers and any(map(self.knows, parameters)):
                self._wrappers[module] = _Buckets()
                self.watch_module(module)
        elif not any(known() is module for known in self._averaged) and self._is_copy(parameters):
            self._averaged.append(weakref.ref(module))
            self._tensors = None

    def _is_copy(self, parameters: list[nn.Parameter]) -> bool:
        """Whether there is a parameter of the same shape for each one known, and none of them is known itself."""
        known = [parameter for reference in self._parameters.values() if (parameter := reference()) is not None]
        return bool(known) and not any(map(self.knows, parameters)) and _shapes(known) <= _shapes(parameters)


def _has(known: Mapping[int, weakref.ref[torch.Tensor]], tensor: torch.Tensor) -> bool:
    """Whether a tensor is among others, by identity."""
    reference = known.get(id(tensor))
    return reference is not None and reference() is tensor


def note_parameters(known: dict[int, weakref.ref[torch.Tensor]], tensors: Iterable[Any]) -> None:
    """Take parameters among tensors in, by identity. Quick enough for all inputs of a graph in every step."""
    for tensor in tensors:
        if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
            reference = known.get(id(tensor))
            if reference is None or reference() is not tensor:
                known[id(tensor)] = weakref.ref(tensor)


def _rests(module: nn.Module) -> bool:
    """Whether a module does not train: an average of the weights, or a teacher. Another one that trains has a budget of its own."""
    try:
        parameters = list(module.parameters())
    except AttributeError:  # it is being made
        return False
    return all(parameter.grad is None for parameter in parameters) and not (
        module.training and any(parameter.requires_grad for parameter in parameters)
    )


class _Buckets:
    """Where DistributedDataParallel collects gradients: flat copies, or what the gradients are views of."""

    def __init__(self) -> None:
        self._sizes: dict[torch.device, int] | None = None

    def held(self, wrapper: Any, device: torch.device) -> int:
        """Bytes of the buckets, less those that are counted as gradients already."""
        if not hasattr(wrapper, "reducer"):  # it is not complete
            return 0
        parameters = [p for p in wrapper._module_parameters if p.requires_grad]
        if self._sizes is None:
            tables = [
                module for module in wrapper.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
            ]
            sparse = {id(module.weight) for module in tables}  # their gradients are sent as they are
            self._sizes = {}
            for parameter in (p for p in parameters if id(p) not in sparse):
                self._sizes[parameter.device] = self._sizes.get(parameter.device, 0) + parameter.nbytes
        total = sum(size for where, size in self._sizes.items() if same_device(where, device))
        if wrapper.gradient_as_bucket_view:
            gradients: _Storages = {}
            _add(gradients, [p.grad for p in parameters if p.grad is not None])
            total -= bytes_on(gradients, device)
        return max(total, 0)


def _gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What lies in `.grad` of these."""
    return [gradient for tensor in tensors if tensor.is_leaf and (gradient := tensor.grad) is not None]


def _shapes(tensors: Iterable[torch.Tensor]) -> Counter[torch.Size]:
    return Counter(tensor.shape for tensor in tensors)


def _add(storages: _Storages, tensors: Iterable[torch.Tensor]) -> None:
    """Add the storages of tensors; what has none that takes memory is left out."""
    for tensor in tensors:
        for local in (tensor,) if type(tensor) in _PLAIN and tensor.layout is torch.strided else local_tensors(tensor):
            try:
                storage = local.untyped_storage()
            except (NotImplementedError, RuntimeError, ValueError):  # parameters without a shape yet, other libraries' tensors
                continue
            storages[storage._cdata] = storage


def bytes_on(storages: Mapping[int, torch.UntypedStorage], device: torch.device, without: Container[int] = ()) -> int:
    """Bytes of storages, by identity, on a device."""
    wanted: dict[torch.device, bool] = {}  # asked once for each device, not for each storage
    total = 0
    for key, storage in storages.items():
        if key in without:
            continue
        where = storage.device
        if where not in wanted:
            wanted[where] = same_device(where, device)
        if wanted[where]:
            total += storage.nbytes()
    return total


# --- PyTorch's hooks: one for the process ---

_all: weakref.WeakSet[Held] = weakref.WeakSet()
_all_lock = threading.Lock()
_listening = False


def _listen(held: Held) -> None:
    global _listening
    with _all_lock:
        _all.add(held)
        if not _listening:
            register_optimizer_step_pre_hook(_before_optimizer_step)
            register_optimizer_step_post_hook(_on_optimizer_step)
            register_module_module_registration_hook(_on_module)
            _listening = True


def _everyone() -> list[Held]:
    with _all_lock:
        return list(_all)


@torch.compiler.disable
def _before_optimizer_step(optimizer: _Optimizer, args: Any, kwargs: Any) -> None:
    if len(args) + len(kwargs) <= 1:  # the optimizer itself: a closure would run what measures itself
        for held in _everyone():
            held.steps_now(optimizer)


@torch.compiler.disable
def _on_optimizer_step(optimizer: _Optimizer, args: Any, kwargs: Any) -> None:
    for held in _everyone():
        held.stepped(optimizer)


def _on_module(module: nn.Module, name: str, submodule: nn.Module | None) -> None:
    if name == "module" and isinstance(module, (AveragedModel, DistributedDataParallel)):
        for held in _everyone():
            held.made(module)
