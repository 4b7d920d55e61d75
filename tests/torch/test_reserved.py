"""A budget on what the caching allocator of CUDA reserves. No GPU is needed: its counters are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import checkmate.torch
from checkmate import BudgetError, UnknownMethod
from checkmate.torch import BudgetWarning
from checkmate.torch.rounds.watch import Watch, no_room, report_excess

DEVICE = torch.device("cuda", 0)


class Allocator:
    """The counters of `torch.cuda`."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.allocated, self.reserved = 100, 900  # reserved: left from what ran before
        self.most_allocated, self.most_reserved = self.allocated, self.reserved
        patch.setattr(torch.cuda, "memory_allocated", lambda device=None: self.allocated)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.most_allocated)
        patch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device=None: self.stats())
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: self.reset())
        patch.setattr(torch.cuda, "empty_cache", self.empty)

    def stats(self) -> dict[str, Any]:
        peaks = {"allocated_bytes": self.most_allocated, "reserved_bytes": self.most_reserved}
        return {name: {"all": {"peak": peak}} for name, peak in peaks.items()}

    def reset(self) -> None:
        self.most_allocated, self.most_reserved = self.allocated, self.reserved

    def empty(self) -> None:
        self.reserved = self.allocated

    def take(self, size: int) -> None:
        """Tensors come and go; the allocator keeps what it has, and takes half as much again."""
        self.most_allocated = max(self.most_allocated, self.allocated + size)
        self.reserved = max(self.reserved, self.allocated + size * 3 // 2)
        self.most_reserved = max(self.most_reserved, self.reserved)


def plan_of(of: str, budget: int) -> Any:
    return SimpleNamespace(
        device=DEVICE, of=of, budget=budget, measured_peak=None, excess_of=lambda peak: f"peaked at {peak} of {budget}"
    )


@pytest.mark.parametrize(("of", "peak"), [("allocated", 500), ("reserved", 700)])
def test_the_peak_is_that_of_what_the_budget_is_put_on(of: str, peak: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    plan = plan_of(of, 600)
    watch = Watch(plan, [0, 0])
    watch.begins(())
    watch.run(0, lambda arguments: allocator.take(200), [])
    allocator.take(400)  # what the script does between the passes
    watch.run(1, lambda arguments: allocator.take(300), [])
    assert watch.end() == (peak > 600)
    assert plan.measured_peak == peak


def test_later_steps_are_watched_until_no_plan_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tensors take more or less of the allocator. Its counters are left to the user, who may look at them."""
    allocator = Allocator(monkeypatch)
    watch = Watch(plan_of("allocated", 600), [0, 0])

    def step(forward: int, between: int, backward: int) -> bool:
        watch.begins(())
        watch.run(0, lambda arguments: allocator.take(forward), [])
        allocator.take(between)
        watch.run(1, lambda arguments: allocator.take(backward), [])
        return watch.end()

    assert not step(200, 0, 300)
    assert not step(200, 0, 450)
    assert not step(200, 700, 300)  # the script's own doing
    assert allocator.most_allocated == 800
    allocator.reset()
    assert step(200, 0, 550)
    assert watch.plan.measured_peak == 650
    with pytest.warns(BudgetWarning, match="the last step peaked at 650"):
        report_excess(watch)
    watch.stop()
    assert not step(200, 0, 590)


def test_warnings_say_how_to_reserve_less() -> None:
    plan = plan_of("reserved", 600)
    plan.measured_peak = 700
    with pytest.warns(BudgetWarning, match="expandable_segments:True"):
        report_excess(Watch(plan, [0, 0]))
    assert "expandable_segments:True" in no_room(plan, 700)
    assert "expandable_segments" not in no_room(plan_of("allocated", 600), 700)


def test_it_is_refused_where_there_is_no_such_allocator() -> None:
    model = checkmate.torch.compile(torch.nn.Linear(4, 4), budget="1MiB", of="reserved", cost_model="flops")
    with pytest.raises(BudgetError, match="of=\"reserved\" is about .* this model is on 'cpu'"):
        model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(BudgetError, match="this model is on 'cpu'"):
        checkmate.torch.max_batch_size(torch.nn.Linear(4, 4), lambda n: torch.ones(n, 4), "1MiB", of="reserved")
    with pytest.raises(UnknownMethod, match="allocated, reserved"):
        checkmate.torch.compile(torch.nn.Linear(4, 4), of="free")
