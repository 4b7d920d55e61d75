"""What can be measured of the shape of the code. That imports only go down is checked by import-linter (`make check`)."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import checkmate

SOURCE = Path(checkmate.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
KERNELS = sorted(SOURCE.rglob("*.pyx"))
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


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_kernels_are_short_typed_and_beside_what_they_are_the_inside_of(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_FILE
    starts = [number for number, line in enumerate(text.splitlines()) if re.match(r"(def|cdef|cpdef) .*[(]", line)]
    ends = [*starts[1:], text.count("\n")]
    assert all(end - start <= LONGEST_FUNCTION for start, end in zip(starts, ends, strict=True))
    types = ast.parse(path.with_suffix(".pyi").read_text(encoding="utf-8"))
    declared = {node.name for node in types.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    module = import_module(".".join(("checkmate", *path.with_suffix("").relative_to(SOURCE).parts)))
    assert declared == {
        name for name, one in vars(module).items() if name[0] != "_" and getattr(one, "__module__", None) == module.__name__
    }
    assert re.search(
        rf"\b(from \.|from \. import |import ){path.stem}\b", "".join(one.read_text("utf-8") for one in path.parent.glob("*.py"))
    )
