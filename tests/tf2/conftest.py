"""What holds for all tests of the TensorFlow front end."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A plan that passes its budget when it is tried out says so, and is made again: no error here.

    A training step that passes it is one. Tests of the warnings record them themselves.
    """
    for item in items:
        if "tf2" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:a rehearsal of the step peaked:checkmate.errors.BudgetWarning"))
