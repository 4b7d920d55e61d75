"""Settings of these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script: the first steps run under schedules that are found at once. Whether a better one comes in time must not matter."""
    monkeypatch.setenv("CHECKMATE_WAIT", "0")
