"""Every distinct op is measured once, remembered, and otherwise worked out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkmate.errors import UnknownMethod
from checkmate.planning import FREE, OpCost, Work, device_rates, find_op_costs, quickest
from checkmate.planning.cost_cache import CostCache, close_cost_caches, open_cost_cache
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


def test_of_several_rounds_the_quickest_time_and_the_most_memory_count() -> None:
    class Disturbed(Words):
        def measure(self, op: str) -> OpCost | None:
            found = super().measure(op)
            if found is None or op == "long":
                return found
            round = self.ran.count(op)
            return OpCost({"a": 0.03, "b": 0.01}[op] * (3 - round if op == "a" else round), 10 * (3 - round))

    words, reports = Disturbed(), []
    costs = find_op_costs(["a", "b", "LOUD", "long"], words, progress=lambda *counts: reports.append(counts), rounds=2)
    assert words.ran == ["a", "b", "LOUD", "long", "a", "b"], "what takes long, or does not run, is not tried again"
    assert (costs["a"], costs["b"]) == (OpCost(0.03, 20), OpCost(0.01, 20))
    assert reports == [(1, 4), (2, 4), (3, 4), (4, 4)]
    close_cost_caches()
    assert find_op_costs(["a"], words)["a"] == costs["a"]


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
