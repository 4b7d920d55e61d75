"""A training step in which nothing is computed: its graphs return zeros, so that only their order and their sizes are seen.

PyTorch compiles the model, calls its graphs and runs what is written between them, as in any step; where a graph would run, memory is
taken for what it returns, and for nothing else. So the step can be planned at sizes that it could never run at.

Limit: where Python code looks at numbers (a branch on the loss, experts that are chosen between two graphs), it sees zeros.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from ..errors import CheckmateError
from ..graph import Graph
from ..planning import Allowance
from ..solvers.smallest_budget import least_peak_found
from .backend import Session
from .graphs.capture import Captured
from .graphs.part import Part, Ticket
from .memory.caching_allocator import by_chance
from .memory.script_memory import NOTHING
from .ops.outputs import outputs_of
from .ops.sizes import Concrete, Number, storage_key
from .plan import Plan, allocated_bytes
from .pytorch.random import preserved_random_state
from .rounds.rounds import Round, Run
from .rounds.step_plan import Pass, StepPlan, joined_graph, make_step_plan, own_storages, passes_of

#: A gap for which any schedule will do.
_ANY_GAP = 1e3
#: How exactly the least peak of a step is looked for: relative precision, units of work, and seconds.
_ROUGHLY, _UNITS, _SECONDS = 0.02, 2.0, 20.0


@dataclass(frozen=True)
class DryStep:
    """What one step has shown.

    Attributes:
        round: its graphs in their order. passes: the same at their sizes. device: where the budget applies.
        before: bytes that the device's allocator had given out when it began. outside: bytes that training will hold besides.
        present: those of them that it holds by now.
    """

    round: Round[StepPlan]
    passes: list[Pass]
    device: torch.device
    before: int
    outside: int
    present: int


class DryRun:
    """Runs the graphs of a session without computing anything.

    Args:
        session: it must have run nothing itself where steps are planned here.
    """

    def __init__(self, session: Session):
        self.session = session
        self.group = session.group
        self._round = Round[StepPlan]()
        self._before: int | None = None
        self._looked = False

    def observe(self, run: Callable[[], Any]) -> list[Run]:
        """What `run`, a call of the model or a training step, consists of."""
        self._round, self._before = Round[StepPlan](), None
        self.session.dry = threading.get_ident(), self
        try:
            run()
        finally:
            self.session.dry = None
            self._round.ended = True
        return self._round.runs

    def step(self, run: Callable[[], None], accumulated: int = 0) -> DryStep:
        """What `run`, a training step of the model, consists of.

        Args:
            accumulated: bytes of gradients that are there when the step begins.

        Raises:
            CheckmateError: PyTorch compiled nothing in it that has a gradient.
        """
        self.observe(run)
        if not any(event.backward for event in self._round.events):
            raise CheckmateError("this step gave no training graph: PyTorch compiled nothing in it that has a gradient")
        passes = passes_of(self._round)
        device = passes[0].part.captured(self.group.planner.profile).device
        held, own = self.group.held, own_storages(passes)
        expected = held.expected(device, look=not self._looked)  # first: it finds optimizers
        self._looked = True  # between dry steps nothing is made but inputs
        present = held.now(device, own) - held.gradients(device)
        return DryStep(self._round, passes, device, self._before or 0, present + expected + accumulated, present)

    def need(self, step: DryStep) -> int:
        """About the least bytes that a step can do with."""
        joined, _ = joined_graph(step.passes, step.round.events, self.group.planner.profile, NOTHING)
        best, _ = least_peak_found(joined.graph, tolerance=_ROUGHLY, units=_UNITS, seconds=_SECONDS)
        return best.peak + self._allowance(joined.graph, step, 0, 0).taken

    def budget(self, device: torch.device) -> int:
        """The budget in bytes."""
        self.group.options.check_device(device)
        return self.group.options.total(0, lambda: self.group.planner.automatic(device))

    def plan(
        self, step: DryStep, *, any_cost: bool = True, margin: int = 0, others: Sequence[Plan] = (), time: float = 1.0
    ) -> StepPlan:
        """A schedule of a step within the budget.

        Args:
            any_cost: whatever its cost. margin: bytes to leave free. others: plans at other sizes. time: part of the time limit.

        Raises:
            InfeasibleBudget: none was found.
        """
        options, total = self.group.options, self.budget(step.device)
        options = replace(options, time_limit=time * options.time_limit, gap=_ANY_GAP if any_cost else options.gap)

        def allow(graph: Graph) -> Allowance:
            return self._allowance(graph, step, total, margin)

        with preserved_random_state([step.device]):
            return make_step_plan(step.passes, step.round.events, options, allow, self.group.planner.profile, others)

    def _allowance(self, graph: Graph, step: DryStep, total: int, margin: int) -> Allowance:
        reserved = self.group.options.reserved_bytes(max(0, step.before - graph.fixed_memory - step.present))
        return Allowance(total, reserved, margin + by_chance(step.device), step.outside)

    # --- the runner of its parts ---

    def forward(self, part: Part, arguments: list[Any]) -> tuple[list[Any], Ticket]:
        """Zeros in place of what a forward pass returns."""
        if not part.called:
            self.group.planner.first_call(arguments, self._round.kept())
        with preserved_random_state([x.device for x in arguments if isinstance(x, torch.Tensor)]):
            captured = part.captured(self.group.planner.profile)
        if self._before is None:
            self._before = allocated_bytes(captured.device)
        run = self._round.begin(part, captured.sizes.bind(arguments))
        run.runner = self
        inputs = part.inputs_of(arguments)
        self._round.note_inputs(run, inputs)
        run.settle(None)
        self.group.held.watch(inputs)
        part.called = True
        outputs = _results(captured, part, arguments, captured.sizes.at(run.sizes))
        self._round.note_outputs(run, outputs, captured.handed_out)
        arguments.clear()
        return outputs, run.leave(())

    def backward(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        """Zeros in place of gradients."""
        run: Run = ticket.run
        ticket.take()
        if not run.done:
            run.done = True
            self._round.begin_backward(run)
        tangents.clear()
        captured: Captured = run.part.captured(self.group.planner.profile)
        return _zeros(captured.gradients, {}, captured.sizes.at(run.sizes))

    def inference(self, part: Part, arguments: list[Any]) -> Sequence[Any]:
        """Zeros in place of what a graph without a backward pass returns."""
        quick = self.session.no_gradients[part].quick
        results = _results(quick, part, arguments, quick.sizes.at(quick.sizes.bind(arguments)))
        arguments.clear()
        return results


def _results(captured: Captured, part: Part, arguments: Sequence[Any], number: Number) -> list[Any]:
    """Zeros; but inputs that are returned as they are, and for inputs that would get a new content, the one that they have."""
    given = dict(zip(captured.module.graph.find_nodes(op="placeholder"), arguments, strict=False))
    known = outputs_of(captured.module, part.num_outputs)
    results, overwritten = _zeros(captured.outputs, given, number), iter(known.overwritten)
    for position, update in enumerate(known.is_update[: part.num_outputs]):
        if update and (node := next(overwritten, None)) in given:
            results[position] = given[node].detach()
    return results


def _zeros(nodes: Sequence[Any], given: Mapping[fx.Node, Any], number: Number) -> list[Any]:
    """For each node a tensor like the one that it stands for; one storage where they share one."""
    storages: dict[int, torch.Tensor] = {}
    made: list[Any] = []
    for node in nodes:
        value = node.meta.get("val") if isinstance(node, fx.Node) else node
        if isinstance(node, fx.Node) and node in given:
            made.append(given[node])
        elif not isinstance(value, torch.Tensor):
            made.append(number(value))
        else:
            made.append(_like(value, storages, number))
    return made


def _like(value: torch.Tensor, storages: dict[int, torch.Tensor], number: Number) -> torch.Tensor:
    known = Concrete.of(value, number)
    if value.layout is not torch.strided:
        return torch.zeros(known.shape, dtype=value.dtype, device=value.device, layout=value.layout)
    key = storage_key(value)
    if key not in storages:
        storages[key] = torch.zeros(known.nbytes, dtype=torch.uint8, device=value.device)
    whole = storages[key]
    offset = int(number(value.storage_offset()))
    empty = torch.empty(0, dtype=value.dtype, device=value.device)
    return empty.set_(whole.untyped_storage(), offset, known.shape, known.stride)


@contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Put gradients, buffers and random states of a model back to what they are now; within, there are no gradients at first."""
    parameters = list(module.parameters())
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        with no_trace(module.buffers(), {tensor.device for tensor in parameters}):
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


@contextmanager
def no_trace(buffers: Iterable[torch.Tensor], devices: Collection[torch.device]) -> Iterator[None]:
    """Put buffers and random states back to what they are now, for what is not compiled runs as ever.

    Args:
        devices: whose states these are, beside those of the buffers, of the CPU, of Python and of NumPy.
    """
    copies = [(buffer, buffer.detach().clone()) for buffer in buffers]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with preserved_random_state({*devices, *(buffer.device for buffer, _ in copies)}):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        with torch.no_grad():
            for buffer, copy in copies:
                if not torch.equal(buffer, copy):  # a backward pass that is still to come may have saved it
                    buffer.copy_(copy)
