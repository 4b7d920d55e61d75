"""Searches in the background that end when a test says so."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from checkmate.planning import background, background_worker


class Child:
    """In place of the process of a search.

    Attributes:
        begun: all of them. says: what they answer; None: what a process would.
    """

    begun: ClassVar[list[Child]]
    says: ClassVar[dict[str, Any] | None]

    def __init__(self, request: str):
        self.request, self.runs, self.ended = json.loads(request), True, False
        type(self).begun.append(self)

    def answer(self) -> dict[str, Any]:
        return background_worker.answer(self.request) if self.says is None else self.says

    def end(self) -> None:
        self.runs, self.ended = False, True


def without_processes(patch: pytest.MonkeyPatch) -> type[Child]:
    """From now on searches are run by these."""
    kind = type("Child", (Child,), {"begun": [], "says": None})
    patch.setattr(background, "_Child", kind)
    return kind
