"""What a user can say about a plan of a TensorFlow step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from .. import planning
from ..errors import CheckmateError


@dataclass(frozen=True)
class Options(planning.Options):
    """Options of `checkmate.tf2.compile` and of `checkmate.tf2.prepare`: those of `checkmate.planning.Options`, and two more.

    Attributes:
        plan_seconds: the first step waits for planning no longer than about so many seconds, tracing included; then it runs under the best
            plan that was seen to keep to the budget, and what is left to try out goes on between steps, one plan after each. Training
            never begins without a plan that keeps to the budget: where there is none after so many seconds, the search for one goes on.
        progress: say on standard error what planning does. None: if that is a terminal.
    """

    plan_seconds: float = 60.0
    progress: bool | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Options from keywords.

        Raises:
            UnknownMethod: a keyword that is not an option. BudgetError: an amount that cannot be read.
            CheckmateError: something is not what it should be.
        """
        options = super().read(given)
        seconds = options.plan_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds) or seconds < 0:
            kind = repr(seconds) if isinstance(seconds, int | float) else f"a {type(seconds).__name__}"
            raise CheckmateError(f"plan_seconds must be a number of seconds, 0 or more; it is {kind}")
        if options.progress not in (None, True, False):
            raise CheckmateError(f"progress must be True, False or None; it is a {type(options.progress).__name__}")
        return options

    @property
    def search_seconds(self) -> float:
        """The first schedule is sought for so long: the rest of `plan_seconds` is for tracing, for trying it out, and for other schedules."""
        return min(self.time_limit, self.plan_seconds / 4)

    def about(self) -> dict[str, Any]:
        """What the schedules for a budget depend on."""
        return {field.name: getattr(self, field.name) for field in fields(planning.Options) if field.name != "budget"}
