"""What a user calls: compile a model, look at its plans, capture its graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from traceback import FrameSummary
from typing import Any, TypeVar

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from ..errors import CheckmateError
from ..graph import Graph
from ..planning import DeviceModel, OpCost, device_model
from ..units import Budget
from . import steps_without_plan
from .backend import Session, backend, backend_of, checkmate, sessions_of
from .coverage import Coverage, coverage_of, is_compiled, note_left_out, owner, watch_by_name
from .graphs.capture import read_joint_graph
from .ops.layers import names_of
from .ops.profile import profile_nodes
from .ops.sizes import Number
from .options import read_options
from .plan import Plan
from .pytorch.fake_tensors import without_meta
from .pytorch.hooks import Hooks, framed, hooks_of, to_compile
from .pytorch.internals import ITS_OWN, NOT_ONE_GRAPH, in_one_call, isolation, on_compile, trace_and_compile
from .pytorch.random import preserved_random_state
from .shapes import Shapes, at_shapes

Model = TypeVar("Model", bound=Callable[..., Any])

#: What was compiled in place or as a function.
_compiled: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()


def compile(
    model: Model,
    budget: Budget | None = None,
    *,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    shapes: Shapes | None = None,
    **options: Any,
) -> Model:
    """Train `model` under a memory budget.

    A module is compiled in place and returned: its type, its parameters and the keys of its state_dict stay. Copies that
    `copy.deepcopy` makes of it are compiled too, each under the same budget. What was saved whole and loaded again is not: compile it
    again. A function gives a new function. Nothing happens before the first call.

    Args:
        model: a module or a function.
        budget: bytes, "4GiB", "50%" of the plain peak, or "auto". None: what the environment variable CHECKMATE_BUDGET says,
            or else "auto".
        mode: accepted as `torch.compile` accepts it. Modes tell PyTorch's own code generator how to tune its kernels; a planned
            step runs PyTorch's eager kernels, or with `inner="inductor"` those that are made without tuning: none of them changes
            anything.
        fullgraph, dynamic: as in `torch.compile`.
        shapes: of the largest inputs that will come, such as `{"x": (64, 3, 224, 224)}`, by the names of the arguments of `forward`.
            The first plan is made for them, so that a budget that is too small for them is an error at once, a percentage is
            of their plain peak, and no later plan is needed. By default plans are for the largest sizes seen.
        options: see `checkmate.torch.Options`.

    Raises:
        UnknownMethod: an option that does not exist. BudgetError: the budget cannot be read. Later, from a call of the
            model, InfeasibleBudget: the budget cannot be met; the message names one that can.
    """
    given = {**({} if budget is None else {"budget": budget}), **options}
    read_options(given)
    keywords = {"fullgraph": fullgraph, "dynamic": dynamic, **isolation()}
    if isinstance(model, torch.nn.Module):
        _compile_in_place(model, given, keywords, shapes)
        return model
    session = Session(given)
    inner: Any = torch.compile(model, backend=backend_of(session), **keywords)
    inner = at_shapes(inner, model, session, shapes)
    wrapped = wraps(model)(Coverage(getattr(model, "__name__", type(model).__name__)).wrap(inner))
    _compiled[wrapped] = session
    return wrapped  # type: ignore[return-value]  # same signature as the function


def _compile_in_place(
    model: torch.nn.Module, given: Mapping[str, Any], keywords: Mapping[str, Any], shapes: Shapes | None
) -> None:
    session = Session(given)
    hooks = Hooks(model)
    inner: Any = torch.compile(to_compile(model, hooks), backend=backend_of(session), **keywords)
    inner = at_shapes(inner, model.forward, session, shapes)
    if "_parameters" in model.__dict__:
        session.watch(model)
    else:
        inner = _watching(session, model, inner)
    # What nn.Module.compile sets; calls of the module go through it. Written as what it is: a copy is compiled before it has
    # anything else.
    model.__dict__["_compiled_call_impl"] = coverage_of(model).wrap(inner, hooks.look)
    model.__dict__["_checkmate"] = _Copied(model, lambda copy: _compile_in_place(copy, given, keywords, shapes))
    _compiled[model] = session


def _watching(session: Session, model: torch.nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that has no parameters yet is known to its session from its first call on."""
    reference = weakref.ref(model)

    @wraps(compiled)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if session.module is None and (model := reference()) is not None:
            session.watch(model)
        return compiled(*arguments, **keywords)

    return call


class _Copied:
    """Lies among a module's attributes to be there when it is copied: PyTorch leaves out of a copy what compiled the original.

    Args:
        see_to: called with every copy, and copies of copies; they have no attributes yet.
    """

    def __init__(self, model: torch.nn.Module, see_to: Callable[[torch.nn.Module], None]):
        self._model = weakref.ref(model)
        self._see_to = see_to

    def __deepcopy__(self, memo: dict[int, Any]) -> _Copied | None:
        copy = memo.get(id(self._model()))
        if copy is None:
            return None  # something else than the module is being copied
        self._see_to(copy)
        return _Copied(copy, self._see_to)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a file with the module can be read without this package


def plans(model: Any) -> list[Plan]:
    """The plans of a compiled model, one per graph and set of input shapes; empty before its first training step.

    Raises:
        CheckmateError: neither the model nor anything in it was compiled by `checkmate.torch.compile`, or by
            `torch.compile(..., backend="checkmate")`.
    """
    if isinstance(model, torch.nn.Module):
        original = getattr(model, "_orig_mod", model)
        own = _compiled.get(original)
        # What was compiled inside it counts where it has none of its own.
        sessions = [own] if own is not None and own.plans else sessions_of(original.parameters(), original.modules())
        if sessions or is_compiled(original):
            return list(dict.fromkeys(plan for session in sessions for plan in session.plans))
    elif (session := _compiled.get(model) if _can_be_key(model) else None) is not None:
        return list(session.plans)
    raise CheckmateError(
        f"this {type(model).__name__} is not a compiled model: pass what checkmate.torch.compile returned, or a module that was "
        'compiled with torch.compile(..., backend="checkmate")'
    )


def _can_be_key(model: Any) -> bool:
    try:
        weakref.ref(model)
        hash(model)
    except TypeError:
        return False
    return True


def _is_ours(given: Any) -> bool:
    return given is checkmate or getattr(given, "func", None) in (backend, _take)


def _in_place(target: Any) -> torch.nn.Module | None:
    """The module that `Module.compile` compiles when it has PyTorch compile `target`."""
    own = getattr(target, "__self__", None)
    return own if isinstance(own, torch.nn.Module) and getattr(target, "__name__", None) == "_call_impl" else None


def _framed(target: Any) -> Any:
    """What PyTorch has to compile in place of `target`: for a function of a module the same in a frame of its own."""
    model = None if hooks_of(target) is not None else owner(target)
    return target if model is None else framed(target, Hooks(model))


def _watched(given: Any, made: Callable[..., Any], target: Any, instead: Any) -> Callable[..., Any]:
    """What was compiled by name, watched; and so are copies of a module that was compiled in place."""
    if given is not checkmate:
        return made
    own = _in_place(target)
    if own is not None:
        own.__dict__["_checkmate"] = _Copied(own, note_left_out)
    hooks = hooks_of(instead)
    return watch_by_name(made, target) if hooks is None else watch_by_name(made, target, hooks.look)


on_compile(_is_ours, _watched, _framed, lambda target: hooks_of(target) is not None)
steps_without_plan.install()


def loss_of(output: Any, loss: Callable[[Any], torch.Tensor] | None = None) -> torch.Tensor:
    """The scalar to begin the backward pass with.

    Args:
        loss: from the model's output to it; by default the output's `loss` if it has one (as in Hugging Face's models), the output
            itself if it is a scalar, else the sum of all floating-point outputs.
    """
    if loss is not None:
        return loss(output)
    if isinstance(own := getattr(output, "loss", None), torch.Tensor):
        return own
    leaves = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not leaves:
        raise CheckmateError("the model returns no floating-point tensor: say with loss= what is to be differentiated")
    if len(leaves) == 1 and leaves[0].dim() == 0:
        return leaves[0]
    return sum((x.sum() for x in leaves), start=torch.zeros((), device=leaves[0].device))


class _Done(Exception):
    """Leaves the compiler as soon as the graph is there."""

    def __init__(self, graph: Graph):
        self.graph = graph


def capture(
    model: Callable[..., Any],
    *inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    cost_model: str = "profile",
    device: str | DeviceModel | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Graph:
    """The graph of one training step of `model`, for planning without training. Nothing is changed or trained.

    Args:
        inputs: of the model. They and the model may be fake tensors (`torch._subclasses.FakeTensorMode`) or on the meta device.
        loss: from the model's output to a scalar. By default the output's `loss` if it has one, the output itself if it is a
            scalar, else the sum of all floating-point outputs.
        cost_model: "profile" or "flops".
        device: plan for "h100", "a100", "rtx4090" or "cpu" instead of this machine: costs come from its published rates
            (`checkmate.planning.device_models`), sizes are in its blocks, and no op is run.
        progress: called with (distinct ops measured, distinct ops to measure).

    Raises:
        UnknownMethod: another cost model or device. CheckmateError: nothing in the model has a gradient, or PyTorch cannot compile
            it as one graph. Whatever PyTorch raises where the model cannot run.
    """
    meant_for = device_model(device) if isinstance(device, str) else device
    model, inputs = without_meta(model, inputs)
    name, names = type(model).__name__, names_of(model)  # PyTorch keeps every backend, which had better not hold the model

    def profile(nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
        return profile_nodes(nodes, cost_model, progress, number=number, device=meant_for)

    def step(*arguments: Any) -> torch.Tensor:
        return loss_of(model(*arguments), loss)

    def partition(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any) -> Any:
        block = None if meant_for is None else meant_for.block
        captured = read_joint_graph(joint, num_fwd_outputs, profile, name=name, block=block, names=names)
        raise _Done(captured.graph)

    try:
        with torch.enable_grad():
            in_one_call(step, partial(_take, partition), inputs)
    except _Done as done:
        return done.graph
    except NOT_ONE_GRAPH as error:
        if isinstance(error.__cause__, ITS_OWN):
            raise
        reason, place = str(error).partition("\n")[0], [frame for frame in getattr(error, "real_stack", ()) if _is_users(frame)]
        at = f", in {Path(place[-1].filename).name}, line {place[-1].lineno}" if place else ""
        raise CheckmateError(
            f"PyTorch cannot make one graph of this model, which capture needs: {reason.strip()}{at}; change that part; where it runs as it "
            "is, checkmate.torch.compile trains it in several graphs"
        ) from error
    raise CheckmateError("this model gave no training graph: PyTorch did not compile it")


def _is_users(frame: FrameSummary) -> bool:
    return not any(Path(file).parent in Path(frame.filename).parents for file in (torch.__file__, __file__))


def _take(partition: Callable[..., Any], module: fx.GraphModule, example_inputs: Any) -> Any:
    """A backend that only traces."""

    def run(*arguments: Any) -> Any:
        devices = list({x.device for x in arguments if isinstance(x, torch.Tensor)})
        with preserved_random_state(devices):
            trace_and_compile(module, arguments, partition, _refuse, _refuse, _refuse)

    return torch.compiler.disable(run)


def _refuse(module: fx.GraphModule) -> Any:
    raise CheckmateError("nothing in this model has a gradient: capture needs a model with parameters that require one")
