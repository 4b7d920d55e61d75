"""Where HiGHS runs: never loaded before it is needed, nor beside a package that brings another HiGHS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import checkmate
from checkmate.solvers.mixed_integer import dispatch, highs_process
from checkmate.solvers.mixed_integer.program import Answer

from .test_program import random_program

#: For scripts in a process of their own.
PRELUDE = f"""
import sys
sys.path[1:1] = [{str(Path(checkmate.__file__).parents[1])!r}, {str(Path(__file__).parents[2])!r}]
import checkmate
from support import training_chain
graph = training_chain(4)
def cost(method="milp"):
    return checkmate.solve(graph, int(0.7 * graph.no_recompute_peak), method=method, gap=0).cost
"""


def run_script(script: str, folder: Path, **variables: str) -> str:
    """What a script prints that runs in this folder."""
    (folder / "script.py").write_text(PRELUDE + script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, folder / "script.py"],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def minimised(seed: int) -> Answer:
    hint = (np.arange(12), np.ones(12))
    return dispatch.minimise(random_program(seed, integer=True), 10.0, 0.0, 0, lambda bound: False, hint, 1e-9)


def relaxed(seed: int) -> Answer:
    return dispatch.relax(random_program(seed, integer=True), 10.0)


@pytest.mark.parametrize("ask", [minimised, relaxed])
def test_apart_as_here(ask: Callable[[int], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.may_load()
    here = [ask(seed) for seed in range(5)]
    monkeypatch.setattr(dispatch, "may_load", lambda: False)
    for one, other in zip(here, map(ask, range(5)), strict=True):
        assert one.x is not None and other.x is not None and np.array_equal(one.x, other.x)
        assert (one.objective, one.bound, one.optimal) == (other.objective, other.bound, other.optimal)


def test_importing_the_solvers_does_not_load_highs(tmp_path: Path) -> None:
    script = """
import checkmate.solvers.default.auto, checkmate.solvers.paper.two_phase_rounding, checkmate.solvers.baselines.griewank
checkmate.solve(graph, "100%", method="keep-all")
print("highspy" in sys.modules)
"""
    assert run_script(script, tmp_path) == "False\n"


@pytest.mark.parametrize("first", ["ortools", "checkmate"])
def test_ortools_in_the_same_process(first: str, tmp_path: Path) -> None:
    ours = "print(cost(), cost('auto'))"
    theirs = """
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model
assert pywraplp.Solver.CreateSolver("GLOP")
"""
    parts = [theirs, ours] if first == "ortools" else [ours, theirs]
    assert run_script("\n".join([*parts, ours]), tmp_path).splitlines()[-1] == "11.0 11.0"


@pytest.mark.parametrize("first", ["ortools", "checkmate"])
def test_a_package_with_a_highs_of_its_own(first: str, tmp_path: Path) -> None:
    """Of OR-Tools from 9.12 on and HiGHS, the one that is imported second fails. These are the files and errors of both."""
    libraries = tmp_path / "ortools" / ".libs"
    libraries.mkdir(parents=True)
    (libraries / "libhighs.so.1").touch()
    (tmp_path / "ortools" / "__init__.py").write_text(
        "import sys\nif 'highspy' in sys.modules: raise ImportError('undefined symbol')\nsys.modules['highspy'] = None\n",
        encoding="utf-8",
    )
    parts = ["import ortools", "found = cost()"] if first == "ortools" else ["found = cost()", "import ortools"]
    assert run_script("\n".join([*parts, "print(found, cost())"]), tmp_path) == "11.0 11.0\n"


def test_where_highs_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    assert not dispatch.may_load()
    assert dispatch.relax(random_program(1), 10.0).optimal
    highs_process.workers.close_idle()


def test_the_highest_point_under_planes_is_the_same_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no plane is below it, nor another point of the box higher."""
    rng = np.random.default_rng(0)
    slopes, heights = rng.normal(size=(12, 3)), rng.random(12)
    lower, upper = np.zeros(3), rng.random(3)
    here = dispatch.highest_point(slopes, heights, lower, upper)
    monkeypatch.setattr(dispatch, "may_load", lambda: False)
    there = dispatch.highest_point(slopes, heights, lower, upper)
    assert here.x is not None and there.x is not None and np.array_equal(here.x, there.x)
    point, height = here.x[:-1], here.x[-1]
    assert np.all((lower <= point) & (point <= upper)) and height == pytest.approx(np.min(heights + slopes @ point))
    others = lower + rng.random((1000, 3)) * (upper - lower)
    assert np.all((heights + others @ slopes.T).min(axis=1) <= height + 1e-9)
