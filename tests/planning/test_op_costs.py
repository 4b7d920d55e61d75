"""Every distinct op is measured once, remembered, and otherwise worked out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkmate.errors import UnknownMethod
from checkmate.planning import FREE, OpCost, Work, device_rates, find_op_costs, op_costs, quickest, undisturbed
from checkmate.planning.cost_cache import CostCache, close_cost_caches, open_cost_cache
from checkmate.planning.op_costs import seconds_waited
from checkmate.planning.roofline import Rates

RATES = Rates(100.0, 10.0, 0.5)


class Words:
    """Ops are words: of two letters cost nothing, with a dash cannot be run alone, in capitals refuse to run, and else take a second per
    letter. Their signature is the first word in them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.open = False

    def known(self, op: str) -> OpCost | None:
        return FREE if len(op) == 2 else None

    def signature(self, op: str) -> str | None:
        return None if "-" in op else op.split()[0]

    def cache(self, op: str) -> CostCache:
        return open_cost_cache({"language": "fr" if op.startswith("le") else "en"})

    @contextmanager
    def measuring(self, ops: Sequence[str]) -> Iterator[None]:
        self.open = True
        yield
        self.open = False

    def measure(self, op: str) -> OpCost | None:
        assert self.open
        if op == "stop":
            raise KeyboardInterrupt
        self.ran.append(op)
        return None if op.isupper() else OpCost(float(len(op)), 10)

    def work(self, op: str) -> Work:
        return Work(200.0, 10.0, RATES, 7)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))


def test_each_way_to_a_cost() -> None:
    words, seen = Words(), []
    costs = find_op_costs(["if", "word 1", "a-b", "word 2", "LOUD", "les"], words, progress=lambda *counts: seen.append(counts))
    modelled = OpCost(2.5, 7, estimated=True)
    assert costs == {
        "if": FREE,
        "word 1": OpCost(6.0, 10),
        "word 2": OpCost(6.0, 10),
        "a-b": modelled,
        "LOUD": modelled,
        "les": OpCost(3.0, 10),
    }
    assert words.ran == ["word 1", "LOUD", "les"], "one run per signature"
    assert seen == [(1, 3), (2, 3), (3, 3)]
    close_cost_caches()  # as in a new process
    again = Words()
    assert find_op_costs(["word 3", "LOUD"], again) == {"word 3": OpCost(6.0, 10), "LOUD": modelled}
    assert again.ran == ["LOUD"]


def test_the_model_runs_nothing() -> None:
    words = Words()
    assert find_op_costs(["word 1", "word 2", "if"], words, "flops") == {
        "word 1": OpCost(2.5, 7, estimated=True),
        "word 2": OpCost(2.5, 7, estimated=True),
        "if": FREE,
    }
    assert not words.ran
    with pytest.raises(UnknownMethod, match="profile, flops"):
        find_op_costs([], words, "guess")


def test_the_same_signature_on_another_device_is_another_op() -> None:
    words = Words()
    words.signature = lambda op: "same"  # type: ignore[method-assign]
    find_op_costs(["word", "les"], words)
    assert words.ran == ["word", "les"]


def test_what_was_measured_before_an_interrupt_is_kept() -> None:
    with pytest.raises(KeyboardInterrupt):
        find_op_costs(["first", "stop", "last"], Words())
    close_cost_caches()
    words = Words()
    find_op_costs(["first", "last"], words)
    assert words.ran == ["last"]


def test_the_quickest_of_several_runs() -> None:
    def run(times: list[float], **limits: float) -> tuple[float, int]:
        left = list(times)
        return quickest(lambda: left.pop(0), **limits), len(times) - len(left)  # type: ignore[arg-type]  # of three types

    assert run([3.0, 2.0, 9.0, 1.0]) == (2.0, 3), "no more than it must be"
    assert run([0.01] * 30) == (0.01, 5)
    assert run([0.0] * 30) == (1e-9, 20)


@pytest.mark.parametrize(
    ("runs", "work", "found"),
    [
        ([(5.0, 0.0), (4.0, 3.0), (6.0, 0.1)], 1.0, 5.0),  # the quickest was disturbed
        ([(16.0, 15.0), (12.0, 11.0), (12.5, 20.0)], 0.5, 0.5),  # all were
        ([(16.0, 15.0), (1.2, 0.9), (12.5, 20.0)], 1.0, 1.2),  # but this one cannot have taken much less
        ([(16.0, None), (12.0, None), (12.5, None)], 0.5, 12.0),  # the system does not say
    ],
)
def test_the_quickest_run_that_nothing_disturbed(
    runs: list[tuple[float, float | None]], work: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, waited, known = list(runs), 0.0, True

    def once() -> float:
        nonlocal waited, known
        took, wait = left.pop(0)
        known = wait is not None
        waited += wait or 0.0
        return took

    monkeypatch.setattr(op_costs, "seconds_waited", lambda: waited if known else None)
    assert undisturbed(once, lambda: work, seconds=0.0) == found
    assert not left


def test_waiting_for_a_processor_is_seen_where_the_system_tells() -> None:
    """Two threads on one processor: one of them waits at any time, for about as long as both work."""
    before = seconds_waited()
    if before is None:
        pytest.skip("this system does not say")
    allowed = os.sched_getaffinity(0)
    begun_and_endless = "print('begun', flush=True)\nwhile True: pass"
    script = (
        "import os, subprocess, sys, time\nfrom checkmate.planning.op_costs import seconds_waited\n"
        f"os.sched_setaffinity(0, {{{min(allowed)}}})\n"
        f"other = subprocess.Popen([sys.executable, '-c', {begun_and_endless!r}], stdout=subprocess.PIPE)\nother.stdout.readline()\n"
        "before = seconds_waited()\nended = time.monotonic() + 0.5\nwhile time.monotonic() < ended: pass\n"
        "print(seconds_waited() - before)\nother.kill()\nother.communicate()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.01


def test_rates_are_measured_once() -> None:
    calls = []

    def measure() -> Rates:
        calls.append(1)
        return RATES

    for _ in range(2):
        close_cost_caches()
        assert device_rates(open_cost_cache({}), "float32", measure) == RATES
    assert len(calls) == 1
    device_rates(open_cost_cache({}), "float64", measure)
    assert len(calls) == 2
