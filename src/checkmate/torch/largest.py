"""The largest batch, or the longest sequence, that trains within a budget: found by planning, confirmed by one real step."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..errors import BudgetError, BudgetWarning, CheckmateError, InfeasibleBudget
from ..units import Budget, format_bytes
from .api import loss_of
from .backend import Session, backend_of
from .dry_run import DryRun, DryStep, unchanged
from .plan import Plan
from .pytorch.hooks import to_compile
from .pytorch.internals import isolation, leave_open

Progress = Callable[[str], None]

#: Steps to wait for one that is measured and within the budget: a model of several graphs is planned after the first.
_STEPS = 4
#: A guess is at most so many times the largest size that is known to fit.
_GROWTH = 8
#: This part of the time limit a size gets at first. `max_batch_size` of 6 blocks of two linear layers (64, 4160) and a GELU, under "30MiB", tried
#: 13 sizes, of which 5 did not fit: 226 s with all of the limit for each, 84 with a tenth.
_HURRY = 0.1
#: So many times the first size, with inputs of the same shapes: larger sizes make no difference.
_SAME = 1 << 12
#: Without `at_most`: no larger size than this is tried.
_END = 1 << 24


class LargestSize(int):
    """A whole number, with what was found on the way to it.

    Attributes:
        plan: of a training step of this size, with its predicted and its measured peak.
        tried: sizes that were planned.
        seconds: that the search took, with the step that confirmed it.
    """

    plan: Plan
    tried: int
    seconds: float

    @classmethod
    def found(cls, size: int, plan: Plan, tried: int, seconds: float) -> LargestSize:
        """Put one together."""
        largest = cls(size)
        largest.plan, largest.tried, largest.seconds = plan, tried, seconds
        return largest

    def __repr__(self) -> str:
        peak = self.plan.predicted_peak if self.plan.measured_peak is None else self.plan.measured_peak
        return f"{int(self)} ({format_bytes(peak)} of {format_bytes(self.plan.budget)})"

    def __str__(self) -> str:
        return str(int(self))

    @property
    def batch(self) -> int:
        """The number, where it is one of samples."""
        return int(self)

    @property
    def length(self) -> int:
        """The number, where it is one of tokens."""
        return int(self)


def max_batch_size(
    model: torch.nn.Module,
    make_inputs: Callable[[int], Any],
    budget: Budget = "auto",
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    at_most: int | None = None,
    multiple_of: int = 1,
    max_overhead: float | None = None,
    accumulate: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> LargestSize:
    """The largest batch that `checkmate.torch.compile(model, budget=budget)` trains.

        batch = checkmate.torch.max_batch_size(model, lambda n: torch.randn(n, 3, 224, 224), "8GiB")

    The model does not run at the sizes that are tried: PyTorch traces it with the batch left open, and each size is planned on its
    own, with everything that compile counts: parameters, gradients, the state of optimizers (make yours before you ask). Single ops
    run, to see what memory they need; with `cost_model="flops"` none. One real step of the size that was found then has to keep to the
    budget; where it does not, a smaller one is looked for. Parameters, gradients, buffers and random numbers are what they were
    before; other things that the model changes in Python, such as counters, are not put back.

    Args:
        model: a module, compiled already or not, in the mode and on the device that it trains in.
        make_inputs: from the number of samples to the inputs of a call: one tensor, a tuple of them, or a dict of keywords. Their
            content counts only in the real step.
        budget: bytes, "4GiB", or "auto"; a percentage would be of a size that is yet to be found.
        loss: from the model's output to a scalar. By default the output's `loss` if it has one, the output itself if it is a
            scalar, else the sum of all floating-point outputs.
        at_most: the largest size to try.
        multiple_of: only multiples of it are tried.
        max_overhead: cost with recomputation over cost without that is still acceptable, such as 1.33; None: any. It takes longer.
        accumulate: an optimizer step has several microbatches: all gradients are there when the step begins.
        verify: confirm it by a real step.
        progress: called with a line of text after every size tried.
        options: see `checkmate.torch.Options`. Of `time_limit` a size gets a tenth; the one after the largest that was found gets all.

    Raises:
        InfeasibleBudget: not even the smallest size fits; the message names a budget that would do for that.
        BudgetError: an argument cannot be read. CheckmateError: PyTorch compiled nothing in it, or larger sizes make no difference.
    """
    search = _Search("batch", model, make_inputs, {"budget": budget, **options}, loss, max_overhead, accumulate, progress)
    return search.run(at_most, multiple_of, verify)


def max_sequence_length(
    model: torch.nn.Module,
    make_inputs: Callable[[int], Any],
    budget: Budget = "auto",
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    at_most: int | None = None,
    multiple_of: int = 1,
    max_overhead: float | None = None,
    accumulate: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
    **options: Any,
) -> LargestSize:
    """The longest sequence that `checkmate.torch.compile(model, budget=budget)` trains.

        length = checkmate.torch.max_sequence_length(model, lambda n: torch.zeros(8, n, dtype=torch.long), "8GiB", at_most=2048)

    As `max_batch_size`, with `make_inputs` from the number of tokens to the inputs. Models that know a limited number of positions
    do not show it before they run: say it with `at_most`.
    """
    search = _Search("length", model, make_inputs, {"budget": budget, **options}, loss, max_overhead, accumulate, progress)
    return search.run(at_most, multiple_of, verify)


@dataclass(frozen=True)
class _Answer:
    """What is known of a size. `error`: why no plan was found; None also where one was, and costs too much. `hurried`: in a part of the time."""

    fits: bool
    plan: Plan | None = None
    error: InfeasibleBudget | None = None
    hurried: bool = False

    @property
    def is_open(self) -> bool:
        """With more time a plan may be found: there being none is not proven."""
        proven = self.error is not None and self.error.budget < self.error.proven_minimum
        return not self.fits and self.hurried and not proven


class _Search:
    def __init__(
        self,
        kind: str,
        model: torch.nn.Module,
        make_inputs: Callable[[int], Any],
        given: Mapping[str, Any],
        loss: Callable[[Any], torch.Tensor] | None,
        max_overhead: float | None,
        accumulate: bool,
        progress: Progress | None,
    ):
        if not isinstance(model, torch.nn.Module):
            raise CheckmateError(f"the model must be a torch.nn.Module, not {type(model).__name__}: put the function into one")
        if max_overhead is not None and not max_overhead >= 1:
            raise BudgetError(f"max_overhead is cost / cost without recomputation: a number from 1 on, not {max_overhead!r}")
        self.kind, self.given, self.loss, self.max_overhead = kind, dict(given), loss, max_overhead
        self.model: torch.nn.Module = getattr(model, "_orig_mod", model)
        self.make_inputs, self.accumulate, self.tell = make_inputs, accumulate, progress or (lambda line: None)
        session = Session(self.given)
        self.dry = DryRun(session)
        if self.dry.group.options.is_relative:
            raise BudgetError("a percentage is of the peak of one size, which is yet to be found: give the budget in bytes")
        self.compiled = self._compile(session)
        self.open_sizes: list[frozenset[int]] | None = None
        self.seen: dict[int, tuple[str, ...]] = {}
        self.needs: dict[int, int] = {}
        self.answers: dict[int, _Answer] = {}
        self.margin = 0
        self.budget = 0
        self.hurried = True

    def _compile(self, session: Session) -> Callable[..., Any]:
        session.watch(self.model)
        session.module = None  # its user has not compiled the model, and finds no plans under it
        compiled: Callable[..., Any] = torch.compile(to_compile(self.model), backend=backend_of(session), **isolation())
        return compiled

    # --- the search ---

    def run(self, at_most: int | None, multiple_of: int, verify: bool) -> LargestSize:
        started = time.perf_counter()
        for name, number in (("at_most", at_most), ("multiple_of", multiple_of)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise BudgetError(f"{name} must be a whole number from 1 on, not {number!r}")
        if at_most is not None and at_most < multiple_of:
            raise BudgetError(f"at_most={at_most} leaves no multiple of {multiple_of}")
        end = None if at_most is None else at_most // multiple_of + 1
        with unchanged(self.model):
            while True:
                size = self._largest(multiple_of, end)
                found = self.answers[size].plan
                assert found is not None
                if verify:
                    found = self._verified(size)
                if found is not None:
                    return LargestSize.found(size, found, len(self.answers), time.perf_counter() - started)
                end = size // multiple_of
                if end == 1:
                    raise self._too_small(multiple_of)

    def _largest(self, unit: int, end: int | None) -> int:
        """The largest multiple of `unit` below `end` units that is found to fit.

        A size that does not fit takes all the time that a search has, unless that is proven. So sizes get a part of it; all of it gets the
        one after the largest, and where that fits, those up to the next that did not.
        """
        self.hurried = True
        low, high = self._between(unit, 0, end)
        self.hurried = False
        while high != end and self.answers[high * unit].is_open and self._fits(high * unit):
            beyond = [size // unit for size, answer in self.answers.items() if size > high * unit and not answer.fits]
            if end is not None:
                beyond.append(end)  # answers may be of a search before, which went further
            low, high = self._between(unit, high, min(beyond, default=None))
        if low == 0:
            raise self._too_small(unit)
        return low * unit

    def _between(self, unit: int, low: int, end: int | None) -> tuple[int, int]:
        """Two numbers of units, one more than the other: `low` or more, found to fit, and `end` or less, not found to."""
        high, slow = end, False
        while high is None or high - low > 1:
            # What sizes need grows faster than they do, or just as fast: guesses may stay on one side, halving does not.
            guess = _middle(low, high) if slow and high is not None else self._guess(unit, low, high)
            before = low, high
            if self._fits(guess * unit):
                low = guess
            else:
                high = guess
            slow = high is not None and before[1] is not None and 2 * (high - low) > before[1] - before[0]
            if high is None and (low * unit >= _END or (low >= _SAME and len(set(self.seen.values())) == 1)):
                raise CheckmateError(
                    f"a {self.kind} of {low * unit} fits like the smaller ones: make_inputs must use its argument; or give at_most="
                )
        return low, high

    def _guess(self, unit: int, low: int, high: int | None) -> int:
        """The next number of units to try: where the need of the sizes seen so far would come to the budget."""
        first = 2 if unit == 1 else 1  # PyTorch traces a size of 1 as a case of its own
        for units in (first, 2 * first):
            if units * unit not in self.needs and (high is None or units < high):
                self.needs[units * unit] = self.dry.need(self._dry_step(units * unit))
        budget = self.budget - self.margin
        guess = low + 1
        if len(self.needs) > 1:
            sizes = sorted(self.needs)
            above = next((i for i, size in enumerate(sizes) if self.needs[size] > budget), len(sizes) - 1)
            x, p = sizes[max(above, 1) - 1], sizes[max(above, 1)]
            if self.needs[p] > self.needs[x]:
                guess = int(x + (budget - self.needs[x]) * (p - x) / (self.needs[p] - self.needs[x])) // unit
        if high is not None:
            return _middle(low, high) if guess >= high else max(guess, low + 1)
        return max(low + 1, min(max(guess, 2 * low), max(2 * first, _GROWTH * low)))

    def _fits(self, size: int) -> bool:
        answer = self.answers[size] = self._planned(size)
        if answer.error is not None:
            self.needs[size] = answer.error.smallest_found
        fitting = max((s for s, other in self.answers.items() if other.fits), default=0)
        self.tell(f"{self.kind} {size} {'fits' if answer.fits else 'not found to fit'}; largest so far {fitting}")
        return answer.fits

    def _planned(self, size: int) -> _Answer:
        step = self._dry_step(size)
        any_cost = self.max_overhead is None
        others = [answer.plan for answer in self.answers.values() if answer.plan is not None] if any_cost else []
        try:
            plan = self.dry.plan(
                step, any_cost=any_cost, margin=self.margin, others=others[-1:], time=_HURRY if self.hurried else 1.0
            ).plan
        except InfeasibleBudget as error:
            return _Answer(False, error=error, hurried=self.hurried)
        return _Answer(self._cheap(plan), plan, hurried=self.hurried)

    def _cheap(self, plan: Plan) -> bool:
        return self.max_overhead is None or plan.schedule.overhead <= self.max_overhead

    def _too_small(self, unit: int) -> CheckmateError:
        error = self.answers[unit].error
        if error is None:  # it is the cost that is too much, or the real step
            return CheckmateError(f"no {self.kind} was found to fit, not even {unit}: raise the budget or max_overhead")
        message = f"not even a {self.kind} of {unit} fits: {error}"
        return InfeasibleBudget(error.budget, error.proven_minimum, error.smallest_found, message)

    # --- steps ---

    def _dry_step(self, size: int) -> DryStep:
        inputs = self._inputs(size)
        gradients = sum(p.nbytes for p in self.model.parameters() if p.requires_grad) if self.accumulate else 0
        with unchanged(self.model):
            step = self.dry.step(lambda: self._backward(self.compiled, inputs), gradients)
        self.budget = self.dry.budget(step.device)
        return step

    def _backward(self, compiled: Callable[..., Any], inputs: Any) -> None:
        with torch.enable_grad():
            output = _called(compiled, inputs)
            loss_of(output, self.loss).backward()

    def _inputs(self, size: int) -> Any:
        """Inputs of a size, with marks where they differ between sizes: PyTorch leaves these dimensions open in its first trace."""
        inputs = self.make_inputs(size)
        tensors = _tensors(inputs)
        self.seen[size] = tuple(str(leaf.shape) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in _leaves(inputs))
        if self.open_sizes is None:
            other = _tensors(self.make_inputs(size + 1))
            pairs = zip(tensors, other, strict=False)
            self.open_sizes = [
                frozenset(i for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=False)) if n != m) for a, b in pairs
            ]
        for tensor, dimensions in zip(tensors, self.open_sizes, strict=False):
            leave_open(tensor, dimensions)
        return inputs

    def _verified(self, size: int) -> Plan | None:
        """The plan of real steps of this size, if one of them is measured to keep to the budget."""
        session = Session(self.given)
        compiled = self._compile(session)
        inputs = self._inputs(size)
        plan = None
        try:
            for _ in range(_STEPS):
                with unchanged(self.model), warnings.catch_warnings():
                    warnings.simplefilter("ignore", BudgetWarning)  # what a first step shows is known to the second
                    if self.accumulate:
                        for parameter in self.model.parameters():
                            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
                    self._backward(compiled, inputs)
                plan = session.plans[-1] if session.plans else None
                if plan is not None and plan.measured_peak is not None and plan.measured_peak <= plan.budget:
                    if not self._cheap(plan):  # ops were timed again, or the search ended elsewhere
                        self.tell(f"{self.kind} {size} costs too much after all: {plan.schedule.overhead:.3f}")
                        return None
                    self.tell(f"{self.kind} {size} confirmed: a real step takes {format_bytes(plan.measured_peak)}")
                    return plan
        except (InfeasibleBudget, torch.OutOfMemoryError) as error:
            self.tell(f"{self.kind} {size} does not fit after all: {error}")
            return None
        finally:
            for one in session.group.plans:
                one.search_no_more()  # nobody trains under them
            session.parameters.clear()  # nor are their plans to be found under the model
        if plan is None or plan.measured_peak is None:
            return plan  # nothing can be measured here
        self.margin = max(self.margin, plan.measured_peak - plan.budget)
        self.tell(f"{self.kind} {size} does not fit after all: a real step takes {format_bytes(plan.measured_peak)}")
        return None


def _middle(low: int, high: int) -> int:
    """Between two sizes: halfway by ratio while they are far apart."""
    return max(low + 1, math.isqrt(low * high)) if high > 4 * max(low, 1) else (low + high) // 2


def _called(compiled: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return compiled(**inputs)
    return compiled(*inputs) if isinstance(inputs, Sequence) else compiled(inputs)


def _leaves(inputs: Any) -> list[Any]:
    return tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs)


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _leaves(inputs) if isinstance(leaf, torch.Tensor)]
