"""Plans for inputs that are yet to come: a call with zeros of their shapes, in which nothing is computed, shows the sizes."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import CheckmateError
from .backend import Session
from .dry_run import DryRun, no_trace
from .pytorch.internals import leave_open
from .rounds.planner import places

#: The largest shape of each tensor, by the name of the argument.
Shapes = Mapping[str, Sequence[int]]


def at_shapes(
    compiled: Callable[..., Any], target: Callable[..., Any], session: Session, shapes: Shapes | None
) -> Callable[..., Any]:
    """The compiled function, which has its graphs planned for these shapes.

    Args:
        target: what the arguments are those of.
    """
    if shapes is None:
        return compiled
    known = -1  # graphs, when their sizes were noted
    one_at_a_time = threading.Lock()

    def note_sizes(given: inspect.BoundArguments) -> None:
        model = session.module() if session.module is not None else None
        devices = {x.device for x in tree_leaves((given.args, given.kwargs)) if isinstance(x, torch.Tensor)}
        with no_trace(() if model is None else model.buffers(), devices):
            runs = DryRun(session).observe(lambda: compiled(*given.args, **given.kwargs))
        session.group.planner.announced.update(zip(places(run.part for run in runs), (run.sizes for run in runs), strict=True))

    @wraps(compiled)
    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal known
        if torch.is_grad_enabled() and not torch.compiler.is_compiling() and known != len(session.parts):
            with one_at_a_time:
                if known != len(session.parts):
                    note_sizes(_at(inspect.signature(target).bind(*arguments, **keywords), shapes))
                    known = len(session.parts)
        return compiled(*arguments, **keywords)

    return call


def _at(given: inspect.BoundArguments, shapes: Shapes) -> inspect.BoundArguments:
    """The same arguments with zeros of these shapes; what differs is left open in the first trace."""
    for name, shape in shapes.items():
        tensor = given.arguments.get(name)
        if not isinstance(tensor, torch.Tensor):
            passed = ", ".join(key for key, value in given.arguments.items() if isinstance(value, torch.Tensor)) or "no tensor"
            raise CheckmateError(f"shapes= names {name!r}, but the tensors of this call are: {passed}")
        if len(shape) != tensor.dim():
            raise CheckmateError(f"shapes= gives {name!r} {len(shape)} dimensions, and the call {tensor.dim()}")
        zeros = tensor.detach().new_zeros(tuple(shape)).requires_grad_(tensor.requires_grad)
        different = [axis for axis, (n, m) in enumerate(zip(shape, tensor.shape, strict=True)) if n != m]
        leave_open(zeros, different)
        given.arguments[name] = zeros
    return given
