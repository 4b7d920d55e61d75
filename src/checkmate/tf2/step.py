"""A step function under a budget: one trace, plan and executor for every set of input shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from ..errors import BudgetWarning, CheckmateError, InfeasibleBudget
from ..planning import FREE, Allowance, Margins, Options, note_excess
from ..planning.rehearsal import SPARE, first_margin, plan_that_fits
from ..planning.rehearsal_cache import Outcome, recall, remember
from .capture import Captured, capture, planned_ops
from .execute import Executor
from .measure import Measurement, default_device, make_room, measure, watch
from .op_groups import make_groups
from .plan import Plan, automatic_budget, make_plan
from .profile import profile_ops, tf_environment
from .trace import trace

#: A plan whose ops can run at the same time may cost this much more, for that saves about a tenth of the time. It is sought with more
#: room, by the part of the budget that a first plan leaves, up to so many times.
_LITTLE, _MORE_ROOM = 1.05, 4

#: Seconds of a step that is tried out again also where an earlier process did: memory may lie otherwise in this one.
_QUICK = 1.0

#: Profiles the ops of a trace; the tests put another in its place.
_profile = profile_ops


def capture_step(
    function: Callable[..., Any],
    specs: Sequence[Any],
    options: Options,
    name: str = "step",
    *,
    to_run: Callable[[int], int] | None = None,
    varying_batch: bool = False,
) -> Captured:
    """Trace a step function and find what each of its ops costs. Nothing is trained.

    Args:
        specs: nests of `tf.TensorSpec` with static shapes, one per argument.
        to_run: from the plain peak of the step in bytes to the budget that it will run under, so that the memory pool had better be
            in order; None if it will not run.
        varying_batch: as in `PlannedStep`.
    """
    traced = trace(function, specs, varying_batch=varying_batch)
    groups = make_groups(traced)
    if to_run is not None:
        sizes = capture(traced, groups, {op.name: FREE for op in planned_ops(groups)}, name).graph
        plain_peak = sizes.no_recompute_peak
        make_room(min(plain_peak, to_run(plain_peak)))
    return capture(traced, groups, _profile(planned_ops(groups), options.cost_model), name)


class PlannedStep:
    """Calls of this object run `function` under the budget.

    Args:
        function: one training step: tensors (and nests of them) in and out; it changes variables as it likes, and creates none.
        options: of every plan. The budget that the first plan comes to in bytes is that of all.
        name: of the graphs.
        varying_batch: plain training would trace the step once for batches of every size.

    Attributes:
        options: with that budget in bytes from the first plan on.
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

    def total(self, plain_peak: int) -> int:
        """The budget in bytes for a step whose plain peak is `plain_peak` bytes."""
        return self.options.total(plain_peak + self.options.reserved_bytes(), lambda: self._automatic)

    @cached_property
    def _automatic(self) -> int:
        # Found out once: at the next shape the step's own memory would not be available any more.
        return automatic_budget()

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
            margin = max((step.margins.margin for step in self._steps.values() if step.margins.failures), default=0)
            self._steps[key] = _Shaped(self, specs, margin)
            # "50%" is half of what the first batch needs, not half of what a last batch of three pictures needs.
            self.options = replace(self.options, budget=self._steps[key].margins.budget)
        return self._steps[key]


def _spec(tensor: Any) -> tf.TensorSpec:
    spec = tensor if isinstance(tensor, tf.TensorSpec) else tf.TensorSpec(tensor.shape, tensor.dtype)
    if not spec.shape.is_fully_defined():
        raise CheckmateError(
            f"the shape {spec.shape} is not known before the step runs: give specs with the batch size filled in (a plan is made "
            "for each batch size that comes up)"
        )
    return spec


def _warn_of_unknown_sizes(tensors: Sequence[tf.Tensor]) -> None:
    if tensors:
        warnings.warn(
            f"the sizes of {len(tensors)} tensors, {tensors[0].name} first, are not known before the step runs: the plan counts them "
            "as nothing, and the step may take more; do before the model, in the input pipeline, what leaves sizes open, such as "
            "splitting text into words",
            BudgetWarning,
            stacklevel=6,
        )


class _Shaped:
    """The step at one set of input shapes: the plan that it runs under, and how it is tried out, run and watched."""

    def __init__(self, owner: PlannedStep, specs: Sequence[Any], margin: int):
        self.owner = owner
        self.captured = capture_step(
            owner.function, specs, owner.options, owner.name, to_run=owner.total, varying_batch=owner.varying_batch
        )
        if not owner.plans:
            _warn_of_unknown_sizes(self.captured.traced.of_unknown_size)
        budget = owner.total(self.captured.graph.no_recompute_peak)
        # What a step takes differs a little from process to process.
        self.margins = Margins(budget, budget // 200 + 1, margin, int(margin > 0))
        self.stale = False
        self.warned = False
        self._plan()

    @property
    def plan(self) -> Plan:
        return self.executor.plan

    def _plan(self) -> None:
        """Plan for the margin that is known to be needed. What an earlier process learnt on the way is used."""
        graph, margins = self.captured.graph, self.margins
        about = {**tf_environment(default_device()), **asdict(replace(self.owner.options, budget=margins.budget))}
        known = recall(graph, margins.budget, about)
        first_margin(margins, known)
        self.executor, tried_out = plan_that_fits(self, margins, known, trusted_from=_QUICK)
        if tried_out and self.executor.wanted_room:
            self._make_room_for_overlap()
        margins.margin, self.stale = self.plan.margin, False
        if tried_out:
            remember(graph, margins.budget, about, Outcome.of(self.plan, margins.failures))

    # --- what `plan_that_fits` asks for ---

    def make(self, margin: int, *, again: bool) -> Executor:
        options = self.owner.options
        others = [plan for plan in self.owner.plans if plan.graph is not self.captured.graph]
        if again:  # nearly the same problem again: less time for it
            options = replace(options, time_limit=options.time_limit / 3)
        allowance = Allowance(self.margins.budget, options.reserved_bytes(), margin)
        plan = make_plan(self.captured, options, allowance, others)
        # Ops that overlap take other memory in every process. Where a step takes long it is not tried out in each, and its ops are
        # large enough to use all of the machine one by one.
        return Executor(self.captured, plan, overlap=plan.schedule.cost <= _QUICK)

    def rehearse(self, candidate: Executor) -> int | None:
        added = candidate.rehearse(self._left(candidate))
        return None if added is None else self._total(candidate, added)

    def _make_room_for_overlap(self) -> None:
        """Where ops run one by one because the plan is just within the budget, or all but small ones: a plan with more room may cost
        little, and take less time."""
        kept, budget = self.executor, self.margins.budget
        with suppress(InfeasibleBudget):
            for parts in range(1, _MORE_ROOM + 1):
                if parts * budget // SPARE < kept.wanted_room:
                    continue
                other = self.make(kept.plan.margin + parts * budget // SPARE, again=True)
                if other.plan.schedule.cost > _LITTLE * kept.plan.schedule.cost:
                    break
                added = other.rehearse(self._left(other), everything=True)
                if added is not None and not other.wanted_room and self._total(other, added) <= budget:
                    other.plan.rehearsed_peak = self._total(other, added)
                    self.executor = other
                    return

    def _left(self, executor: Executor) -> int:
        """Bytes that the step may add to what is there before it."""
        return self.margins.budget - self._total(executor, 0)

    def _total(self, executor: Executor, added: int) -> int:
        return added + self.captured.traced.fixed_bytes + executor.plan.reserved

    # --- running it ---

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
            self._check(self._total(self.executor, seen.added - unmade))
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

    def _check(self, peak: int) -> None:
        """What a step took at its peak is noted; above the budget it is said, and something is done about it."""
        plan = self.plan
        plan.measured_peak = max(plan.measured_peak or 0, peak)
        if peak <= plan.budget:
            return
        in_turn = self.executor.added_in_turn
        if self.executor.overlaps and in_turn is not None:
            self.executor.stop_overlap()
            plan.rehearsed_peak, plan.measured_peak = self._total(self.executor, in_turn), None  # as of a new plan
            remedy = "ops run one by one from the next step on"
        else:
            note_excess(self.margins, plan, peak)
            self.stale = True
            remedy = "the next step runs under a new plan with more room"
        if not self.warned:
            self.warned = True
            which = f"step {plan.executions + 1}" if plan.executions else "the first step"
            warnings.warn(f"{which} {plan.excess_of(peak)}: {remedy}", BudgetWarning, stacklevel=5)
