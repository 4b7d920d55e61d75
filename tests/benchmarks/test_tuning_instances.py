"""Graphs to tune on: the same for everybody, trainable, and none that the method is judged by."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import networks

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("tuning_instances")


def test_the_same_seed_makes_the_same_graphs(tuning: Any) -> None:
    one, two, other = (tuning.tuning_instances(8, seed) for seed in (3, 3, 11))
    assert [(graph.name, graph.ops, graph.values) for graph in one] == [(graph.name, graph.ops, graph.values) for graph in two]
    assert all(a.ops != b.ops for a, b in zip(one, other, strict=True))


def test_every_graph_is_a_training_step_with_something_to_gain(tuning: Any) -> None:
    graphs = tuning.tuning_instances(40)
    assert {graph.name.split("-")[1] for graph in graphs} == set(tuning.FAMILIES)
    assert any("noisy" in graph.name for graph in graphs) and not all("noisy" in graph.name for graph in graphs)
    for graph in graphs:
        assert {op.phase for op in graph.ops} == {"forward", "loss", "backward"}
        assert graph.min_working_set < graph.no_recompute_peak and 20 <= graph.num_ops <= 300


def test_none_is_among_those_that_judge(tuning: Any) -> None:
    """By the number of ops and the two peaks, which the results name, and by the ops of the built-in networks."""

    def figures(graph: checkmate.Graph) -> tuple[int, int, int]:
        return graph.num_ops, graph.no_recompute_peak, graph.min_working_set

    ours = tuning.tuning_instances(40)
    built_in = [network.build(1) for network in networks.NETWORKS.values()]
    assert not {figures(graph) for graph in ours} & {figures(graph) for graph in built_in}
    judged = {row["graph"] for path in (FOLDER / "results").glob("*.json") for row in rows(path) if "graph" in row}
    assert judged and not judged & {graph.name for graph in ours}


def rows(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    listed = found.get("rows", []) if isinstance(found, dict) else found
    return [row for row in listed if isinstance(row, dict)]


def test_files_are_read_back(tuning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tuning_instances.py", str(tmp_path / "new"), "--count", "4"])
    assert tuning.main() == 0
    files = sorted((tmp_path / "new").glob("*.json"))
    assert len(files) == 4 and checkmate.Graph.load(files[0]).num_ops > 0
