"""No recomputation: with values freed after their last use, or with the whole forward pass kept to the end."""

from __future__ import annotations

from ...schedule import simulate
from ..interface.running_search import Search
from .checkpoints import Forward


def keep_all(search: Search) -> None:
    """Run every op once, in order, as a framework does that has enough memory; infeasible below the no-recompute peak."""
    if search.graph.no_recompute_peak <= search.budget:
        search.offer(range(search.graph.num_ops), search.graph.ideal_cost)


def keep_all_forward(search: Search) -> None:
    """The same, with every value of the forward pass kept until the last op: "checkpoint all" of Jain et al., MLSys 2020."""
    forward = Forward(search.graph)
    steps = forward.checkpointed(range(forward.num_ops)).steps()
    assert steps is not None, "never stopped, and nothing is recomputed"
    trace = simulate(search.graph, steps)
    if trace.peak <= search.budget:
        search.offer_steps(steps, trace.cost)
