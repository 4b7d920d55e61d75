"""The two functions that run a part under a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import CheckmateError
from ...schedule import Compute, Step
from ..inductor.inner import Pair, compile_pair
from ..ops.nodes import Computation, is_random
from ..ops.sizes import Bindings
from ..pytorch.internals import Boxed, boxed
from .capture import Captured
from .emit import Emitted, Numbers, emit


@dataclass(frozen=True)
class Halves:
    """The two functions of one run. The numbers that follow from sizes are the last inputs of each.

    Attributes:
        forward: inputs -> outputs, then what the backward pass needs. backward: that, then gradients of outputs -> gradients.
        added: for each of the two, bytes that are live at its peak beyond those live when it begins; None where only a step will tell.
        more: bytes that the forward pass leaves for the backward pass beyond those of the values that the schedule keeps.
    """

    forward: Boxed
    backward: Boxed
    forward_numbers: Numbers
    backward_numbers: Numbers
    added: tuple[int | None, int | None] = (None, None)
    more: int = 0

    def at(self, sizes: Bindings) -> Halves:
        """Ready to run at these sizes."""
        return self

    def for_backward(self, sizes: Bindings, saved: list[Any], tangents: list[Any]) -> tuple[Boxed, list[Any]]:
        """What runs in the backward pass, and with what.

        Args:
            saved: what the ticket held.
        """
        return self.backward, [*saved, *tangents, *self.backward_numbers(sizes)]


@dataclass(frozen=True)
class _CompiledHalves(Halves):
    """Compiled by Inductor, for each size anew: what it writes for symbolic sizes may hold for some of them only."""

    captured: Captured = field(kw_only=True)
    emitted: Emitted = field(kw_only=True)
    apart: Collection[Computation] | None = field(kw_only=True)
    pairs: dict[Bindings, Pair] = field(kw_only=True)
    ready: dict[Bindings, Halves] = field(kw_only=True, default_factory=dict)

    def at(self, sizes: Bindings) -> Halves:
        """Ready to run at these sizes: the kernels are compiled."""
        if sizes not in self.ready:
            if sizes not in self.pairs:
                self.pairs[sizes] = _compiled(self.captured, self.emitted, sizes, self.apart)
            pair = self.pairs[sizes]
            run = pair.forward.load(), pair.backward.load()
            self.ready[sizes] = Halves(*run, self.forward_numbers, self.backward_numbers, pair.added, pair.more)
        return self.ready[sizes]


def computations(steps: Iterable[Step]) -> list[Computation]:
    """Those of a schedule, in their order."""
    times: Counter[int] = Counter()
    found = []
    for step in steps:
        if isinstance(step, Compute):
            times[step.op] += 1
            found.append((step.op, times[step.op]))
    return found


def draws(captured: Captured) -> int:
    """How many of its ops draw random numbers."""
    return sum(node is not None and is_random(node) for node in captured.nodes)


def halves_of(captured: Captured, steps: Sequence[Step], apart: Collection[Computation] | None) -> Halves:
    """Emit a schedule of one part: of its ops, or of their groups where they run in groups.

    Args:
        apart: see `inductor.internals.lower`.
    """
    if captured.fusion is not None:
        emitted = emit(captured, captured.fusion.expand(steps), functional=True)
        pair = _compiled(captured, emitted, captured.bindings, apart)
        return _CompiledHalves(
            unready,
            unready,
            emitted.forward_numbers,
            emitted.backward_numbers,
            pair.added,
            pair.more,
            captured=captured,
            emitted=emitted,
            apart=apart,
            pairs={captured.bindings: pair},
        )
    emitted = emit(captured, steps)
    assert emitted.backward is not None
    return Halves(boxed(emitted.forward), boxed(emitted.backward), emitted.forward_numbers, emitted.backward_numbers)


def _compiled(captured: Captured, emitted: Emitted, sizes: Bindings, apart: Collection[Computation] | None) -> Pair:
    assert emitted.backward is not None and captured.inner is not None
    count, number = len(captured.outputs), captured.sizes.at(sizes)
    return compile_pair(emitted.forward, emitted.backward, count, number, captured.device, captured.inner.profile, apart)


def unready(arguments: list[Any]) -> Any:
    """In place of a pass that has another one at its sizes, or in its round."""
    raise CheckmateError("a pass runs before it was compiled for its sizes: please report it")
