"""The page on a schedule: its numbers are those of the simulator, and it stands alone."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import CheckmateError, Graph, Op, Schedule, Value, solve
from checkmate.report import write_report
from checkmate.report.facts import at_peak, recomputed, without_recomputation
from support import graphs, random_steps, training_chain


@given(graphs(), st.integers(0, 2**32))
def test_what_is_held_at_the_peak_adds_up_to_it(graph: Graph, seed: int) -> None:
    for steps in (without_recomputation(graph).steps, random_steps(random.Random(seed), graph)):
        schedule = Schedule(graph, steps)
        assert sum(one.size for one in at_peak(schedule).holdings) == schedule.peak
        again = recomputed(schedule)
        assert sum(one.times for one in again) == schedule.num_recomputations
        assert sum(one.cost for one in again) == pytest.approx(schedule.cost - graph.ideal_cost)


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
        if tag not in ("meta", "img"):
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
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "http" not in page
    assert f"for {100 * (schedule.overhead - 1):.1f}% more computing" in text
    assert f"overhead|{schedule.overhead:.4f}" in text
    assert text.count("the largest") == 2  # without recomputation, and under the schedule
    for one in recomputed(schedule)[:15]:
        assert f"{one.op}|{one.times}|" in text


def test_names_are_text(tmp_path: Path) -> None:
    graph = Graph([Op("<script>&", 1.0, (), (0,))], [Value("<b>", 8)], name="</title><i>")
    write_report(without_recomputation(graph), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>" not in page
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


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="cannot write"):
        write_report(solve(training_chain(3), "100%"), tmp_path / "none" / "r.html")
