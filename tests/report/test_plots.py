"""Pictures: they exist, they show what they should, they leave no global state behind."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CheckmateError, Compute, Graph, Schedule
from checkmate.report import plot_curves, plot_schedule, plot_timelines, plots
from checkmate.schedule import steps_from_sequence
from support import graphs, random_steps, training_chain


def checkpointed(layers: int, every: int) -> Schedule:
    """A chain that keeps every `every`-th layer and recomputes the others segment by segment."""
    graph = training_chain(layers, size=3_000_000)
    sequence = list(range(layers))
    for op in range(layers, 2 * layers):
        layer = 2 * layers - 1 - op
        if layer % every == every - 1:
            sequence += range(layer - every + 2, layer)
        sequence.append(op)
    steps = steps_from_sequence(graph, sequence)
    return Schedule(graph, steps, Schedule(graph, steps).peak + 1_000_000, "by hand", graph.ideal_cost)


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize(("layers", "every"), [(1, 1), (25, 5), (2500, 50)])
def test_plot_schedule(tmp_path: Path, layers: int, every: int) -> None:
    path = tmp_path / "s.png"
    checkpointed(layers, every).plot(path)
    width, height = png_size(path)
    assert width >= 1200
    assert height >= 1000


def test_plot_of_an_empty_schedule(tmp_path: Path) -> None:
    plot_schedule(Schedule(Graph([], [], 5), []), tmp_path / "s.svg")
    assert "<svg" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_plot_timelines(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    curves = [("plain", [0.0, 1.0, 2.0], [0.0, 5e8, 1e8]), ("planned", [0.0, 1.5, 3.0], [0.0, 2e8, 1e8]), ("none", [], [])]
    plot_timelines(curves, 300_000_000, path, "title")
    plot_timelines(curves[:1], None, path, "title")
    assert path.stat().st_size > 1000


def test_timelines_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="'plain' has 2 xs but 1 byte counts"):
        plot_timelines([("plain", [0.0, 1.0], [1.0])], None, tmp_path / "t.png", "title")


def test_bad_targets(tmp_path: Path) -> None:
    schedule = checkpointed(2, 1)
    with pytest.raises(CheckmateError, match="ends in .png, .pdf or .svg"):
        schedule.plot(tmp_path / "s.docx")
    with pytest.raises(CheckmateError, match="ends in .png, .pdf or .svg"):
        schedule.plot(tmp_path / "s")
    with pytest.raises(CheckmateError, match="cannot write .*No such file"):
        schedule.plot(tmp_path / "none" / "s.png")


def test_without_matplotlib_and_without_pyplot(tmp_path: Path) -> None:
    code = """
import sys
import checkmate
graph = checkmate.Graph.from_arrays([1], [1], [])
schedule = checkmate.Schedule(graph, [checkmate.Compute(0)])
schedule.plot("a.png")
assert "matplotlib.pyplot" not in sys.modules
for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
    del sys.modules[name]
sys.modules["matplotlib"] = None  # every import of it fails
try:
    schedule.plot("b.png")
except checkmate.CheckmateError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert result.stdout == "plots need matplotlib: run pip install 'checkmate-remat[plot]'\n"


# --- what the picture of a schedule is drawn from ---


@given(graphs(), st.randoms(use_true_random=False))
def test_stages(graph: Graph, rng: random.Random) -> None:
    schedule = Schedule(graph, random_steps(rng, graph))
    found = plots._stages(schedule)
    computed = schedule.sequence
    assert found.ops.tolist() == computed
    assert found.memory.max() <= schedule.peak
    assert sorted(found.ops[found.first].tolist()) == list(range(graph.num_ops))
    assert [computed[:i].count(op) == 0 for i, op in enumerate(computed)] == found.first.tolist()
    # Stage t ends at t + 1, with the first computation of its op.
    ends = found.edges[1:][found.first]
    np.testing.assert_allclose(ends, np.arange(1, graph.num_ops + 1))
    assert (np.diff(found.edges) > 0).all()
    # As many stays in memory as there are times that a value which is not live is computed.
    births: Counter[int] = Counter()
    live: set[int] = set()
    for step in schedule.steps:
        if isinstance(step, Compute):
            births.update(graph.producer[v] for v in graph.ops[step.op].outputs if v not in live)
            live.update(graph.ops[step.op].outputs)
        else:
            live.remove(step.value)
    assert Counter(op for op, _, _ in found.retained) == births


def test_retained_intervals_by_hand() -> None:
    graph = Graph.from_arrays([1, 1, 1], [1, 1, 1], [(0, 1), (0, 2)])
    found = plots._stages(Schedule(graph, steps_from_sequence(graph, [0, 1, 0, 2])))
    assert found.edges.tolist() == [0, 1, 2, 2.5, 3]
    assert sorted(found.retained) == [(0, 0, 2), (0, 2, 3), (1, 1, 2), (2, 2.5, 3)]


@pytest.mark.parametrize("name", ["$x_", "$\\frac$", "a $b$ c", "\ud800\x1b[31m\n", "卷积", "x" * 10_000, "_hidden", "\\"])
def test_names_are_drawn_as_they_are_written(name: str, tmp_path: Path) -> None:
    graph = Graph.from_arrays([1, 1], [5, 5], [(0, 1)], name=name)
    plot_schedule(Schedule(graph, steps_from_sequence(graph, range(2))), tmp_path / "s.png")
    plot_curves([(name, [1.0, 2.0], [1.0, 2.0])], tmp_path / "c.svg", name, name[:50], name[:50])
    plot_timelines([(name, [0.0, 1.0], [1.0, 2.0])], None, tmp_path / "t.svg", name, xlabel=name[:50])


def test_settings_that_matplotlib_refuses() -> None:
    code = """
import checkmate
from checkmate.report.plots import check_can_plot
try:
    check_can_plot("p.png")
except checkmate.CheckmateError as error:
    print(error)
"""
    environment = {**os.environ, "MPLBACKEND": "no-such-backend"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "matplotlib does not start" in result.stdout and "check MPLBACKEND" in result.stdout
    assert result.stdout.count("\n") == 1
