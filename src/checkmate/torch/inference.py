"""A graph without a backward pass: values die after their last use; a schedule is needed only where that is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import InfeasibleBudget
from ..planning import FREE, Allowance, make_plan
from .graphs.capture import Captured, read_joint_graph
from .graphs.emit import Emitted, emit
from .graphs.halves import draws
from .graphs.part import Part
from .inductor.inner import Inductor, compile_alone
from .memory.measure import storages_of
from .ops.outputs import with_writes
from .ops.sizes import Bindings
from .plan import Plan, allocated_bytes
from .pytorch.internals import Boxed, boxed
from .pytorch.random import preserved_random_state
from .rounds.growth import with_room
from .rounds.step_plan import part_graph
from .rounds.watch import evaluation_beyond, warn

if TYPE_CHECKING:
    from .memory.held import Held
    from .rounds.group import Group
    from .rounds.planner import Planner
    from .rounds.rounds import Round


#: So many plans are kept, the last ones that were made.
_KEPT = 64


@dataclass(frozen=True)
class _Planned:
    """A plan, the sizes that it was made for, and its functions; `run` where no compiler makes another one for each size."""

    plan: Plan
    sizes: Bindings
    emitted: Emitted
    run: Boxed | None


class InferenceGraph:
    """Runs a part as it is, or where its budget is in bytes and too small for that, under a plan, which serves smaller sizes, too.

    Attributes:
        quick: the graph without costs.
    """

    def __init__(self, part: Part):
        self.part = part
        self._planned: list[_Planned] = []
        self.quick = read_joint_graph(part.module, part.num_outputs, lambda nodes, number: dict.fromkeys(nodes, FREE))
        self._module = with_writes(part.module, part.num_outputs, functional=part.inductor)
        self._plain = None if part.inductor else boxed(self._module)
        #: By sizes: what runs, and bytes that training may hold besides.
        self._at: dict[Bindings, tuple[Boxed, float]] = {}
        self._takes: dict[Bindings, int] = {}  # bytes besides its inputs, by sizes
        self._growths: dict[Bindings, list[int]] = {}  # bytes that training held when functions were made
        self._costed: Captured | None = None  # the graph with costs, at the largest sizes that they were asked for
        self._seen = 0, 0  # steps and rounds of training
        self._told = False

    @property
    def plans(self) -> list[Plan]:
        """Those that were needed."""
        return [one.plan for one in self._planned]

    def __call__(self, arguments: list[Any], group: Group) -> Sequence[Any]:
        """Run it under the budget of a group."""
        sizes = self.quick.sizes.bind(arguments)
        if self._seen != (seen := (group.held.steps, group.rounds)):  # training may hold more by now
            self._seen = seen
            self._drop_outgrown(arguments, group)
        if sizes not in self._at:
            self._at[sizes] = self._made(sizes, arguments, group)
        run, _ = self._at[sizes]
        return run(arguments)

    def runs_beside(self, round: Round[Any], arguments: Sequence[Any], group: Group, held: Held) -> None:
        """It is about to run while a round waits for its backward passes, as a teacher behind its student. On CUDA counters see it.

        Args:
            held: what the training of the round holds.
        """
        if self.quick.device.type != "cpu":
            return
        sizes = self.quick.sizes.bind(arguments)
        if sizes not in self._takes:
            with preserved_random_state([self.quick.device]):
                graph = part_graph(self._captured(sizes, group.planner)).graph
            self._takes[sizes] = graph.no_recompute_peak - graph.fixed_memory
        known = group.held.storages() | held.storages()
        given = {key: storage for key, storage in storages_of(arguments, self.quick.device).items() if key not in known}
        round.note_beside(self._takes[sizes], given)

    def _drop_outgrown(self, arguments: Sequence[Any], group: Group) -> None:
        if group.options.is_relative:
            return
        device = self.quick.device
        held = group.held.now(device, storages_of(arguments, device))
        self._at = {sizes: made for sizes, made in self._at.items() if held <= made[1]}

    def _made(self, sizes: Bindings, arguments: Sequence[Any], group: Group) -> tuple[Boxed, float]:
        options, quick = group.options, self.quick.at(sizes)
        if options.is_relative:
            return self._as_it_is(sizes), float("inf")
        device = quick.device
        now = group.held.now(device, storages_of(arguments, device))
        held = now + group.held.expected(device, look=not self._at)
        reserved = options.reserved_bytes(max(0, allocated_bytes(device) - quick.resident - now))
        budget = options.total(quick.graph.no_recompute_peak, lambda: group.planner.automatic(device))
        # Twice the peak without workspace leaves room for any workspace that ops are known to take.
        room = budget - reserved - 2 * quick.graph.no_recompute_peak
        if held <= room:
            return self._as_it_is(sizes), room
        known = [one for one in self._planned if held <= one.plan.outside and self.quick.covers(sizes, by=one.sizes)]
        if known:
            best = min(known, key=lambda one: one.plan.schedule.overhead)
            return self._under(best, sizes), best.plan.outside
        allowance = Allowance(budget, reserved, outside=held)
        with preserved_random_state([device]):
            captured = self._captured(sizes, group.planner)
            graph = part_graph(captured).graph

            def planned(more: int) -> Plan:
                return make_plan(
                    graph, options.in_turn(1, draws(captured)), replace(allowance, outside=held + more), Plan, device=device
                )

            try:
                plan = with_room(planned, self._growths.setdefault(sizes, []), held)
            except InfeasibleBudget as error:
                if not group.trained and error.smallest_found - allowance.elsewhere > budget:
                    raise
                if not self._told:  # an evaluation is not to end a training that went well
                    self._told = True
                    warn(evaluation_beyond(budget, graph.no_recompute_peak + allowance.elsewhere))
                return self._as_it_is(sizes), float("inf")
        steps = plan.schedule.steps if captured.fusion is None else captured.fusion.expand(plan.schedule.steps)
        emitted = emit(captured, steps, functional=self.part.inductor)
        made = _Planned(plan, sizes, emitted, None if self.part.inductor else boxed(emitted.forward))
        self._planned = [*self._planned, made][-_KEPT:]
        return self._under(made, sizes), plan.outside

    def _under(self, planned: _Planned, sizes: Bindings) -> Boxed:
        """What runs under a plan at these sizes."""
        numbers = planned.emitted.forward_numbers(sizes)
        run = planned.run or compile_alone(planned.emitted.forward, self.quick.sizes.at(sizes)).load()
        return lambda arguments: run(_taken(arguments, numbers))

    def _captured(self, sizes: Bindings, planner: Planner) -> Captured:
        """The graph with its costs, of larger sizes if those are known: measured at every size, each batch would take seconds."""
        part = self.part
        if self._costed is None:
            inner = Inductor(planner.profile, planner.rates_of) if part.inductor else None
            self._costed = read_joint_graph(part.module, part.num_outputs, planner.profile, inner=inner, names=part.names)
        if not self._costed.covers(sizes, by=self._costed.bindings):
            self._costed = self._costed.at(sizes)
        return self._costed.at(sizes, self._costed)

    def _as_it_is(self, sizes: Bindings) -> Boxed:
        if self._plain is not None:
            return self._plain
        return compile_alone(self._module, self.quick.sizes.at(sizes)).load()


def _taken(arguments: list[Any], numbers: Sequence[Any]) -> list[Any]:
    given = [*arguments, *numbers]
    arguments.clear()
    return given
