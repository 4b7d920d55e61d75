"""The paper's methods and the baselines: against brute force, each other, and figures of the field."""

from __future__ import annotations

import random
import sys
from importlib.util import find_spec

import pytest

import checkmate
from checkmate import Graph, InfeasibleBudget, Op, Value, simulate
from checkmate.networks import fcn8, mobilenet, resnet50, segnet, unet, vgg16, vgg19
from checkmate.solvers import registry
from checkmate.solvers.interface.running_search import Search
from support import brute_force, random_budget, random_graph, training_chain

GUROBI = pytest.param("milp-gurobi", marks=pytest.mark.skipif(find_spec("gurobipy") is None, reason="gurobipy is not installed"))
NAMES = [name for name in checkmate.methods() if name not in ("milp-cbc", "milp-gurobi")]
BASELINES = [name for name in NAMES if name.startswith(("keep", "chen", "griewank"))]


def irregular_chain(layers: int, seed: int) -> Graph:
    """A training chain whose layers differ in cost and size."""
    rng = random.Random(seed)
    plain = training_chain(layers)
    edges = [(value, index) for index, op in enumerate(plain.ops) for value in op.inputs]
    cost = [float(rng.randint(1, 20)) for _ in plain.ops]
    return Graph.from_arrays(cost, [rng.randint(5, 20) for _ in plain.ops], edges, phases=[op.phase for op in plain.ops])


@pytest.mark.parametrize("method", [*NAMES, "milp-cbc", GUROBI])
def test_tiny_graphs_against_brute_force(method: str) -> None:
    """Never over budget (`solve` raises if so), never below the optimum, and no bound above it."""
    solved = 0
    for seed in range(60):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=7)
        budget = random_budget(rng, graph)
        truth = brute_force(graph, budget)
        try:
            schedule = checkmate.solve(graph, budget, method=method, gap=0, time_limit=5)
        except InfeasibleBudget as error:
            assert (truth is None) == ("use method 'auto'" not in str(error)), f"seed {seed}"
            continue
        except checkmate.CheckmateError as error:
            assert "licence" in str(error)
            continue
        assert truth is not None
        assert simulate(graph, schedule.steps).peak <= budget
        assert schedule.lower_bound <= truth <= schedule.cost
        solved += 1
        if method.startswith("milp"):
            assert schedule.cost == pytest.approx(truth, rel=1e-6), f"seed {seed}: the class of the program had the optimum"
    assert solved >= 12


# --- the integer program ---

PROBLEMS = [
    *((graph, share, str(share)) for graph in (vgg16(), vgg19()) for share in (0.0, 0.9)),
    *((training_chain(7), share, "equal") for share in (0.6, 0.7)),
    *((irregular_chain(12, seed), share, f"seed {seed}") for seed, share in ((1, 0.6), (2, 0.55), (3, 0.6))),
]


@pytest.mark.parametrize("method", ["milp", "milp-cbc", GUROBI])
@pytest.mark.parametrize(("graph", "share", "_"), PROBLEMS, ids=[f"{g.name} {what} {share}" for g, share, what in PROBLEMS])
def test_the_integer_program_has_the_same_optimum_as_auto(method: str, graph: Graph, share: float, _: str) -> None:
    """VGG16 and VGG19 at the smallest budget and at 90%, and chains of 14 and 24 ops; the time limits are never reached."""
    plain = graph.no_recompute_peak - graph.fixed_memory
    budget = max(graph.min_working_set, graph.fixed_memory + int(share * plain))
    best = checkmate.solve(graph, budget, gap=0, time_limit=600)
    assert best.status == "optimal" and best.cost > graph.ideal_cost
    try:
        schedule = checkmate.solve(graph, budget, method=method, gap=0, time_limit=600)
    except checkmate.CheckmateError as error:
        if method == "milp-gurobi" and "licence" in str(error):
            pytest.skip("gurobipy is installed without a licence for programs of this size")
        raise
    assert schedule.cost == pytest.approx(best.cost, rel=1e-6)
    assert schedule.lower_bound <= best.lower_bound, "its own optimum is no bound for every schedule"


def test_vgg19_at_its_smallest_budget() -> None:
    """The figure of the paper's own program."""
    graph = vgg19()
    schedule = checkmate.solve(graph, graph.fixed_memory + 51380224, method="milp", gap=0)
    assert (schedule.cost, schedule.peak - graph.fixed_memory) == (58982891520, 51380224)


def test_several_values_workspace_and_kept_values() -> None:
    """Each of them decides here: an op with two outputs of which one is needed late, workspace, a value to keep."""
    values = [Value("a", 10), Value("b", 4), Value("c", 8), Value("d", 1), Value("e", 1, keep=True)]
    ops = [
        Op("ab", 5.0, (), (0, 1)),
        Op("c", 3.0, (0,), (2,)),
        Op("d", 1.0, (2,), (3,), workspace=12),
        Op("e", 1.0, (1, 3), (4,)),
    ]
    graph = Graph(ops, values)
    for budget in range(graph.min_working_set, graph.no_recompute_peak + 1):
        truth = brute_force(graph, budget)
        if truth is not None:
            assert checkmate.solve(graph, budget, method="milp", gap=0).cost == truth


@pytest.mark.parametrize("method", ["milp", "milp-cbc", "lp-rounding"])
@pytest.mark.parametrize(("graph", "limit"), [(training_chain(40), 1.0), (resnet50(), 4.0)], ids=["chain40", "ResNet50"])
def test_time_limit_of_large_programs(method: str, graph: Graph, limit: float) -> None:
    """That of ResNet50 keeps HiGHS busy for longer before it looks at its clock; the rest of a minute is for a busy machine."""
    budget = graph.fixed_memory + (graph.no_recompute_peak - graph.fixed_memory) // 2
    search = Search(graph, budget, time_limit=limit, gap=0.0)
    registry.run(search, method)
    assert search.seconds() < limit + 60
    if search.best is not None:
        trace = simulate(graph, search.schedule(method).steps)
        assert trace.peak <= budget and trace.cost == search.best_cost


def test_missing_solvers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(4)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "cbcbox", None)
    with pytest.raises(checkmate.CheckmateError, match="needs the solver CBC: run pip install"):
        checkmate.solve(graph, "60%", method="milp-cbc")
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(checkmate.CheckmateError, match="needs gurobipy and a licence"):
        checkmate.solve(graph, "60%", method="milp-gurobi")


def test_too_large_for_the_integer_program() -> None:
    with pytest.raises(checkmate.CheckmateError, match="use method 'auto'"):
        checkmate.solve(training_chain(1001), "60%", method="milp")


# --- rounding ---


@pytest.mark.parametrize("method", ["lp-rounding", "lp-rounding-randomized"])
def test_rounding_is_never_over_budget(method: str) -> None:
    found = 0
    for seed in range(100):
        rng = random.Random(seed)
        graph = irregular_chain(rng.randint(3, 12), seed) if seed % 2 else random_graph(rng, max_ops=25, min_ops=8)
        budget = rng.randint(graph.min_working_set, max(graph.min_working_set, graph.no_recompute_peak - 1))
        search = Search(graph, budget, time_limit=10, seed=seed)
        registry.run(search, method)
        if search.best is not None:
            trace = simulate(graph, search.schedule("lp-rounding").steps)
            assert trace.peak <= budget and trace.cost == pytest.approx(search.best_cost)
            found += search.best_cost > graph.ideal_cost
    assert found >= 30


def test_rounding_on_vgg19() -> None:
    graph = vgg19()
    for method in ("lp-rounding", "lp-rounding-randomized"):
        schedule = checkmate.solve(graph, graph.fixed_memory + 59970355, method=method)
        assert schedule.cost == pytest.approx(58982891520)


def test_randomized_rounding_follows_the_seed() -> None:
    graph = irregular_chain(12, 5)
    schedules = [checkmate.solve(graph, "55%", method="lp-rounding-randomized", seed=seed).steps for seed in (1, 1)]
    assert schedules[0] == schedules[1]


# --- baselines: the figures that the code of Checkmate gives for them ---


@pytest.mark.parametrize(
    ("method", "cost", "peak"),
    [("keep-all-forward", 58896187392, 81723296), ("chen-sqrt", 72512667648, 69447584), ("keep-all", 58896187392, 66633728)],
)
def test_known_schedules_of_vgg19(method: str, cost: float, peak: int) -> None:
    graph = vgg19()
    schedule = checkmate.solve(graph, graph.fixed_memory + peak, method=method)
    assert (schedule.cost, schedule.peak - graph.fixed_memory) == (cost, peak)
    with pytest.raises(InfeasibleBudget):
        checkmate.solve(graph, graph.fixed_memory + peak - 1, method=method)


LARGEST_BATCHES = [
    (vgg19, "keep-all-forward", 167),
    (vgg19, "chen-sqrt", 197),
    (vgg19, "chen-greedy", 266),
    (mobilenet, "keep-all-forward", 215),
    (mobilenet, "chen-sqrt", 452),
    (mobilenet, "chen-greedy", 640),
    (resnet50, "keep-all-forward", 98),
    (unet, "keep-all-forward", 22),
    (unet, "chen-sqrt-ap", 18),
    (unet, "chen-greedy-ap", 21),
    (unet, "chen-greedy-linear", 35),
    (fcn8, "keep-all-forward", 29),
    (fcn8, "chen-sqrt-ap", 51),
    (segnet, "keep-all-forward", 21),
    (segnet, "chen-sqrt", 33),
    (segnet, "chen-greedy", 43),
]


@pytest.mark.parametrize(
    ("network", "method", "batch"), LARGEST_BATCHES, ids=[f"{n.__name__} {m}" for n, m, _ in LARGEST_BATCHES]
)
def test_known_largest_batches(network: object, method: str, batch: int) -> None:
    """Of 16e9 bytes less twice the parameters and gradients, at the cost of at most one more forward pass."""
    assert callable(network)
    graph = network()
    assert fits(graph, method, batch) and not fits(graph, method, batch + 1)


def fits(graph: Graph, method: str, batch: int) -> bool:
    budget = graph.fixed_memory + (16 * 10**9 - 2 * graph.fixed_memory) // batch
    forward = sum(op.cost for op in graph.ops if op.phase == "forward")
    search = Search(graph, budget)
    registry.run(search, method)  # and not `solve`, which looks for a budget that would do
    if search.best is None:
        return False
    trace = simulate(graph, search.schedule(method).steps)
    assert trace.peak <= budget
    return trace.cost <= graph.ideal_cost + forward


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_on_random_graphs(method: str) -> None:
    """With memory for all of it, every baseline has a schedule of every graph, whatever its ops and values are like."""
    for seed in range(100):
        rng = random.Random(seed)
        graph = random_graph(rng, max_ops=30)
        budget = graph.fixed_memory + 2 * sum(v.size for v in graph.values) + sum(op.workspace for op in graph.ops)
        schedule = checkmate.solve(graph, budget, method=method)
        assert schedule.lower_bound == graph.ideal_cost <= schedule.cost


def test_the_names_of_the_methods() -> None:
    assert {"auto", "greedy", "keep-all", "keep-all-forward", "lp-rounding", "lp-rounding-randomized"} <= set(checkmate.methods())
    assert {"milp", "milp-cbc", "milp-gurobi", "griewank", "griewank-ap"} <= set(checkmate.methods())
    for rule in ("chen-sqrt", "chen-greedy"):
        assert {rule, f"{rule}-ap", f"{rule}-linear"} <= set(checkmate.methods())
