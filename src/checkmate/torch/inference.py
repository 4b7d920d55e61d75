"""A graph without a backward pass: values die after their last use; a schedule is needed only where that is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..planning import FREE, Allowance, make_plan
from .capture import read_joint_graph
from .emit import emit
from .inductor.inner import Inductor, compile_alone
from .internals import Boxed, boxed
from .outputs import with_writes
from .part import Part
from .plan import Plan, allocated_bytes
from .random import preserved_random_state
from .sizes import Bindings
from .step_plan import part_graph

if TYPE_CHECKING:
    from .group import Group


class InferenceGraph:
    """Runs a part as it is, or where its budget is in bytes and too small for that, under a plan.

    Attributes:
        plans: that were needed. quick: the graph without costs.
    """

    def __init__(self, part: Part, group: Group):
        self.part = part
        self.group = group
        self.plans: list[Plan] = []
        self.quick = read_joint_graph(part.module, part.num_outputs, lambda nodes, number: dict.fromkeys(nodes, FREE))
        self._module = with_writes(part.module, part.num_outputs, functional=part.inductor)
        self._plain = None if part.inductor else boxed(self._module)
        self._at: dict[Bindings, Boxed] = {}

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        sizes = self.quick.sizes.bind(arguments)
        if sizes not in self._at:
            self._at[sizes] = self._made(sizes)
        return self._at[sizes](arguments)

    def _made(self, sizes: Bindings) -> Boxed:
        options, quick = self.group.options, self.quick.at(sizes)
        if options.is_relative:
            return self._as_it_is(sizes)
        device = quick.device
        reserved = options.reserved_bytes(max(0, allocated_bytes(device) - quick.resident))
        budget = options.total(quick.graph.no_recompute_peak, lambda: self.group.planner.automatic(device))
        # Twice the peak without workspace leaves room for any workspace that ops are known to take.
        if 2 * quick.graph.no_recompute_peak <= budget - reserved:
            return self._as_it_is(sizes)
        with preserved_random_state([device]):
            profile = self.group.planner.profile
            inner = Inductor(profile, self.group.planner.rates_of) if self.part.inductor else None
            part = self.part
            captured = read_joint_graph(part.module, part.num_outputs, profile, inner=inner, names=part.names).at(sizes)
            plan = make_plan(part_graph(captured).graph, options, Allowance(budget, reserved), Plan, device=device)
        self.plans.append(plan)
        steps = plan.schedule.steps if captured.fusion is None else captured.fusion.expand(plan.schedule.steps)
        emitted = emit(captured, steps, functional=self.part.inductor)
        module, numbers = emitted.forward, emitted.forward_numbers(sizes)
        run = boxed(module) if inner is None else compile_alone(module, captured.sizes.at(sizes)).load()
        return lambda arguments: run(_taken(arguments, numbers))

    def _as_it_is(self, sizes: Bindings) -> Boxed:
        if self._plain is not None:
            return self._plain
        return compile_alone(self._module, self.quick.sizes.at(sizes)).load()


def _taken(arguments: list[Any], numbers: Sequence[Any]) -> list[Any]:
    given = [*arguments, *numbers]
    arguments.clear()
    return given
