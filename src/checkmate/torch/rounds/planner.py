"""How the plans of a group of graphs are made: what they can have of the budget, and what they cost.

Which plan a round runs under, and when a new one is needed, is `group`'s to say.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx

from ...errors import InfeasibleBudget
from ...graph import Graph
from ...planning import Allowance, Margins, OpCost, note_excess
from ...planning.parts import Event
from ...planning.roofline import Rates
from ...planning.stretches import Again
from ...solvers.smallest_budget import proven_minimum
from ...units import format_bytes, parse_bytes
from ..graphs.capture import Captured
from ..graphs.halves import Halves
from ..graphs.part import Part
from ..memory.caching_allocator import by_chance
from ..memory.held import Held, bytes_on
from ..memory.measure import main_device, same_device, storages_of
from ..memory.script_memory import Script
from ..ops.profile import profile_nodes, rates_of
from ..ops.sizes import Bindings, Number
from ..options import Options, read_options
from ..plan import allocated_bytes, automatic_budget, set_up
from ..pytorch.random import preserved_random_state
from .rounds import Order, Run, largest
from .safe_plan import safe_halves
from .step_plan import Pass, StepPlan, certain_graph, make_step_plan, order_of, own_storages, part_graph

#: Bytes for what stands for a run between its passes (`part.Ticket`), and the like.
_TICKET = 64
#: So many safe functions are kept; of more, those go that ran longest ago. They are made again if they are needed.
_KEPT = 64
#: A budget is tried before an error names it, and so many larger ones if need be; any schedule does.
_NAMED, _ANY_GAP = 3, 1e3
#: The first step of several graphs runs before anybody knows which graphs follow, and without one computing what another returned: it may
#: take this part more than the steps after it (`python benchmarks/torch_named_budgets.py --rows gpt/regional` took 4.8% more).
_FIRST_STEP = 16


class Planner:
    """Makes plans under one budget.

    Args:
        given: options as keywords. held: what training holds besides its steps.

    Attributes:
        left: bytes that were left of the rounds before when the last one began. gradients: bytes of those that were there then.
        announced: sizes that passes will have, by their `places`: planned for from the start.
    """

    def __init__(self, given: Mapping[str, Any], held: Held):
        self.given = given
        self.held = held
        self._total = 0
        self._allocated = 0  # bytes that the device's allocator had given out when the last round began
        self.gradients = self.left = 0
        self._live = 0  # bytes, when a graph was called for the first time
        self._device: torch.device | None = None  # of that graph
        self._automatic: dict[torch.device, int] = {}
        self._margins: dict[Order, Margins] = {}
        self.announced: dict[tuple[Part, int], Bindings] = {}
        self._safe: dict[tuple[Part, Bindings], Halves] = {}

    @property
    def options(self) -> Options:
        """Read when the first graph runs, so that a mistake is reported to the caller as it is."""
        return read_options(self.given)

    def look(self, device: torch.device, returned: Sequence[weakref.ref[Any]], given: frozenset[int]) -> None:
        """A round begins: see what training holds.

        Args:
            returned: storages that rounds gave to the script. given: identities of those that this one reads.
        """
        self.gradients = self.held.gradients(device)
        # What the script, or a frame of it that waits for Python's collector, still has of the rounds before.
        alive = {storage._cdata: storage for reference in returned if (storage := reference()) is not None}
        self.left = sum(s.nbytes() for key, s in alive.items() if same_device(s.device, device) and key not in given)
        self._allocated = allocated_bytes(device)

    def first_call(self, arguments: Sequence[Any], kept: Mapping[int, torch.UntypedStorage]) -> None:
        """A graph is called for the first time, and its ops will be profiled: see how much lives beside them.

        Args:
            kept: storages of the round so far, by identity.
        """
        tensors = [x for x in arguments if isinstance(x, torch.Tensor) and x.layout is torch.strided]
        device = self._device = main_device(tensors)
        set_up(device)
        self._live = self.live(device, tensors, kept)

    def live(self, device: torch.device, given: Sequence[Any], kept: Mapping[int, torch.UntypedStorage]) -> int:
        """Bytes that live on a device when a pass begins, as far as is known: what training holds, and the round.

        Args:
            given: what the pass is called with. kept: storages of the round so far, by identity.
        """
        known = {**kept, **storages_of(given, device)}
        return self.held.now(device, known) + bytes_on(known, device)

    def passed(self, plan: StepPlan) -> None:
        """A step passed its budget under this plan: the next one of its order leaves more room."""
        margins, peak = self._margins.setdefault(plan.order, Margins(plan.plan.budget)), plan.plan.measured_peak or 0
        if plan.compiled_peak:
            margins.passed(max(0, plan.plan.margin), plan.compiled_peak, peak)
        else:
            note_excess(margins, plan.plan, peak)

    def make(
        self,
        passes: Sequence[Pass],
        events: Sequence[Event],
        others: Sequence[StepPlan],
        script: Script,
        outside: int = 0,
        old: StepPlan | None = None,
        grown: bool = True,
        twice: Again | None = None,
        alike: Sequence[StepPlan] = (),
        room: int = 0,
    ) -> StepPlan:
        """Plan a round, at the largest sizes seen if that can be had.

        Args:
            others: plans of the same order. script: what it keeps and takes between the passes.
            outside: bytes that training holds besides, at least.
            old: the one among them whose place the new one takes.
            grown: sizes, or what training holds, may be more than before, and with them what a percentage comes to.
            twice: what there is at least when backward passes run once more; None where they do not.
            alike: plans of other orders, which may have the same ops.
            room: bytes that training may hold more than that one day.

        Raises:
            InfeasibleBudget: no schedule was found.
        """
        where = places(one.part for one in passes)
        announced = [self.announced.get(place, one.sizes) for place, one in zip(where, passes, strict=True)]
        sizes = [largest([one.sizes, announced[i], *(other.passes[i].sizes for other in others)]) for i, one in enumerate(passes)]
        at_most = [replace(one, sizes=most) for one, most in zip(passes, sizes, strict=True)]
        if not all(one.part.captured(self.profile).covers(one.sizes, by.sizes) for one, by in zip(passes, at_most, strict=True)):
            at_most = list(passes)
        device = passes[0].part.captured(self.profile).device
        own = own_storages(passes)
        expected = self.held.expected(device)  # first: it finds optimizers, whose state may be held already
        now = self.held.now(device, own) - self.held.gradients(device) + self.gradients  # those of this round are its own
        present = now + self.left
        outside = max(outside, present + expected + script.during) + _TICKET * len(passes)
        ported = [other.plan for other in others if other is not old]
        ported += sorted((other.plan for other in alike), key=lambda plan: plan.schedule.overhead)
        allow = partial(
            self._allowance,
            order=order_of(passes, events),
            device=device,
            outside=outside,
            present=present,
            grown=grown,
            room=room,
        )
        soon = not self.options.wait and self.options.inner == "eager"  # each schedule is compiled
        again = None if twice is None else self.with_gradients(twice, device)
        with preserved_random_state([device]):
            try:
                return make_step_plan(at_most, events, self.options, allow, self.profile, ported, soon, script, again)
            except InfeasibleBudget as error:
                if at_most == list(passes) or announced != [one.sizes for one in passes]:
                    raise self._that_works(error, at_most, events, allow, script, again) from None
                return make_step_plan(passes, events, self.options, allow, self.profile, ported, soon, script, again)

    def with_gradients(self, again: Again, device: torch.device) -> Again:
        """What there is when backward passes run once more, with the gradients that the first one has left."""
        return again.joined(Again(self.held.trained(device)))

    def safe(self, captured: Captured, run: Run) -> Halves:
        """The functions of a part that leave the most room for others, while the rest of its round is unknown.

        Args:
            run: of that part.
        """
        key = run.part, run.sizes
        halves = self._safe.pop(key, None) or self._made_safe(captured, run)
        self._safe[key] = halves  # the last one now
        if len(self._safe) > _KEPT:
            del self._safe[next(iter(self._safe))]
        return halves

    def _made_safe(self, captured: Captured, run: Run) -> Halves:
        kept = run.round.kept()
        outside = self.held.now(captured.device, {*kept, *run.given}) + bytes_on(kept, captured.device, run.given)
        with preserved_random_state([captured.device]):
            part = captured.at(run.sizes)
            return safe_halves(part, self.options, partial(self._safe_allowance, captured=part, outside=outside))

    def _that_works(
        self,
        error: InfeasibleBudget,
        passes: Sequence[Pass],
        events: Sequence[Event],
        allow: Callable[[Graph], Allowance],
        script: Script,
        again: Again | None,
    ) -> InfeasibleBudget:
        """The same error, naming a budget that was tried."""
        proven = self._proven(error, certain_graph(passes, events, self.profile, script), allow)
        if proven < error.proven_minimum:
            error = InfeasibleBudget(error.budget, proven, error.smallest_found)
        options = replace(self.options, gap=_ANY_GAP)
        for _ in range(_NAMED):
            try:
                allow_found = partial(_with_total, allow, error.smallest_found)
                make_step_plan(passes, events, options, allow_found, self.profile, script=script, again=again)
                break
            except InfeasibleBudget as other:
                if other.smallest_found <= error.smallest_found:
                    break
                error = InfeasibleBudget(error.budget, error.proven_minimum, other.smallest_found)
        if len(passes) > 1:
            named = error.smallest_found + error.smallest_found // _FIRST_STEP
            error = InfeasibleBudget(error.budget, error.proven_minimum, named)
        return self._for_microbatches(error, passes[0].part.captured(self.profile).device)

    @staticmethod
    def _proven(error: InfeasibleBudget, certain: Graph, allow: Callable[[Graph], Allowance]) -> int:
        """Bytes below which no schedule exists, whatever was estimated."""
        allowance = allow(certain)
        taken = allowance.taken - allowance.margin
        return min(error.proven_minimum, taken + proven_minimum(certain, error.proven_minimum - taken))

    def _for_microbatches(self, error: InfeasibleBudget, device: torch.device) -> InfeasibleBudget:
        """The same error, naming a budget that also does when the gradients of this batch are still there in the next one.

        Whether the script lets them add up is not known before its second batch.
        """
        more = max(0, self.held.trained(device) - self.gradients)
        if not more:
            return error
        without, named = error.smallest_found, error.smallest_found + more
        message = (
            f"budget {format_bytes(error.budget)} ({error.budget} bytes) cannot be met; no schedule exists below "
            f"{format_bytes(error.proven_minimum)} ({error.proven_minimum} bytes); ask for at least {format_bytes(named)} ({named} "
            f"bytes), or for {format_bytes(without)} ({without} bytes) if no gradients are kept from one batch to the next"
        )
        return InfeasibleBudget(error.budget, error.proven_minimum, named, message)

    def _allowance(
        self, graph: Graph, order: Order, device: torch.device, outside: int, present: int, grown: bool, room: int
    ) -> Allowance:
        """What a round can have of the budget. A percentage is of the largest round seen so far.

        Args:
            outside: bytes that training will hold besides. present: those of them that it holds by now. room: for more.
        """
        reserved = self.options.reserved_bytes(max(0, self._allocated - graph.fixed_memory - present))
        if grown:
            self._total = max(self._total, self._total_for(graph, reserved + outside, device))
        margin = self._margins[order].margin if order in self._margins else 0
        return Allowance(self._total, reserved, margin + by_chance(device), outside + room)

    def _safe_allowance(self, graph: Graph, captured: Captured, outside: int) -> Allowance:
        """The same for a part while the rest of the round is unknown."""
        reserved = self.options.reserved_bytes(max(0, self._allocated - graph.fixed_memory - outside))
        total = self._total or self._total_for(part_graph(captured).graph, reserved + outside, captured.device)
        return Allowance(total, reserved, by_chance(captured.device), outside)

    def _total_for(self, graph: Graph, besides: int, device: torch.device) -> int:
        self.options.check_device(device)
        return self.options.total(graph.no_recompute_peak + besides + by_chance(device), lambda: self.automatic(device))

    def automatic(self, device: torch.device) -> int:
        """The budget "auto" on a device: found out once, for later the model's own memory is no longer available."""
        if device not in self._automatic:
            self._automatic[device] = automatic_budget(device)
        return self._automatic[device]

    def profile(self, nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
        """Costs of ops; none is run that needs more than what the budget leaves."""
        return profile_nodes(nodes, self.options.cost_model, number=number, limit=self._limit())

    def rates_of(self, device: torch.device) -> Rates:
        """What a device reaches with float32, found out with what the budget leaves."""
        return rates_of(device, torch.float32, self._limit())

    def _limit(self) -> int | None:
        """Bytes that the budget leaves beside what lives; None if it is a percentage of what is yet to be found."""
        total = None
        if self.options.is_absolute:
            total = parse_bytes(self.options.budget)
        elif not self.options.is_relative and self._device is not None:
            total = self.automatic(self._device)
        return None if total is None else max(1, total - self._live)


def places(parts: Iterable[Part]) -> list[tuple[Part, int]]:
    """Each of the parts that run in a round, and how often it has run in it before: whatever runs besides, that stays."""
    before: Counter[Part] = Counter()
    found = []
    for part in parts:
        found.append((part, before[part]))
        before[part] += 1
    return found


def _with_total(allow: Callable[[Graph], Allowance], total: int, graph: Graph) -> Allowance:
    return replace(allow(graph), total=total)
