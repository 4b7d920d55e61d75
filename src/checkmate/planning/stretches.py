"""A schedule of a round's graph cut into schedules of its pairs.

A part can compute its ops only while one of its own passes runs: in the *stretch* of the schedule that is its event's. A schedule
of the whole may compute an op again in the stretch of another pair. Nothing reads it there, so it can wait until just before its
first use, which lies in a stretch of its own pair. What it reads then lives longer and what it makes lives shorter: the schedule
as it runs is simulated again.

What a part has returned is another matter: the part that was called with it may need it before any pass of its own part comes. Where
the schedule computes such values again (`StepGraph.lent`), it is not cut into schedules of pairs, but into *stages*: for each event
everything that is computed while it runs. The stage of a backward pass may then have ops of any pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import CheckmateError, Contradiction, InvalidSchedule
from ..schedule import Compute, Free, Step, Trace, freed_next, simulate, steps_from_sequence
from ..units import format_bytes
from .parts import PartGraph
from .step_graph import StepGraph


@dataclass(frozen=True)
class Again:
    """Backward passes keep what they read, and run once more.

    Attributes:
        last: bytes that are there besides when they run for the last time, such as gradients of the time before.
        kept: the same when they run once more and keep it still.
    """

    last: int = 0
    kept: int = 0

    def joined(self, other: Again) -> Again:
        """The more of both."""
        return Again(max(self.last, other.last), max(self.kept, other.kept))


def cut(step: StepGraph, steps: Sequence[Step], limit: int = 0) -> list[list[Step]]:
    """For each pair a schedule of its part's graph: its forward stretch, the op between the passes, its backward stretch.

    A pair whose backward pass does not come in the round gets one all the same, which computes again whatever it can. Not for a
    schedule that `lends`.

    Args:
        limit: bytes that the round may take, if that is more than the peak of the schedule.

    Raises:
        CheckmateError: as `as_run`.
    """
    if step.alone:
        return [list(steps)]
    sequence = _sequence(as_run(step, steps, limit))
    stretches: list[list[int]] = [[] for _ in step.events]
    for op, time in zip(sequence, _times(step, sequence), strict=True):
        local = step.local[op]
        if local is not None:
            if step.events[time // 2].pair != step.pair_of(op) or time % 2:
                raise Contradiction(f"op {step.graph.ops[op].name!r} is computed while another part runs")
            stretches[time // 2].append(local)
    forward = {event.pair: number for number, event in enumerate(step.events) if not event.backward}
    backward = {event.pair: number for number, event in enumerate(step.events) if event.backward}
    result = []
    for number, pair in enumerate(step.pairs):
        part = step.parts[pair.part]
        whole = list(stretches[forward[number]])
        if part.between is not None:
            late = stretches[backward[number]] if number in backward else [*part.across[1], *part.backward_ops]
            whole += [part.between, *late]
        result.append(_local_steps(part, whole))
    return result


def lends(step: StepGraph, run: Sequence[Step]) -> bool:
    """A schedule, as it runs, computes again what other pairs are called with."""
    counts = Counter(_sequence(run))
    return any(counts[op] > 1 for op in step.lent)


def stages(step: StepGraph, run: Sequence[Step]) -> list[list[Step]]:
    """For each event what is computed, and freed, while it runs.

    Args:
        run: from `as_run`.
    """
    found: list[list[Step]] = [[] for _ in step.events]
    times = iter(_times(step, _sequence(run)))
    number = 0
    for one in run:
        if isinstance(one, Compute):
            time = next(times)
            number = time // 2
            if step.local[one.op] is None:
                number += 1  # what is freed now has been read by the script
                continue
            event = step.events[number]
            if time % 2 or not (event.backward or step.pair_of(one.op) == event.pair):
                raise Contradiction(f"op {step.graph.ops[one.op].name!r} is computed while another part runs")
        if number < len(found):
            found[number].append(one)
    return found


def as_run(step: StepGraph, steps: Sequence[Step], limit: int = 0) -> list[Step]:
    """The schedule of the round as its parts can run it: each recomputation waits for a stretch of its own pair.

    Raises:
        CheckmateError: the events do not come in their order, or the schedule takes more this way than its own peak and `limit`.
    """
    if step.alone:
        return list(steps)
    sequence = _sequence(steps)
    _check_order(step, sequence)
    result = steps_from_sequence(step.graph, _moved(step, sequence))
    allowed, peak = max(limit, simulate(step.graph, steps).peak), simulate(step.graph, result).peak
    if peak > allowed:
        raise CheckmateError(
            f"the schedule computes values again before the part runs that needs them; there, it takes {format_bytes(peak)} "
            f"({peak} bytes), {peak - allowed} more than it may: plan with so many bytes less"
        )
    return result


def peak_as_run(step: StepGraph, steps: Sequence[Step], again: Again | None = None) -> int:
    """Bytes that a schedule takes at its peak when its parts run it, fixed memory included.

    Args:
        again: None where backward passes do not run once more.
    """
    run = list(steps) if step.alone else steps_from_sequence(step.graph, _moved(step, _sequence(steps)))
    trace = simulate(step.graph, run)
    return trace.peak if again is None else _peak_again(step, run, trace, again)


def _peak_again(step: StepGraph, run: Sequence[Step], trace: Trace, again: Again) -> int:
    """The same where the backward passes run once more: nothing that the forward passes left is released in the first of them."""
    first = min(number for number, event in enumerate(step.events) if event.backward)
    begin = _beginnings(step, run)[first]
    kept: set[int] = set()  # what the forward passes have left
    for one in run[:begin]:
        if isinstance(one, Free):
            kept.discard(one.value)
        elif step.local[one.op] is not None:
            kept.update(step.graph.ops[one.op].outputs)
    more, peak = 0, max(trace.during[:begin], default=0)
    for number in range(begin, len(run)):
        one = run[number]
        dies = one.value if isinstance(one, Free) else step.graph.ops[one.op].reuses
        if dies in kept and (isinstance(one, Free) or dies in freed_next(run, number)):
            kept.remove(dies)
            more += step.graph.values[dies].size
        if isinstance(one, Compute):
            peak = max(peak, trace.during[number] + max(more + again.kept, again.last))
    return peak


def bytes_before(step: StepGraph, steps: Sequence[Step], limit: int = 0) -> tuple[int, ...]:
    """For each event the bytes of the round that are live when it begins, fixed memory included."""
    run = as_run(step, steps, limit)
    trace = simulate(step.graph, run)
    return tuple(trace.memory[place - 1] if place else step.graph.fixed_memory for place in _beginnings(step, run))


def _beginnings(step: StepGraph, run: Sequence[Step]) -> list[int]:
    """For each event the place in the schedule of its first computation."""
    places = [number for number, one in enumerate(run) if isinstance(one, Compute)]
    timed = list(zip(places, _times(step, _sequence(run)), strict=True))
    return [next((place for place, time in timed if time >= 2 * event), len(run)) for event in range(len(step.events))]


def _sequence(steps: Sequence[Step]) -> list[int]:
    return [one.op for one in steps if isinstance(one, Compute)]


def _check_order(step: StepGraph, sequence: Sequence[int]) -> None:
    times = [step.times[op] for op in dict.fromkeys(sequence)]
    if times != sorted(times):
        raise CheckmateError(f"a schedule of {step.graph.name!r} takes its events in another order: plan it with order='given'")


def _first_places(sequence: Sequence[int]) -> set[int]:
    """Where in the sequence each op is computed for the first time."""
    first: dict[int, int] = {}
    for place, op in enumerate(sequence):
        first.setdefault(op, place)
    return set(first.values())


def _times(step: StepGraph, sequence: Sequence[int]) -> list[int]:
    """When each computation takes place: a recomputation belongs to the first computation that comes next."""
    first = _first_places(sequence)
    times = [0] * len(sequence)
    upcoming = max(step.times, default=0)
    for place in range(len(sequence) - 1, -1, -1):
        if place in first:
            upcoming = step.times[sequence[place]]
        times[place] = upcoming
    return times


def _moved(step: StepGraph, sequence: Sequence[int]) -> list[int]:
    """The sequence with every computation where the parts can run it."""
    if step.lent:
        sequence = _unless_held(step, sequence)
        result = _delayed(step, sequence, anywhere=True)
        counts = Counter(result)
        if any(counts[op] > 1 for op in step.lent):
            return result
        first = _first_places(sequence)
        sequence = [op for place, op in enumerate(sequence) if place in first or op not in step.lent]
    return _delayed(step, sequence)


def _unless_held(step: StepGraph, sequence: Sequence[int]) -> list[int]:
    """The sequence without recomputations of what the script still holds: it is there."""
    until: dict[int, int] = {}  # op -> the last place at which the script reads what it makes
    producer = step.graph.producer
    for place, op in enumerate(sequence):
        if step.local[op] is None:
            until.update((producer[value], place) for value in step.graph.ops[op].inputs)
    first = _first_places(sequence)
    return [op for place, op in enumerate(sequence) if place in first or op not in step.lent or place > until.get(op, -1)]


def _delayed(step: StepGraph, sequence: Sequence[int], anywhere: bool = False) -> list[int]:
    """The sequence with recomputations moved out of the stretches of other pairs, to just before their first use.

    A recomputation that nothing reads before the next one is left out.

    Args:
        anywhere: the backward passes of other pairs can compute it.
    """
    times, first, ops = _times(step, sequence), _first_places(sequence), step.graph.ops
    result = list(sequence)
    # From the end: what reads a recomputation is in its final place.
    for position in range(len(result) - 1, -1, -1):
        if position in first:
            continue
        op = result.pop(position)
        made = set(ops[op].outputs)
        event = step.events[times[position] // 2]
        can = times[position] % 2 == 0 and (event.pair == step.pair_of(op) or (anywhere and event.backward))
        for place in range(position, len(result)):
            if result[place] == op:
                break
            if not made.isdisjoint(ops[result[place]].inputs):
                result.insert(position if can else place, op)
                break
    return result


def _local_steps(part: PartGraph, sequence: Sequence[int]) -> list[Step]:
    try:
        steps = steps_from_sequence(part.graph, sequence)
        simulate(part.graph, steps)
    except InvalidSchedule as error:
        raise Contradiction(f"the schedule of a round leaves a part with one that cannot run ({error})") from None
    return steps
