"""The graphs that share one budget: which plan each of their rounds runs under, and when a new one is made.

A known order of graphs runs under its plan. While an order is unknown, its graphs run under safe plans, which hold as little as can
be from the forward to the backward pass; when the round has ended, its graphs are joined and planned in one piece. How a plan is made
is `planner`'s to say.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...errors import CheckmateError, Contradiction, InfeasibleBudget
from ...planning.parts import Event
from ...planning.stretches import Again
from ..coverage import more_to_come
from ..graphs.capture import Captured
from ..graphs.forward_again import Called, bytes_of, can_run_again
from ..graphs.halves import Halves
from ..graphs.part import Part, Ticket, without_history
from ..memory.held import Held
from ..options import Options
from ..plan import Plan
from ..pytorch.gradient_batches import keeps_graph
from ..pytorch.internals import sharded_groups
from .growth import with_room
from .orders import Endings, Orders
from .outside_plans import OutsidePlans
from .planner import Planner
from .rounds import Order, Round, Run
from .scripts import Scripts
from .step_plan import Pass, StepPlan, order_of, own_storages, passes_of
from .told import Told
from .watch import Watch, WithoutPlan, held_beside, no_room, no_room_held, order_unknown, report_excess, script_unknown

#: So many plans are kept; of more, those go that ran longest ago. They are made again if they are needed.
_KEPT = 64
#: Rounds without a plan are measured so often: it takes time.
_MEASURED = 32


class Group:
    """Graphs that share one budget.

    Attributes:
        options: of all of them.
        plans: every plan that is in use, in the order in which they were made.
        held: what training holds besides its steps. planner: makes the plans.
        parts: the graphs.
        trained: a whole round has run under its plan; from then on training goes on. rounds: that have begun.
        outside: looks at what no plan has a part in.
    """

    def __init__(self, given: Mapping[str, Any]):
        self.given = dict(given)
        self.plans: list[StepPlan] = []
        self.held = Held()
        self.planner = Planner(self.given, self.held)
        self.parts: list[Part] = []
        self.trained = False
        self.rounds = 0
        self._tell = Told(self.given, self.held).tell
        self._lock = threading.RLock()
        self._open: dict[int, Round[StepPlan]] = {}  # by thread
        self._growths: dict[Order, list[int]] = {}  # bytes that training held when an order was planned for that
        self._settled: set[Order] = set()  # no plan takes less
        self._orders, self._endings = Orders(), Endings()
        self._impossible: InfeasibleBudget | None = None
        self._returned: list[weakref.ref[Any]] = []  # storages that rounds gave to the script
        self._hopeless: set[Order] = set()  # no plan was found
        self._scripts = Scripts(self.held)
        self._twice: dict[Order, Again] = {}  # backward passes ran more than once; what there was besides
        self._unlent: set[Order] = set()  # what parts returned is not computed again
        self._unplanned = 0  # rounds without a plan that were measured
        self.outside = OutsidePlans(self.held, self._last_plan, self._tell, self._scripts.between)

    @property
    def options(self) -> Options:
        """Of the user."""
        return self.planner.options

    def absorb(self, other: Group) -> None:
        """Take over the graphs of a group whose rounds turned out to be parts of those of this one."""
        self.parts += other.parts
        self.plans += other.plans
        self.trained |= other.trained
        self.held.absorb(other.held)
        self.planner.announced |= other.planner.announced

    def waiting(self) -> Round[StepPlan] | None:
        """The round that this thread began, if a backward pass of it may still come."""
        round = self._open.get(threading.get_ident())
        return round if round is not None and round.waiting else None

    # --- passes ---

    def forward(self, part: Part, arguments: list[Any]) -> tuple[list[Any], Ticket]:
        """Run a forward pass under the plan of the round that it belongs to.

        Raises:
            InfeasibleBudget: the first plan of a round cannot be made.
        """
        with self._lock:
            round = self._round()
            if not part.called:
                self.planner.first_call(arguments, round.kept())
        captured = part.captured(self.planner.profile)
        sizes = captured.sizes.bind(arguments)
        try:
            with self._lock:
                run = round.begin(part, sizes)
                inputs = part.inputs_of(arguments)
                round.note_inputs(run, inputs)
                round.note_stream(run, captured.device)
                if run.number:  # the first of a round can have been called with nothing that another has returned
                    lendable = [len(entry.nodes) == 1 and not entry.overwritten for entry in captured.inputs]
                    round.note_borrowed(run, inputs, lendable)
                if not part.called:
                    self.held.watch(inputs)
                    part.called = True
                run.halves = self._halves(round, run, captured).at(sizes)
                if self._may_be_let_go(round, captured):
                    run.called = Called(captured, arguments)
                run.settle(None if round.plan is None else round.plan.passes[run.number].leaves)
            given = [*arguments, *run.halves.forward_numbers(sizes)]
            results = self._run(round, run.event, run.halves.forward, given, arguments)
        except BaseException:  # no backward pass follows that the round could wait for
            with self._lock:
                self._open.pop(threading.get_ident(), None)
                if round.script is not None:
                    round.script.leave()
            raise
        count = part.num_outputs
        outputs = list(results[:count])
        round.note_outputs(run, outputs, captured.handed_out)
        return outputs, run.leave(without_history(results[count:], outputs))

    def backward(self, ticket: Ticket, tangents: list[Any]) -> Sequence[Any]:
        """Run a backward pass; when it is the last of its round, see what the round has shown."""
        run: Run = ticket.run
        round, halves = run.round, run.halves
        assert halves is not None
        # A second backward pass over what was kept for it (retain_graph) belongs to no round.
        again, run.done, run.called = run.done, True, None
        round.twice |= keeps_graph()
        saved = ticket.take()
        event = 0
        with self._lock:
            if not again:
                if round.ended:
                    self._endings.note_late(round)
                if round.plan is None:
                    round.note_intact()
                event = round.begin_backward(run)
            if round.plan is not None and not round.plan.follows(round):
                round.plan = None
        function, given = halves.for_backward(run.sizes, saved, tangents)
        saved.clear()
        if again:
            tangents.clear()
            return self._run_again(round, function, given)
        results: Sequence[Any] = self._run(round, event, function, given, tangents)
        is_over = self._endings.is_over(round, run, None if round.plan is None else round.plan.order)
        if is_over and (round.script is None or not round.script.put_off(partial(self._end, round))):
            self._end(round)
        return results

    def _run(
        self, round: Round[StepPlan], event: int, function: Callable[[list[Any]], Any], given: list[Any], source: list[Any]
    ) -> Any:
        """Run a pass on `given`, which it empties; the list that it came from must hold nothing either."""
        source.clear()
        watch, where = self._watch(round, event, given)
        if watch is not None and round.script is not None and round.script.recording:
            return round.script.run(event, function, given, partial(watch.saw, where))
        call = function if watch is None else partial(watch.run, where, function)
        return call(given) if round.script is None else round.script.run(event, call, given)

    def _run_again(self, round: Round[StepPlan], function: Callable[[list[Any]], Any], given: list[Any]) -> Any:
        script = round.script
        self._scripts.count_again(round)
        if script is None or not round.ended or not script.recording:
            return function(given)
        made = self.held.gradients(torch.device("cpu")) - self.planner.gradients  # elsewhere there are no records
        script.put_off(partial(self._ran_again, round, max(0, made), keeps_graph()))
        return script.run(len(round.events), function, given)

    def _watch(self, round: Round[StepPlan], event: int, given: list[Any]) -> tuple[Watch | WithoutPlan | None, int]:
        """What measures a pass, if anything does, and what it is to be told of where the pass runs."""
        if round.plan is not None:
            return round.plan.watch, event
        if round.without_plan is None:
            if self._unplanned == _MEASURED and round.planned_for is None:
                return None, event
            self._unplanned += 1
            round.without_plan = WithoutPlan(round.runs[0].part.captured(self.planner.profile).device)
        return round.without_plan, self.planner.live(round.without_plan.device, given, round.kept()) + self.planner.left

    # --- rounds ---

    def _round(self) -> Round[StepPlan]:
        """The round of this thread that is under way; a new one if none is."""
        thread = threading.get_ident()
        round = self._open.get(thread)
        if round is not None and not round.waiting:
            self._end(round)
            round = None
        if round is None:
            round = self._open[thread] = Round[StepPlan]()
        return round

    def _end(self, round: Round[StepPlan]) -> None:
        """All passes of a round have run: plan it if its order is new, see to its plan if not."""
        with self._lock:
            self._see_to(round)

    def _see_to(self, round: Round[StepPlan]) -> None:
        if round.script is not None:
            round.script.leave(lambda: round.twice and round.left)
        for thread in [thread for thread, other in self._open.items() if other is round]:
            del self._open[thread]
        self._returned = [reference for reference in self._returned if reference() is not None] + round.returned()
        if round.ended or not any(event.backward for event in round.events):
            return  # nothing was trained
        round.ended = True
        order = round.order
        self._orders.note(order, round.planned_for not in (None, order) and self._may_have_passed(round))
        before, recorded, script = self._scripts.of(order), self._scripts.note(round), self._scripts.of(order)
        if round.twice:
            self._twice.setdefault(order, Again())
        plan = round.plan
        if plan is None or plan.order != order:
            self._learn(passes_of(round), round.events)
            other, peak = self._without_plan(round)
            if other is not None and peak > other.budget:
                self._tell("unplanned", order_unknown(other, peak))
            return
        self.trained = True
        unforeseen = round.twice and plan.again is None and order not in self._settled
        if round.held_by_script and order not in self._unlent:
            self._unlent.add(order)
            message = (
                "the script holds what one compiled graph hands to the next until the backward pass, so that the step may have taken "
                "more than was planned: the next step is planned without computing it again; where memory is short, let go of it "
                "before backward()"
            )
            self._tell("held", message)
            plan.outdated = True
        elif plan.watch.end():
            report_excess(plan.watch)
            if not unforeseen:
                self.planner.passed(plan)
            plan.outdated = True
        elif unforeseen:
            plan.outdated = True
        elif (recorded or script != before) and not plan.accepts(passes := passes_of(round), self.planner.profile, script):
            # A loss outside the graphs, say, takes more than was estimated. Where there was no plan for these sizes, there is none for more.
            plan.outdated = order not in self._settled or [one.sizes for one in passes] != [one.sizes for one in plan.wanted]
            plan.wanted = passes
            taken = plan.taken(passes, self.planner.profile, script)
            if taken is not None and not self.options.is_relative:  # a percentage comes to more once the loss is known
                taken -= self.held.expected(plan.plan.device, look=False)  # planned for, and not there yet
                if taken > plan.plan.budget >= taken - round.held:
                    self._tell("held beside", held_beside(plan.plan, taken, round.held))
                elif taken > plan.plan.budget:
                    self._tell("beside", script_unknown(plan.plan, taken))

    def _ran_again(self, round: Round[StepPlan], gradients: int, kept: bool) -> None:
        """A backward pass has run once more, over what a round has left: see what there was besides.

        Args:
            gradients: bytes of those that the round had left. kept: it still keeps what it reads.
        """
        with self._lock:
            order, plan, held = round.order, round.plan, self._scripts.note_again(round)
            known = self._twice.setdefault(order, Again())
            self._twice[order] = again = known.joined(Again(held + gradients, (held + gradients) * kept))
            if again == known or plan is None or plan.order != order or order in self._settled or plan.has_room_again(again):
                return
            plan.outdated = True
            if held and not self.options.is_relative:
                self._tell("held beside", held_beside(plan.plan, plan.taken_again(again), held))

    def _learn(self, passes: Sequence[Pass], events: Sequence[Event]) -> None:
        """Plan a round whose order is new, for the next one like it, if that will be foreseen."""
        if not (self._orders.certain and self._orders.may_come_again):
            return
        if order_of(passes, events) in self._hopeless or self._fitting(passes, events) is not None:
            return
        try:
            self._make(passes, events)
        except InfeasibleBudget as error:
            if self.trained:
                self._hopeless.add(order_of(passes, events))
                self._tell("order", f"graphs ran in an order that was not seen before, and cannot be planned: {error}")
            else:
                self._impossible = copy(error)  # without the frames that it went through, and their tensors
                raise

    def _without_plan(self, round: Round[StepPlan]) -> tuple[Plan | None, int]:
        """A plan, for its budget, and bytes that the round took at most while it had none; None where that is not known."""
        if round.without_plan is None or not self.plans:
            return None, 0
        plan, peak = self.plans[-1].plan, round.without_plan.peak
        if plan.device.type == "cpu":  # where no counters see what else there is
            peak += plan.allowance.reserved + (round.script.seen.during if round.script is not None else 0)
        return plan, peak

    def _may_have_passed(self, round: Round[StepPlan]) -> bool:
        """The round took more than the budget while it had no plan, for all that is known."""
        plan, peak = self._without_plan(round)
        measured = round.without_plan is not None and round.without_plan.complete
        return not measured or plan is None or peak > plan.budget

    # --- which plan ---

    def _halves(self, round: Round[StepPlan], run: Run, captured: Captured) -> Halves:
        if len(round.runs) == 1:
            self.rounds += 1
            self.planner.look(captured.device, self._returned, run.given)
            round.plan = self._plan_for(round, run, captured.device)
            if round.plan is not None:
                round.plan.last_used = self.rounds
                round.plan.plan.executions += 1
                round.plan.watch.begins(run.sizes)
                round.planned_for = round.plan.order
            self._scripts.begin(round, captured, self.planner.gradients, self._returned)
        elif round.plan is not None and not round.plan.follows(round):
            round.plan = None
            self._let_go(round.runs[0])
        if round.plan is not None:
            return round.plan.halves_of(run)
        if self._impossible is not None and not self.trained:
            raise copy(self._impossible)
        return self.planner.safe(captured, run)

    def _may_be_let_go(self, round: Round[StepPlan], captured: Captured) -> bool:
        """The first graph of a step is planned as if it were all, and nothing has shown yet that it is."""
        plan = round.plan
        if self.trained or plan is None or not len(round.runs) == len(plan.passes) == 1:
            return False
        # Under `fully_shard`, what it was called with is not there any more when its backward pass begins.
        has_room = plan.covers(plan.plan.outside + bytes_of(captured))
        return has_room and next(sharded_groups(), None) is None and can_run_again(captured)

    def _let_go(self, run: Run) -> None:
        """What the first run of a round has saved, as if it were all, would leave others no room: it is computed again."""
        called = run.let_go()
        if called is not None:
            run.halves = called.halves(self.planner.safe(run.part.captured(self.planner.profile), run).at(run.sizes))

    def _plan_for(self, round: Round[StepPlan], run: Run, device: torch.device) -> StepPlan | None:
        """The plan for a round that begins with this run; None if nothing is known of what follows."""
        candidates = [plan for plan in self.plans if plan.follows(round)]
        if not candidates:
            return self._first_plan(round, run)
        if not self._orders.certain:
            return None
        # Where less follows than is planned for, less was kept than could have been.
        longest = max((plan.order for plan in reversed(candidates)), key=len)
        order = next((plan.order for plan in candidates if plan.order == self._orders.expected), longest)
        candidates = [plan for plan in candidates if plan.order == order]
        outside = self.held.now(device, own_storages(candidates[0].passes)) + self.planner.left + self._scripts.of(order).during
        covering = [plan for plan in candidates if plan.covers(outside)]
        best = min(covering, key=lambda plan: plan.plan.schedule.overhead, default=candidates[-1])
        if best.outdated or not covering:
            return self._renewed(best, outside)
        return self._better(best, outside)

    def _better(self, plan: StepPlan, outside: int) -> StepPlan:
        """The plan itself, or the better one that was searched for while steps ran under it.

        Raises:
            Contradiction: that is what the search ended with.
        """
        try:
            found = plan.better()
        except Contradiction:
            raise
        except CheckmateError as error:
            self._tell("search", f"training goes on under the schedule that was found at once: {error}")
            return plan
        if found is None:
            return plan
        if not found.accepts(found.passes, self.planner.profile, self._scripts.of(plan.order)):
            plan.outdated = True  # the search began before it was known what the script takes
            return self._renewed(plan, outside)
        if not found.covers(outside):
            self.plans.append(found)
            return plan
        self.plans[self.plans.index(plan)] = found
        return found

    def _first_plan(self, round: Round[StepPlan], run: Run) -> StepPlan | None:
        """A plan for a round of this run alone, if there is reason to believe that it is all: no other graph has yet to show up."""
        passes, events = passes_of(round), [Event(0, backward=False), Event(0, backward=True)]
        orders = {plan.order for plan in self.plans if plan.order[0][0] is run.part}
        unknown = (
            run.part.more_follows
            or more_to_come()
            or any(part.trains and not part.called for part in self.parts if part is not run.part)
        )
        if orders - {order_of(passes, events)} or (not orders and unknown):
            return None
        try:
            return self._fitting(passes, events) or self._make(passes, events)
        except InfeasibleBudget:
            # If others follow, it is not for this graph alone to say what would do: when the round has ended, all are known.
            if orders or self._is_whole(passes):
                raise
            return None

    def _is_whole(self, passes: Sequence[Pass]) -> bool:
        """The graphs read every parameter that the models, and the optimizers of these parameters, have to train."""
        trained = self.held.to_train()
        return bool(trained) and trained <= own_storages(passes)

    def _fitting(self, passes: Sequence[Pass], events: Sequence[Event]) -> StepPlan | None:
        """A plan of this order that keeps to the budget at these sizes too; it takes them in."""
        order, profile = order_of(passes, events), self.planner.profile
        script = self._scripts.of(order)
        return next((plan for plan in self.plans if plan.order == order and plan.accepts(passes, profile, script)), None)

    def _renewed(self, plan: StepPlan, outside: int) -> StepPlan:
        """A plan in place of one that took too much, or next to one made when training held less; if there is none, the old one."""
        if not plan.outdated and plan.order in self._settled:
            return plan
        try:
            if plan.outdated:
                return self._make(plan.wanted, plan.events, outside, plan, grown=False)
            return with_room(
                lambda room: self._make(plan.wanted, plan.events, outside, room=room),
                self._growths.setdefault(plan.order, []),
                outside,
            )
        except InfeasibleBudget as error:
            device, twice = plan.plan.device, self._twice.get(plan.order)
            grown = max(0, outside + self.held.expected(device, look=False) - plan.plan.outside)
            with_script = plan.taken(plan.wanted, self.planner.profile, self._scripts.of(plan.order)) or 0
            again = 0 if twice is None else grown + plan.taken_again(self.planner.with_gradients(twice, device))
            peak = max(plan.plan.measured_peak or 0, plan.plan.modelled_peak + grown, with_script, again)
            fits = peak <= plan.plan.budget  # but for what the script holds, see `_unlent`
            self._tell("no room", no_room_held(plan.plan, error.smallest_found) if fits else no_room(plan.plan, peak))
            plan.outdated = False
            plan.watch.stop()
            self._settled.add(plan.order)
            return plan

    def _make(
        self,
        passes: Sequence[Pass],
        events: Sequence[Event],
        outside: int = 0,
        old: StepPlan | None = None,
        grown: bool = True,
        room: int = 0,
    ) -> StepPlan:
        """Plan a round; see `Planner.make`. The plan takes the place of the old one, or one of its own."""
        order = order_of(passes, events)
        if order in self._unlent or order in self._twice or next(sharded_groups(), None) is not None:
            # Under `fully_shard`, the parameters of other parts are not there, or just about to be, while one runs.
            passes = [replace(one, borrowed={}) for one in passes]
        others = [plan for plan in self.plans if plan.order == order]
        # Where PyTorch makes a graph for each size, another one may have the same ops.
        alike = [plan for plan in self.plans if plan.order != order and len(plan.order) == len(order)]
        made = self.planner.make(
            passes, events, others, self._scripts.of(order), outside, old, grown, self._twice.get(order), alike, room
        )
        made.last_used = self.rounds
        if old in self.plans:
            self.plans[self.plans.index(old)] = made
        else:
            self.plans[:] = [plan for plan in self.plans if not made.replaces(plan)] + [made]
        if len(self.plans) > _KEPT:
            self.plans.remove(oldest := min(self.plans, key=lambda plan: plan.last_used))
            oldest.search_no_more()
        self._impossible = None
        self.outside.begins_anew()
        return made

    def _last_plan(self) -> Plan | None:
        return self.plans[-1].plan if self.plans else None
