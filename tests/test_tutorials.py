"""The tutorials run as they are, and what they tell is true."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "tutorials"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
#: They take a minute or more.
SLOW = ("plan_for_a_gpu", "quickstart_pytorch", "quickstart_tensorflow")

#: What has to hold after the last cell, on the names that the notebook leaves behind.
CLAIMS = {
    "quickstart_pytorch": """
assert plain.peak > 2 * (40 << 20), plain.peak
assert planned.peak <= 40 << 20, planned.peak
assert accuracy > 0.9, accuracy
assert losses_plain == losses_planned
assert "ask for at least" in message
""",
    "quickstart_tensorflow": """
assert plain.peak > 2 * (40 << 20), plain.peak
assert plan.measured_peak <= 40 << 20, plan.measured_peak
# Beside busy cores one training of ten has a step in which the pool wastes more than the plan leaves free; that is said, and mended.
assert all(one.measured_peak <= 1.1 * (40 << 20) for one in checkmate.tf2.plans(model))
assert accuracy > 0.9, accuracy
assert losses_plain == losses[:3]
assert history["accuracy"][0] > 0.4, history
assert "ask for at least" in message
""",
    "finetune_hugging_face": """
assert all(plan.measured_peak <= plan.budget == BUDGET for plan in plans) and plans
assert BUDGET < 0.61 * plain.peak
assert losses_planned == losses_plain and len(losses_plain) == STEPS
assert losses_plain[-1] < losses_plain[0]
""",
    "plan_for_a_gpu": """
assert 1.1e9 < parameters < 1.2e9
assert left(48) > graph.no_recompute_peak > left(40)
assert answers[80] == answers[48] == 1.0 and 1.0 < answers[32] < answers[24] < 1.5
assert all(bound <= overhead for bound, overhead in zip(bounds, overheads))
""",
    "bring_your_own_graph": """
assert schedule.peak == trace.peak <= schedule.budget < graph.no_recompute_peak
assert again.cost == schedule.cost
assert curve[-1][1].overhead == 1.0 < curve[0][1].overhead
assert all(found.peak <= budget for budget, found in curve)
""",
}

#: Packages without which a tutorial does not run; the environment of `make test` has no `transformers`.
NEEDS = {
    "quickstart_pytorch": ("torch", "tqdm"),
    "quickstart_tensorflow": ("tensorflow", "tqdm"),
    "finetune_hugging_face": ("transformers", "accelerate"),
    "plan_for_a_gpu": ("torch",),
    "bring_your_own_graph": ("matplotlib",),
}

#: What comes before the first cell: with TensorFlow a budget that was passed on a busy machine is judged by the claims.
BEFORE = {
    "quickstart_tensorflow": "import warnings, checkmate; warnings.simplefilter('default', checkmate.errors.BudgetWarning)",
    # Packages of others warn each other of what they deprecate; a budget that is passed is an error.
    "finetune_hugging_face": "import warnings, checkmate; warnings.simplefilter('default')\n"
    "warnings.simplefilter('error', checkmate.errors.BudgetWarning)",
}


def cells(name: str, kind: str) -> list[str]:
    notebook: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NAMES])
def test_tutorial_runs(name: str, tmp_path: Path) -> None:
    """Every code cell, in a process of its own, with warnings as errors; then the claims."""
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    script = tmp_path / f"{name}.py"
    script.write_text("\n".join([BEFORE.get(name, ""), *cells(name, "code"), CLAIMS[name]]), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    user = {name: value for name, value in os.environ.items() if name != "CHECKMATE_WAIT"}  # which only tests set
    process = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**user, "MPLBACKEND": "Agg"}, check=False
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("name", NAMES)
def test_tutorial_is_saved_as_it_ran(name: str) -> None:
    """Outputs are there, in the order of the cells, and none is an error."""
    notebook: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any(output["output_type"] == "display_data" for output in outputs) or name == "finetune_hugging_face"  # has no picture
    assert not [output for output in outputs if output["output_type"] == "error"]
