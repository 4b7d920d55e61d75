"""The page on a schedule: its numbers are those of the simulator, and it stands alone."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CheckmateError, Graph, Op, Schedule, Value, solve
from checkmate.report import page as report_page
from checkmate.report import write_report
from checkmate.report.facts import Recomputed, at_peak, recomputed, without_recomputation
from checkmate.schedule import steps_from_sequence
from support import graphs, random_steps, training_chain


@given(graphs(), st.integers(0, 2**32))
def test_what_is_held_at_the_peak_adds_up_to_it(graph: Graph, seed: int) -> None:
    for steps in (without_recomputation(graph).steps, random_steps(random.Random(seed), graph)):
        schedule = Schedule(graph, steps)
        assert sum(one.size for one in at_peak(schedule).holdings) == schedule.peak
        again = recomputed(schedule)
        assert sum(one.times for one in again) == schedule.num_recomputations
        assert sum(one.cost for one in again) == pytest.approx(schedule.cost - graph.ideal_cost)
        assert all(0 <= one.saved <= one.size for one in again)


def test_what_computing_again_is_good_for() -> None:
    """By hand: the plain step peaks at op 3, where this schedule does not hold what ops 0 and 1 made."""
    ops = [
        Op("a", 1.0, (), (0,), layer="net.0"),
        Op("b", 2.0, (0,), (1,), layer="net.1"),
        Op("c", 1.0, (1,), (2,)),
        Op("d", 1.0, (2,), (3,)),
        Op("e", 1.0, (1, 3), (4,)),
        Op("f", 1.0, (0, 4), (5,)),
    ]
    graph = Graph(ops, [Value(f"v{number}", size) for number, size in enumerate([10, 20, 30, 40, 1, 1])])
    schedule = Schedule(graph, steps_from_sequence(graph, [0, 1, 2, 3, 0, 1, 4, 5]))
    assert graph.no_recompute_profile.index(graph.no_recompute_peak) == 3
    assert recomputed(schedule) == [
        Recomputed("b", "net.1", 1, 2.0, size=20, saved=20, away=2),  # while c runs it is read: out of memory for d and a
        Recomputed("a", "net.0", 1, 1.0, size=10, saved=10, away=2),  # read by b: out of memory for c and d
    ]


def test_what_is_held_at_the_peak() -> None:
    ops = [
        Op("load", 1.0, (), (0,)),
        Op("work", 2.0, (0,), (1,), workspace=50),
        Op("gradient", 3.0, (0, 1), (2,), phase="backward"),
    ]
    graph = Graph(ops, [Value("x", 10), Value("y", 20), Value("dx", 30, keep=True)], fixed_memory=7)
    peak = at_peak(without_recomputation(graph))
    assert peak.op == "work"
    assert [(one.name, one.kind, one.size) for one in peak.holdings] == [
        ("work", "workspace", 50),
        ("y", "forward", 20),
        ("x", "forward", 10),
        ("parameters, buffers, inputs", "fixed", 7),
    ]
    small = Graph([Op(op.name, op.cost, op.inputs, op.outputs, 0, True, op.phase) for op in ops], graph.values, 7)
    peak = at_peak(without_recomputation(small))
    assert peak.op == "gradient"
    assert [(one.name, one.kind) for one in peak.holdings[:2]] == [("dx", "backward"), ("y", "forward")]
    assert at_peak(without_recomputation(Graph([], [], 5))).op is None


class Page(HTMLParser):
    """Checks that every tag is closed, and keeps the text."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    schedule = solve(training_chain(30, size=2**20), "40%")
    schedule.report(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    text = "|".join(Page(page).text)
    assert not re.search(r"""(src|href)=|@import|url\(|fetch\(|XMLHttp|WebSocket|import\(""", page)
    assert set(re.findall(r"http[^\"]*", page)) == {"http-equiv=", "http://www.w3.org/2000/svg"}  # no address: the name of SVG
    assert "default-src 'none'" in page
    assert re.search(r"for \d+\.\d+% more computing", text)
    assert f"overhead|{schedule.overhead:.4f}" in text
    assert text.count("without recomputation, while") == text.count("under this schedule, while") == 2  # by kind, and the largest
    for one in recomputed(schedule)[:15]:
        assert re.search(rf"\|{one.op}\|+{one.times}\|", text)


def test_names_are_text(tmp_path: Path) -> None:
    graph = Graph([Op("<script>&", 1.0, (), (0,))], [Value("<b>", 8)], name="</title><i>")
    write_report(without_recomputation(graph), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 2 and "<b>" not in page
    assert "</title><i>: memory of a training step" in "".join(Page(page).text)
    assert "Nothing." in page


def test_characters_that_no_page_can_have(tmp_path: Path) -> None:
    ops = [Op("\ud800", 1.0, (), (0,))]
    write_report(without_recomputation(Graph(ops, [Value("\x1b[31m", 8)], name="\ud800 {{ 7 * 7 }}")), tmp_path / "r.html")
    text = "|".join(Page((tmp_path / "r.html").read_text(encoding="utf-8")).text)
    assert "\\ud800 {{ 7 * 7 }}: memory" in text and "\\x1b[31m|8 B" in text


def test_a_page_without_ops(tmp_path: Path) -> None:
    write_report(Schedule(Graph([], [], 5), []), tmp_path / "r.html")
    assert ">5 B<" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_schedules_of_all_kinds(tmp_path: Path) -> None:
    """With and without a budget, a proof, and recomputations."""
    graph = training_chain(6, size=1000)
    steps = steps_from_sequence(graph, [*range(6), 2, *range(6, 12)])
    kept = without_recomputation(graph)
    cost = Schedule(graph, steps).cost
    expected = {
        "no schedule peaks below|": kept,
        "from the optimum|unknown|nothing is proven": Schedule(graph, steps),
        "from the optimum|optimal|": replace(kept, budget=10**6),
        "budget 976.6 KiB, above the picture": replace(kept, budget=10**6),
        "more computing|0%|0 computations beyond the 12": replace(kept, budget=10**6),
        "from the optimum|\N{LESS-THAN OR EQUAL TO} 4.2%|": Schedule(graph, steps, 10**6, lower_bound=cost / 1.042),
    }
    for text, schedule in expected.items():
        schedule.report(tmp_path / "r.html")
        assert text in "|".join(Page((tmp_path / "r.html").read_text(encoding="utf-8")).text)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="cannot write"):
        write_report(solve(training_chain(3), "100%"), tmp_path / "none" / "r.html")


def test_schedules_of_another_graph_are_refused(tmp_path: Path) -> None:
    schedule = solve(training_chain(6), "80%")
    schedule.report(tmp_path / "r.html", others=iter([solve(Graph.from_dict(schedule.graph.to_dict()), "90%")]))
    with pytest.raises(CheckmateError, match=r"others\[1\] is a schedule of graph 'chain5'"):
        schedule.report(tmp_path / "r.html", others=[schedule, solve(training_chain(5), "80%")])


def test_the_page_needs_no_plots(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["matplotlib"] = None  # every import of it fails
import checkmate
graph = checkmate.Graph.from_arrays([1], [1], [])
checkmate.Schedule(graph, [checkmate.Compute(0)]).report("r.html")
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_files_of_the_page_are_short() -> None:
    static = Path(report_page.__file__).parent / "static"
    assert {path.suffix for path in static.iterdir()} == {".js", ".css", ".jinja"}
    for path in static.iterdir():
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 500, path
        assert path.suffix == ".jinja" or "</" not in text  # nothing in it ends the element that it is written into
    assert {*report_page._SCRIPTS, report_page._PAGE, report_page._STYLE} == {path.name for path in static.iterdir()}
