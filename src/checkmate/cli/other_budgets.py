"""Schedules at a few other budgets, for the curve of the report's page, within a short time."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress

from ..errors import InfeasibleBudget
from ..report.page_data import even_budgets
from ..schedule import Schedule
from ..solvers import solve
from ..units import format_bytes
from .interrupts import Interrupts
from .terminal import Live

#: How many budgets are tried.
COUNT = 6
#: Less time than this finds nothing worth a point of the curve.
_LEAST_SECONDS = 0.2


def other_schedules(schedule: Schedule, options: argparse.Namespace, interrupts: Interrupts, live: Live) -> list[Schedule]:
    """Schedules of the same graph, one for each budget at which one was found before `options.curve` seconds were over.

    The largest budgets, which are the easiest, come first; what a search leaves of its share of the time is for the later ones. A
    request to stop ends it: then the page is written with what there is.
    """
    graph = schedule.graph
    order = options.order if options.schedule is None else schedule.order
    found: list[Schedule] = []
    budgets = even_budgets(graph, COUNT, apart_from=schedule.budget)
    ends = time.monotonic() + options.curve
    with suppress(KeyboardInterrupt), live:
        for number, budget in enumerate(budgets):
            seconds = (ends - time.monotonic()) / (len(budgets) - number)
            if seconds < _LEAST_SECONDS or interrupts.came():
                break
            live.begin(graph, f"for the curve, {format_bytes(budget)}")
            with suppress(InfeasibleBudget):  # not found in this time; the next one may be
                found.append(solve(graph, budget, "auto", order, seconds, options.gap, options.seed, live))
    return found
