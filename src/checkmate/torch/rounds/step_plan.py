"""The plan of a round: one graph of all its parts, one schedule, and for each of its passes the functions that run it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import InfeasibleBudget, InvalidSchedule
from ...graph import Graph
from ...planning import Allowance, make_plan, plan_of
from ...planning.background import BackgroundSearch
from ...planning.parts import Event, Link, Pair, PartGraph, PartInput
from ...planning.step_graph import StepGraph, join
from ...planning.stretches import Again, as_run, bytes_before, cut, lends, peak_as_run
from ...schedule import Compute, Schedule, Step, simulate
from ..graphs.capture import Captured, Profiler
from ..graphs.halves import Halves, computations, draws, halves_of
from ..graphs.part import Part
from ..memory.caching_allocator import counted, is_native
from ..memory.script_memory import NOTHING, Script
from ..ops.layers import owners_of, with_own_layers
from ..ops.nodes import Computation
from ..ops.sizes import Bindings
from ..options import Options
from ..plan import Plan
from .rounds import Order, Round, Run, storage_of
from .stages import Handing, Stages
from .watch import Watch

#: A schedule may compute a value again before the part runs that can; as the parts run it, it may take more than it was planned
#: for. So many times it is planned with that much less. Those after the first begin with the schedule before, and share the time of one.
_TRIES = 5
#: What CUDA's allocator reserves may be this part more than is modelled: for five plans on an H100 0.99 to 1.06 of it was modelled.
_UNSURE = 50
#: Where programs as their compiler likes them take too much, others join nothing while less is left free than so many times the excess.
#: That was enough for U-Net, GPT and Llama at the budgets of `benchmarks/torch_peers.py`.
_JOINING = 3
#: A step whose programs join nothing takes this part more time: 2% of the Llama, 4% of the DenseNet of `benchmarks/torch_peers.py`.
_APART = 0.03


@dataclass(frozen=True)
class Pass:
    """One run of a part, as it is planned.

    Attributes:
        part: what runs. sizes: at which sizes. sources, leaves, storages, borrowed: as in `Run`.
    """

    part: Part
    sizes: Bindings
    sources: tuple[Hashable | Link, ...]
    leaves: frozenset[int]
    storages: tuple[weakref.ref[Any], ...]
    borrowed: Mapping[int, int] = field(default_factory=dict)


def own_storages(passes: Sequence[Pass]) -> set[int]:
    """Identities of what the step reads and does not make."""
    return {storage._cdata for one in passes for reference in one.storages if (storage := reference()) is not None}


def passes_of(round: Round[Any]) -> list[Pass]:
    """What has run in a round."""
    runs = round.runs
    borrowed = [run.borrowed if round.intact else {} for run in runs]
    return [Pass(r.part, r.sizes, r.sources, r.leaves, r.storages, b) for r, b in zip(runs, borrowed, strict=True)]


def part_graph(captured: Captured) -> PartGraph:
    """A part, as the joining of graphs sees it."""
    inputs = tuple(PartInput(entry.size, entry.readers, entry.gradient) for entry in captured.inputs)
    outputs, tangents = tuple(captured.returned), tuple(captured.tangents)
    part = PartGraph(captured.graph, captured.between, inputs, outputs, tangents, captured.lendable)
    return part if captured.fusion is None else captured.fusion.part(part)


class StepPlan:
    """A plan that a round can run under.

    Attributes:
        plan: what users see. order, passes, events: what it was made for.
        halves: for each pass of the round. stages: in their place, where passes compute again what other parts have returned.
        watch: measures the first round.
        outdated: it took more than its budget, and is to be made again, for the passes `wanted`. captured: the parts at its sizes.
        last_used: number of the last round that began under it, among those of its group.
        limit: bytes that the round may take, as its parts run it.
        apart_above: the programs of its passes are to take what is planned, and join no computations during which a round takes more
            bytes than that; None: they are as their compiler likes them.
        again: what there is besides when its backward passes run once more; None where they do not.
    """

    def __init__(
        self,
        plan: Plan,
        passes: Sequence[Pass],
        events: Sequence[Event],
        joined: StepGraph,
        captured: Sequence[Captured],
        script: Script,
        limit: int,
        again: Again | None,
        apart_above: int | None,
    ):
        self.plan = plan
        self.limit = limit
        self.again = again
        self.apart_above = apart_above
        self.passes = list(passes)
        self.events = list(events)
        self.order = order_of(passes, events)
        self.outdated, self.wanted = False, self.passes
        self.last_used = 0
        self.captured = list(captured)
        self._joined = joined
        self._search: _Search | None = None
        self._script = script
        self._sizes = {tuple(one.sizes for one in passes)}  # that it was tried at
        self._accepted = 0  # bytes that steps which it was tried for take at most, with what was seen of the script since
        self._known: dict[tuple[int, Bindings], bool] = {}  # sizes of a pass, and whether it is planned for them
        self.halves: list[Halves] = []
        self.stages: Stages | None = None
        run = as_run(joined, plan.schedule.steps, limit)
        if lends(joined, run):
            self.stages = Stages(joined, captured, run, [one.borrowed for one in passes])
        else:
            schedules = cut(joined, plan.schedule.steps, limit)
            apart = [None] * len(schedules) if apart_above is None else _apart(joined, run, apart_above)
            self.halves = [halves_of(*given) for given in zip(captured, schedules, apart, strict=True)]
        self._live = self._before(joined, limit)
        self.watch = Watch(plan, self._live)

    def _before(self, joined: StepGraph, limit: int) -> list[int]:
        """Bytes that are really there when each event begins: of the fixed memory, what a forward pass makes comes with that."""
        plan, parts = self.plan, [joined.parts[pair.part] for pair in joined.pairs]
        before = []
        for number, live in enumerate(bytes_before(joined, plan.schedule.steps, limit)):
            begun = {event.pair for event in self.events[:number]}
            unmade = sum(part.beside_inputs for pair, part in enumerate(parts) if pair not in begun)
            ended = {event.pair for event in self.events[:number] if event.backward}
            more = sum(self.halves[pair].more for pair in begun - ended) if self.halves else 0
            before.append(live - unmade + more + plan.allowance.elsewhere)
        return before

    @property
    def compiled_peak(self) -> int:
        """Bytes that the step takes at its peak, everything included, as far as the programs of its passes say; 0 where there are none."""
        if not self.halves:
            return 0
        added = [self.halves[event.pair].added[event.backward] for event in self.events]
        peaks = [live + more for live, more in zip(self._live, added, strict=True) if more is not None]
        return max(peaks, default=0)

    def follows(self, round: Round[Any]) -> bool:
        """What has run so far in a round agrees with this plan, at sizes that it covers."""
        agreed = round.agreed[1] if round.agreed[0] is self else 0
        new = round.events[agreed:]
        runs = [round.runs[event.pair] for event in new if not event.backward]
        borrows = self.stages is None or all(map(self._borrows, runs))
        if not borrows or self.order[agreed : len(round.events)] != order_of(round.runs, new):
            return False
        if all(self._covers(run.number, run.sizes) for run in runs):
            round.agreed = self, len(round.events)
            return True
        return any(all(run.sizes == known for run, known in zip(round.runs, sizes, strict=False)) for sizes in self._sizes)

    def _covers(self, number: int, sizes: Bindings) -> bool:
        """A pass takes no more at these sizes than at those that it is planned for."""
        key = number, sizes
        if key not in self._known:
            self._known[key] = self.captured[number].covers(sizes, self.passes[number].sizes)
        return self._known[key]

    def _borrows(self, run: Run) -> bool:
        """The run was called with what other runs have returned, where the plan relies on that."""
        if self.stages is None or run.number >= len(self.passes):
            return False
        one = self.passes[run.number]
        wanted = [position for pair, position in self.stages.lent if pair == run.number]
        return run.part is one.part and all(
            run.sources[i] == one.sources[i] and run.borrowed.get(i) == one.borrowed[i] for i in wanted
        )

    def halves_of(self, run: Run) -> Halves:
        """What a run of a round that follows this plan runs."""
        if self.stages is None:
            return self.halves[run.number]
        round = run.round
        if round.handing is None:
            round.handing = Handing(self.stages, round, lambda: round.plan is self)
        halves: Halves = round.handing.halves(run)
        return halves

    def replaces(self, other: StepPlan) -> bool:
        """The other one is of the same order at smaller sizes: what runs under it can run under this plan."""
        if other.order != self.order or all(a.sizes == b.sizes for a, b in zip(other.passes, self.passes, strict=True)):
            return False
        return all(self._covers(number, one.sizes) for number, one in enumerate(other.passes))

    def covers(self, outside: int) -> bool:
        """The step keeps to the budget though training holds so many bytes besides."""
        most = max(self.plan.modelled_peak + self.plan.margin, self._accepted)
        return most + outside - self.plan.outside <= self.plan.budget

    def search_on(self, options: Options) -> None:
        """Begin to search for a better schedule, unless this one is final."""
        if not self.plan.final:
            self._search = _Search(self.plan, self._joined, options.search(), self.limit, self.again)

    def search_no_more(self) -> None:
        """End the search; this schedule stays."""
        self._search, self.plan.final = None, True

    def better(self) -> StepPlan | None:
        """The plan with the schedule that is searched for, once that is there, and better than this one. It never waits.

        Raises:
            CheckmateError: the search failed; this plan stays.
        """
        if self._search is None:
            return None
        try:
            found = self._search.found()
        finally:
            if self._search.over:
                self._search, self.plan.final = None, True
        if found is None:
            return None
        own = self.passes, self.events, self._joined, self.captured, self._script, self.limit, self.again, self.apart_above
        return StepPlan(found, *own)

    def accepts(self, passes: Sequence[Pass], profile: Profiler, script: Script | None = None) -> bool:
        """The schedule keeps to the budget at the sizes of these passes too; they are covered from now on.

        Args:
            script: what is known of it now.
        """
        known = self._script if script is None else script
        taken = self.taken(passes, profile, known)
        if taken is None or taken > self.plan.budget:
            return False
        self._accepted = max(self._accepted, taken - (known.during - self._script.during))
        self._sizes.add(tuple(one.sizes for one in passes))
        return True

    def taken(self, passes: Sequence[Pass], profile: Profiler, script: Script) -> int | None:
        """Bytes that a round of these passes takes under the schedule, with all that training holds; None where it cannot run them."""
        if self.stages is not None and any(one.borrowed != own.borrowed for one, own in zip(passes, self.passes, strict=True)):
            return None
        joined, _ = joined_graph(passes, self.events, profile, script, self.captured)
        try:
            peak = simulate(joined.graph, self.plan.schedule.steps).peak
        except InvalidSchedule:  # PyTorch traced another graph at these sizes
            return None
        return peak + self.plan.allowance.taken + script.during - self._script.during

    def taken_again(self, again: Again) -> int:
        """Bytes that a round takes whose backward passes run once more, with this besides."""
        return peak_as_run(self._joined, self.plan.schedule.steps, again) + self.plan.budget - self.limit

    def has_room_again(self, again: Again) -> bool:
        """The same keeps to the budget; from now on it is relied on."""
        if self.taken_again(again) > self.plan.budget:
            return False
        self.again = again
        if self._search is not None:
            self._search.again = again
        return True


class _Search:
    """The search for a better schedule than that of a plan.

    Attributes:
        over: nothing more will come. again: as in `StepPlan`.
    """

    def __init__(self, plan: Plan, joined: StepGraph, options: dict[str, Any], limit: int, again: Again | None):
        self.over = False
        self._plan, self._joined, self._options = plan, joined, options
        self._limit, self.again = limit, again
        self._allowance, self._tries = plan.allowance, _TRIES
        self._running = self._begin()

    def _begin(self) -> BackgroundSearch:
        start = replace(self._plan.schedule, graph=self._joined.graph, budget=self._allowance.limit)
        return BackgroundSearch(self._joined.graph, self._allowance.limit, start, self._options)

    def found(self) -> Plan | None:
        """A better plan, if there is one by now.

        Raises:
            CheckmateError: the search failed.
        """
        self.over = True
        schedule = self._running.result()
        self.over = self._running.ended
        if schedule is None:
            return None
        if schedule.cost >= self._plan.schedule.cost:
            if self._allowance is self._plan.allowance:  # what was proven is proven of this schedule, too
                known = self._plan.schedule
                self._plan.schedule = replace(known, lower_bound=max(known.lower_bound, min(schedule.lower_bound, known.cost)))
            return None
        less = _next_limit(self._joined, schedule, self._allowance, self._limit, self.again, self._plan)
        if less is None:
            own = {"device": self._plan.device, "num_graphs": self._plan.num_graphs, "of": self._plan.of}
            return plan_of(schedule, self._allowance, Plan, **own)
        self._tries -= 1
        if self._tries > 0:
            self._allowance = _with_less(self._allowance, less)
            self._running, self.over = self._begin(), False
        return None


def _next_limit(
    joined: StepGraph, schedule: Schedule, allowance: Allowance, limit: int, again: Again | None, plan: Plan
) -> int | None:
    """What the next schedule may take, if a round under this one takes too much, as its parts run it or as its device counts memory.

    Args:
        allowance: that it was made for. limit: what it may take as its parts run it. again: as in `StepPlan`.
        plan: says where it runs, and what its budget is put on.
    """
    excess = peak_as_run(joined, schedule.steps, again) - limit
    if excess <= 0 and is_native(plan.device):
        fixed = joined.graph.fixed_memory
        allocated, reserved = counted(joined.graph, as_run(joined, schedule.steps, limit))
        if plan.of == "reserved":
            # Gaps between tensors come and go with the tensors. What steps before took more than their tensors did is such gaps.
            reserved += reserved // _UNSURE
            room = allowance.total - allowance.elsewhere - fixed
            if reserved <= room:
                return None
            return fixed + (simulate(joined.graph, schedule.steps).peak - fixed) * max(0, room) // reserved
        excess = allocated + fixed - limit
    return simulate(joined.graph, schedule.steps).peak - excess if excess > 0 else None


def _apart(joined: StepGraph, run: Sequence[Step], above: int) -> list[set[Computation]]:
    """For each pair its computations during which a round takes more than so many bytes."""
    found: list[set[Computation]] = [set() for _ in joined.pairs]
    during = [most for step, most in zip(run, simulate(joined.graph, run).during, strict=True) if isinstance(step, Compute)]
    for (op, number), most in zip(computations(run), during, strict=True):
        pair, local = joined.pair_of(op), joined.local[op]
        if pair is not None and local is not None and most > above:
            found[pair].add((local, number))
    return found


def _with_less(allowance: Allowance, limit: int) -> Allowance:
    """The allowance with a margin that leaves so many bytes."""
    return replace(allowance, margin=allowance.margin + allowance.limit - limit)


def order_of(passes: Sequence[Pass | Run], events: Sequence[Event]) -> Order:
    """What a round of these passes looks like."""
    return tuple((passes[event.pair].part, event.pair, event.backward) for event in events)


def joined_graph(
    passes: Sequence[Pass], events: Sequence[Event], profile: Profiler, script: Script, costs_of: Sequence[Captured] = ()
) -> tuple[StepGraph, list[Captured]]:
    """The graph of a round, and its parts at their sizes.

    Args:
        script: what the user's script takes between the passes, as far as it was seen.
        costs_of: the parts at other sizes, to take costs and workspaces from.
    """
    known: Sequence[Captured | None] = costs_of or [None] * len(passes)
    captured = [one.part.captured(profile).at(one.sizes, costs) for one, costs in zip(passes, known, strict=True)]
    return _joined(captured, passes, events, script), captured


def _joined(captured: Sequence[Captured], passes: Sequence[Pass], events: Sequence[Event], script: Script) -> StepGraph:
    pairs = [Pair(number, one.sources, one.leaves, frozenset(one.borrowed)) for number, one in enumerate(passes)]
    beside = [script.after(event) for event in range(len(events))]
    parts = _with_own_layers([part_graph(part) for part in captured], passes)
    return join(parts, pairs, events, "step", beside)


def _with_own_layers(parts: list[PartGraph], passes: Sequence[Pass]) -> list[PartGraph]:
    """The parts, each with the names of the modules that it runs for, where one runs several times."""
    times = Counter(one.part for one in passes)
    models = {id(one.part.model): one.part.model for one in passes if times[one.part] > 1 and one.part.model is not None}
    known = [model for reference in models.values() if (model := reference()) is not None]
    owners = {storage: owner for model in known for storage, owner in owners_of(model).items()}
    if not owners:
        return parts
    read = [[storage_of(source) for source in one.sources] for one in passes]
    return [
        part if times[one.part] == 1 else with_own_layers(part, storages, owners)
        for part, one, storages in zip(parts, passes, read, strict=True)
    ]


def certain_graph(passes: Sequence[Pass], events: Sequence[Event], profile: Profiler, script: Script) -> Graph:
    """The graph of a round without anything that was only estimated: no schedule takes less than those of this graph.

    Args:
        script: what was seen of it.
    """
    return _joined([one.part.captured(profile).at(one.sizes).certain for one in passes], passes, events, script).graph


def checkpointed(joined: StepGraph, captured: Sequence[Captured]) -> frozenset[int]:
    """Ops inside `torch.utils.checkpoint` that it would run again."""
    again = [c.checkpointed if c.fusion is None else c.fusion.whole_groups(c.checkpointed) for c in captured]
    found = set()
    for op, local in enumerate(joined.local):
        pair = joined.pair_of(op)
        if pair is not None and local in again[pair]:
            found.add(op)
    return frozenset(found)


def _compiled_peak(plan: StepPlan) -> int:
    return plan.compiled_peak


def make_step_plan(
    passes: Sequence[Pass],
    events: Sequence[Event],
    options: Options,
    allowance_of: Callable[[Graph], Allowance],
    profile: Profiler,
    others: Sequence[Plan] = (),
    soon: bool = False,
    script: Script = NOTHING,
    again: Again | None = None,
) -> StepPlan:
    """Plan a round.

    Args:
        allowance_of: from the graph of the step to what it can have of the budget.
        others: plans of the same round at other sizes.
        soon: do not wait for the best schedule, but go on to search for it.
        script: as in `joined_graph`. again: as in `StepPlan`.

    Raises:
        InfeasibleBudget: no schedule was found.
    """
    joined, captured = joined_graph(passes, events, profile, script)
    options = options.in_turn(len(passes), sum(map(draws, captured)))
    device, graphs = captured[0].device, len({one.part for one in passes})
    allowance = allowance_of(joined.graph)
    limit, room = allowance.limit, allowance.total - allowance.margin
    twice = checkpointed(joined, captured) if options.keep_checkpoints else ()
    own: dict[str, Any] = {"device": device, "num_graphs": graphs, "of": options.of}
    tried: list[StepPlan] = []
    left = _TRIES
    last: Schedule | None = None
    warm = options.method == "auto" and not soon and not twice  # else searches cannot begin with a schedule

    def planned(allowance: Allowance) -> Plan:
        nonlocal left, last
        while True:
            search = options if last is None else replace(options, time_limit=options.time_limit / _TRIES)
            plan = make_plan(joined.graph, search, allowance, Plan, others, soon, twice, last, **own)
            less, left = _next_limit(joined, plan.schedule, allowance, limit, again, plan), left - 1
            last = plan.schedule if warm else None
            if less is None or not left:
                return plan
            allowance = _with_less(allowance, less)

    def cost(way: tuple[Plan, int | None]) -> float:
        """Seconds of a step, about."""
        plan, apart_above = way
        if apart_above is None:
            return plan.schedule.cost
        run = as_run(joined, plan.schedule.steps, limit)
        share = sum(map(len, _apart(joined, run, apart_above))) / len(computations(run))
        return plan.schedule.cost * (1 + _APART * share)

    ways: list[tuple[Plan, int | None]] = [(planned(allowance), None)]
    while ways:
        ways.sort(key=cost)
        plan, apart_above = ways.pop(0)
        tried.append(StepPlan(plan, passes, events, joined, captured, script, limit, again, apart_above))
        excess = tried[-1].compiled_peak - room
        if excess <= 0:
            break
        if len(tried) == 1:
            ways += [(plan, above) for above in {max(0, limit - _JOINING * excess), 0}]
        if left:
            # What Inductor's programs take beyond their plans differs from plan to plan: if once the excess is not enough, more is taken off.
            times = sum(made.apart_above == apart_above for made in tried)
            less = simulate(joined.graph, plan.schedule.steps).peak - times * excess
            try:
                ways.append((planned(_with_less(plan.allowance, less)), apart_above))
            except InfeasibleBudget:
                if not ways:
                    raise
    made = min(tried, key=_compiled_peak)
    made.plan.rehearsed_peak = made.compiled_peak or None
    made.search_on(options)
    return made
