"""The backend for `torch.compile`: plans every graph at its first call and runs it under the plan.

Work is put off until the first call with real inputs. So each set of input shapes gets a plan of its own even where
PyTorch would hand over one graph with symbolic sizes, and errors (a budget that cannot be met) reach the caller as they
are, not wrapped by the compiler.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..errors import InfeasibleBudget
from ..planning import FREE, Allowance, Margins, OpCost, Options, make_plan, note_excess
from ..schedule import Compute
from .capture import Captured, read_joint_graph
from .coverage import check_inputs
from .emit import emit
from .internals import Boxed, boxed, compiling, mark_boxed, trace_and_compile
from .plan import Plan, automatic_budget, reserved_bytes
from .profile import profile_nodes
from .random import preserved_random_state
from .sharing import Holdings, storages
from .sizes import Number
from .watch import FirstStep, report_excess, warn_shared, warn_twice

#: How `plans` finds the graphs of a model compiled by `torch.compile`.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_sessions_lock = threading.Lock()


class _OfThread(threading.local):
    """What the graphs hold that this thread compiles by name.

    PyTorch hands over one graph at a time and does not say which model it belongs to: they count as parts of one.
    """

    def __init__(self) -> None:
        self.holdings = Holdings()


_of_thread = _OfThread()


class Session:
    """What one call of `compile` made.

    Attributes:
        options: of all its graphs.
        plans: in the order in which they were made; a plan that replaces another takes its place.
        executions: how often any of its graphs ran, training or not.
        steps: its graphs, in the order in which they were compiled.
        module: the model, if it is known.
        holdings: what its graphs hold at the same time.
    """

    def __init__(self, options: Mapping[str, Any], holdings: Holdings | None = None):
        self.given = dict(options)
        self.holdings = holdings or Holdings()
        self.plans: list[Plan] = []
        self.executions = 0
        self.warned: set[str] = set()
        self.parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self.steps: list[_Step] = []
        self.module: weakref.ref[torch.nn.Module] | None = None
        self._automatic: dict[torch.device, int] = {}
        with _sessions_lock:
            _sessions.add(self)

    def automatic(self, device: torch.device) -> int:
        """The budget "auto" on a device: found out once, for later the model's own memory is no longer available."""
        if device not in self._automatic:
            self._automatic[device] = automatic_budget(device)
        return self._automatic[device]

    @property
    def options(self) -> Options:
        """Read when the first graph runs, so that a mistake is reported to the caller as it is."""
        return Options.read(self.given)


def checkmate(
    module: fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None, **rest: Any
) -> Any:
    """Entry point for `torch.compile(model, backend="checkmate", options={"budget": "4GiB"})`; see `Options`."""
    return backend(Session({**(options or {}), **rest}, _of_thread.holdings), module, example_inputs)


def backend(session: Session, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Compile one graph of a session."""
    return torch.compiler.disable(_Graph(session, module, example_inputs).call)


def _bytes_across(captured: Captured, plan: Plan) -> int:
    """Bytes of the step that are live when its backward pass begins."""
    live, crossed = plan.schedule.graph.fixed_memory, False
    for step, memory in zip(plan.schedule.steps, plan.schedule.trace.memory, strict=True):
        if isinstance(step, Compute):
            if crossed:
                break
            crossed = step.op == captured.between
        live = memory
    return live - plan.allowance.taken


class _Graph:
    """A graph from the compiler, specialised to the shapes it is called with."""

    def __init__(self, session: Session, module: fx.GraphModule, example_inputs: Sequence[Any]):
        self.session = session
        self.module = module
        self.symbolic = any(
            isinstance(x, (torch.SymInt, torch.SymFloat)) or (isinstance(x, torch.Tensor) and _has_symbols(x))
            for x in example_inputs
        )
        self.numbers = _numbers(module)
        self.steps: dict[Any, _Step] = {}

    def call(self, *inputs: Any) -> Any:
        numbers = tuple(float(inputs[position]) for position in self.numbers)
        key = (numbers, _shapes(inputs) if self.symbolic else None)
        step = self.steps.get(key)
        if step is None:
            with compiling():
                step = self.steps.get(key)
                if step is None:
                    module = _with_numbers(self.module, self.numbers, numbers) if numbers else self.module
                    step = self.steps[key] = _Step(self.session, module)
        return step.call(inputs)


def _numbers(module: fx.GraphModule) -> list[int]:
    """Positions of inputs that are Python numbers in disguise: the compiler passes a float that changes as a tensor."""
    return [position for position, node in enumerate(module.graph.find_nodes(op="placeholder")) if any(map(_is_item, node.users))]


def _is_item(node: fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _with_numbers(module: fx.GraphModule, positions: Sequence[int], numbers: Sequence[float]) -> fx.GraphModule:
    """The graph with these inputs read as constants."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    placeholders = graph.find_nodes(op="placeholder")
    for position, number in zip(positions, numbers, strict=True):
        for user in filter(_is_item, list(placeholders[position].users)):
            user.replace_all_uses_with(number)
            graph.erase_node(user)
    return fx.GraphModule(module, graph)


def _has_symbols(tensor: torch.Tensor) -> bool:
    sizes: list[Any] = [*tensor.shape, *tensor.stride()]
    return any(isinstance(n, torch.SymInt) for n in sizes)


def _shapes(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((tuple(x.shape), x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)


class _Step:
    """One graph at one set of shapes: its plan, and the functions that run it."""

    def __init__(self, session: Session, module: fx.GraphModule):
        self.session = session
        self.module = module
        self.function: Any = None
        self.plan: Plan | None = None
        self.margins: Margins | None = None  # once the budget is known in bytes
        self.first: FirstStep | None = None
        self.outside = 0
        self.shared_inputs = 0
        self.asked = self.stale = False
        self.between: int | None = None
        session.steps.append(self)

    def call(self, inputs: Sequence[Any]) -> Any:
        function = self.function
        if function is None or self.stale:
            with compiling():  # another thread that runs this model may have made the plan meanwhile
                function = self.function
                if function is None or self.stale:
                    self.stale = False
                    check_inputs(inputs, self.session.warned)
                    self._look_outside(inputs)
                    function = self.function = self._compile(inputs)
        self.session.executions += 1
        return function(*inputs)

    def _look_outside(self, inputs: Sequence[Any]) -> None:
        """What the rest of the model and earlier graphs hold while this one runs."""
        module = self.session.module() if self.session.module is not None else None
        tensors = [*module.parameters(), *module.buffers()] if module is not None else []
        devices = [x.device for x in inputs if isinstance(x, torch.Tensor)]
        device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        near = self.session.holdings.outside(tensors, self.plan, device)
        own = storages(inputs)
        self.outside = sum(size for key, size in near.items() if key not in own)
        self.shared_inputs = sum(size for key, size in near.items() if key in own)

    def _compile(self, inputs: Sequence[Any]) -> Any:
        for tensor in inputs:
            if isinstance(tensor, torch.nn.Parameter):
                self.session.parameters[id(tensor)] = weakref.ref(tensor)
        sizes = [int(x) if isinstance(x, torch.SymInt) else x for x in inputs]
        devices = list({x.device for x in inputs if isinstance(x, torch.Tensor)})
        with preserved_random_state(devices):
            return trace_and_compile(self.module, sizes, self._partition, self._forward, self._backward, self._inference)

    # --- called back by AOT autograd ---

    def _partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        captured = read_joint_graph(joint, num_fwd_outputs, self._profile, between_workspace=self.between)
        plan = self._make_plan(captured)
        emitted = emit(captured, plan.schedule.steps)
        assert emitted.backward is not None
        across = _bytes_across(captured, plan)
        self.first = FirstStep(plan, captured.resident, across)
        return emitted.forward, emitted.backward

    def _profile(self, nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
        return profile_nodes(nodes, cost_model=self.session.options.cost_model)

    def _make_plan(self, captured: Captured) -> Plan:
        options = self.session.options
        allowance = self._allowance(captured)
        try:
            plan = make_plan(captured.graph, options, allowance, Plan, device=captured.device)
        except InfeasibleBudget as error:
            if not self._ask_for_room(captured, error):
                raise
            allowance = replace(allowance, total=error.smallest_found)
            plan = make_plan(captured.graph, options, allowance, Plan, device=captured.device)
            self.stale = True
            warn_shared(error.budget, plan.predicted_peak)
        if self.plan in self.session.plans:
            self.session.plans[self.session.plans.index(self.plan)] = plan
        else:
            self.session.plans.append(plan)
        self.plan = plan
        return plan

    def _allowance(self, captured: Captured) -> Allowance:
        """What the step can have. The budget in bytes stays that of the first plan."""
        options, device = self.session.options, captured.device
        reserved = reserved_bytes(options, device, captured.resident + self.outside)
        if self.margins is None:
            plain_peak = captured.graph.no_recompute_peak + reserved + self.outside
            self.margins = Margins(options.total(plain_peak, lambda: self.session.automatic(device)))
        return Allowance(self.margins.budget, reserved, self.margins.margin, self.outside)

    def _ask_for_room(self, captured: Captured, error: InfeasibleBudget) -> bool:
        """Have earlier graphs of the model leave this one a share of the budget from the next step on; False if none can."""
        earlier = [s for s in self.session.steps if s is not self and s.plan is not None and self.session.holdings.held(s.plan)]
        needed = error.smallest_found - self.outside
        if self.asked or not earlier or needed > error.budget:
            return False
        self.asked = True
        plain = captured.graph.no_recompute_peak
        holding = [self.session.holdings.held(step.plan) for step in earlier if step.plan is not None]
        room = max(needed, error.budget * plain // (plain + sum(holding))) - self.shared_inputs
        for step in earlier:
            step.between, step.function = max(room, step.between or 0), None
        return True

    def _forward(self, module: fx.GraphModule) -> Boxed:
        run, plan, first = boxed(module), self.plan, self.first
        holdings = self.session.holdings
        assert plan is not None
        assert first is not None

        def forward(arguments: list[Any]) -> Any:
            plan.executions += 1
            held = holdings.held(plan)
            if held and "twice" not in self.session.warned:
                self.session.warned.add("twice")
                warn_twice(plan, held)
            own = storages(arguments)
            results = first.forward(run, arguments)
            holdings.begin(plan, own, results)
            return results

        return mark_boxed(forward)

    def _backward(self, module: fx.GraphModule) -> Boxed:
        run, plan, first = boxed(module), self.plan, self.first
        assert plan is not None
        assert first is not None

        def backward(arguments: list[Any]) -> Any:
            watching = first.watching
            results = first.backward(run, arguments)
            self.session.holdings.end(plan)
            if watching and first.passed and not self.stale:
                report_excess(plan)
                assert self.margins is not None
                note_excess(self.margins, plan, plan.measured_peak or 0)
                self.function = None
            return results

        return mark_boxed(backward)

    def _inference(self, module: fx.GraphModule) -> Boxed:
        """Without a backward pass values die after their last use; a schedule is needed only where that is not enough."""
        options = self.session.options
        (output,) = module.graph.find_nodes(op="output")
        count = len(output.args[0])
        quick = read_joint_graph(module, count, lambda nodes, number: dict.fromkeys(nodes, FREE))
        if not options.is_relative:
            reserved = reserved_bytes(options, quick.device, quick.resident)
            budget = options.total(quick.graph.no_recompute_peak, lambda: self.session.automatic(quick.device)) - reserved
            # Twice the peak without workspace leaves room for any workspace that ops are known to take.
            if 2 * quick.graph.no_recompute_peak > budget:
                captured = read_joint_graph(module, count, self._profile)
                plan = self._make_plan(captured)
                module = emit(captured, plan.schedule.steps).forward
        return boxed(module)


def sessions_of(parameters: Iterable[torch.Tensor]) -> list[Session]:
    """Sessions with a graph that reads one of these parameters."""
    wanted = {id(parameter): parameter for parameter in parameters}
    with _sessions_lock:
        known = list(_sessions)
    return [s for s in known if any(wanted.get(key) is ref() is not None for key, ref in s.parameters.items())]
