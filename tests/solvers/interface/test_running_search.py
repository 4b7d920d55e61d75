"""A search never puts up with two results that exclude each other, and says which."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import pytest

from checkmate import Contradiction, Graph
from checkmate.float_rounding import summation_error
from checkmate.solvers import Search
from support import training_chain

GRAPH = training_chain(4)
PLAIN = range(GRAPH.num_ops)
ROOMY = GRAPH.no_recompute_peak


def test_a_bound_above_a_schedule() -> None:
    """Whichever comes first, the message names the source of the bound and the cost that is certain."""
    search = Search(GRAPH, ROOMY)
    search.offer(PLAIN, 8.0, "plain order")
    with pytest.raises(Contradiction, match=r"costs less than 8.5 \(bad proof\), but there is .* costs 8.0 .*report"):
        search.raise_bound(8.5, "bad proof")
    search = Search(GRAPH, ROOMY)
    search.raise_bound(8.5, "bad proof")
    with pytest.raises(Contradiction, match=r"\(bad proof\), but there is a schedule of 50 bytes that costs 8.0 \(plain order"):
        search.offer(PLAIN, 8.0, "plain order")


def test_a_proof_that_there_is_none() -> None:
    search = Search(GRAPH, ROOMY)
    search.offer(PLAIN, 8.0)
    with pytest.raises(Contradiction, match=r"no schedule fits 50 bytes \(bad proof\), but there is a schedule of 50 bytes"):
        search.prove_infeasible("bad proof")
    for prove in (lambda one: one.prove_infeasible("bad proof"), lambda one: one.raise_bound(math.inf, "bad proof")):
        search = Search(GRAPH, ROOMY)
        prove(search)
        assert search.proven_infeasible and search.done()
        with pytest.raises(Contradiction, match="bad proof"):
            search.offer(PLAIN, 8.0)


def test_proofs_of_the_given_order_say_nothing_about_others() -> None:
    search = Search(GRAPH, ROOMY, order="any")
    search.offer(PLAIN, 8.0)
    search.raise_bound(9.0, "bound of the given order")
    search.prove_infeasible("proof of the given order")
    assert search.lower_bound == 8.0 and not search.proven_infeasible
    with pytest.raises(Contradiction):
        search.raise_bound(9.0, "bound of all orders", "any")


def test_what_is_handed_in_is_simulated_before_a_bound_is_blamed() -> None:
    search = Search(GRAPH, ROOMY - 1)
    search.raise_bound(8.5, "good proof")
    with pytest.raises(Contradiction, match="50 bytes that costs 8.0 .* was handed in for a budget of 49 bytes"):
        search.offer(PLAIN, 8.0)
    search = Search(GRAPH, ROOMY)
    with pytest.raises(Contradiction, match="handed in as one that costs 7.0"):
        search.offer(PLAIN, 7.0)


def test_within_rounding_the_cost_is_the_bound() -> None:
    search = Search(GRAPH, ROOMY)
    search.offer(PLAIN, 8.0)
    search.raise_bound(8.0 + 1e-15, "proof")
    search.raise_bound(8.0 + search.rounding(), "proof")
    assert search.schedule("auto").lower_bound == 8.0 < search.lower_bound < 8.0 + 1e-13
    with pytest.raises(Contradiction):
        search.raise_bound(8.0 + 2 * search.rounding(), "proof")


def test_a_target_is_out_of_reach_by_more_than_rounding() -> None:
    search = Search(GRAPH, ROOMY, target_cost=8.0)
    search.raise_bound(8.0 + 1e-15, "proof")
    assert not search.out_of_reach() and not search.closed()
    search.raise_bound(8.1, "proof")
    assert search.out_of_reach() and search.closed()


def test_the_rounding_of_sums_covers_what_floats_do() -> None:
    """Costs of very different sizes, added up naively in both directions, against exact fractions."""
    costs = [10.0**-k * (1 + k / 7) for k in range(17)] * 40
    exact = sum(map(Fraction, costs), Fraction())
    for order in (costs, costs[::-1], sorted(costs)):
        total = 0.0
        for cost in order:
            total += cost
        error = abs(Fraction(total) - exact)
        assert error <= summation_error(len(costs), total)
    assert summation_error(10_000, 1.0) < 1.2e-12


def test_the_message_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(Contradiction("one thing, but another")))
    assert isinstance(error, Contradiction) and str(error).count("report") == 1 and "one thing, but another" in str(error)


def test_no_costs_at_all() -> None:
    graph = Graph.from_arrays([0.0] * 3, [1] * 3, [(0, 1), (1, 2)])
    search = Search(graph, graph.no_recompute_peak)
    search.offer(range(3), 0.0)
    assert search.schedule("auto").status == "optimal" and search.rounding() == 0.0
