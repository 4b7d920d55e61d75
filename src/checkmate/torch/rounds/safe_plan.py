"""What a graph runs under while nobody knows which graphs follow: it holds as little as can be from its forward to its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import InfeasibleBudget
from ...graph import Graph
from ...planning import Allowance, make_plan
from ...planning.parts import least_across
from ..graphs.capture import Captured
from ..graphs.halves import Halves, computations, halves_of
from ..options import Options
from ..plan import Plan
from .step_plan import part_graph

#: Seconds for the search: the plan serves one step.
_SECONDS = 3.0


def safe_halves(captured: Captured, options: Options, allowance_of: Callable[[Graph], Allowance]) -> Halves:
    """The functions of a part that leave the most room for others; where they pass the budget, those with the least peak known."""
    quick = replace(options, order="given", time_limit=min(options.time_limit, _SECONDS), gap=max(options.gap, 0.05))
    part = part_graph(captured)
    allowance = allowance_of(part.graph)
    graph, _ = least_across(part, allowance.limit)
    try:
        plan = make_plan(graph, quick, allowance, Plan, soon=True, device=captured.device)
    except InfeasibleBudget:
        try:
            plan = make_plan(part.graph, quick, allowance, Plan, soon=True, device=captured.device)
        except InfeasibleBudget as error:
            enough = replace(allowance, total=error.smallest_found)
            plan = make_plan(part.graph, quick, enough, Plan, soon=True, device=captured.device)
    return halves_of(captured, plan.schedule.steps, computations(plan.schedule.steps))
