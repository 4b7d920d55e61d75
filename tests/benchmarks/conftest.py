from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a benchmark by name, as Python does for a script in its folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module
