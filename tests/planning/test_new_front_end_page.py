"""What `docs/new_front_end.md` says is so: its lines run, and it names every file."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import planning
from checkmate.errors import BudgetWarning
from checkmate.planning import cache_files, op_costs
from support import training_chain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/new_front_end.md").read_text(encoding="utf-8")


def test_the_lines_run() -> None:
    plan_it, keep_to_it = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {**vars(planning), "graph": training_chain(12, size=2**26), "warnings": warnings}
    exec(plan_it, names)
    plan, margins = names["plan"], names["margins"]
    assert plan.budget == plan.schedule.budget == 2**32
    peak = plan.budget + 1000
    names.update(peak=peak, BudgetWarning=BudgetWarning)
    with pytest.warns(BudgetWarning, match="the first step peaked at"):
        exec(keep_to_it, names)
    assert margins.margin >= peak - plan.predicted_peak
    assert isinstance(plan.schedule, checkmate.Schedule)


def test_every_file_has_its_line() -> None:
    table = PAGE.split("## Where things are")[1]
    named = set(re.findall(r"`(\w+\.py)`", table))
    assert named == {path.name for path in (ROOT / "src/checkmate/planning").glob("*.py")} - {"__init__.py"}
    assert all((ROOT / name).exists() for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert f"no more than {cache_files.LIMIT >> 20} MiB" in PAGE


def test_what_a_front_end_says_about_its_ops() -> None:
    methods = re.findall(r"^\| `(\w+)\(ops?\)` \|", PAGE, re.MULTILINE)
    assert methods == [name for name in vars(op_costs.OpRunner) if not name.startswith("_")]


def test_the_toy_is_as_small_as_the_page_says() -> None:
    assert len((ROOT / "tests/planning/toy.py").read_text(encoding="utf-8").splitlines()) < 200
