"""Every block of code in README and docs runs: here those that need no framework, and that none is forgotten.

Those of PyTorch are run by tests/torch/test_docs.py and tests/torch/test_docs_pages.py, those of TensorFlow by tests/tf2/test_docs.py,
those of the page on front ends by tests/planning/test_new_front_end_page.py, the tutorials by tests/test_tutorials.py.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import checkmate
from checkmate import Graph, Schedule, cli
from checkmate.cli.parser import parse
from checkmate.solvers.interface.running_search import Search
from docs_blocks import ROOT, Block, blocks, commands, limited, pages

#: Pages whose blocks of Python are run here, one after the other, in names of their own.
HERE = ("docs/without_framework.md", "docs/budget.md", "docs/report.md", "docs/troubleshooting.md", "docs/new_method.md")
#: Pages with blocks that a test of a framework runs.
ELSEWHERE = ("README.md", "docs/index.md", "docs/pytorch.md", "docs/keras.md", "docs/new_front_end.md", "docs/command_line.md")
#: Titles of blocks that need more than their page; who runs them is said above.
TITLES = {"after the first step", "net.py", "src/checkmate/solvers/baselines/one_pass.py"}
#: Commands that other tests run: the demo (tests/demo), and what makes environments.
NOT_RUN = {"demo"}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    path = list(sys.path)
    with warnings.catch_warnings():
        yield
    sys.path[:] = path


def test_no_block_is_forgotten() -> None:
    for page in pages():
        for block in blocks(page):
            assert block.language in ("python", "sh", "json", ""), block
            if block.language == "python":
                assert page in (*HERE, *ELSEWHERE), block
                assert not block.title or block.title in TITLES or page == "docs/pytorch.md", block
            if block.language == "":
                assert page in ("README.md", "CONTRIBUTING.md"), block
    assert all(blocks(page, "python") for page in (*HERE, *ELSEWHERE))


@pytest.mark.parametrize("page", HERE)
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if block.title not in TITLES:
            block.run(names)
    said = capsys.readouterr().out
    if page == "docs/without_framework.md":
        assert re.match(r"10 20\.0 \d+ \d+\n", said) and "optimal" in said and "chen-sqrt" in said
        assert Schedule.load("schedule.json", Graph.load("graph.json")).status == "optimal"
    elif page == "docs/budget.md":
        assert "ask for at least" in said
    elif page == "docs/report.md":
        assert Path("schedule.png").stat().st_size and Path("report.html").stat().st_size


def test_the_method_of_the_page_is_one() -> None:
    names: dict[str, Any] = {}
    (block,) = blocks("docs/new_method.md", "python")
    block.run(names)
    graph = Graph.from_arrays([1, 1, 1], [5, 5, 5], [(0, 1), (1, 2)])
    for budget, found in ((graph.no_recompute_peak, 3), (graph.no_recompute_peak - 1, 0)):
        search = Search(graph, budget)
        names["one_pass"](search)
        assert len(search.best or ()) == found
    page = (ROOT / block.page).read_text(encoding="utf-8")
    for call in re.findall(r"`search\.(\w+)", page):
        assert hasattr(search, call), call
    assert all((ROOT / "src/checkmate" / name).exists() for name in re.findall(r"`(solvers/[\w/]+\.py)`", page))


def all_commands() -> list[tuple[str, list[str]]]:
    return [(page, words) for page in pages() for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), all_commands(), ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_commands_run(page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == "pip":
        extras = re.findall(r"\[(.*?)\]", words[-1])
        known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        assert words[1] == "install" and {extra for group in extras for extra in group.split(",")} <= set(known)
    elif words[:2] == ["python", "-m"]:
        assert (ROOT / "src" / words[2].replace(".", "/")).with_suffix(".py").exists()
    elif words[0] == "eval":
        shell = words[1].rstrip(")").split()[-1]
        assert words[1] == f"$(checkmate completion {shell})" and parse(["completion", shell])
    else:
        assert words[0] == "checkmate"
        assert parse(words[1:]).command == words[1]
        if words[1] not in NOT_RUN and not any(":" in word for word in words):  # a model: tests/torch/test_docs_pages.py
            monkeypatch.chdir(tmp_path)
            Graph.from_arrays([1, 1, 1], [5, 5, 5], [(0, 1), (0, 2), (1, 2)]).save("graph.json")
            assert cli.main(limited(words)[1:]) == 0
            for option in ("-o", "--plot"):
                if option in words:
                    assert Path(words[words.index(option) + 1]).stat().st_size


@pytest.mark.parametrize("block", [block for page in pages() for block in blocks(page, "json")], ids=str)
def test_json_is_read(block: Block, tmp_path: Path) -> None:
    data = json.loads(block.code)
    if "steps" in data:
        short = next(one for one in blocks(block.page, "json") if "nodes" in one.code)
        path = tmp_path / "schedule.json"
        path.write_text(block.code, encoding="utf-8")
        schedule = Schedule.load(path, Graph.from_dict(json.loads(short.code)))
        assert {key: value for key, value in data.items() if key in schedule.summary()} == schedule.summary()
        schedule.save(path)
        assert json.loads(path.read_text(encoding="utf-8")) == data
    elif "nodes" in data:
        graph = Graph.from_dict(data)
        assert (graph.num_ops, graph.ideal_cost, graph.no_recompute_peak) == (2, 5.0, 1600)
    else:
        graph = Graph.from_dict(data)
        assert graph.to_dict() == data
        assert graph.num_ops == 3 and checkmate.solve(graph, "100%").overhead == 1.0


def test_the_two_commands_of_the_readme_and_others_are_targets_of_make() -> None:
    assert [block.code.strip() for block in blocks("README.md", "")] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {name for page in pages() for name in re.findall(r"`make ([\w-]+)`", (ROOT / page).read_text(encoding="utf-8"))}
    for target in {"demo", "test", *named}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_commands_of_contributing_name_what_is_there() -> None:
    (block,) = blocks("CONTRIBUTING.md", "")[:1]
    for word in block.code.split():
        if word.startswith("tests/"):
            assert (ROOT / word).exists()


def test_pages_link_to_what_is_there() -> None:
    """Files, and headings in them. Sphinx looks at the same when it builds the pages."""
    for page in pages():
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?:", target):
                continue
            where, _, heading = target.partition("#")
            path = (ROOT / page).parent / where if where else ROOT / page
            if path.parent.name == "tutorials" and path.parent.parent.name == "docs":  # copied there when the pages are built
                path = ROOT / "tutorials" / path.name
            assert path.exists(), (page, target)
            if heading and path.suffix == ".md":
                assert heading in anchors(path.read_text(encoding="utf-8")), (page, target)


def anchors(text: str) -> set[str]:
    """Of headings, as GitHub and Sphinx make them; and labels."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}
    return made | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("\n") <= 90
    assert len(re.findall(r"!\[", text)) == 2
