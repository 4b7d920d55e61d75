"""The paper's evaluation: it runs, is resumed where it was killed, comes to the same on any executor, and hides no exception."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from checkmate import CheckmateError

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = FOLDER / "paper.py"
TINY = ["--quick", "--networks", "vgg16", "--methods", "auto", "chen-sqrt", "chen-greedy", "keep-all-forward"]


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    """Standard output of the script, which ends with that exit code."""
    command = [sys.executable, str(SCRIPT), *TINY, *arguments, "--output", "out"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows by key, without what depends on how busy the machine is."""
    rows = map(json.loads, (folder / "out" / "cells.jsonl").read_text().splitlines())
    return {row["key"]: {name: value for name, value in row.items() if name != "took"} for row in rows}


def test_tables_and_figures(tmp_path: Path) -> None:
    out = run(tmp_path, "--sections", "overhead", "batches", "--jobs", "1")
    data = json.loads((tmp_path / "out" / "paper.json").read_text())
    assert len(kept(tmp_path)) == data["cells"]["there"] == 4 * 4 + 2 * 4
    assert [point["budget"] for point in data["overhead"]] == [f"{share}% of the way" for share in (5, 20, 50, 80)]
    assert all(not check["exceptions"] and check["cells"] for check in data["checks"]) and "There are no exceptions" in out
    found = {entry["counted"]: entry for entry in data["batches"]}
    assert found["once"]["largest"]["auto"] == found["once"]["upper_bound"] == 289
    assert found["once"]["largest"]["keep-all-forward"] == 194, "as it is published"
    ratio = data["ratios"]["overhead"]["chen-greedy"]["vgg16"]
    assert ratio["feasible"] == ratio["tried"] == 4 and 1.03 < ratio["mean"] < 1.07
    for name in ("overhead", "batches"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "![](overhead.svg)" in text and "![](times.svg)" not in text
    tables = re.findall(r"<!-- table: ([\w-]+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert {"costs", "overhead", "batches-once", "batches-twice", "checks"} <= {name for name, _ in tables}
    for name, table in tables:
        assert name == "exceptions" or len({line.count(" | ") for line in table.splitlines()}) == 1, name


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """One that ends in the middle of a line loses that line, and the rest of what it has stays as it is."""
    (tmp_path / "deadly.py").write_text(
        "import os, signal\n"
        "from concurrent.futures import Executor, Future\n"
        "class Deadly(Executor):\n"
        "    def __init__(self, jobs): self.left = 5\n"
        "    def submit(self, function, *arguments):\n"
        "        self.left -= 1\n"
        "        if not self.left:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        future = Future()\n"
        "        future.set_result(function(*arguments))\n"
        "        return future\n"
    )
    command = "import sys; sys.path[:0] = sys.argv[1:3]; import paper; sys.argv[1:3] = []; sys.exit(paper.main())"
    arguments = [*TINY, "--sections", "overhead", "--jobs", "1", "--executor", "deadly:Deadly", "--output", "out"]
    ended = subprocess.run([sys.executable, "-c", command, str(FOLDER), str(tmp_path), *arguments], cwd=tmp_path, check=False)
    assert ended.returncode == -9
    path = tmp_path / "out" / "cells.jsonl"
    first = path.read_text()
    assert first.count("\n") == 4
    path.write_text(first + first.splitlines()[0][:50])
    out = run(tmp_path, "--sections", "overhead", "--jobs", "1")
    assert "16 cells, 12 of them still to do" in out
    assert path.read_text().startswith(first) and len(kept(tmp_path)) == 16 == path.read_text().count("\n")
    assert "16 cells, 0 of them still to do" in run(tmp_path, "--sections", "overhead", "--jobs", "1")


def test_results_of_other_versions_are_shown_on_request(tmp_path: Path) -> None:
    """Only where there are none of this one, and of graphs that have not changed since."""
    run(tmp_path, "--sections", "overhead", "--jobs", "1")
    path = tmp_path / "out" / "cells.jsonl"
    rows = [json.loads(line) | {"version": "before"} for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["key"] = f"before {number}"
        row["least"] += row["method"] == "chen-sqrt" and row["budget"] == "5% of the way"
        row["cost"] = row["cost"] and 3 * row["ideal"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def shown(*arguments: str) -> dict[str, Any]:
        run(tmp_path, "--sections", "overhead", "--jobs", "1", "--methods", "auto", *arguments)
        return json.loads((tmp_path / "out" / "paper.json").read_text())

    alone, both = shown(), shown("--older")
    assert (alone["cells"]["there"], alone["cells"]["older"]) == (4, 0)
    assert (both["cells"]["there"], both["cells"]["older"]) == (15, 11)
    point = both["overhead"][0]
    assert point["overheads"]["auto"] < 1.1 and point["overheads"]["chen-greedy"] == 3.0 and "chen-sqrt" not in point["tried"]


def test_two_jobs_come_to_the_same_as_one(tmp_path: Path) -> None:
    for name, jobs in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        run(tmp_path / name, "--sections", "overhead", "batches", "--jobs", jobs)
    assert kept(tmp_path / "one") == kept(tmp_path / "two")
    first, second = ((tmp_path / name / "out" / "overhead.svg").read_text() for name in ("one", "two"))
    assert first == second


def test_dask_comes_to_the_same(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    for name, executor in (("here", "processes"), ("dask", "dask")):
        (tmp_path / name).mkdir()
        run(tmp_path / name, "--sections", "overhead", "--jobs", "2", "--executor", executor)
    assert kept(tmp_path / "here") == kept(tmp_path / "dask")


WORKERS = """
import os, signal
from pathlib import Path

def work(cell):
    \"\"\"Kills its process at 1% the first time, at those that DEADLY names every time.\"\"\"
    seen = Path(os.environ["SEEN"], cell.key)
    if cell.budget == os.environ["DEADLY"] or cell.budget == "1%" and not seen.exists():
        seen.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"key": cell.key, "done": cell.budget != "4%", "budget": cell.budget}
"""


@pytest.mark.parametrize(("executor", "deadly"), [("processes", "2%"), ("dask", "none")])
def test_a_killed_worker_loses_nothing(executor: str, deadly: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell is begun again; one that ends every worker is given up and named, and not kept."""
    if executor == "dask":
        pytest.importorskip("distributed")
    (tmp_path / "killed_workers.py").write_text(WORKERS)
    monkeypatch.setenv("SEEN", str(tmp_path))
    monkeypatch.setenv("DEADLY", deadly)
    script = (
        "import json, sys; sys.path[:0] = sys.argv[1:3]\n"
        "import paper_run, killed_workers\n"
        "from pathlib import Path\n"
        "from paper_cells import Cell\n"
        "if __name__ == '__main__':\n"
        "    cells = [(Cell('overhead', 'network:vgg16', 1, f'{i}%', 'auto'),) for i in range(6)]\n"
        "    kept = paper_run.Kept(Path('cells.jsonl'))\n"
        "    make = paper_run.executor_maker(sys.argv[3], 1)\n"
        "    failures = paper_run.run(cells, kept, make, 1, work=killed_workers.work)\n"
        "    print(json.dumps([sorted(row['budget'] for row in kept.rows.values()), failures]))\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "script.py", str(FOLDER), str(tmp_path), executor]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr
    budgets, failures = json.loads(process.stdout.splitlines()[-1])
    assert budgets == [budget for budget in ("0%", "1%", "2%", "3%", "4%", "5%") if budget != deadly]
    assert [f"budget='{deadly}'" in failure for failure in failures] == [True] * (executor == "processes")


def test_workers_end_with_the_process_that_collects(tmp_path: Path) -> None:
    """Also where it is killed while they are at something."""
    script = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import paper_run\n"
        "if __name__ == '__main__':\n"
        "    executor = paper_run.processes(1)\n"
        "    print(executor.submit(os.getpid).result(), flush=True)\n"
        "    executor.submit(time.sleep, 3600)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), str(FOLDER)]
    # The worker has this pipe, too: it is at its end once both processes are gone.
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == -9 and int(process.stdout)


def test_a_larger_size_is_left_out_after_one_that_was_not_done(load: Any, tmp_path: Path) -> None:
    runner, cells = load("paper_run"), load("paper_cells")
    ladder = [cells.Cell("times", f"residual:{ops}", 1, "50% of the way", "auto") for ops in (17, 31, 45)]
    done = {"residual:17": True, "residual:31": False}

    def work(cell: Any) -> dict[str, Any]:
        return {"key": cell.key, "done": done[cell.graph]}

    rows: list[dict[str, Any]] = []
    store = runner.Kept(tmp_path / "cells.jsonl")
    for _ in range(2):
        assert runner.run([ladder], store, lambda: ThreadPoolExecutor(1), 1, rows.append, work) == []
        assert [row["done"] for row in rows] == [True, False], "the second time nothing is left to do"


def test_a_worker_with_other_code_is_noticed(load: Any, tmp_path: Path) -> None:
    runner, cells = load("paper_run"), load("paper_cells")
    cell = cells.Cell("overhead", "network:vgg16", 1, "5% of the way", "auto")
    store = runner.Kept(tmp_path / "cells.jsonl")
    with pytest.raises(CheckmateError, match="other code or packages"):
        runner.run([(cell,)], store, lambda: ThreadPoolExecutor(1), 1, work=lambda _: {"key": "another", "done": True})
    assert not store.rows


def test_what_a_result_depends_on_is_in_its_key(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = load("paper_cells")
    cell = cells.Cell("overhead", "network:vgg16", 256, "5% of the way", "auto")
    other = cells.Cell("overhead", "network:vgg16", 256, "5% of the way", "auto", seconds=5.0)
    before = cell.key
    assert before != other.key
    monkeypatch.setattr(cells, "version", lambda: "another")
    assert cell.key != before


@pytest.mark.parametrize("scale", ["WHOLE", "QUICK"])
def test_every_cell_is_planned_once(scale: str, load: Any, tmp_path: Path) -> None:
    plan = load("paper_plan")
    from checkmate import networks

    networks.transformer(1).save(tmp_path / "trace.json")
    cells = [cell for ladder in plan.ladders(getattr(plan, scale), tmp_path, tmp_path) for cell in ladder]
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.section for cell in cells} == set(plan.SECTIONS)
    assert {cell.method for cell in cells} == {*plan.METHODS, "keep-all"}
    assert all(plan._OPS[name] == networks.NETWORKS[name].build(1).num_ops for name in plan.BATCHES)


def row(method: str, cost: float | None, proven: float = 10.0, peak: int = 5, **others: Any) -> dict[str, Any]:
    shown = {
        "section": "overhead",
        "graph": "g",
        "batch": 1,
        "ops": 3,
        "budget": "5% of the way",
        "order": "given",
        "method": method,
    }
    figures = {"cost": cost, "proven": proven, "peak": peak, "ideal": 10.0, "took": 1.0, "contradicted": False, "note": ""}
    return {**shown, **figures, "budget_bytes": 5, "fixed": 0, "least": 4, "plain": 9, **others}


def test_exceptions_are_counted_and_listed(load: Any) -> None:
    tables = load("paper_tables")
    summary = load("paper_summary").summary

    def exceptions(*rows: dict[str, Any]) -> list[int]:
        return [len(check["exceptions"]) for check in summary(rows, [])["checks"]]

    assert exceptions(row("auto", 11.0, 11.0), row("griewank", 12.0)) == [0, 0, 0, 0, 0]
    assert exceptions(row("auto", 11.1, 11.0), row("greedy", 12.0)) == [1, 0, 0, 0, 0], (
        "not proven where greedy eviction finds one"
    )
    assert exceptions(row("auto", None, 11.0), row("griewank", 12.0)) == [1, 1, 0, 0, 0], "none found"
    assert exceptions(row("auto", 11.0, 11.0), row("griewank", None)) == [0, 0, 0, 0, 0]
    assert exceptions(row("auto", 11.0, 11.0), row("griewank", 10.5)) == [0, 0, 1, 1, 0], "cheaper than ours, and than the bound"
    assert exceptions(row("auto", 11.0, 11.0, peak=6)) == [0, 0, 0, 1, 0]
    wrong = row("auto", None, contradicted=True, note="one thing, but another")
    assert exceptions(wrong) == [0, 0, 0, 1, 0]
    assert "one thing, but another" in tables.exceptions(summary([wrong], []))
    larger = [
        row(method, None, section="batches", largest=most, upper_bound=7, overhead=1.0)
        for method, most in (("auto", 7), ("griewank", 8))
    ]
    assert exceptions(*larger) == [0, 0, 0, 0, 1]


def test_an_order_of_ones_own_has_its_own_bound(load: Any) -> None:
    """What is proven for any order holds for the given one, and not the other way round."""
    rows = [row("auto", 11.0, 11.0), row("auto", 10.5, 10.2, order="any")]
    (point,) = load("paper_summary").summary([{**one, "section": "traces"} for one in rows], [])["traces"]
    assert point["bound"] == 1.1 and point["any"] == {"overhead": 1.05, "bound": 1.02} and point["unsound"] == []


def test_the_hour_is_extrapolated(load: Any) -> None:
    hour_at = load("paper_summary").hour_at
    assert hour_at([(10, 1.0), (20, 4.0)], 100, 5.0) == pytest.approx(20 * 30.0)  # seconds grow as the square: 900 times longer
    assert hour_at([(10, 1.0), (20, 4.0)], 40, 32.0) == pytest.approx(20 * 900 ** (1 / 3)), "the limit says more"
    assert hour_at([(10, 1.0)], 20, 4.0) == pytest.approx(600.0) and hour_at([], 20, 4.0) is None


@pytest.mark.parametrize("name", ["vgg19", "mobilenet", "resnet50", "unet", "fcn8", "segnet"])
def test_models_have_the_shapes_of_the_layers(name: str, load: Any) -> None:
    torch = pytest.importorskip("torch")
    profiled = load("paper_profiled")
    found = profiled.recorded(name)
    with torch.device("meta"):
        model = profiled.model_of(name)
        tensors = {-1: torch.empty(2, found.input.channels, found.input.height, found.input.width)}
    for number, (inputs, step) in enumerate(model.steps):
        tensors[number] = step(*(tensors[place] for place in inputs))
        shape = found.made[number][2]["shape"]
        assert tuple(tensors[number].shape) == (2, shape.channels, shape.height, shape.width)
    assert sum(parameter.numel() for parameter in model.parameters()) > 10**6


def test_networks_since_then(load: Any) -> None:
    """Sizes of known models: parameters (twice in fixed memory, with gradients) and multiply-adds of the forward pass."""
    modern = load("paper_networks").MODERN
    for name, parameters, work in (("densenet161", 28.7e6, 7.8e9), ("vit-l", 304e6, 61e9)):
        graph = modern[name](1)
        assert graph.fixed_memory / 8 == pytest.approx(parameters, rel=0.02), name
        assert graph.ideal_cost / 3 == pytest.approx(work, rel=0.05), name
    assert set(modern) == set(load("paper_plan").MODERN_BATCHES)
