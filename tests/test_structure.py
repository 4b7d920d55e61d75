"""What can be measured of the shape of the code. That imports only go down is checked by import-linter (`make check`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import checkmate

SOURCE = Path(checkmate.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
#: Lines.
LONGEST_FILE, LONGEST_FUNCTION = 500, 80


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not long
