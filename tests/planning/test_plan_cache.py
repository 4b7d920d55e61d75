"""Schedules that are found again in the cache on disk, and those that never get there."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate.planning import cache_files, plan_cache
from checkmate.planning.plan_cache import solve_cached
from checkmate.solvers import solving
from support import training_chain

OPTIONS: dict[str, Any] = {"gap": 0.0, "time_limit": 60.0}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each search."""
    seen: list[object] = []

    def counting(*arguments: object, **options: object) -> checkmate.Schedule:
        seen.append(arguments)
        return checkmate.solve(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(plan_cache, "solve", counting)
    return seen


def test_a_schedule_is_found_again(directory: Path, calls: list[object]) -> None:
    first = solve_cached(training_chain(12), 70, **OPTIONS)
    assert len(calls) == 1
    again = solve_cached(training_chain(12), 70, **OPTIONS)
    assert again.summary() == first.summary()
    assert again.steps == first.steps
    assert len(calls) == 1


@pytest.mark.parametrize("how", [solve_cached, plan_cache.first_cached])
def test_a_budget_that_an_error_named_is_met_at_once(how: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(12)
    options: dict[str, Any] = {"gap": 0.5, "time_limit": 5.0, "order": "given", "method": "auto", "seed": 0}
    with pytest.raises(checkmate.InfeasibleBudget) as caught:
        how(graph, graph.min_working_set - 1, **options)
    assert caught.value.schedule is not None
    assert caught.value.schedule.peak == caught.value.smallest_found
    began: list[checkmate.Schedule | None] = []

    def solve(*arguments: Any, start: checkmate.Schedule | None = None, **options: Any) -> checkmate.Schedule:
        began.append(start)
        return checkmate.solve(*arguments, start=start, **options)

    monkeypatch.setattr(plan_cache, "solve", solve)
    monkeypatch.setattr(plan_cache, "first_schedule", lambda *_, **__: None)
    found = how(graph, caught.value.smallest_found, **options)
    schedule = found if isinstance(found, checkmate.Schedule) else found[0]
    assert [start is not None and start.peak for start in began] == [caught.value.smallest_found]
    assert schedule.peak <= caught.value.smallest_found


def test_the_schedule_of_least_memory_is_kept(directory: Path) -> None:
    graph = training_chain(12)
    plain = checkmate.solve(graph, "100%")
    for kept in (plain, checkmate.solve(graph, 70, time_limit=5), plain):
        plan_cache._keep_least(kept)
    assert plan_cache._solved(graph, 80, None, {"time_limit": 0.0, "gap": 1e9}).peak <= 70


def test_another_network_of_the_same_ops_gets_the_same_plan_under_its_own_names(directory: Path, calls: list[object]) -> None:
    def called(name: str) -> checkmate.Graph:
        graph = training_chain(12)
        ops = [replace(op, layer=name, name=f"{name}.{op.name}") for op in graph.ops]
        values = [replace(value, name=f"{name}.{value.name}") for value in graph.values]
        return checkmate.Graph(ops, values, graph.fixed_memory, name)

    first, again = (solve_cached(called(name), 70, **OPTIONS) for name in ("mine", "yours"))
    assert len(calls) == 1
    assert again.steps == first.steps
    assert {op.layer for op in again.graph.ops} == {"yours"}
    assert not any(b"mine" in file.read_bytes() for file in directory.iterdir())
    assert plan_cache._least_key(called("mine"), "given") == plan_cache._least_key(called("yours"), "given")


def test_another_problem_is_solved(directory: Path, calls: list[object]) -> None:
    solve_cached(training_chain(12), 70, **OPTIONS)
    solve_cached(training_chain(12), 80, **OPTIONS)
    solve_cached(training_chain(13), 70, **OPTIONS)
    solve_cached(training_chain(12), 70, gap=0.01, time_limit=60.0)
    assert len(calls) == 4
    assert len(list(directory.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "of another budget", "a bound that was not proven"])
def test_a_file_that_is_not_as_it_was_written_is_a_miss(damage: str, directory: Path, calls: list[object]) -> None:
    first = solve_cached(training_chain(12), 70, **OPTIONS)
    (file,) = directory.iterdir()
    if damage == "cut":
        file.write_text(file.read_text()[:100])
    elif damage == "of another budget":  # its schedule would fit here too, and its bound would be wrong
        file.rename(directory / "kept")
        cheaper = solve_cached(training_chain(12), 1000, **OPTIONS)
        assert cheaper.lower_bound < first.lower_bound
        (other,) = directory.glob("plan-*.json")
        other.unlink()
        dearer = solve_cached(training_chain(12), 60, **OPTIONS)
        assert first.lower_bound < dearer.lower_bound
        (other,) = directory.glob("plan-*.json")
        other.rename(file)
        calls.pop()
        calls.pop()
    else:
        data = json.loads(file.read_text())
        data["content"]["lower_bound"] = 0.9 * first.lower_bound
        file.write_text(json.dumps(data))
    again = solve_cached(training_chain(12), 70, **OPTIONS)
    assert (again.cost, again.lower_bound) == (first.cost, first.lower_bound)
    assert len(calls) == 2


@pytest.mark.parametrize("change", ["steps", "peak", "not a schedule", "another entry"])
def test_signed_nonsense_is_a_miss_too(
    change: str, directory: Path, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of this package might have written it."""

    def changed(kind: str, key: str, content: Any) -> None:
        if change == "steps":
            content["steps"].pop(0)
        elif change == "peak":
            content["peak"] += 1
        elif change == "another entry":
            content["more"] = 1
        cache_files.store(kind, key, [1] if change == "not a schedule" else content)

    monkeypatch.setattr(plan_cache, "store", changed)
    first = solve_cached(training_chain(12), 70, **OPTIONS)
    assert solve_cached(training_chain(12), 70, **OPTIONS).steps == first.steps
    assert len(calls) == 2


def test_what_is_found_at_once_is_not_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 1000.0)
    solve_cached(training_chain(12), 70, **OPTIONS)
    assert not list(directory.iterdir())


def test_a_directory_that_cannot_be_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = directory / "file"
    blocked.write_text("")
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(blocked / "below"))
    assert solve_cached(training_chain(12), 70, **OPTIONS).peak <= 70


def interrupted_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that has a schedule, and is interrupted while it looks for a better one."""

    def run(search: Any, method: str) -> None:
        search.offer(range(search.graph.num_ops), search.graph.ideal_cost)
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 60
        while not search.interrupted and time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr(solving, "run", run)


def test_an_interrupt_interrupts_and_nothing_is_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_run(monkeypatch)
    graph = training_chain(12)
    with pytest.raises(KeyboardInterrupt):
        solve_cached(graph, graph.no_recompute_peak, method="greedy")
    assert not list(directory.iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # `checkmate.solve` gives the best so far.
    assert checkmate.solve(graph, graph.no_recompute_peak, "greedy").cost == graph.ideal_cost


def test_a_handler_of_the_program_is_left_to_do_its_work(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def run(search: Any, method: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 60
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not search.interrupted
        search.offer(range(search.graph.num_ops), search.graph.ideal_cost)

    monkeypatch.setattr(solving, "run", run)
    previous = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        graph = training_chain(12)
        assert solve_cached(graph, graph.no_recompute_peak, method="greedy").cost == graph.ideal_cost
    finally:
        signal.signal(signal.SIGINT, previous)
    assert seen == [signal.SIGINT]
