"""The tables and the figure of README and docs are those of the committed results."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from docs_blocks import ROOT


def _module() -> ModuleType:
    found = importlib.util.spec_from_file_location("docs_measured", ROOT / "docs" / "measured.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


measured = _module()


@pytest.mark.parametrize("path", measured.pages(), ids=lambda path: path.name)
def test_tables_are_up_to_date(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    assert measured.written(text) == text, "run `python docs/measured.py`"


def test_every_table_is_shown_somewhere() -> None:
    shown = {name for path in measured.pages() for name in re.findall(r"<!-- measured: ([\w-]+) -->", path.read_text("utf-8"))}
    assert shown == set(measured.TABLES)
    assert all(table().count("\n") > 3 for table in measured.TABLES.values())


@pytest.mark.parametrize("file", list(measured.DRAWN))
def test_a_figure_is_up_to_date(file: str) -> None:
    assert measured.digest(file) in (measured.FIGURES / file).read_text(encoding="utf-8"), "run `python docs/measured.py`"
    points, _, ways = measured.DRAWN[file]
    assert {point["way"] for point in points()} <= {way for way, *_ in ways}
    assert {"plain", "ours"} < {point["way"] for point in points()}
