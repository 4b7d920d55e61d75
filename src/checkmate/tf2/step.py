"""A step function under a budget: one trace, plan and executor for every set of input shapes."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import tensorflow as tf

from ..errors import BudgetWarning, CheckmateError, InfeasibleBudget
from ..units import format_bytes
from .capture import Captured, OpCost, capture, planned_ops
from .execute import Executor
from .lessons import Lesson, recall, remember
from .measure import Measurement, default_device, make_room, measure, watch
from .options import Options
from .planning import Plan, make_plan
from .profile import environment, profile_ops
from .trace import trace
from .units import make_units

#: A first plan leaves this part of the budget free: TensorFlow's allocator gives out blocks that are larger than asked for.
_SPARE = 33

#: By this part of the budget the peak of a real step may well pass that of a rehearsal.
_NOISE = 200

#: So many plans may fail before the room that they leave is doubled each time.
_PATIENCE = 3

#: Where there is no more room to be had, so many plans with less room are tried.
_MORE_PLANS = 4

#: Plans with less room are tried where they may be cheaper by more than this.
_CHEAPER = 1.05

#: So much dearer may a plan be whose ops can run at the same time, which saves about a tenth; it is sought with more room, by the same
#: part of the budget as a first plan leaves, up to so many times.
_LITTLE, _MORE_ROOM = 1.05, 4

#: Seconds of a step that is tried out again also where an earlier process did: memory may lie otherwise in this one.
_QUICK = 1.0

_LOG = logging.getLogger("checkmate")

#: Profiles the ops of a trace; the tests put another in its place.
_profile = profile_ops


def capture_step(
    function: Callable[..., Any],
    specs: Sequence[Any],
    options: Options,
    name: str = "step",
    *,
    to_run: bool = False,
    varying_batch: bool = False,
) -> Captured:
    """Trace a step function and find what each of its ops costs. Nothing is trained.

    Args:
        specs: nests of `tf.TensorSpec` with static shapes, one per argument.
        to_run: the step will run, so that the memory pool had better be in order.
        varying_batch: as in `PlannedStep`.
    """
    traced = trace(function, specs, varying_batch=varying_batch)
    units = make_units(traced)
    if to_run:
        sizes = capture(traced, units, {op.name: OpCost(0.0, 0) for op in planned_ops(units)}, name).graph
        plain_peak = sizes.no_recompute_peak
        make_room(min(plain_peak, options.budget_bytes(plain_peak)))
    return capture(traced, units, _profile(planned_ops(units), options.cost_model), name)


class PlannedStep:
    """Calls of this object run `function` under the budget.

    Args:
        function: one training step: tensors (and nests of them) in and out; it changes variables as it likes, and creates none.
        options: of every plan.
        name: of the graphs.
        varying_batch: plain training would trace the step once for batches of every size.

    Attributes:
        plans: one per set of input shapes, in the order in which they were first used.
    """

    def __init__(self, function: Callable[..., Any], options: Options, name: str = "step", *, varying_batch: bool = False):
        self.function = function
        self.options = options
        self.name = name
        self.varying_batch = varying_batch
        self._steps: dict[Any, _Shaped] = {}

    @property
    def plans(self) -> list[Plan]:
        return [step.plan for step in self._steps.values()]

    def prepare(self, *specs: Any) -> Plan:
        """Trace, profile and plan for one set of shapes, without running anything."""
        return self._step_for(specs).plan

    def __call__(self, *arguments: Any) -> Any:
        arguments = tuple(tf.nest.map_structure(tf.convert_to_tensor, argument) for argument in arguments)
        return self._step_for(arguments).run(tf.nest.flatten(arguments, expand_composites=True))

    def _step_for(self, arguments: Sequence[Any]) -> _Shaped:
        specs = tf.nest.map_structure(_spec, tuple(arguments))
        leaves = tf.nest.flatten(specs)
        key = (str(tf.nest.map_structure(lambda _: 0, specs)), *((tuple(spec.shape), spec.dtype) for spec in leaves))
        if key not in self._steps:
            if not tf.executing_eagerly():
                raise CheckmateError("a plan cannot be made inside a tf.function: call prepare with these shapes before")
            margin = max((step.margin for step in self._steps.values() if step.failures), default=0)
            self._steps[key] = _Shaped(self, specs, margin)
        return self._steps[key]


def _spec(tensor: Any) -> tf.TensorSpec:
    spec = tensor if isinstance(tensor, tf.TensorSpec) else tf.TensorSpec(tensor.shape, tensor.dtype)
    if not spec.shape.is_fully_defined():
        raise CheckmateError(
            f"the shape {spec.shape} is not known before the step runs: give specs with the batch size filled in (a plan is made "
            "for each batch size that comes up)"
        )
    return spec


class _Shaped:
    """The step at one set of input shapes."""

    def __init__(self, owner: PlannedStep, specs: Sequence[Any], margin: int):
        self.owner = owner
        self.captured = capture_step(
            owner.function, specs, owner.options, owner.name, to_run=True, varying_batch=owner.varying_batch
        )
        self.margin = margin
        self.tried: list[int] = []  # margins whose plans passed the budget, and those that no schedule can leave
        self.failures = int(margin > 0)
        self.warned = False
        self._plan()

    def _plan(self) -> None:
        """Make a plan and try it out, until one keeps to the budget. What an earlier process learnt on the way is used."""
        graph, options = self.captured.graph, self.owner.options
        budget = options.budget_bytes(graph.no_recompute_peak + options.reserved_bytes())
        about = {**environment(default_device()), **asdict(replace(options, budget=budget))}
        known = recall(graph, budget, about)
        if known is not None and known.margin >= self.margin:
            self.margin, self.failures = known.margin, known.failures
        elif not self.failures:
            self.margin = budget // _SPARE
        self.stale, just, tries = True, False, _MORE_PLANS
        cheapest = math.inf  # of the plans that passed the budget
        while self.stale:
            self.stale = False
            try:
                self.plan = self._make_plan(options)
            except InfeasibleBudget as error:
                if just:
                    break  # no more room to be had: what the plan before took was just within the budget
                most = self.margin - (error.smallest_found - budget)
                other = self._other_margin(most, budget // 100) if tries else None
                if other is None:
                    raise
                self.margin, self.stale, tries = other, True, tries - 1
                continue
            self.executor = self._executor()
            if known is not None and known.is_about(self.plan.schedule) and self.plan.schedule.cost > _QUICK:
                self.plan.rehearsed_peak = known.rehearsed_peak
                return
            added = self.executor.rehearse(budget - self._total(0))
            if added is not None:
                self.plan.rehearsed_peak = self._total(added)
                if self.plan.rehearsed_peak > budget - budget // _NOISE:
                    self._make_stale(self.plan.rehearsed_peak)
                    cheapest = min(cheapest, self.plan.schedule.cost)
                    if self.plan.rehearsed_peak > budget and self.failures == 1:
                        # Not a warning: nothing was trained above the budget, and nothing will be.
                        _LOG.warning("a rehearsal of the step %s: it is planned again with more room", self._peaked(added))
                just = self.plan.rehearsed_peak <= budget
        if not self.stale and self.plan.rehearsed_peak is not None:
            self._leave_less_room(options, budget, cheapest)
        if self.plan.rehearsed_peak is not None and self.executor.wanted_room:
            self._make_room_for_overlap(options, budget)
        self.margin = self.plan.margin
        if self.plan.rehearsed_peak is not None:
            schedule = self.plan.schedule
            lesson = Lesson(self.margin, self.failures, schedule.cost, schedule.peak, self.plan.rehearsed_peak)
            remember(graph, budget, about, lesson)

    def _executor(self) -> Executor:
        # Ops that overlap take other memory in every process. Where a step takes long it is not tried out in each, and its ops are
        # large enough to use all of the machine one by one.
        return Executor(self.captured, self.plan, overlap=self.plan.schedule.cost <= _QUICK)

    def _make_plan(self, options: Options) -> Plan:
        try:
            return self._plan_with(options, self.margin, again=self.failures > 0)
        except InfeasibleBudget:
            if self.failures or not self.margin:
                raise
            self.margin = 0  # nobody knows yet whether it is needed
            return self._plan_with(options, 0)

    def _plan_with(self, options: Options, margin: int, again: bool = False) -> Plan:
        others = [plan for plan in self.owner.plans if plan.graph is not self.captured.graph]
        if again:  # nearly the same problem again: less time for it
            options = replace(options, time_limit=options.time_limit / 3)
        return make_plan(self.captured, options, margin=margin, others=others)

    def _leave_less_room(self, options: Options, budget: int, cheapest: float) -> None:
        """Where plans passed the budget, the one that did not may leave more room than is needed: try what lies between."""
        for _ in range(_MORE_PLANS):
            low = max((margin for margin in self.tried if margin < self.plan.margin), default=self.plan.margin)
            if self.plan.schedule.cost <= _CHEAPER * cheapest or self.plan.margin - low <= budget // 100:
                return
            kept, executor = self.plan, self.executor
            margin = (low + kept.margin) // 2
            try:
                self.plan = self._plan_with(options, margin, again=True)
            except InfeasibleBudget:  # for want of time
                return
            self.executor = self._executor()
            cheaper = self.plan.schedule.cost < kept.schedule.cost
            added = self.executor.rehearse(budget - self._total(0)) if cheaper else None
            if added is not None and self._total(added) <= budget - budget // _NOISE:
                self.plan.rehearsed_peak = self._total(added)
            else:
                self.tried.append(margin)
                self.plan, self.executor = kept, executor

    def _make_room_for_overlap(self, options: Options, budget: int) -> None:
        """Where ops run one by one because the plan is just within the budget, or all but small ones: a plan with more room may cost
        little, and take less time."""
        plan, executor = self.plan, self.executor
        with suppress(InfeasibleBudget):
            for parts in range(1, _MORE_ROOM + 1):
                if parts * budget // _SPARE < executor.wanted_room:
                    continue
                self.plan = self._plan_with(options, plan.margin + parts * budget // _SPARE, again=True)
                self.executor = self._executor()
                if self.plan.schedule.cost > _LITTLE * plan.schedule.cost:
                    break
                added = self.executor.rehearse(budget - self._total(0), everything=True)
                if added is not None and not self.executor.wanted_room and self._total(added) <= budget:
                    self.plan.rehearsed_peak = self._total(added)
                    return
        self.plan, self.executor = plan, executor

    def _other_margin(self, most: int, least: int) -> int | None:
        """A margin that is not larger than `most` bytes and lies apart from those tried by more than `least`; None if there is none.

        How much a schedule takes beyond what is modelled differs from one to the next, so one that leaves less room may do.
        """
        tried = sorted(margin for margin in self.tried if margin <= most)
        if not tried or most - tried[-1] > least:
            return most if tried else None
        gap, low = max(((high - low, low) for low, high in pairwise(tried)), default=(0, 0))
        return low + gap // 2 if gap > 2 * least else None

    def _total(self, added: int) -> int:
        return added + self.captured.traced.fixed_bytes + self.plan.reserved

    def run(self, flat: Sequence[tf.Tensor]) -> Any:
        if not tf.executing_eagerly():  # inside somebody's tf.function: the schedule becomes a part of it
            return self.captured.traced.pack(self.executor.inline(flat))
        if self.stale:
            executions = self.plan.executions
            self._plan()
            self.plan.executions = executions
        first = not self.executor.measured
        if first:
            self.executor.prepare()
        unmade = self.executor.unmade
        watched = watch(default_device()) if self.executor.overlaps else nullcontext(Measurement())
        with measure() if first else watched as seen:
            results = self.executor.run(flat)
        self.executor.measured = True
        if seen.added is not None:
            self._check(seen.added - unmade)
        elif first and not self.warned:
            self.warned = True
            warnings.warn(
                "TensorFlow counts no memory on this device, so the plan's peak cannot be checked: import checkmate.tf2 before "
                "the first tensor is made, or set TF_CPU_ALLOCATOR_USE_BFC=1",
                BudgetWarning,
                stacklevel=4,
            )
        self.plan.executions += 1
        return self.captured.traced.pack(results)

    def _check(self, added: int) -> None:
        """What a step added at its peak is noted; above the budget it is said, and something is done about it."""
        plan = self.plan
        plan.measured_peak = max(plan.measured_peak or 0, self._total(added))
        if self._total(added) <= plan.budget:
            return
        in_turn = self.executor.added_in_turn
        if self.executor.overlaps and in_turn is not None:
            self.executor.stop_overlap()
            plan.rehearsed_peak, plan.measured_peak = self._total(in_turn), None  # as of a new plan
            remedy = "ops run one by one from the next step on"
        else:
            self._make_stale(self._total(added))
            remedy = "the next step runs under a new plan with more room"
        if not self.warned:
            self.warned = True
            which = f"step {plan.executions + 1}" if plan.executions else "the first step"
            warnings.warn(f"{which} {self._peaked(added)}: {remedy}", BudgetWarning, stacklevel=5)

    def _make_stale(self, peak: int) -> None:
        """The next plan leaves more room, for this one took so many bytes."""
        self.failures += 1
        self.tried.append(self.plan.margin)
        # In whole steps, so that the next process meets the same problem and finds its plan in the cache.
        unit = self.plan.budget // 200 + 1
        planned = min(self.plan.modelled_peak, self.plan.schedule.peak + self.plan.reserved)
        room = -(-(peak - planned) // unit) * unit
        # Where that is not enough time and again, ask for much more, so that few steps pass the budget.
        self.margin = max(room, (2 if self.failures > _PATIENCE else 1) * self.margin + unit)
        self.stale = True

    def _peaked(self, added: int) -> str:
        peak, plan = self._total(added), self.plan
        return (
            f"peaked at {format_bytes(peak)} ({peak} bytes), above the budget of {format_bytes(plan.budget)} ({plan.budget} bytes; "
            f"{plan.modelled_peak} were predicted)"
        )
