"""Say so, once and by name, when a model or a part of it runs outside every plan."""

from __future__ import annotations

import gc
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import BudgetWarning
from .pytorch.autograd_nodes import nodes_behind
from .pytorch.internals import graph_breaks, planned_runs

#: Autograd nodes that hold no activations: parameters, planned graphs, and views of what those return.
_FREE = (
    "AccumulateGrad",
    "CompiledFunction",
    "AliasBackward",
    "AsStrided",
    "ViewBackward",
    "UnsafeView",
    "Slice",
    "Select",
    "TBackward",
    "Transpose",
    "Permute",
    "Expand",
    "Squeeze",
    "Unsqueeze",
    "Split",
    "Unbind",
    "Detach",
    "Unfold",
    "Diagonal",
    "Graph",
    "RegisterPostBackwardFunction",  # of fully_shard: keeps no tensor
)


class Coverage:
    """What is known of how one compiled module or function is called.

    Attributes:
        name: for messages.
        called: a call has begun. calls: how often it was called, with gradients, through what the compiler made.
        runs: how many planned forward passes that train ran in these calls.
        left_out: the module is a copy, and PyTorch has left out of it what compiled the original.
        warned: what the user was told already.
    """

    def __init__(self, name: str, model: torch.nn.Module | None = None):
        self.name = name
        self.model = weakref.ref(model) if model is not None else None
        self.called = self.left_out = False
        self.calls = self.runs = 0
        self.warned: set[str] = set()
        self._checked: int | None = None  # forward passes in the last call that was looked at

    def wrap(self, compiled: Callable[..., Any], first: Callable[[], None] = lambda: None) -> Callable[..., Any]:
        """The compiled function, watched.

        Args:
            first: called before each call.
        """

        # With the compiler's own marks: another compiler around this one still looks through it.
        @wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # this very code is being compiled
                return compiled(*arguments, **keywords)
            outer, _calling.coverage = _calling.coverage, self
            self.called = True
            first()
            before, breaks = planned_runs(), graph_breaks() if self._checked is None else {}
            try:
                result = compiled(*arguments, **keywords)
            finally:
                _calling.coverage = outer
            ran = planned_runs() - before
            self.calls += torch.is_grad_enabled()
            self.runs += ran
            # The same number of graphs as in the last call: the same parts were compiled.
            if ran != self._checked and torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self._checked = ran
                self._check(result, ran, [name for name, count in graph_breaks().items() if count > breaks.get(name, 0)])
            return result

        marked: Any = call
        if hasattr(compiled, "_torchdynamo_wrapper_id"):
            marked._torchdynamo_wrapper_id = id(call)
        return call

    def _check(self, result: Any, ran: int, breaks: Sequence[str]) -> None:
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        if tensors and not ran:
            self.tell_uncovered(breaks)
        elif outside := sorted({name for x in tensors for name in _outside(x)}):
            _warn_outside(self, outside, breaks)

    def tell_uncovered(self, breaks: Sequence[str] = ()) -> None:
        """Nothing of it ran under a plan."""
        model = self.model() if self.model is not None else None
        if model is not None and any(
            kind.__name__.startswith(("FSDP", "FullyShardedDataParallel")) for kind in type(model).__mro__
        ):
            why = "PyTorch compiles no module that is itself the root of FSDP: compile its blocks before they are wrapped"
        else:
            why = f"PyTorch did not compile any of it{_reasons(breaks)}"
        self.tell(f"no part of {self.name} is under the budget: {why}; it trains as without checkmate")

    def tell(self, message: str) -> None:
        """Warn, once in the life of a compiled model."""
        if "coverage" not in self.warned:
            self.warned.add("coverage")
            warnings.warn(message, BudgetWarning, stacklevel=3)


class _Calling(threading.local):
    """Whose call this thread is in."""

    coverage: Coverage | None = None


_calling = _Calling()


def caller() -> Coverage | None:
    """The compiled module or function, the innermost, whose call this thread is in."""
    return _calling.coverage


#: The modules that were compiled for a plan, each with what is known of its calls.
_covered: weakref.WeakKeyDictionary[torch.nn.Module, Coverage] = weakref.WeakKeyDictionary()


def coverage_of(model: torch.nn.Module) -> Coverage:
    """The one of a module that is being compiled; the same one if it is compiled in several ways."""
    known = _covered.get(model)
    if known is None:
        known = _covered[model] = Coverage(type(model).__name__, model)
    known.left_out = False
    return known


def note_left_out(copy: torch.nn.Module) -> None:
    """A module is a copy of one that was compiled, without what compiled it: whoever trains it is told."""
    coverage_of(copy).left_out = True


def compiled_models() -> list[tuple[torch.nn.Module, Coverage]]:
    """Modules that were compiled for a plan, in place or by name, and copies of those without what compiled them."""
    return list(_covered.items())


def more_to_come() -> bool:
    """Some module that can learn was compiled and not called yet: what it does may belong to the step that is under way."""
    if not _some_wait():
        return False
    gc.collect()  # what nobody can call any more may still be there, until Python's collector sees to it
    return _some_wait()


def _some_wait() -> bool:
    return any(
        not (coverage.called or coverage.left_out)
        and model.training
        and any(parameter.requires_grad for parameter in model.parameters())
        for model, coverage in compiled_models()
    )


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the module or one inside was compiled for a plan; nothing of it need have run."""
    return any(module in _covered and not _covered[module].left_out for module in model.modules())


def watch_by_name(compiled: Callable[..., Any], target: Any, first: Callable[[], None] = lambda: None) -> Callable[..., Any]:
    """What `torch.compile(..., backend="checkmate")` made of a function or of a module's call: watched, and with its signature.

    Args:
        first: called before each call.
    """
    model = owner(target)
    if model is None:
        return Coverage(getattr(target, "__name__", type(target).__name__)).wrap(compiled, first)
    call: Any = coverage_of(model).wrap(compiled, first)
    if getattr(target, "__wrapped__", None) is model or getattr(target, "__name__", None) in ("_wrapped_call_impl", "_call_impl"):
        # Scripts ask `model.forward` which inputs the model takes.
        with suppress(TypeError, ValueError):  # it has none that Python knows of
            call.__signature__ = inspect.signature(model.forward)
    return call


def owner(target: Any) -> torch.nn.Module | None:
    """The module that a function calls: whose method it is, or around which PyTorch has put it."""
    while target is not None and not isinstance(target, torch.nn.Module):
        of = getattr(target, "__self__", None)
        if isinstance(of, torch.nn.Module):
            return of
        target = getattr(target, "__wrapped__", None)
    return target


def check_inputs(inputs: Sequence[Any], warned: set[str]) -> None:
    """Warn once if activations come in from ops that no plan covers.

    Args:
        warned: what the user was told already, where it is not known which model this is.
    """
    # What lies behind another compiled graph was looked at when that was called.
    outside = sorted({name for x in inputs if isinstance(x, torch.Tensor) for name in _outside(x, "CompiledFunction")})
    if outside:
        coverage = _calling.coverage
        if coverage is None:
            coverage = Coverage("this model")
            coverage.warned = warned
        _warn_outside(coverage, outside, ())


def _outside(tensor: torch.Tensor, border: str | None = None) -> set[str]:
    """Names of the autograd nodes behind a tensor that hold activations, up to those whose name begins with `border`."""

    def is_last(node: Any) -> bool:
        return border is not None and type(node).__name__.startswith(border)

    return {name for node in nodes_behind([tensor], is_last) if not (name := type(node).__name__).startswith(_FREE)}


def _warn_outside(coverage: Coverage, names: list[str], breaks: Sequence[str]) -> None:
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    coverage.tell(
        f"a part of {coverage.name} runs outside the plan and its memory is not under the budget (autograd nodes {shown}): PyTorch "
        f"did not compile it{_reasons(breaks)}; set reserved= to what that part needs"
    )


def _reasons(breaks: Sequence[str]) -> str:
    quoted = ", ".join(f'"{reason}"' for reason in breaks[:3])
    return f" (it says: {quoted}{', ...' if len(breaks) > 3 else ''})" if breaks else ""
