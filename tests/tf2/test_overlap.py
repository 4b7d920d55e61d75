"""What may run at the same time stays within the limit in whatever order it begins and ends."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from checkmate.schedule import Step
from checkmate.tf2.capture import Captured
from checkmate.tf2.internals import is_stateful
from checkmate.tf2.keras_step import build, training_step
from checkmate.tf2.kinds import IN_PLACE, is_one_kernel
from checkmate.tf2.options import Options
from checkmate.tf2.overlap import one_by_one, overlapping
from checkmate.tf2.planning import make_plan
from checkmate.tf2.replay import replay, replay_peak
from checkmate.tf2.step import capture_step
from checkmate.tf2.trace import root
from tf2_models import CASES, tensors


def planned(name: str, share: float) -> tuple[Captured, list[Step]]:
    case = CASES[name]()
    model, optimizer = case.make(), case.optimizer()
    build(model, optimizer, tensors(case.x))
    options = Options(cost_model="flops", time_limit=3, gap=0.02)
    captured = capture_step(training_step(model, case.loss, optimizer), (tensors(case.x), tensors(case.y)), options)
    plan = make_plan(captured, replace(options, budget=int(share * captured.graph.no_recompute_peak)))
    return captured, plan.schedule.steps


def largest(captured: Captured, steps: list[Step], waits: list[int], randomness: random.Random) -> tuple[int, int]:
    """Runs begin and end at random, as early as they may: the most bytes that are live, and the most runs at a time."""
    runs = replay(captured, steps)
    for bias, filters in pairwise(runs):
        if is_one_kernel(bias.op, filters.op):
            bias.workspace = 0  # there is one for both
    readers = Counter(copy for run in runs for copy in set(run.reads))
    newest = {copy[0]: copy for run in runs for copy in run.made}
    kept = {newest.get(root(t).name) for t in captured.traced.outputs}
    begun, over, running = set(), set(), []
    size: dict[tuple[str, int], int] = {}
    live = peak = captured.graph.fixed_memory
    most = prefix = 0
    while len(over) < len(runs):
        # Those that could begin: with a chance of waiting, so that later ones overtake.
        for number, run in enumerate(runs[prefix : prefix + 60], prefix):
            if number in begun or waits[number] > prefix or any(maker not in over for _, maker in run.reads):
                continue
            if running and randomness.random() < 0.2:
                continue
            begun.add(number)
            running.append(number)
            own = sum(run.made.values())
            for copy in set(run.reads):
                alone = readers[copy] == 1 and run.reads.count(copy) == 1 and copy not in kept
                if run.op.type in IN_PLACE and alone and size[copy] == own:
                    live -= own
                    size[copy] = 0
                    break
            live += own + run.workspace
            size.update(run.made)
        peak, most = max(peak, live), max(most, len(running))
        number = running.pop(randomness.randrange(len(running)))
        run = runs[number]
        live -= run.workspace
        over.add(number)
        for copy in set(run.reads):
            readers[copy] -= 1
            if not readers[copy] and copy not in kept:
                live -= size[copy]
        live -= sum(size[copy] for copy in run.made if not readers[copy] and copy not in kept)
        while prefix in over:
            prefix += 1
    return peak, most


@pytest.mark.parametrize(("name", "share"), [("transformer", 1.0), ("transformer", 0.6), ("unet", 0.8), ("conv", 0.6)])
def test_no_order_passes_the_limit(name: str, share: float) -> None:
    captured, steps = planned(name, share)
    alone = replay_peak(captured, steps)
    fixed = captured.graph.fixed_memory
    widest = []
    for limit in (0, alone, fixed + int(1.15 * (alone - fixed)), 2 * alone):
        waits = overlapping(captured, steps, limit)
        seen = [largest(captured, steps, waits, random.Random(seed)) for seed in range(20)]
        assert max(peak for peak, _ in seen) <= max(limit, alone)
        widest.append(max(most for _, most in seen))
    assert widest[0] <= 2  # the two gradients that are one kernel
    assert widest[0] < widest[-1]


def test_what_must_wait() -> None:
    captured, steps = planned("unet", 0.8)
    runs = replay(captured, steps)
    waits = overlapping(captured, steps, 2**60)
    pairs = {n for n in range(1, len(runs)) if is_one_kernel(runs[n - 1].op, runs[n].op)}
    newest: dict[str, int] = {}
    again = 0
    for number, run in enumerate(runs):
        before = newest.get(run.op.name, -1)
        again += before >= 0
        if number not in pairs:
            assert waits[number] == (number if is_stateful(run.op) else before + 1)
        newest[run.op.name] = number
    assert again > 0
    assert any(is_stateful(run.op) for run in runs)
    assert [w for n, w in enumerate(one_by_one(captured, steps)) if n not in pairs] == [
        n for n in range(len(runs)) if n not in pairs
    ]
