"""The largest batch where a function gives the graph of each: against solving batch after batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import checkmate
from checkmate import BudgetError, Graph, InfeasibleBudget, Value
from checkmate.solvers.smallest_budget import proven_minimum
from support import random_step, training_chain

LAYERS = 4


def step(batch: int) -> Graph:
    """A chain whose gradients of parameters (every second gradient here) do not grow with the batch, and are kept."""
    graph = training_chain(LAYERS, size=100).scaled(batch)
    values = list(graph.values)
    for value in range(LAYERS, 2 * LAYERS, 2):
        values[value] = Value(values[value].name, 70, keep=True)
    ops = [replace(op, cost=op.cost + 0.5) for op in graph.ops]
    return Graph(ops, values, 1000, f"batch {batch}")


def largest(budget: int, max_overhead: float) -> int:
    """One batch after the other."""
    batch = 0
    while step(batch + 1).min_working_set <= budget:
        try:
            if checkmate.solve(step(batch + 1), budget, gap=0, time_limit=30).overhead > max_overhead:
                break
        except InfeasibleBudget:
            break
        batch += 1
    return batch


@pytest.mark.parametrize(("budget", "max_overhead"), [(3000, 1.0), (3000, 1.2), (2000, 1.33), (1800, 1.5), (6001, 1.1)])
def test_as_one_batch_after_the_other(budget: int, max_overhead: float) -> None:
    asked: list[int] = []

    def counted(batch: int) -> Graph:
        asked.append(batch)
        return step(batch)

    found = checkmate.max_batch_size(counted, budget, max_overhead, time_limit=60)
    assert found.batch == found.upper_bound == largest(budget, max_overhead)
    assert found.schedule.graph == step(found.batch), "the schedule is that of the batch"
    assert found.schedule.peak <= budget
    assert found.schedule.overhead <= max_overhead
    assert len(asked) == len(set(asked)) <= 12, "tracing takes long"


def test_a_batch_of_one_is_not_asked_for_without_need() -> None:
    def picky(batch: int) -> Graph:
        if batch < 2:
            raise ValueError("expected more than one value per channel")
        return step(batch)

    assert checkmate.max_batch_size(picky, 3000).batch >= 2
    with pytest.raises(ValueError, match="expected more than one"):
        checkmate.max_batch_size(picky, step(1).min_working_set)


def test_a_batch_of_one() -> None:
    found = checkmate.max_batch_size(step, checkmate.minimum_budget(step(1)).smallest_found, max_overhead=5)
    assert (found.batch, found.upper_bound) == (1, 1)


def test_nothing_fits() -> None:
    least = step(1).min_working_set
    with pytest.raises(InfeasibleBudget) as caught:
        checkmate.max_batch_size(step, least - 1)
    assert caught.value.budget < least <= caught.value.proven_minimum <= caught.value.smallest_found


@pytest.mark.parametrize("traced", [False, True])
def test_what_a_few_values_need_together_limits_the_batch(traced: bool) -> None:
    """Of this graph a batch of 23 is what its largest op alone leaves room for; some of its values together need more."""
    graph = random_step(random.Random(25), 64, 90)
    least = proven_minimum(graph, graph.no_recompute_peak) - graph.fixed_memory
    alone = graph.min_working_set - graph.fixed_memory
    budget = graph.fixed_memory + 20 * least
    assert 20 * least // alone == 23
    found = checkmate.max_batch_size(graph.scaled if traced else graph, budget, max_overhead=100, time_limit=5)
    assert found.batch <= found.upper_bound == 20


def test_arguments() -> None:
    with pytest.raises(BudgetError, match="nothing here for it to refer to"):
        checkmate.max_batch_size(step, "50%")
    with pytest.raises(BudgetError, match="does this step not depend on its batch"):
        checkmate.max_batch_size(lambda batch: step(1), 10**6)


def test_interrupted() -> None:
    """Before a batch was found to fit there is nothing to return; later there is."""
    asked: list[int] = []

    def interrupted_at(number: int) -> None:
        asked.clear()

        def at(batch: int) -> Graph:
            asked.append(batch)
            if len(asked) == number:
                raise KeyboardInterrupt
            return step(batch)

        found = checkmate.max_batch_size(at, 6001, 1.1, time_limit=60)
        assert 1 <= found.batch < found.upper_bound

    with pytest.raises(KeyboardInterrupt):
        interrupted_at(1)
    interrupted_at(5)
