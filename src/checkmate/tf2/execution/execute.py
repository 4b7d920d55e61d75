"""Run a planned step: as a `tf.function` with sparse control edges, else with every edge, else op by op."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from math import isqrt
from typing import Any

import tensorflow as tf

from ...errors import BudgetWarning
from ..graphs.capture import Captured
from ..internals import onednn_is_on, without_graph_rewriting
from ..memory.measure import counts_memory, counts_small_blocks, default_device, measure, smallest_counted, zeros_outside
from ..ops.op_kinds import CALLS, CHOICES
from .eager import EagerProgram
from .emit import can_run_dry, emit, original
from .overlap import overlapping
from .plan import Plan
from .priority import prioritized
from .replay import peak_of, uncounted

#: In the order in which they are tried.
MODES = ("sparse", "full", "eager")

#: Where ops overlap, what may run at the same time leaves such a part of what the step may add free by what is modelled; where that takes too
#: much, the next part; at last they run one by one. The looser ones gain little: against ops one by one, steps of the small U-Net and
#: transformer in `benchmarks/tf_models.py` took 0.86 to 0.96 of the time with a twelfth, 0.84 to 0.95 with a quarter and 0.90 to 0.96 with a
#: third, but 0.94 to 1.01 with half.
_PARTS = (12, 6, 4, 3)

#: Steps whose ops overlap had better leave this part of the budget free when they are tried out, and with what is free where they overlap two of
#: the largest blocks of memory that one of the ops asks for: TensorFlow's pool may give out up to twice as much, and which blocks are free is a
#: matter of chance. Beside busy cores, 60 to 150 steps of those two networks took at most 14 MiB more than one by one where a twelfth was
#: free, 10 where it was a sixth, 6 a quarter and 0 a third; the largest block is one of 16 MiB.
_FURTHER, _BLOCKS = 50, 2

#: Of a branch that was not rehearsed this part more is taken than is modelled.
_UNSEEN = 20

#: They are tried out so many times as often as others at least, and up to so many times where that takes no more than these seconds:
#: one step in fifty may well take 10% more than the others.
_OFTEN, _MOST_OFTEN, _SECONDS = 2, 10, 3.0

#: Bytes: TensorFlow's pool cuts a free block in two where so much or more would be left over.
_MOST_WASTE = 128 * 2**20

#: Where ops run one by one, so many times at most.
_IN_TURN = 4

#: How long a run takes is told by the quicker ones among more runs than this, without the first, which makes the function: some take
#: longer because of what else goes on on the machine.
_SELDOM = 4


class Executor:
    """Runs one plan.

    Args:
        overlap: ops may run at the same time where memory is left.

    Attributes:
        measured: a step of it has been measured.
        added_in_turn: bytes that it adds at its peak when ops run one by one; None if that was not tried out.
        rehearsed_seconds: of a run when it was tried out; None if it ran too seldom for that.
    """

    def __init__(self, captured: Captured, plan: Plan, overlap: bool):
        self.captured = captured
        self.plan = plan
        self.measured = False
        self.added_in_turn: int | None = None
        self.rehearsed_seconds: float | None = None
        # On a GPU ops go one by one in any case; without oneDNN what a convolution takes depends on what runs beside it; and
        # TensorFlow's rewriting would merge copies of an op that wait for the same.
        on_cpu = default_device() == "CPU:0" and onednn_is_on()
        self._may_overlap = overlap and on_cpu and captured.traced.rewritten
        self._part: int | None = None  # of `_PARTS`; ops run one by one without it
        self._limit = 0  # bytes, of the last rehearsal
        self._lacking = 0  # bytes that were not there when overlapping was tried out
        self._mode = 0
        self._function: Any = None

    @property
    def wanted_room(self) -> int:
        """So many bytes more at least, and ops may overlap; 0 if they do, or never will."""
        if self.added_in_turn is None or self.overlaps or not self._may_overlap or self.mode != "sparse":
            return 0
        return max(0, self._lacking, self.added_in_turn + self._apart(_PARTS[-1]) - self._limit)

    @property
    def unmade(self) -> int:
        """Bytes of fixed memory that are not there before the next run: the constants of a function that did not run yet."""
        return 0 if self.measured or self.mode == "eager" else self.captured.traced.constant_bytes

    @property
    def overlaps(self) -> bool:
        """Ops run at the same time."""
        return self._part is not None

    @property
    def room_for_chance(self) -> int:
        """Bytes that are left free for what overlapping does to the memory pool; 0 where ops run one by one, or were not tried out one by one."""
        return 0 if self._part is None or self.added_in_turn is None else self._apart(self._part)

    @cached_property
    def _largest(self) -> int:
        """Bytes of the largest block of memory that an op asks for."""
        return max((run.largest_block for run in self.plan.runs), default=0)

    def _beside(self, part: int) -> int:
        """Bytes that are free, by what is modelled, where ops overlap."""
        return (self.plan.budget - self.plan.allowance.elsewhere - self.captured.traced.fixed_bytes) // part

    def _apart(self, part: int) -> int:
        """Bytes to be left free when ops that overlap are tried out."""
        return max(self.plan.budget // _FURTHER, _BLOCKS * self._largest - self._beside(part))

    @property
    def mode(self) -> str:
        return MODES[self._mode]

    @cached_property
    def _left_out(self) -> int:
        """Bytes that rehearsals do not see: they leave out what changes variables, and with it what that takes."""
        with_it = max((run.during for run in self.plan.runs), default=0)
        return with_it - max((run.during - run.outdated for run in self.plan.runs), default=0)

    @cached_property
    def uncounted(self) -> int:
        """Bytes at the peak that TensorFlow takes and does not count."""
        if counts_small_blocks(default_device()):
            return 0
        return uncounted(self.captured, self.plan.schedule.steps, peak_of(self.captured, self.plan.runs))

    @cached_property
    def moved(self) -> dict[str, int]:
        """Variables that lie elsewhere after a step, in blocks that are up to twice as large, by the names of their handles, and their bytes:
        those that it replaces by their next value, as those of momentum, and that it changes while something still reads what they were."""
        least = smallest_counted(default_device())
        return {name: size for run in self.plan.runs for name, size in run.moved.items() if size >= least}

    @cached_property
    def moving(self) -> int:
        """Bytes by which steps may take more than rehearsals, which change no variables: those that are moved, and the holes that they
        leave, lie in larger blocks. The waste of many variables adds up as chance does.
        """
        return isqrt(sum(min(size, _MOST_WASTE) ** 2 for size in self.moved.values()))

    @cached_property
    def _least(self) -> int:
        """Bytes that a rehearsal says at least: zeros may leave a loop sooner, and take the branch that takes less."""
        kinds = {op.type for op in self.captured.traced.ops}
        if not kinds & CALLS:
            return 0
        modelled = max(run.during for run in self.plan.runs)
        return modelled + (modelled // _UNSEEN if kinds & CHOICES else 0) - self.captured.traced.fixed_bytes

    def prepare(self) -> None:
        """Make the function, so that a measured run holds nothing else."""
        if self._function is None:
            self._function = EagerProgram(self.captured, self.plan.schedule.steps) if self.mode == "eager" else self._graph()

    @property
    def way(self) -> Any:
        """What rehearsals found of how it runs, as JSON data."""
        return [self._mode, self._part, self.added_in_turn]

    @way.setter
    def way(self, found: Any) -> None:
        with suppress(TypeError, ValueError):  # of another version
            self._mode, part, self.added_in_turn = found
            self._part = part if self._may_overlap else None

    def rehearse(self, limit: int, *, whole: bool = False, enough: int | None = None) -> int | None:
        """Bytes that the schedule adds at its peak with ops one by one, found by runs on zeros that change nothing.

        None if that cannot be done.

        Args:
            limit: bytes that it may add. whole: find the peak also beyond them. enough: once it adds so many bytes, it is not asked
                how many.
        """
        self._limit, self._part = limit, None
        self.added_in_turn = self._rehearse(limit, whole, enough)
        return self.added_in_turn

    def overlapped(self) -> Iterator[tuple[Executor, int] | None]:
        """After a rehearsal, ways to run the same schedule with ops that overlap.

        After each that was tried out comes None, or at last one that leaves more room than is needed, for ops run in another order each
        time; and the bytes that it adds.
        """
        limit, added = self._limit, self.added_in_turn
        if added is None or added > limit or not self._may_overlap:
            return
        lacking = []
        for part in _PARTS:
            further = limit - self._apart(part)
            if added > further or self.mode != "sparse":
                continue
            other = self._with_overlap(part)
            overlapped = other._rehearse(further)
            if other.overlaps and overlapped is not None and overlapped <= further:
                yield other, overlapped
                return
            lacking.append(0 if overlapped is None else overlapped - further)
            yield None
        self._lacking = min(lacking, default=0)

    def _with_overlap(self, part: int) -> Executor:
        """Another executor of the same plan, whose runs overlap where this part is free."""
        other = Executor(self.captured, self.plan, self._may_overlap)
        other.added_in_turn, other._limit, other._mode, other._part = self.added_in_turn, self._limit, self._mode, part
        other.uncounted = self.uncounted  # as it takes long to find
        return other

    def _rehearse(self, limit: int, whole: bool = False, enough: int | None = None) -> int | None:
        """As `rehearse`, for ops that overlap or not.

        Where the allocator finds room depends on what else is in its pool. So the largest of four counts or more is taken: there is
        nothing but a new batch, as in the first step; the batch lies elsewhere; it is new, beside the results of the step before;
        or it is new while the one before is still there, too. One run is enough if it passes `limit` bytes or takes `enough`, or if it
        stays well below them and no ops overlap. A way of running that TensorFlow refuses is given up for the next.

        Args:
            whole: one run is never enough.
        """
        if not can_run_dry(self.captured) or not counts_memory(default_device()):
            return None
        traced = self.captured.traced
        inputs = [(t.shape, t.dtype) for t in traced.inputs[: traced.argument_count]]
        # Where one block of the pool more is a large part of everything, more counts are needed.
        well_below = limit - max((limit + traced.fixed_bytes) // 20, self._largest)
        rounds = (_OFTEN, _MOST_OFTEN) if self.overlaps else (1, _IN_TURN)
        kept: deque[Any] = deque(maxlen=1)  # what a step gives is still there when the next one begins
        while self.mode != "eager":
            function = self._graph(dry=True)
            most, least, unmade = self._least, 0, traced.constant_bytes
            took: list[float] = []
            try:
                for batch in _batches(inputs, *rounds):
                    began = time.perf_counter()
                    with measure() as seen:
                        kept.append(self._call(function, batch))
                    took.append(time.perf_counter() - began)
                    taken = (seen.added or 0) - unmade + self._left_out + self.uncounted + self.moving
                    most, least, unmade = max(most, taken), min(least or taken, taken), 0
                    if enough is not None and most >= enough:
                        break
                    if not whole and (most > limit or (most <= well_below and not self.overlaps)):
                        break
            except tf.errors.ResourceExhaustedError:
                return max(most, limit + 1)  # the device has no more than the budget
            except (tf.errors.InvalidArgumentError, tf.errors.InternalError) as error:
                if not _is_cycle(error):
                    return None  # it does not run on zeros
                self._give_up()
            else:
                self.rehearsed_seconds = sorted(took[1:])[len(took) // 4] if len(took) > _SELDOM else None
                # Of what differs from count to count the next step may bring more; ops that overlap are counted often. A third: 84 orders
                # of plans of two small networks, each tried out and then run for ten steps, took no more in 82, and 0.01 MiB more in two.
                return most if self.overlaps or most > limit else most + (most - max(least, self._least)) // 3
        return None

    def run(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """One step. A way of running that TensorFlow refuses is given up for the next before anything has run."""
        while True:
            self.prepare()
            try:
                results = self._call(self._function, flat)
            except (tf.errors.InvalidArgumentError, tf.errors.InternalError) as error:
                if self.plan.mode is not None or self.mode == "eager" or not _is_cycle(error):
                    raise
                self._give_up()
                continue
            self.plan.mode = self.mode
            return results

    def _call(self, function: Any, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with without_graph_rewriting() if self.mode == "full" or self.captured.traced.rewritten else nullcontext():
            return list(function(*flat))

    def stop_overlap(self) -> None:
        """From now on ops run one by one."""
        self._part = None
        self.forget()

    def forget(self) -> None:
        """Free what its function holds, such as large constants: other executors run the step now. If it runs again it makes a new one."""
        self._function, self.measured = None, False

    def _give_up(self) -> None:
        if self.overlaps:
            self.stop_overlap()
            return
        self._mode, self._function = self._mode + 1, None
        if self.mode == "eager":
            warnings.warn(
                "TensorFlow cannot run this schedule as one graph: it runs op by op, which is slower", BudgetWarning, stacklevel=6
            )

    def inline(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Emit the step into the graph that is being built."""
        emitted = emit(self.captured, self.plan.schedule.steps)
        return replace(emitted, captured=self.captured.traced.random.begun_anew(emitted.captured)).place(flat)

    def _graph(self, dry: bool = False) -> Any:
        plan = self.plan
        waits = None
        if self._part is not None:
            # What the plan leaves free is taken by what is not modelled.
            waits = overlapping(plan.runs, plan.allowance.limit - self._beside(self._part))
        emitted = emit(self.captured, plan.schedule.steps, self.mode, dry, waits, plan.runs)
        return (prioritized(emitted, self._seconds) if self.overlaps else emitted).function()

    def _seconds(self, name: str) -> float:
        cost = self.captured.costs.get(original(name))
        return cost.seconds if cost is not None else 0.0


def _batches(like: Sequence[tuple[tf.TensorShape, tf.DType]], least: int, most: int) -> Iterator[list[tf.Tensor]]:
    """Zeros: new, outside of the allocator's memory, new, and new while there are others; all of these as often as
    `_SECONDS` allow, but `least` to `most` times."""
    began = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - began > _SECONDS:
            return
        batch = [tf.zeros(shape, dtype) for shape, dtype in like]
        yield batch
        del batch
        if default_device() == "CPU:0":
            yield [zeros_outside(shape, dtype) for shape, dtype in like]
        batch = [tf.zeros(shape, dtype) for shape, dtype in like]
        yield batch
        batch = [tf.zeros(shape, dtype) for shape, dtype in like]  # the one before goes when this is there
        yield batch


def _is_cycle(error: tf.errors.OpError) -> bool:
    """Graph rewriting closed a cycle with the control edges; TensorFlow says so before it runs anything."""
    return "cycle" in str(error).lower()
