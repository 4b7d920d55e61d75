"""Seconds and workspace of every op of a step: each distinct op is measured once, remembered, and else worked out.

`cost_model="profile"` runs every distinct op on made-up inputs, unless an earlier process did; `cost_model="flops"` runs nothing:
arithmetic and bytes moved go through a roofline. What cannot be run on made-up inputs takes the second way always. Of several runs
the quickest counts: other work on the machine only adds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ..errors import UnknownMethod
from .cost_cache import CostCache
from .roofline import Rates, roofline_seconds

COST_MODELS = ("profile", "flops")
#: A run is disturbed where threads waited longer than so many seconds, which waking them takes anyway, and than this share of it.
_SHORT_WAIT, _SMALL_SHARE = 20e-6, 0.05
#: A disturbed run that takes so much longer than the work itself is believed: threads never share work out evenly.
_LIKELY = 1.5

Op = TypeVar("Op", bound=Hashable)
AskedOp = TypeVar("AskedOp", bound=Hashable, contravariant=True)


@dataclass(frozen=True, slots=True)
class OpCost:
    """What running one op takes.

    Attributes:
        seconds: on its device.
        workspace: bytes it has live while it runs, beyond its inputs and the outputs that the graph reads.
        estimated: it was not measured, not as it is; then the workspace may be less, and proves nothing.
    """

    seconds: float
    workspace: int
    estimated: bool = False

    @property
    def certain(self) -> OpCost:
        """The same without what was only estimated to be needed."""
        return replace(self, workspace=0) if self.estimated else self


FREE = OpCost(0.0, 0)


@dataclass(frozen=True, slots=True)
class Work:
    """What an op does, for the roofline.

    Attributes:
        flops: floating-point operations, a multiply-add counted as two. moved: bytes read and written.
        rates: of the device that it runs on. workspace: bytes, as far as they are known without running it.
    """

    flops: float
    moved: float
    rates: Rates
    workspace: int = 0


class OpRunner(Protocol[AskedOp]):
    """What a front end says about its ops. Ops are whatever it likes, as long as they can be keys of a dictionary."""

    def known(self, op: AskedOp) -> OpCost | None:
        """The cost of what need not be measured, such as a view; None for the rest."""

    def signature(self, op: AskedOp) -> str | None:
        """Everything that the cost depends on besides the device; None for what cannot be run by itself."""

    def cache(self, op: AskedOp) -> CostCache:
        """Where costs on its device are kept, two numbers per row."""

    def measuring(self, ops: Sequence[AskedOp]) -> AbstractContextManager[object]:
        """Around all measurements: sets up what they need, and puts back what they disturb."""

    def measure(self, op: AskedOp) -> OpCost | None:
        """Run an op on made-up inputs, or a part of it for an estimate; None if it does not run on them."""

    def work(self, op: AskedOp) -> Work:
        """What an op does, found without running it."""


def find_op_costs(
    ops: Iterable[Op], runner: OpRunner[Op], cost_model: str = "profile", progress: Callable[[int, int], None] | None = None
) -> dict[Op, OpCost]:
    """The cost of each op.

    Args:
        cost_model: "profile" or "flops". progress: called with (signatures measured, signatures to measure).

    Raises:
        UnknownMethod: another cost model.
    """
    check_cost_model(cost_model)
    costs: dict[Op, OpCost] = {}
    groups: dict[Hashable, list[Op]] = {}  # ops that cost the same
    todo: list[tuple[str, Op]] = []
    for op in ops:
        known = runner.known(op)
        signature = runner.signature(op) if known is None else None
        if known is not None or signature is None:
            costs[op] = known or _modelled(op, runner)
            continue
        cache = runner.cache(op)
        group = groups.setdefault((id(cache), signature), [])
        group.append(op)
        if len(group) > 1:
            continue
        if cost_model == "flops":
            costs[op] = _modelled(op, runner)
        elif (row := cache.get(signature)) is not None:
            costs[op] = OpCost(row[0], int(row[1]))
        else:
            todo.append((signature, op))
    if todo:
        costs.update(_measured(todo, runner, progress))
    for first, *others in groups.values():
        costs.update(dict.fromkeys(others, costs[first]))
    return costs


def _measured(
    todo: Sequence[tuple[str, Op]], runner: OpRunner[Op], progress: Callable[[int, int], None] | None
) -> dict[Op, OpCost]:
    """Costs from running each op; where one does not run, from what it does."""
    costs: dict[Op, OpCost] = {}
    caches = {id(cache): cache for cache in (runner.cache(op) for _, op in todo)}
    try:
        with runner.measuring([op for _, op in todo]):
            for number, (signature, op) in enumerate(todo, start=1):
                cost = runner.measure(op)
                if cost is not None:
                    costs[op] = cost
                    if not cost.estimated:
                        runner.cache(op).put(signature, [cost.seconds, float(cost.workspace)])
                if progress is not None:
                    progress(number, len(todo))
    finally:  # what was measured before an interrupt is worth keeping
        for cache in caches.values():
            cache.save()
    return costs | {op: _modelled(op, runner) for _, op in todo if op not in costs}


def _modelled(op: Op, runner: OpRunner[Op]) -> OpCost:
    work = runner.work(op)
    return OpCost(roofline_seconds(work.flops, work.moved, work.rates), work.workspace, estimated=True)


def quickest(once: Callable[[], float], seconds: float = 0.05, least: int = 3, most: int = 20) -> float:
    """Seconds of the quickest of several runs.

    Args:
        once: runs it and gives the seconds that it took.
        seconds: for all runs together, but at least `least` and at most `most` runs are made.
    """
    runs: list[float] = []
    while len(runs) < least or (len(runs) < most and sum(runs) < seconds):
        runs.append(once())
    return max(min(runs), 1e-9)


def undisturbed(
    once: Callable[[], float], instead: Callable[[], float], seconds: float = 0.05, least: int = 3, most: int = 20
) -> float:
    """Seconds of the quickest of several runs during which no thread of this process had to wait for a processor.

    On a busy machine two threads that wait for each other take a hundred times as long as either has to work, in every run. Where
    there is no run without that, `instead` says what the work itself takes, and counts if the quickest run is much longer.

    Args:
        once, seconds, least, most: as for `quickest`. instead: an estimate that other processes do not disturb.
    """
    clean: list[float] = []

    def watched() -> float:
        before = seconds_waited()
        took = once()
        after = seconds_waited()
        if before is None or after is None or after - before <= max(_SHORT_WAIT, _SMALL_SHARE * took):
            clean.append(took)
        return took

    found = quickest(watched, seconds, least, most)
    if clean:
        return max(min(clean), 1e-9)
    alone = max(instead(), 1e-9)
    return found if found <= _LIKELY * alone else alone


def seconds_waited() -> float | None:
    """Seconds that the threads of this process were ready to run and had to wait for a processor; None where the system does not say."""
    total = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # another system, or a thread that has just ended
        return None
    return total / 1e9


def device_rates(cache: CostCache, name: str, measure: Callable[[], Rates]) -> Rates:
    """What a device reaches, measured once and remembered.

    Args:
        name: of what the rates are for, such as a type of numbers.
    """
    keys = [f"rates of {name}: arithmetic and traffic", f"rates of {name}: latency"]
    rows = [row for key in keys if (row := cache.get(key)) is not None]
    if len(rows) < len(keys) or not all(rows[0]):
        rates = measure()
        rows = [[rates.flops_per_second, rates.bytes_per_second], [rates.latency, 0.0]]
        for key, row in zip(keys, rows, strict=True):
            cache.put(key, row)
        cache.save()
    return Rates(rows[0][0], rows[0][1], rows[1][0])


def check_cost_model(name: str) -> None:
    """Accept the name of a cost model.

    Raises:
        UnknownMethod: there is none of that name.
    """
    if name not in COST_MODELS:
        raise UnknownMethod(f"unknown cost model {name!r}: choose one of {', '.join(COST_MODELS)}")
