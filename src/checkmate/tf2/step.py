"""A step function under a budget: one trace, plan and executor for every set of input shapes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import tensorflow as tf

from .. import planning
from ..errors import BudgetWarning, CheckmateError, InfeasibleBudget
from ..planning import FREE, Allowance, Margins, OpCost
from ..planning.progress import PlanningProgress
from ..planning.rehearsal import SPARE, Policy
from ..planning.rehearsal_cache import Notebook
from ..schedule import Schedule
from .execution.execute import Executor
from .execution.plan import Plan, automatic_budget, in_another_order, make_plan
from .graphs.capture import Captured, capture, planned_ops
from .graphs.end_of_data import without_batch
from .graphs.op_groups import make_groups
from .graphs.trace import Trace, Traced, trace
from .memory.calls import find_calls
from .memory.measure import bytes_in_use, default_device, make_room, measure, watch
from .memory.variable_memory import Homes, settle
from .options import Options
from .profile import profile_ops, tf_environment

#: A plan with more room may cost this much more where its ops overlap and those of the other do not, which saves more (see `_PARTS` in
#: execute.py). So many are tried at most.
_LITTLE, _MORE_ROOM = 1.02, 3

#: It may cost this much more where its runs take no more than such a part of the time when both are tried out. With 0.98 for it, steps of
#: the small U-Net in `benchmarks/tf_peers.py` took 1.05 of the time at 110 MiB: two trials of one plan differ by as much.
_MUCH, _QUICKER = 1.05, 0.95

#: Seconds of a step whose ops may overlap; those of a longer one are large enough to use all of the machine one by one.
_QUICK = 1.0

#: A plan that is made after another one for the same step, with a little more or less room, gets this part of the time, and need not be
#: proven to be nearer to the best than this.
_AGAIN, _NEAR = 3, 0.005

#: The plan that is chosen is tried out once more if it takes more than all but such a part of the budget, and was not the last one tried.
#: Without it the first step of 1 in 24 processes passed the budget by 0.5% (the U-Net of `tests/tf2/test_training.py`).
_NEARLY = 20

#: Profiles the ops of a trace, and a clock in seconds; the tests put others in their places.
_profile = profile_ops
_clock = time.monotonic


def capture_step(
    traced: Traced,
    options: planning.Options,
    name: str = "step",
    *,
    to_run: Callable[[int], int] | None = None,
    progress: PlanningProgress | None = None,
    profile: Callable[..., dict[str, OpCost]] | None = None,
) -> Captured:
    """Find what each op of a step costs. Nothing is trained.

    Args:
        to_run: from the plain peak of the step in bytes to the budget that it will run under, so that the memory pool had better be
            in order; None if it will not run.
        progress: it is told what is done. profile: instead of `profile_ops`.
    """
    progress = progress or PlanningProgress(name, False)
    find_calls(traced.ops, tf_environment(default_device()))
    groups = make_groups(traced)
    wasted = 0
    if to_run is not None:
        wasted = settle(traced.captured)
        sizes = capture(traced, groups, {op.name: FREE for op in planned_ops(groups)}, name).graph
        plain_peak = sizes.no_recompute_peak
        # A budget that is too small will be refused; what the error names has to do where there is room for it.
        make_room(min(plain_peak, max(to_run(plain_peak), sizes.min_working_set)))
    measured = partial(progress.count, "measuring ops")
    captured = capture(traced, groups, (profile or _profile)(planned_ops(groups), options.cost_model, measured), name)
    return replace(captured, wasted=wasted)


class PlannedStep:
    """Calls of this object run `function` under the budget.

    Args:
        function: one training step: tensors (and nests of them) in and out; it changes variables as it likes, and creates none.
        options: of every plan. The budget that the first plan comes to in bytes is that of all.
        name: of the graphs.
        traced_as: nests of `tf.TensorSpec`, one per argument, with which plain training traces the step once for batches of several
            sizes; None where it traces it for each.
        pipeline: batches come from one, which makes the next ready while a step runs.

    Attributes:
        options: with that budget in bytes from the first plan on.
        plans: one per set of input shapes, in the order in which they were first used.
        homes: places of variables that steps move.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        name: str = "step",
        *,
        traced_as: Sequence[Any] | None = None,
        pipeline: bool = False,
    ):
        self.function = function
        self.options = options
        self.name = name
        self.traced_as = traced_as
        self.pipeline = pipeline
        self.homes = Homes()
        self._steps: dict[Any, _Shaped] = {}
        self._trace: Trace | None = None

    @property
    def plans(self) -> list[Plan]:
        return [step.plan for step in self._steps.values()]

    def total(self, plain_peak: int) -> int:
        """The budget in bytes for a step whose plain peak is `plain_peak` bytes."""
        return self.options.total(plain_peak + self.options.reserved_bytes(), lambda: self._automatic)

    @cached_property
    def _automatic(self) -> int:
        # Found out once: at the next shape the step's own memory would not be available any more.
        return automatic_budget()

    def traced(self, specs: Sequence[Any]) -> Traced:
        """The step for one set of shapes."""
        if self.traced_as is None:
            return trace(self.function, specs)
        if self._trace is None:
            self._trace = Trace(self.function, self.traced_as)
        return self._trace.at(specs)

    def prepare(self, *specs: Any) -> Plan:
        """Trace, profile and plan for one set of shapes, without running anything."""
        return self._step_for(specs).plan

    def __call__(self, *arguments: Any) -> Any:
        arguments = tuple(tf.nest.map_structure(tf.convert_to_tensor, argument) for argument in arguments)
        return self._step_for(arguments).run(tf.nest.flatten(arguments, expand_composites=True))

    def run_without_batch(self) -> None:
        """What plain training has done of a step when there turns out to be no batch for it; see `end_of_data`. There was one before."""
        next(iter(self._steps.values())).without_batch()  # the same for all shapes

    def _step_for(self, arguments: Sequence[Any]) -> _Shaped:
        specs = tf.nest.map_structure(_spec, tuple(arguments))
        leaves = tf.nest.flatten(specs)
        key = (str(tf.nest.map_structure(lambda _: 0, specs)), *((tuple(spec.shape), spec.dtype) for spec in leaves))
        if key not in self._steps:
            if not tf.executing_eagerly():
                raise CheckmateError("a plan cannot be made inside a tf.function: call prepare with these shapes before")
            known = [step.policy.margins for step in self._steps.values()]
            margin = max((margins.margin for margins in known if margins.failures), default=0)
            self._steps[key] = _Shaped(self, specs, margin)
            # "50%" is half of what the first batch needs, not half of what a last batch of three pictures needs.
            self.options = replace(self.options, budget=self._steps[key].policy.margins.budget)
        return self._steps[key]


def _spec(tensor: Any) -> tf.TensorSpec:
    spec = tensor if isinstance(tensor, tf.TensorSpec) else tf.TensorSpec(tensor.shape, tensor.dtype)
    if not spec.shape.is_fully_defined():
        raise CheckmateError(
            f"the shape {spec.shape} is not known before the step runs: give specs with the batch size filled in (a plan is made "
            "for each batch size that comes up)"
        )
    return spec


def _is_quicker(executor: Executor, other: Executor) -> bool:
    seconds, others = executor.rehearsed_seconds, other.rehearsed_seconds
    return seconds is not None and others is not None and seconds <= _QUICKER * others


def _warn_of_unknown_sizes(tensors: Sequence[tf.Tensor]) -> None:
    if tensors:
        warnings.warn(
            f"the sizes of {len(tensors)} tensors, {tensors[0].name} first, are not known before the step runs: the plan counts them "
            "as nothing, and the step may take more; tell them with set_shape, or do before the model, in the input pipeline, what "
            "leaves sizes open, such as splitting text into words",
            BudgetWarning,
            stacklevel=7,
        )


class _Shaped:
    """The step at one set of input shapes: the plan that it runs under, and how it is tried out, run and watched."""

    def __init__(self, owner: PlannedStep, specs: Sequence[Any], margin: int):
        self.owner = owner
        self.passed: int | None = None  # bytes that the last step took above the budget
        self.warned: set[str] = set()
        self._in_use = 0  # bytes when variables were brought back
        self._most_added = 0  # bytes that a step added under the present executor
        self._began = self._trial_began = _clock()
        self._sought = 0.0  # seconds in which further schedules were sought since the last trial
        self._found: list[tuple[int, Schedule]] = []  # schedules by the bytes that they were made for
        self._longest = 0.0  # seconds of a trial, with the search for its schedule
        self._last_tried: tuple[Executor | None, ...] = ()  # None for ops that overlap
        with PlanningProgress(owner.name, owner.options.progress) as self._progress:
            self._plan(specs, margin)

    def _plan(self, specs: Sequence[Any], margin: int) -> None:
        owner = self.owner
        self._progress.say("tracing the step")
        traced = owner.traced(specs)
        self.captured = capture_step(traced, owner.options, owner.name, to_run=owner.total, progress=self._progress)
        if not owner.plans:
            _warn_of_unknown_sizes(self.captured.traced.of_unknown_size)
        # A pipeline fills the processor's memory, also where the step runs on a GPU.
        self._outside = self.captured.traced.argument_bytes if owner.pipeline and default_device() == "CPU:0" else 0
        budget = owner.total(self.captured.graph.no_recompute_peak + self._outside)
        elsewhere = owner.options.reserved_bytes() + self._outside
        about = {**tf_environment(default_device()), **owner.options.about(), "outside": self._outside}
        # What a step takes differs a little from process to process.
        margins = Margins(budget, budget // 200 + 1, margin)
        self.policy: Policy[Executor] = Policy(
            self, margins, Notebook(self.captured.graph, about, elsewhere, owner.options.order)
        )
        self.executor = self.policy.choose(self._enough, self._late)
        if self._may_have_changed() and (peak := self.rehearse(self.executor)) is not None and peak > budget:
            self.executor = self.policy.mend(self.executor, peak, self._enough, self._late)
            self.policy.settled = False  # no step has passed the budget

    def _may_have_changed(self) -> bool:
        """The plan takes nearly the whole budget, and others were tried out after it: depending on which free blocks they
        left in the memory pool, a step of it may take more than its trial did."""
        peak, budget = self.executor.plan.rehearsed_peak, self.policy.margins.budget
        nearly_all = peak is not None and peak > budget - budget // _NEARLY
        return nearly_all and not self.executor.overlaps and self._last_tried not in ((), (self.executor,))

    def _enough(self) -> bool:
        """Training would have waited too long for a plan if another one were tried out, and then the step made: each takes about as
        long as the longest trial."""
        now, began = _clock(), self._trial_began
        self._trial_began = now
        self._longest = max(self._longest, now - began)
        return now - self._began + 2 * self._longest >= self.owner.options.plan_seconds

    def _late(self) -> bool:
        """Half of the time is over that training waits for a plan."""
        return 2 * (_clock() - self._began) >= self.owner.options.plan_seconds

    @property
    def plan(self) -> Plan:
        return self.executor.plan

    @cached_property
    def without_batch(self) -> Callable[[], None]:
        return without_batch(self.captured.traced)

    # --- what `Policy` asks for ---

    def make(self, budget: int, margin: int, *, again: bool) -> Executor:
        options = self.owner.options
        others = [plan for plan in self.owner.plans if plan.graph is not self.captured.graph]
        options = replace(options, time_limit=options.search_seconds)
        if again:
            options = replace(options, time_limit=options.time_limit / _AGAIN, gap=max(options.gap, _NEAR))
        allowance = Allowance(budget, options.reserved_bytes(), margin, self._outside)
        nearest = min(self._found, key=lambda found: abs(found[0] - allowance.limit), default=(0, None))[1]
        self._progress.say("looking for a schedule" + (" with other room" if again else ""))
        began = _clock()
        try:
            plan = make_plan(self.captured, options, allowance, others, nearest)
        finally:
            self._sought += _clock() - began if again else 0.0
        self._found.append((allowance.limit, plan.schedule))
        return self._executor(plan)

    def vary(self, candidate: Executor, order: int) -> Executor | None:
        self._progress.say("putting a schedule in another order")
        plan = in_another_order(self.captured, candidate.plan, order)
        return None if plan is None else self._executor(plan)

    def _executor(self, plan: Plan) -> Executor:
        return Executor(self.captured, plan, overlap=plan.schedule.cost <= _QUICK)

    def rehearse(self, candidate: Executor, *, whole: bool = False, below: int | None = None) -> int | None:
        self._trial_began, self._sought = _clock() - self._sought, 0.0
        self._progress.say(f"trying a schedule out that takes {candidate.plan.schedule.overhead:.3f} times the time of all ops")
        self.owner.homes.bring_back()
        self._last_tried = (candidate,)
        enough = None if below is None else below - self._foreseen(candidate, 0)
        added = candidate.rehearse(self._left(candidate), whole=whole, enough=enough)
        return None if added is None else self._foreseen(candidate, added)

    def improve(self, candidate: Executor) -> Iterator[Executor]:
        """Let ops overlap. Where there is too little room for that, a plan with more may cost little, or be quicker."""
        best = candidate
        for best in self._overlapped(candidate):
            yield best
        latest, own_cost = best, candidate.plan.schedule.cost
        for _ in range(_MORE_ROOM):
            if not latest.wanted_room:
                return
            try:
                latest = self._with_more_room(latest)
            except InfeasibleBudget:
                return
            cost = latest.plan.schedule.cost
            if cost > own_cost * (_LITTLE if best.rehearsed_seconds is None else _MUCH):
                return
            self.rehearse(latest)
            yield best
            found = latest
            for tried in self._overlapped(latest):
                found = tried
                yield best
            if found.overlaps:
                if cost <= own_cost * _LITTLE or _is_quicker(found, best):
                    yield found
                return

    def _with_more_room(self, executor: Executor) -> Executor:
        """Another plan that leaves free what this one's ops would need to overlap."""
        budget = executor.plan.budget
        unit = budget // SPARE
        return self.make(budget, executor.plan.margin + -(-executor.wanted_room // unit) * unit, again=True)

    def _overlapped(self, candidate: Executor) -> Iterator[Executor]:
        """Try out ops that overlap: after each trial the same plan with them, once it is seen to keep to the budget, or without."""
        best = candidate
        for found in candidate.overlapped():
            if found is not None:
                best = self._seen(*found)
            self._last_tried = (None,)
            yield best

    def _seen(self, executor: Executor, added: int) -> Executor:
        executor.plan.rehearsed_peak = self._foreseen(executor, added)
        return executor

    def _left(self, executor: Executor) -> int:
        """Bytes that the step may add to what is there before it."""
        return executor.plan.budget - self._foreseen(executor, 0)

    def _foreseen(self, executor: Executor, added: int) -> int:
        """Bytes that a step will take at its peak which added so many when it was tried out."""
        return self._total(executor, added) + executor.plan.outside

    def _total(self, executor: Executor, added: int) -> int:
        """Bytes that a step takes at its peak, from those that it was seen to add; what a pipeline makes ready meanwhile is among these."""
        return added + self.captured.traced.fixed_bytes + self.captured.wasted + executor.plan.reserved

    # --- running it ---

    def run(self, flat: Sequence[tf.Tensor]) -> Any:
        if not tf.executing_eagerly():  # inside somebody's tf.function: the schedule becomes a part of it
            return self.captured.traced.pack(self.executor.inline(flat))
        self.captured.traced.random.follow_resets()
        if self.passed is not None:
            self._mend(self.passed)
        elif self.plan.executions and (better := self.policy.go_on()) is not None:
            self._go_on_under(better)
        first = not self.executor.measured
        if first:
            self.executor.prepare()
        unmade = self.executor.unmade
        grown = self._grown(first)
        most = (self.plan.measured_peak or 0) - self._total(self.executor, self.executor.uncounted + grown)
        with measure() if first else watch(default_device(), most) as seen:
            results = self.executor.run(flat)
        self.executor.measured = True
        if seen.added is not None:
            self._most_added = max(self._most_added, seen.added - unmade)
            self._check(self._total(self.executor, seen.added - unmade + self.executor.uncounted + grown))
        elif first:
            self._warn(
                "TensorFlow counts no memory on this device, so the plan's peak cannot be checked: import checkmate.tf2 before "
                "the first tensor is made, or set TF_CPU_ALLOCATOR_USE_BFC=1"
            )
        self.plan.executions += 1
        return self.captured.traced.pack(results)

    def _grown(self, first: bool) -> int:
        """Bytes that variables take beyond their sizes since steps moved them. Where a step may pass the budget they are brought back.

        Args:
            first: the executor has not run yet.
        """
        executor = self.executor
        if not executor.moved:
            return 0
        # More than that is not of training.
        grown = 0 if first else min(sum(executor.moved.values()), max(0, bytes_in_use() - self._in_use))
        if first:
            self._most_added = 0
        may_take = self._total(executor, self._most_added + executor.uncounted + grown + executor.moving)
        if first or may_take > executor.plan.budget:
            grown = self.owner.homes.bring_back()
            self._in_use = bytes_in_use() + executor.unmade - grown
        handles = self.captured.traced.handles
        self.owner.homes.leave(handles[name] for name in executor.moved if name in handles)
        return grown

    def _check(self, peak: int) -> None:
        """What a step took at its peak is noted; above the budget it is said, and something is done about it."""
        plan = self.plan
        plan.measured_peak = max(plan.measured_peak or 0, peak)
        executor = self.executor
        if peak <= plan.budget - executor.room_for_chance // 2 or self.policy.settled:
            return
        if executor.overlaps and executor.added_in_turn is not None:
            executor.stop_overlap()
            self.policy.stop()
            plan.rehearsed_peak = self._foreseen(executor, executor.added_in_turn)
            remedy = "ops run one by one from the next step on"
        else:
            self.passed = peak
            remedy = "the next step runs under a new plan with more room"
        if peak <= plan.budget:
            return  # it took half of the room for chance; the next one might take all
        which = f"step {plan.executions + 1}" if plan.executions else "the first step"
        self._warn(f"{which} {plan.excess_of(peak)}: {remedy}", "excess")

    def _mend(self, peak: int) -> None:
        """Go on under another plan, or under the best one that is known: training never ends because of a plan that got worse."""
        self.passed, self._began, self._longest = None, _clock(), 0.0
        self._go_on_under(self.policy.mend(self.executor, peak, self._enough, self._late))
        if self.policy.settled:
            self._warn(f"no plan with more room was found: training goes on under the best one known ({peak} bytes were taken)")

    def _go_on_under(self, executor: Executor) -> None:
        old = self.plan
        if executor is not self.executor:
            self.executor.forget()
        self.executor = executor
        self.plan.executions = old.executions
        if old.measured_peak is not None:
            self.plan.measured_peak = max(old.measured_peak, self.plan.measured_peak or 0)

    def _warn(self, message: str, topic: str = "") -> None:
        """Once for each topic."""
        if (topic or message) not in self.warned:
            self.warned.add(topic or message)
            warnings.warn(message, BudgetWarning, stacklevel=6)
