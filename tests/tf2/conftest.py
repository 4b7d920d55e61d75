"""What all tests of the TensorFlow front end have in common."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _there_is_always_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, all plans are tried out before the first step."""
    step = sys.modules.get("checkmate.tf2.step")
    if step is not None:
        monkeypatch.setattr(step, "_clock", lambda: 0.0)
