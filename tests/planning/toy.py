"""A front end for training steps written as plain functions on NumPy arrays: what a framework of one's own would have to bring.

    def step(tape, x, weights):
        h = tape(relu, x)                     # instead of relu(x)
        return [tape(update, weights, h)]     # what the step is for

    train = toy.compile(step, budget="60%")
    (weights,) = train(x, weights)

An op is a function of arrays, without side effects, that returns one new array of 64-bit floats.
"""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from checkmate import planning
from checkmate.errors import BudgetWarning
from checkmate.graph import Graph, Op, Value
from checkmate.planning import Allowance, Margins, OpCost, Options, Plan, Work
from checkmate.planning.cost_cache import CostCache, open_cost_cache
from checkmate.planning.roofline import Rates
from checkmate.schedule import Compute, Step

Array = np.ndarray[Any, np.dtype[np.float64]]


# --- capture: the user's step -> Graph ---


@dataclass(frozen=True)
class Ref:
    """An array of the step: the result of op number `op`, or where that is negative, argument number -1 - `op`."""

    op: int
    shape: tuple[int, ...]

    def nbytes(self) -> int:
        return 8 * int(np.prod(self.shape))


@dataclass(frozen=True)
class Call:
    """One op."""

    function: Callable[..., Array]
    reads: tuple[Ref, ...]
    result: Ref


class Tape(list[Call]):
    """Notes ops; each runs once, alone, to see how large its result is."""

    def __call__(self, function: Callable[..., Array], *reads: Ref) -> Ref:
        self.append(Call(function, reads, Ref(len(self), function(*made_up(reads)).shape)))
        return self[-1].result


@dataclass
class Captured:
    """A step: op i of the graph is `calls[i]`, and makes value i."""

    calls: list[Call]
    outputs: list[Ref]
    graph: Graph


def capture(step: Callable[..., list[Ref]], arguments: Sequence[Array], cost_model: str) -> Captured:
    tape = Tape()
    given = [Ref(-1 - number, array.shape) for number, array in enumerate(arguments)]
    outputs = step(tape, *given)
    costs = planning.find_op_costs(tape, Runner(), cost_model)
    kept = {ref.op for ref in outputs}
    ops, values = [], []
    for number, call in enumerate(tape):
        name = f"{number}: {call.function.__name__}"
        reads = tuple(sorted({ref.op for ref in call.reads if ref.op >= 0}))
        ops.append(Op(name, costs[call].seconds, reads, (number,), costs[call].workspace))
        values.append(Value(name, call.result.nbytes(), number in kept))
    return Captured(tape, outputs, Graph(ops, values, sum(ref.nbytes() for ref in given), step.__name__))


# --- costs: what one op takes ---


class Runner:
    """See `checkmate.planning.op_costs.OpRunner`."""

    def known(self, op: Call) -> OpCost | None:
        return None

    def signature(self, op: Call) -> str | None:
        return f"{op.function.__module__}.{op.function.__qualname__}({', '.join(str(ref.shape) for ref in op.reads)})"

    def cache(self, op: Call) -> CostCache:
        return open_cost_cache(planning.cost_environment("numpy", np.__version__, "cpu", 1))

    def measuring(self, ops: Sequence[Call]) -> nullcontext[None]:
        return nullcontext()

    def measure(self, op: Call) -> OpCost | None:
        arguments = made_up(op.reads)

        def seconds() -> float:
            started = time.perf_counter()
            op.function(*arguments)
            return time.perf_counter() - started

        with measure() as seen:
            result = op.function(*arguments)
        return OpCost(planning.quickest(seconds), max(0, seen.added - result.nbytes))

    def work(self, op: Call) -> Work:
        moved = sum(ref.nbytes() for ref in (*op.reads, op.result))
        return Work(moved / 8, moved, Rates(1e10, 1e10))  # a real front end measures what its device reaches


def made_up(reads: Sequence[Ref]) -> list[Array]:
    return [np.full(ref.shape, 0.5) for ref in reads]


@contextmanager
def measure() -> Iterator[SimpleNamespace]:
    """`.added`: bytes that a block took at its peak beyond what was there before it; NumPy tells Python's own tracer about arrays."""
    seen = SimpleNamespace(added=0)
    tracemalloc.start()
    try:
        yield seen
    finally:
        seen.added = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


# --- emit: the schedule -> a step that runs ---


def run(captured: Captured, steps: Sequence[Step], arguments: Sequence[Array]) -> list[Array]:
    made: dict[int, Array] = {}
    for step in steps:
        if isinstance(step, Compute):
            call = captured.calls[step.op]
            made[step.op] = call.function(*[made[r.op] if r.op >= 0 else arguments[-1 - r.op] for r in call.reads])
        else:
            del made[step.value]
    return [made[ref.op] for ref in captured.outputs]


# --- the habits of the framework: a plan for every set of shapes, measured in its first step and made again where that passes the budget


class Planned:
    """Calls of this object run the step under the budget."""

    def __init__(self, step: Callable[..., list[Ref]], options: Options):
        self.step, self.options = step, options
        self.captured: dict[Any, tuple[Captured, Margins]] = {}
        self.plans: dict[Any, Plan] = {}

    def __call__(self, *arguments: Array) -> list[Array]:
        shapes = tuple(array.shape for array in arguments)
        plan = self.plans.get(shapes)
        if plan is None or (plan.measured_peak or 0) > plan.budget:
            plan = self.plans[shapes] = self._plan(shapes, arguments)
        captured, margins = self.captured[shapes]
        plan.executions += 1
        if plan.measured_peak is not None:
            return run(captured, plan.schedule.steps, arguments)
        with measure() as seen:
            results = run(captured, plan.schedule.steps, arguments)
        plan.measured_peak = seen.added + plan.graph.fixed_memory + plan.reserved
        if plan.measured_peak > plan.budget:
            planning.note_excess(margins, plan, plan.measured_peak)
            warnings.warn(f"the step {plan.excess_of(plan.measured_peak)}", BudgetWarning, stacklevel=2)
        return results

    def _plan(self, shapes: Any, arguments: Sequence[Array]) -> Plan:
        reserved = self.options.reserved_bytes()
        if shapes not in self.captured:
            captured = capture(self.step, arguments, self.options.cost_model)
            total = self.options.total(captured.graph.no_recompute_peak + reserved, planning.host_budget)
            # Python's own objects take a little.
            self.captured[shapes] = captured, Margins(total, unit=total // 200 + 1, margin=total // 100)
        captured, margins = self.captured[shapes]
        allowance = Allowance(margins.budget, reserved, margins.margin)
        return planning.make_plan(captured.graph, self.options, allowance, Plan)


def compile(step: Callable[..., list[Ref]], budget: Any = "auto", **options: Any) -> Planned:
    return Planned(step, Options.read({"budget": budget, **options}))
