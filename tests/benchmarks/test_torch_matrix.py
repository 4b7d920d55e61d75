"""The table of PyTorch rows: every row can be built, the verdict is fair, and one small training shows what it should."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def test_rows_are_many_and_known(load: Any) -> None:
    matrix, networks, packages = load("torch_matrix"), load("torch_matrix_networks"), load("torch_matrix_packages")
    features = load("torch_matrix_script").FEATURES
    rows = matrix.rows()
    assert len({row[:2] for row in rows}) == len(rows)
    own = [row for row in rows if row[0] in networks.TASKS]
    assert len(own) >= 45  # without other packages too
    assert all(row[0] in networks.TASKS or row[0] in packages.PACKAGED for row in rows)
    assert {feature for _, feature, _ in rows} == set(features)
    assert {way for _, _, way in rows} == {"function", "name"}


@pytest.mark.parametrize(
    "name",
    ["gpt", "llama", "bert", "t5", "mixtral", "mamba", "lstm", "vit", "resnet50", "convnext", "efficientnet", "swin", "unet"],
)
def test_networks_learn(load: Any, name: str) -> None:
    task = load("torch_matrix_networks").TASKS[name]
    torch.manual_seed(0)
    net = task.build()
    *inputs, target = task.batch(1, 2, 8)
    task.loss(net(*inputs), target).backward()
    assert all(parameter.grad is not None for parameter in net.parameters() if parameter.dim() > 1)
    assert torch.equal(task.batch(1, 2, 8)[0], inputs[0])
    assert not torch.equal(task.batch(2, 2, 8)[0], inputs[0])


def result(**changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "error": None,
        "peaks": {"2": 90, "3": 90, "8": 100},
        "budget": 100,
        "was_named": False,
        "equal": True,
    }
    made |= {"warnings": [], "handed_over": 2, "parts": 2, "planned_parts": 2, "uncovered": []}
    return made | changed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"error": "RuntimeError: no"}, "RuntimeError: no"),
        ({"peaks": {"2": 90, "3": 110, "8": 100}}, "step 3 by 10 (10.0%), no warning"),
        ({"equal": False}, "differ"),
        ({"handed_over": 3}, "3 graphs came, 2 were taken"),
        ({"planned_parts": 1}, "1 are planned"),
        ({"handed_over": 0, "parts": 0, "planned_parts": 0}, "no graph came"),
        ({"uncovered": ["MulBackward0"]}, "MulBackward0"),
        ({"uncovered": ["MulBackward0"], "warnings": ["the first step peaked at 1 GiB"]}, "MulBackward0"),
        ({"uncovered": ["MulBackward0"], "warnings": ["a part of X runs outside the plan"]}, None),
    ],
)
def test_verdict(load: Any, changed: dict[str, Any], said: str | None) -> None:
    matrix = load("torch_matrix")
    plain = {"error": None}
    row: dict[str, Any] = {
        "architecture": "gpt",
        "feature": "sgd",
        "way": "name",
        "plain": plain,
        "minimum": 50,
        "refused": None,
        "compared_with": "plain",
        "repeats": True,
    }
    row |= {"peak": 200, "levels": {"90%": result(), "60%": result(**changed)}, "seconds": 1.0}
    found = matrix.problems(row)
    row |= {"problems": found, "passed": not found}
    assert ("FAILS" in matrix.line(row)) is (said is not None)
    if said is None:
        assert not found
    else:
        (problem,) = found
        assert problem.startswith("60%: ") and said in problem


def test_a_training_shows_what_it_did(load: Any) -> None:
    networks, script = load("torch_matrix_networks"), load("torch_matrix_script")

    def batch(number: int, examples: int, length: int) -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(number)
        return torch.randn(examples, 16, generator=random), torch.randint(0, 4, (examples,), generator=random)

    task = networks.Task(lambda: nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)), batch, F.cross_entropy)
    feature = script.FEATURES["accumulation"]
    plain = script.train(task, feature, script.Run("plain"))
    assert plain["error"] is None and len(plain["losses"]) == script.STEPS and max(plain["peaks"].values()) > 0
    planned = script.train(task, feature, script.Run("function", "1MiB"))
    assert planned["error"] is None and (planned["losses"], planned["state"]) == (plain["losses"], plain["state"])
    assert planned["parts"] == planned["planned_parts"] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a process that copies itself")
def test_a_row_that_crashes_is_a_row_that_fails(load: Any, tmp_path: Path) -> None:
    matrix = load("torch_matrix")
    options = type("Options", (), {"time_limit": 1.0, "timeout": 10.0, "levels": [], "extra_path": tmp_path})()
    row = matrix.row_of("no such network", "sgd", "name", options, {})
    assert not row["passed"] and "exit code 1" in row["problems"][0]


def test_what_a_row_lacks_is_added(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, output, ran = load("torch_matrix"), tmp_path / "rows.json", []

    def row_of(architecture: str, feature: str, way: str, options: Any, had: dict[str, Any]) -> dict[str, Any]:
        lacking = [level for level in options.levels if level not in had.get("levels", {})]
        ran.append((architecture, feature, lacking))
        names = {
            "architecture": architecture,
            "feature": feature,
            "way": way,
            "skipped": "nothing is trained here",
            "passed": True,
        }
        return names | {"levels": {**had.get("levels", {}), **{level: {} for level in lacking}}}

    def run(*arguments: str) -> list[tuple[str, str, list[str]]]:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["torch_matrix.py", "--output", str(output), *arguments])
        assert matrix.main() == 0
        return list(ran)

    monkeypatch.setattr(matrix, "row_of", row_of)
    assert run("--rows", "gpt/sgd", "--levels", "60%") == [("gpt", "sgd", ["60%"])]
    assert run("--rows", "gpt/sgd", "vit/adamw", "--levels", "90%", "60%", "--resume") == [
        ("gpt", "sgd", ["90%"]),
        ("vit", "adamw", ["90%", "60%"]),
    ]
    assert run("--rows", "gpt/sgd", "--levels", "90%", "60%", "--resume") == []
    assert run("--rows", "gpt/sgd", "--levels", "60%", "--again") == [("gpt", "sgd", ["60%"])]
    rows = json.loads(output.read_text("utf-8"))["rows"]
    assert [(row["architecture"], list(row["levels"])) for row in rows] == [("gpt", ["60%"]), ("vit", ["90%", "60%"])]


def test_trainings_of_a_row_are_not_repeated(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, ran = load("torch_matrix"), []

    def trained(task: Any, feature: Any, run: Any, seconds: float) -> dict[str, Any]:
        ran.append((run.way, run.budget))
        infeasible = {"smallest": 50} if run.budget == "1%" else None
        return result(infeasible=infeasible, peaks={"2": 200}, losses=["0x1p+0"], state="of all parameters")

    monkeypatch.setattr(matrix, "trained", trained)
    first = matrix.work(["gpt", "sgd", "name"], 1.0, 10.0, ["60%"], {})
    assert ran == [("plain", None), ("plain", None), ("name", 120)]
    ran.clear()
    row = matrix.work(["gpt", "sgd", "name"], 1.0, 10.0, [matrix.LEAST], first)
    assert ran == [("name", "1%"), ("name", 55)]
    assert list(row["levels"]) == ["60%", matrix.LEAST] and all(one["equal"] for one in row["levels"].values())
    assert row["peak"] == 200 and row["minimum"] == 50 and row["levels"]["60%"]["commit"]


def test_what_an_error_or_a_warning_names_is_tried(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, ran = load("torch_matrix"), []
    no_room = "BudgetWarning: the step takes 0.1 KiB (90 bytes), 10 bytes above the budget, and no plan was found that takes less"

    def trained(task: Any, feature: Any, run: Any, seconds: float) -> dict[str, Any]:
        ran.append((run.way, run.budget))
        low = run.way == "name" and (isinstance(run.budget, str) or run.budget < 80)
        tight = run.way == "name" and not low and run.budget < 90
        told = [no_room] if tight else []
        return result(infeasible={"smallest": 80} if low else None, warnings=told, peaks={"2": 100}, losses=[], state="all")

    monkeypatch.setattr(matrix, "trained", trained)
    row = matrix.work(["gpt", "accumulation", "name"], 1.0, 10.0, ["60%", matrix.LEAST], {})
    assert ran[2:] == [("name", "1%"), ("name", 60), ("name", 80), ("name", 90), ("name", 88), ("name", 99)]
    assert row["minimum"] == 90
    assert {level: (one["budget"], one["was_named"]) for level, one in row["levels"].items()} == {
        "60%": (90, True),
        matrix.LEAST: (99, False),
    }
