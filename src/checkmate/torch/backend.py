"""The backend for `torch.compile`: every graph is traced when PyTorch hands it over, and planned when it runs.

Planning waits for the first call, because only then it is known what training holds, and so that errors (a budget that cannot be
met) reach the caller as they are, not wrapped by the compiler.

PyTorch keeps what it has compiled for as long as the process runs, models that are gone included. So it is given weak references to the
sessions and their graphs: these live as long as what was compiled can be called, or a backward pass is still to come.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import fx

from ..errors import CheckmateError
from ..planning.roofline import Rates
from .coverage import Coverage, caller, check_inputs
from .graphs.part import Part, Runner, Ticket
from .inference import InferenceGraph
from .memory.held import note_parameters
from .plan import Plan
from .pytorch.internals import current_compilation, inside_backward
from .rounds.group import Group
from .rounds.rounds import Round

_T = TypeVar("_T")

#: How `plans` finds the graphs of a model compiled by `torch.compile`.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_sessions_lock = threading.Lock()
#: Of what was compiled by name: all graphs of a model have one session, those of later shapes too; the last one of several with other options.
_of_callers: weakref.WeakKeyDictionary[Coverage, list[Session]] = weakref.WeakKeyDictionary()
#: Those of which it is not known what they were compiled for.
_of_nobody: list[Session] = []


class _OfThread(threading.local):
    """What this thread is about.

    Nothing of it keeps what belongs to a model that is gone.

    Attributes:
        groups: those whose rounds it has begun.
        latest: the compilation under way, and the session of its graphs: DistributedDataParallel has one graph compiled in pieces.
    """

    def __init__(self) -> None:
        self.groups: list[weakref.ref[Group]] = []
        self.latest: tuple[Any, weakref.ref[Session]] | None = None

    def waiting(self) -> list[tuple[Group, Round[Any]]]:
        """Those groups whose rounds wait for backward passes; the others are forgotten."""
        known = [(group, group.waiting()) for reference in self.groups if (group := reference()) is not None]
        found = [(group, round) for group, round in known if round is not None]
        self.groups = [weakref.ref(group) for group, _ in found]
        return found


_of_thread = _OfThread()


class Session:
    """What one call of `compile` made.

    Attributes:
        group: the graphs that its graphs share their budget with.
        parts: its graphs. no_gradients: those among them that have no backward pass.
        module: the model, if it is known.
        dry: a thread, and what runs the graphs that it calls in place of their plans, so that nothing is computed.
    """

    def __init__(self, given: Mapping[str, Any]):
        self.group = Group(given)
        self.parts: list[Part] = []
        self.no_gradients: dict[Part, InferenceGraph] = {}
        self.warned: set[str] = set()
        self.parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self.module: weakref.ref[torch.nn.Module] | None = None
        self.dry: tuple[int, Runner] | None = None
        with _sessions_lock:
            _sessions.add(self)

    def watch(self, module: torch.nn.Module) -> None:
        """The model is known: what of it the graphs do not read counts too."""
        self.module = weakref.ref(module)
        self.group.held.watch_module(module)

    @property
    def plans(self) -> list[Plan]:
        """Plans of training steps with a graph of this session, then those of its graphs without gradients."""
        own = set(self.parts)
        found = [plan.plan for plan in self.group.plans if any(one.part in own for one in plan.passes)]
        return found + [plan for graph in self.no_gradients.values() for plan in graph.plans]

    def add(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Part:
        """Trace a graph."""
        model = self.module() if self.module is not None else None
        part = Part(self, module, inputs, self.rates_of, self.group.given.get("inner", "eager"), model)
        self.parts.append(part)
        self.group.parts.append(part)
        if not part.trains:
            self.no_gradients[part] = InferenceGraph(part)
        return part

    def rates_of(self, device: torch.device) -> Rates:
        """What a device reaches, measured within the budget."""
        return self.group.planner.rates_of(device)

    def _dry_here(self) -> Runner | None:
        """`dry`, if it is for this thread; autograd's engine runs backward passes, which may call graphs, in threads of its own."""
        thread, runner = self.dry or (None, None)
        return runner if thread == threading.get_ident() or inside_backward() else None

    # --- the runner of its parts ---

    def forward(self, part: Part, arguments: list[Any]) -> tuple[list[Any], Ticket]:
        """Run a forward pass; a round of graphs with the same options that waits for its backward passes takes it in."""
        if (dry := self._dry_here()) is not None:
            return dry.forward(part, arguments)
        note_parameters(self.parameters, arguments)
        self.group.outside.runs(trains=True)
        groups = [group for group, _ in _of_thread.waiting()]
        for group in groups:
            if group is not self.group and group.given == self.group.given:
                _merge(self.group, group)
        if self.group not in groups:
            _of_thread.groups.append(weakref.ref(self.group))
        return self.group.forward(part, arguments)

    def backward(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        """Run a backward pass."""
        return self.group.backward(ticket, tangents)

    def inference(self, part: Part, arguments: list[Any]) -> Sequence[Any]:
        """Run a graph that has no backward pass."""
        if (dry := self._dry_here()) is not None:
            return dry.inference(part, arguments)
        self.group.outside.runs(trains=False)
        graph = self.no_gradients[part]
        for group, round in _of_thread.waiting():
            if group.given == self.group.given:
                graph.runs_beside(round, arguments, self.group, group.held)
        return graph(arguments, self.group)


def _merge(group: Group, into: Group) -> None:
    into.absorb(group)
    with _sessions_lock:
        for session in _sessions:
            if session.group is group:
                session.group = into


def checkmate(
    module: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Any:
    """Entry point for `torch.compile(model, backend="checkmate", options={"budget": "4GiB"})`; see `Options`.

    Without a budget among the options, or without options, the environment variable CHECKMATE_BUDGET says it. `mode` changes
    nothing: see `checkmate.torch.compile`.
    """
    given, compilation, called = dict(options or {}), current_compilation(), caller()
    latest = _of_thread.latest
    known = _of_callers.setdefault(called, []) if called is not None else _of_nobody
    session = known[-1] if known and called is not None else None
    if session is None and latest is not None and compilation is not None and latest[0] is compilation:
        session = latest[1]()
    if session is None or session.group.given != given:
        session = Session(given)
        known.append(session)
        if called is not None and (model := called.model() if called.model is not None else None) is not None:
            session.watch(model)
    _of_thread.latest = compilation, weakref.ref(session)
    return _compile(session, module, example_inputs)


def backend_of(session: Session) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
    """A backend for `torch.compile` whose graphs belong to a session. Keep the session for as long as these may be called."""
    return partial(backend, weakref.ref(session))


def backend(session: weakref.ref[Session], module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Compile one graph of a session."""
    return _compile(_alive(session), module, example_inputs)


def _compile(session: Session, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    part = session.add(module, example_inputs)
    return torch.compiler.disable(partial(_call, weakref.ref(session), weakref.ref(part)))


def _call(session: weakref.ref[Session], part: weakref.ref[Part], *inputs: Any) -> Any:
    called = _alive(part)
    if called.trains and not called.called:
        check_inputs(inputs, _alive(session).warned)
    return called.call(*inputs)


def _alive(reference: weakref.ref[_T]) -> _T:
    found = reference()
    if found is None:
        raise CheckmateError("what PyTorch has compiled is called after the compiled model or function is gone: keep that")
    return found


def sessions_of(parameters: Iterable[torch.Tensor], modules: Iterable[torch.nn.Module] = ()) -> list[Session]:
    """Sessions with a graph that reads one of these parameters, or that are of one of these modules."""
    wanted = {id(parameter): parameter for parameter in parameters}
    inside = set(modules)  # what reads copies, as under `fully_shard`, does not read the parameters
    with _sessions_lock:
        known = list(_sessions)
    return [
        s
        for s in known
        if any(wanted.get(key) is ref() is not None for key, ref in s.parameters.items())
        or (s.module is not None and s.module() in inside)
    ]
