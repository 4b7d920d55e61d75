"""What a user calls: compile a model, look at its plans, capture its graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from ..errors import CheckmateError
from ..graph import Graph
from ..planning import Options
from ..units import Budget
from .backend import Session, backend, sessions_of
from .capture import read_joint_graph
from .coverage import check_outputs
from .internals import isolation, trace_and_compile
from .plan import Plan
from .profile import profile_nodes
from .random import preserved_random_state

Model = TypeVar("Model", bound=Callable[..., Any])

_compiled: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()


def compile(model: Model, budget: Budget = "auto", **options: Any) -> Model:
    """Train `model` under a memory budget.

    A module is compiled in place and returned: its type, its parameters and the keys of its state_dict stay. A function
    gives a new function. Nothing happens before the first call.

    Args:
        model: a module or a function.
        budget: bytes, "4GiB", "50%" of the plain peak, or "auto".
        options: see `checkmate.torch.Options`.

    Raises:
        UnknownMethod: an option that does not exist. BudgetError: the budget cannot be read. Later, from a call of the
            model, InfeasibleBudget: the budget cannot be met; the message names one that can.
    """
    session = Session({"budget": budget, **options})
    Options.read(session.group.given)
    if isinstance(model, torch.nn.Module):
        session.watch(model)
    inner: Any = torch.compile(_caller(model), backend=partial(backend, session), **isolation())

    def call(*arguments: Any, **keywords: Any) -> Any:
        before = session.executions
        result = inner(*arguments, **keywords)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            check_outputs(result, session.executions > before, session.warned)
        return result

    if isinstance(model, torch.nn.Module):
        # What nn.Module.compile sets; calls of the module go through it.
        model._compiled_call_impl = call
        _compiled[model] = session
        return model
    wrapped = wraps(model)(call)
    _compiled[wrapped] = session
    return wrapped  # type: ignore[return-value]  # same signature as the function


def _caller(model: Callable[..., Any]) -> Callable[..., Any]:
    """What PyTorch has to compile to run `model`."""
    if not isinstance(model, torch.nn.Module):
        return model
    run = model._call_impl

    # PyTorch compiles no frame of its own: a bare nn.Sequential or nn.Transformer needs one around it that is not.
    def call(*arguments: Any, **keywords: Any) -> Any:
        return run(*arguments, **keywords)

    return call


def plans(model: Any) -> list[Plan]:
    """The plans of a compiled model, one per graph and set of input shapes; empty before its first training step."""
    if isinstance(model, torch.nn.Module):
        original = getattr(model, "_orig_mod", model)
        if original in _compiled:
            return list(_compiled[original].plans)
        return [plan for session in sessions_of(original.parameters()) for plan in session.plans]
    try:
        return list(_compiled[model].plans)
    except (KeyError, TypeError):
        raise CheckmateError(
            "this is not a compiled model: pass what checkmate.torch.compile or torch.compile returned"
        ) from None


class _Done(Exception):
    """Leaves the compiler as soon as the graph is there."""

    def __init__(self, graph: Graph):
        self.graph = graph


def capture(
    model: Callable[..., Any], *inputs: Any, loss: Callable[[Any], torch.Tensor] | None = None, cost_model: str = "profile"
) -> Graph:
    """The graph of one training step of `model`, for planning without training. Nothing is changed or trained.

    Args:
        inputs: of the model.
        loss: from the model's output to a scalar; by default the output itself if it is a scalar, else the sum of all
            floating-point outputs.
        cost_model: "profile" or "flops".

    Raises:
        CheckmateError: nothing in the model has a gradient. Whatever PyTorch raises where it cannot compile the model as
            one graph.
    """

    def step(*arguments: Any) -> torch.Tensor:
        output = model(*arguments)
        if loss is not None:
            return loss(output)
        leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if len(leaves) == 1 and leaves[0].dim() == 0:
            return leaves[0]
        return sum((x.sum() for x in leaves), start=torch.zeros((), device=leaves[0].device))

    def partition(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any) -> Any:
        captured = read_joint_graph(
            joint, num_fwd_outputs, lambda nodes, number: profile_nodes(nodes, cost_model), name=type(model).__name__
        )
        raise _Done(captured.graph)

    def take(module: fx.GraphModule, example_inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            devices = list({x.device for x in arguments if isinstance(x, torch.Tensor)})
            with preserved_random_state(devices):
                trace_and_compile(module, arguments, partition, _refuse, _refuse, _refuse)

        return torch.compiler.disable(run)

    try:
        with torch.enable_grad():
            torch.compile(step, backend=take, fullgraph=True, dynamic=False, **isolation())(*inputs)
    except _Done as done:
        return done.graph
    raise CheckmateError("this model gave no training graph: PyTorch did not compile it")


def _refuse(module: fx.GraphModule) -> Any:
    raise CheckmateError("nothing in this model has a gradient: capture needs a model with parameters that require one")
