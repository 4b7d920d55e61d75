"""What holds for all tests of the TensorFlow front end."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The peak of TensorFlow's allocator varies by some percent between runs: a plan that passes its budget is made again.

    It says so in a warning, which is no error here; tests of that warning record it themselves.
    """
    for item in items:
        if "tf2" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore::checkmate.errors.BudgetWarning"))
