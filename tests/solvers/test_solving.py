"""`solve` against exact brute force, the simulator, and figures known from the field."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time

import pytest

import checkmate
from checkmate import Graph, InfeasibleBudget, simulate
from checkmate.float_rounding import summation_error
from checkmate.solvers import Search
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.default.auto import relaxations
from checkmate.solvers.registry import run
from checkmate.solvers.representation.decoding import decode, evaluate, retained_by
from checkmate.solvers.representation.graph_arrays import Problem
from support import brute_force, random_budget, random_graph, training_chain, vgg19_like


def u_net(depth: int = 4) -> Graph:
    """Forward and backward of an encoder-decoder with skip connections; sizes halve and double with the level."""
    levels = [*range(depth), *range(depth, -1, -1)]
    cost = [10.0 - level for level in levels]
    memory = [1 << (2 * (depth - level) + 2) for level in levels]
    n = len(levels)
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, n - 1 - i) for i in range(depth)]
    backward = [(n + n - 1 - v, n + n - 1 - u) for u, v in edges]
    saved = [(u, 2 * n - 1 - v) for u, v in edges] + [(i, 2 * n - 1 - i) for i in range(n)]
    every = edges + backward + saved + [(n - 1, n)]
    phases = ["forward"] * n + ["backward"] * n
    return Graph.from_arrays(cost + [2 * c for c in cost[::-1]], memory + memory[::-1], every, 1000, "u-net", phases=phases)


@pytest.mark.parametrize("method", ["auto", "greedy", "keep-all"])
@pytest.mark.parametrize("graph", [training_chain(12), vgg19_like(), u_net()], ids=lambda graph: graph.name)
@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
def test_every_method_respects_the_budget_and_the_bound(method: str, graph: Graph, share: float) -> None:
    budget = int(graph.fixed_memory + share * (graph.no_recompute_peak - graph.fixed_memory))
    bounds = [graph.ideal_cost]
    try:
        schedule = checkmate.solve(
            graph, budget, method, time_limit=10, progress=lambda report: bounds.append(report.lower_bound)
        )
    except InfeasibleBudget:
        assert method == "keep-all" or budget < graph.min_working_set
        return
    assert simulate(graph, schedule.steps).peak == schedule.peak <= budget
    assert graph.ideal_cost <= schedule.lower_bound and max(bounds) <= schedule.cost + summation_error(1000, schedule.cost)
    if share == 1.0:
        assert schedule.cost == graph.ideal_cost and schedule.status == "optimal"


@pytest.mark.parametrize("block", range(20))
def test_against_brute_force_on_tiny_graphs(block: int) -> None:
    """2,000 random graphs of at most 8 ops: the optimum and its proof, or what the least budget is."""
    feasible = 0
    for seed in range(100 * block, 100 * block + 100):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=8)
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget)
        try:
            schedule = checkmate.solve(graph, budget, gap=0, time_limit=2)
        except InfeasibleBudget as error:
            assert truth is None and budget < error.proven_minimum == error.smallest_found, f"seed {seed}"
            assert brute_force(graph, error.smallest_found) is not None and brute_force(graph, error.smallest_found - 1) is None
            continue
        assert simulate(graph, schedule.steps).peak <= budget
        assert (schedule.status, schedule.lower_bound, schedule.cost) == ("optimal", truth, truth), f"seed {seed}"
        feasible += 1
    assert feasible >= 50


@pytest.mark.parametrize("block", range(4))
def test_relaxations_against_brute_force(block: int) -> None:
    """What the default method does where a graph is too large for the exact search."""
    proven = 0
    for seed in range(50 * block, 50 * block + 50):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=8)
        budget = max(random_budget(rng, graph), graph.min_working_set)
        truth = brute_force(graph, budget)
        search = Search(graph, budget, time_limit=2, gap=0)
        relaxations(search, rounds=4)
        assert truth is None or (not search.proven_infeasible and search.lower_bound <= truth), f"seed {seed}"
        if search.best is not None:
            trace = simulate(graph, search.schedule("auto").steps)
            assert truth is not None and trace.cost == search.best_cost >= truth and trace.peak <= budget, f"seed {seed}"
            proven += search.current_gap() <= 1e-6
    assert proven >= 25


@pytest.mark.parametrize("block", range(4))
def test_larger_random_graphs(block: int) -> None:
    """Too large for brute force: valid, within budget, no bound above the cost, and something found wherever greedy eviction does."""
    for seed in range(10**6 + 25 * block, 10**6 + 25 * block + 25):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=40, min_ops=9)
        budget = rng.randint(graph.min_working_set, graph.no_recompute_peak)
        bounds = [graph.ideal_cost]
        try:
            schedule = checkmate.solve(
                graph, budget, time_limit=0.5, progress=lambda report, b=bounds: b.append(report.lower_bound)
            )
        except InfeasibleBudget as error:
            assert error.smallest_found > budget
            search = Search(graph, budget)
            run(search, "greedy")
            assert search.best is None
            continue
        assert simulate(graph, schedule.steps).peak <= budget
        assert max(bounds) <= schedule.cost + summation_error(1000, schedule.cost)


def test_all_subsets_bound_the_relaxation() -> None:
    """Whatever the snapshots, the relaxation's bound stays below the exact optimum."""
    for seed in range(12):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=6, min_ops=4)
        budget = rng.randint(graph.min_working_set, graph.no_recompute_peak)
        truth = brute_force(graph, budget)
        room = budget - graph.fixed_memory
        relaxation = SnapshotRelaxation(Problem(graph))
        for count in (1, 2, 3):
            for snapshots in itertools.combinations(range(graph.num_ops), count):
                inside = [(stage, op) for stage in snapshots for op in range(stage)]
                for transients in ((), inside):
                    relaxed = relaxation.solve(room, snapshots, 5.0, 0.0, transients=transients)
                    assert truth is None or relaxed.bound <= truth, (seed, snapshots, transients)


def test_a_relaxation_with_parts_fixed_lies_between_the_schedule_and_the_whole() -> None:
    graph = training_chain(20)
    budget = int(0.7 * graph.no_recompute_peak)
    schedule = checkmate.solve(graph, budget, method="chen-sqrt")
    sequence = [step.op for step in schedule.steps if isinstance(step, checkmate.Compute)]
    stages = list(range(20, 40, 4))
    problem = Problem(graph)
    start = retained_by(graph, sequence, stages)
    costs = []
    for part in (0, 4, graph.num_ops):
        free = problem.producer < part
        relaxed = SnapshotRelaxation(problem).solve(budget - graph.fixed_memory, stages, 5.0, 0.0, start=start, free=free)
        assert relaxed.retained is not None
        for kept, before in zip(relaxed.retained, start, strict=True):
            assert not (kept & ~before & ~free).any()
        costs.append(relaxed.cost)
    assert schedule.cost + 1e-6 >= costs[0] > costs[1] > costs[2]


def test_decode_inverts_what_a_schedule_retains() -> None:
    graph = training_chain(10)
    schedule = checkmate.solve(graph, "60%", gap=0)
    sequence = [step.op for step in schedule.steps if isinstance(step, checkmate.Compute)]
    stages = list(range(graph.num_ops))
    again = evaluate(graph, decode(graph, stages, retained_by(graph, sequence, stages), eager=False))
    assert (again.cost, again.peak) == (schedule.cost, schedule.peak)


def test_chain_optimum_is_that_of_griewank() -> None:
    """One value per layer and unit costs: the optimum is known from brute force for each budget."""
    graph = training_chain(4)
    for budget in range(graph.min_working_set, graph.no_recompute_peak + 1, 10):
        truth = brute_force(graph, budget)
        if truth is not None:
            schedule = checkmate.solve(graph, budget, gap=0)
            assert (schedule.cost, schedule.status) == (truth, "optimal")


def test_same_seed_same_schedule() -> None:
    graph = u_net()
    one, two = (checkmate.solve(graph, "95%", seed=3) for _ in range(2))
    assert one.steps == two.steps and one.lower_bound == two.lower_bound


def test_time_limit_holds() -> None:
    graph = training_chain(300)
    began = time.process_time()
    schedule = checkmate.solve(graph, "12%", gap=0, time_limit=2)
    assert time.process_time() - began < 6  # two threads, and never more than that on a busy machine
    assert schedule.peak <= 0.12 * graph.no_recompute_peak


def test_no_time_at_all() -> None:
    """What needs no search is there all the same."""
    graph = training_chain(6)
    for order in ("given", "any"):
        assert checkmate.solve(graph, "100%", order=order, time_limit=0).cost == graph.ideal_cost


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_without_any_time_there_is_a_fair_schedule(share: float) -> None:
    graph = training_chain(60)
    budget = int(share * graph.no_recompute_peak)
    assert checkmate.solve(graph, budget, time_limit=0).cost <= 1.1 * checkmate.solve(graph, budget, method="greedy").cost


def test_interrupt_returns_the_best_so_far() -> None:
    graph = training_chain(300)
    found = threading.Event()

    def watch(progress: checkmate.solvers.Progress) -> None:
        if progress.cost is not None and not found.is_set():
            found.set()
            os.kill(os.getpid(), signal.SIGINT)

    began = time.process_time()
    schedule = checkmate.solve(graph, "12%", gap=0, time_limit=600, progress=watch)
    assert found.is_set() and time.process_time() - began < 30
    assert schedule.peak <= schedule.budget


def test_progress_only_improves() -> None:
    seen: list[checkmate.solvers.Progress] = []
    checkmate.solve(u_net(), "95%", gap=0, time_limit=5, progress=seen.append)
    costs = [report.cost for report in seen if report.cost is not None]
    bounds = [report.lower_bound for report in seen]
    assert costs == sorted(costs, reverse=True) and bounds == sorted(bounds) and costs


def test_infeasible_budget_names_what_fits() -> None:
    graph = vgg19_like()
    with pytest.raises(InfeasibleBudget) as caught:
        checkmate.solve(graph, graph.min_working_set - 1)
    error = caught.value
    assert error.budget < error.proven_minimum and str(error.smallest_found) in str(error)
    assert checkmate.solve(graph, error.smallest_found).peak <= error.smallest_found


def test_bad_arguments() -> None:
    graph = training_chain(3)
    with pytest.raises(checkmate.UnknownMethod, match="auto"):
        checkmate.solve(graph, "1KB", method="best")
    with pytest.raises(checkmate.UnknownMethod, match="given"):
        checkmate.solve(graph, "1KB", order="random")
    for argument in ({"gap": -1}, {"time_limit": float("nan")}, {"gap": "small"}):
        with pytest.raises(checkmate.BudgetError):
            checkmate.solve(graph, "1KB", **argument)
    with pytest.raises(checkmate.BudgetError):
        checkmate.solve(graph, "abc")


def near_minimum(graph: Graph) -> int:
    """A budget of 1.02 times the smallest working set, fixed memory left out."""
    return graph.fixed_memory + int(1.02 * (graph.min_working_set - graph.fixed_memory))


def test_recomputations_in_another_order_than_the_graph() -> None:
    """Near the minimum a group may fit only if an op is recomputed before one that is ahead of it in the graph."""
    graph = checkmate.networks.unet()
    search = Search(graph, near_minimum(graph), time_limit=60, target_cost=1.152 * graph.ideal_cost)
    relaxations(search)
    assert search.best is not None and search.best_cost <= 1.152 * graph.ideal_cost
    assert evaluate(graph, search.best).peak <= search.budget
    later, turns = 0, []
    for op in search.best:
        if op == later:
            later += 1
        else:
            turns.append((later, op))
    assert any(stage == following and op > after for (stage, op), (following, after) in itertools.pairwise(turns))


@pytest.mark.slow
def test_unet_near_the_minimum_is_proven() -> None:
    graph = checkmate.networks.unet()
    schedule = checkmate.solve(graph, near_minimum(graph), gap=0.005, time_limit=60)
    assert schedule.cost <= 1.005 * schedule.lower_bound and simulate(graph, schedule.steps).peak <= schedule.budget


def test_minimum_budget() -> None:
    for graph in (training_chain(12), vgg19_like(), u_net()):
        minimum = checkmate.minimum_budget(graph)
        assert graph.min_working_set <= minimum.proven_minimum and minimum.smallest_found <= graph.no_recompute_peak
        assert checkmate.solve(graph, minimum.smallest_found, time_limit=5).peak <= minimum.smallest_found
    with pytest.raises(InfeasibleBudget):
        checkmate.solve(graph, minimum.proven_minimum - 1)


def test_max_batch_size_against_every_batch() -> None:
    """The largest batch is the largest one whose cheapest schedule is cheap enough, by brute force."""
    graph = training_chain(4)
    room = 300
    for max_overhead in (1.0, 1.2, 1.5, 3.0):
        fits = [
            batch
            for batch in range(1, 11)
            if (cost := brute_force(graph, room // batch)) is not None and cost <= max_overhead * graph.ideal_cost
        ]
        found = checkmate.max_batch_size(graph, room, max_overhead, time_limit=20)
        assert found.batch == max(fits) == found.upper_bound
        assert found.batch * found.schedule.peak <= room and found.schedule.overhead <= max_overhead
        assert simulate(graph.scaled(found.batch), found.schedule.steps).peak <= room


def test_max_batch_size_with_nothing_to_find() -> None:
    with pytest.raises(InfeasibleBudget):
        checkmate.max_batch_size(training_chain(4), 10)
    with pytest.raises(checkmate.BudgetError, match="from 1 on"):
        checkmate.max_batch_size(training_chain(4), 300, max_overhead=0.5)
