"""A search in another process: it answers, it has its turn, it fails in words, and it ends with whoever asked for it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate.errors import CheckmateError, Contradiction
from checkmate.planning import background, background_worker, plan_cache
from checkmate.planning.background import BackgroundSearch
from checkmate.planning.plan_cache import first_cached, solve_cached
from checkmate.schedule import Schedule
from fake_search import Child, without_processes
from support import training_chain

GRAPH = training_chain(12)
BUDGET = 70
OPTIONS: dict[str, Any] = {"method": "auto", "order": "given", "time_limit": 1e6, "gap": 0.0, "seed": 0}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> type[Child]:
    return without_processes(monkeypatch)


def start() -> Schedule:
    """Anything that fits: the schedule of a smaller budget."""
    return replace(checkmate.solve(GRAPH, 60), lower_bound=GRAPH.ideal_cost, budget=BUDGET)


def search() -> BackgroundSearch:
    return BackgroundSearch(GRAPH, BUDGET, start(), OPTIONS)


def test_another_process_finds_what_this_one_would_and_keeps_it(directory: Path) -> None:
    asked = search()
    found = None
    while not asked.ended:
        found = asked.result()
        time.sleep(0.05)
    best = checkmate.solve(GRAPH, BUDGET, gap=0.0)
    assert found is not None
    assert (found.cost, found.lower_bound) == (best.cost, best.lower_bound)
    assert [path.name.split("-")[0] for path in directory.iterdir() if path.suffix == ".json"] == ["plan"]
    assert first_cached(GRAPH, BUDGET, **OPTIONS)[0].steps == found.steps


def test_one_search_runs_at_a_time(children: type[Child]) -> None:
    searches = [search() for _ in range(3)]
    assert len(children.begun) == 1
    assert [one.result() for one in searches] == [None, None, None]
    del searches[1]  # nobody waits for it any more
    children.begun[0].runs = False
    assert searches[0].result() is not None
    assert len(children.begun) == 2
    assert searches[0].ended
    assert not searches[1].ended
    children.begun[1].runs = False
    assert searches[1].result() is not None
    assert len(children.begun) == 2


def test_a_search_that_nobody_waits_for_is_ended(children: type[Child]) -> None:
    asked = search()
    other = search()
    del asked
    gc.collect()
    assert children.begun[0].ended
    assert other.result() is None
    assert len(children.begun) == 2


@pytest.mark.parametrize(
    ("says", "kind", "words"),
    [
        ({"failed": "exit code -9: no output"}, CheckmateError, "exit code -9"),
        ({"contradiction": "two and two are five"}, Contradiction, "two and two are five"),
        ({"schedule": {"steps": []}}, CheckmateError, "it gave none"),
        ({}, CheckmateError, "it gave none"),
    ],
)
def test_what_goes_wrong_is_said_once(children: type[Child], says: dict[str, Any], kind: type[Exception], words: str) -> None:
    children.says = says
    asked = search()
    children.begun[0].runs = False
    with pytest.raises(kind, match=words):
        asked.result()
    assert asked.ended
    assert asked.result() is None


def test_what_cannot_begin_fails_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    asked = search()
    with pytest.raises(CheckmateError, match="cannot begin"):
        asked.result()
    assert asked.ended


def test_a_process_that_breaks_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_START", "raise SystemExit('out of luck')")
    asked = search()
    with pytest.raises(CheckmateError, match="exit code 1: out of luck"):
        while not asked.ended:
            asked.result()
            time.sleep(0.02)


def test_answers_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"graph": GRAPH.to_dict(), "budget": BUDGET, "start": plan_cache.written(start()), "options": OPTIONS}
    below = {**asked, "budget": GRAPH.min_working_set - 1}
    assert list(background_worker.answer(below)) == ["infeasible"]

    def contradict(*arguments: object, **options: object) -> Schedule:
        raise Contradiction("two and two are five")

    monkeypatch.setattr(plan_cache, "solve", contradict)
    assert background_worker.answer(asked) == {"contradiction": "two and two are five"}


SCRIPT = """
from checkmate import solve
from checkmate.planning import background
from fake_search import Child, without_processes
from support import training_chain

background._START = "import time; time.sleep(600)"
graph = training_chain(12)
search = background.BackgroundSearch(graph, 70, solve(graph, 70), {})
print(search._child._process.pid, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "kill"), reason="asks whether a process is there")
def test_the_process_ends_with_the_program() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert script.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(script.stdout), 0)


def test_a_first_schedule_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = first_cached(GRAPH, BUDGET, **OPTIONS)
    monkeypatch.setattr(plan_cache, "first_schedule", None)  # it is not asked again
    again = first_cached(GRAPH, BUDGET, **OPTIONS)
    assert (again[0].steps, again[1]) == (found[0].steps, found[1])


def test_a_first_schedule_where_quick_methods_find_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "first_schedule", lambda *_, **__: None)
    schedule, _ = first_cached(GRAPH, BUDGET, **OPTIONS)
    assert schedule.peak <= BUDGET
    with pytest.raises(checkmate.InfeasibleBudget):
        first_cached(GRAPH, GRAPH.min_working_set - 1, **OPTIONS)


def test_what_is_proven_impossible_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(checkmate.InfeasibleBudget) as first:
        first_cached(GRAPH, GRAPH.min_working_set - 1, **OPTIONS)
    monkeypatch.setattr(plan_cache, "first_schedule", None)  # it is not asked again
    with pytest.raises(checkmate.InfeasibleBudget) as second:
        first_cached(GRAPH, GRAPH.min_working_set - 1, **OPTIONS)
    assert str(second.value) == str(first.value)


def test_what_was_only_not_found_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(graph: checkmate.Graph, budget: int, **_: object) -> None:
        raise checkmate.InfeasibleBudget(budget, budget, graph.no_recompute_peak)

    with monkeypatch.context() as patched:
        patched.setattr(plan_cache, "first_schedule", none)
        with pytest.raises(checkmate.InfeasibleBudget):
            first_cached(GRAPH, BUDGET, **OPTIONS)
    assert first_cached(GRAPH, BUDGET, **OPTIONS)[0].peak <= BUDGET


def test_the_whole_search_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_WORTH_SECONDS", 0.0)
    whole = solve_cached(GRAPH, BUDGET, **OPTIONS)
    monkeypatch.setattr(plan_cache, "first_schedule", None)
    schedule, final = first_cached(GRAPH, BUDGET, **OPTIONS)
    assert final
    assert schedule.steps == whole.steps
