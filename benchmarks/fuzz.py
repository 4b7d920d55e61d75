"""Random graphs against exact brute force, and all searches of one graph against each other, in worker processes.

Every bound is compared as it was proven, not as a schedule reports it. Four kinds of graphs:

small: at most 8 ops, compared with brute force (tests/support.py). A schedule is valid and within the budget and costs no less than
the truth, no bound is above it, what is called optimal is, and a budget that is called impossible is. The default method must find
and prove the optimum, or that there is none, and the exact minimum budget. Half of these graphs are edge cases: costs or sizes that
are all zero or all equal, costs of which no sum is exact, sizes up to 2^50, huge workspaces, many kept values, many ops that must
not be recomputed.

large: 10 to 200 ops, given to all methods: no budget may be broken, no bound be above the best cost that any method found, no search
may crash or go on for more than 2 s past its time limit.

steps: training steps of 12 to 90 ops, each solved with several settings (seeds, time limits, orders, parts of the default method) and
bounded by each bound alone, with snapshots and multipliers drawn at random: no bound of any run may be above the cheapest cost of any
run, and no budget be called impossible for which any run has a schedule.

    python benchmarks/fuzz.py [--graphs 100000] [--large-share 0.005] [--steps 500] [--time-limit 2] [--in-place] [--workers 2]
        [--seed 0] [--output fuzz.json]

Ctrl-C stops it and writes what was found so far. Every failure is reported with the seed that makes it again:
`--graphs 1 --steps 0 --seed SEED`, with `--large-share 1` if it is a large one; `--graphs 0 --steps 1 --seed SEED` if it is a step.
Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import checkmate
from checkmate import Graph, InfeasibleBudget, Schedule, simulate
from checkmate.float_rounding import summation_error
from checkmate.solvers import Progress, Search
from checkmate.solvers.bounds.lagrangian_bound import LagrangianBound, LagrangianRelaxation
from checkmate.solvers.bounds.nested_snapshot_bound import nested_bound
from checkmate.solvers.bounds.peak_bound import least_peak_bound
from checkmate.solvers.bounds.snapshot_relaxation import SnapshotRelaxation
from checkmate.solvers.bounds.tail_bound import Tail
from checkmate.solvers.default.auto import relaxations
from checkmate.solvers.exact.best_first_search import Exact
from checkmate.solvers.representation.graph_arrays import problem_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from solver import environment

from support import brute_force, random_budget, random_edge_case, random_graph, random_step, with_reuse

#: Methods that need a program or a licence that may not be there.
OPTIONAL = ("milp-cbc", "milp-gurobi")
#: What the default method does where a graph is too large for the exact search, and the rounds of it that a small graph gets.
RELAXATIONS, ROUNDS = "auto without the exact search", 3
#: What a search may take past its time limit, and a least limit for starting up, in seconds.
GRACE = 2.0
#: What it may spend waiting for a processor beyond that: other work on the machine is no fault of the search.
BUSY = 20.0
#: Most ops of a small graph, for brute force.
SMALL = 8
#: The tolerance of what counts as optimal, as a part of the cost.
OPTIMAL = 2e-6
#: Of a training step: method, order, seed, and share of the time limit.
SETTINGS = (("auto", "given", 0, 0.5), ("auto", "given", 1, 0.1), ("auto", "any", 0, 0.5), (RELAXATIONS, "given", 2, 0.5))


class Failure(Exception):
    """A promise that was broken."""


def require(kept: bool, promise: str) -> None:
    """Raise a Failure unless it was kept."""
    if not kept:
        raise Failure(promise)


def rounded(cost: float) -> float:
    """A cost, and what sums of a thousand costs that come to it can be off by: 2e-13 of it."""
    return cost + summation_error(2000, cost)


@lru_cache(64)
def truth(graph: Graph, budget: int, order: str) -> float | None:
    """The least cost, by brute force; graphs are their own keys."""
    return brute_force(graph, budget, order)


class Run(NamedTuple):
    """One search: its schedule (None if there is none), and the highest bound it ever had, with its source."""

    schedule: Schedule | None
    bound: float
    source: str


class Highest:
    """Takes reports of progress, and keeps the highest bound: those of a search are not cut to the cost of a schedule."""

    def __init__(self, graph: Graph):
        self.bound, self.source = graph.ideal_cost, "ideal cost"

    def __call__(self, report: Progress) -> None:
        if report.lower_bound > self.bound:
            self.bound, self.source = report.lower_bound, report.note


def solve(graph: Graph, budget: int, method: str, order: str, limit: float, gap: float, seed: int, watch: Highest) -> Schedule:
    """`checkmate.solve`, and the same for what is no method of its own."""
    if method != RELAXATIONS:
        return checkmate.solve(graph, budget, method, order, limit, gap, seed, watch)
    search = Search(graph, budget, order, limit, gap, seed, watch)
    if budget >= graph.min_working_set:
        relaxations(search, ROUNDS if graph.num_ops <= SMALL else None)
    if search.best is None:
        least = checkmate.minimum_budget(graph) if graph.num_ops <= SMALL else (graph.min_working_set, graph.no_recompute_peak)
        raise InfeasibleBudget(budget, max(least[0], (budget + 1) * search.proven_infeasible), least[1])
    return search.schedule("auto")


def searched(
    graph: Graph, budget: int, method: str, order: str, gap: float, limit: float, counts: Counter[str], seed: int = 0
) -> Run:
    """One search, whose schedule is checked."""
    schedule = error = None
    for turn in ("at first", "again"):
        watch = Highest(graph)
        began, worked = time.perf_counter(), time.process_time()
        try:
            schedule = solve(graph, budget, method, order, limit, gap, seed, watch)
        except InfeasibleBudget as caught:
            error = caught
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        # Without a schedule the search for a budget that would do comes on top, and has its own limit.
        most = limit + GRACE + (15.0 if schedule is None else 0.0)
        if worked <= most and seconds <= most + BUSY:
            break
        require(turn == "at first", f"took {seconds:.2f} s of {limit} s, twice")
        counts["late once"] += 1
    counts["searches"] += 1
    if schedule is None:
        assert error is not None
        impossible = error.proven_minimum > budget
        require(not impossible or error.smallest_found > budget, "a schedule where none is said to be")
        counts["infeasible"] += 1
        if graph.num_ops <= SMALL:
            require(truth(graph, error.smallest_found, order) is not None, f"{error.smallest_found} bytes do not fit")
            require(truth(graph, error.proven_minimum - 1, order) is None, f"{error.proven_minimum - 1} bytes would do")
            require(error.proven_minimum == error.smallest_found, "the minimum is not exact")
        return Run(None, math.inf if impossible else watch.bound, "proof that there is none" if impossible else watch.source)
    trace = simulate(graph, schedule.steps)
    require(trace.peak <= budget, f"peak {trace.peak} over the budget")
    require(graph.ideal_cost <= watch.bound <= rounded(trace.cost), f"bound {watch.bound} ({watch.source}), cost {trace.cost}")
    counts[schedule.status] += 1
    return Run(schedule, watch.bound, watch.source)


def bounds_alone(rng: random.Random, graph: Graph, budget: int) -> Iterator[tuple[float, str]]:
    """Bounds on the cost of every schedule in the given order, each by itself, however it may be asked for."""
    problem, capacity = problem_of(graph), budget - graph.fixed_memory
    if budget < graph.min_working_set or capacity <= 0:
        return
    relaxation = SnapshotRelaxation(problem)
    for _ in range(3):
        snapshots = sorted(rng.sample(range(graph.num_ops), rng.randint(1, min(4, graph.num_ops))))
        inside = [(stage, op) for stage in snapshots for op in range(stage) if rng.random() < 0.3]
        relaxed = relaxation.solve(
            capacity, snapshots, 1.0, rng.choice([0.0, 0.01]), windows=rng.random() < 0.5, transients=inside
        )
        yield relaxed.bound, f"relaxation at {snapshots}, inside {inside}"
        yield relaxation.relax(capacity, snapshots, 1.0).bound, f"linear relaxation at {snapshots}"
        multipliers = np.array([rng.choice([0.0, 3.0 * rng.random()]) * graph.ideal_cost for _ in snapshots])
        fixed = LagrangianRelaxation(problem, float(capacity), snapshots)
        yield fixed.solve(multipliers).bound, f"Lagrangian relaxation at {snapshots} with {multipliers.tolist()}"
    lagrangian = LagrangianBound(problem, float(capacity))
    for _ in range(4):
        if not lagrangian.exhausted:
            lagrangian.step(lambda: False)
            lagrangian.refine([])
    yield lagrangian.bound, f"Lagrangian bound at {lagrangian.snapshots}"
    for cut in ((1, 0), (2, 1)):
        yield nested_bound(problem, capacity, *cut, multipliers=8), f"nested snapshots, cut {cut}"
    after = rng.randrange(graph.num_ops)
    ahead = math.fsum(op.cost for op in graph.ops[: after + 1])
    yield ahead + Tail(problem, capacity, after, rng.choice([2, 5, 80])).bound(), f"tail after op {after}"
    if max(graph.num_ops, graph.num_values) <= 62:
        exact = Exact(graph, capacity)
        exact.run(rng.choice([1, 10, 100, 10_000]))
        yield exact.bound, "exact search that is stopped early"


def drawn(rng: random.Random, make: Callable[[], Graph], counts: Counter[str], in_place: bool) -> Graph:
    """A graph, in about half of which, or in all, ops write in their inputs where they can."""
    while True:
        graph = make()
        if not in_place and rng.random() < 0.5:
            return graph
        graph = with_reuse(rng, graph)
        reuses = any(op.reuses is not None for op in graph.ops)
        if reuses or not in_place:
            counts["with reuse"] += reuses
            return graph


def small(rng: random.Random, limit: float, counts: Counter[str], in_place: bool) -> None:
    """A small graph: `auto` in both orders, and another method or all bounds alone, against brute force."""
    graph = drawn(rng, lambda: (random_edge_case if rng.random() < 0.5 else random_graph)(rng, SMALL), counts, in_place)
    budget = random_budget(rng, graph)
    names = [name for name in checkmate.methods() if name not in (*OPTIONAL, "auto")] + [RELAXATIONS]
    orders = [("auto", "given"), (rng.choice(names), "given")] + [("auto", "any")] * (rng.random() < 0.2)
    for method, order in orders:
        least = truth(graph, budget, order)
        run = searched(graph, budget, method, order, 0.0, limit, counts)
        require(run.bound <= rounded(math.inf if least is None else least), f"{method}, {order}: bound {run.bound} above {least}")
        schedule = run.schedule
        if schedule is None:
            require(least is None or method != "auto", f"{order}: nothing found where there is a schedule")
            continue
        require(least is not None, f"{method}, {order}: a schedule where there is none")
        assert least is not None
        require(rounded(schedule.cost) >= least, f"{method}, {order}: cost {schedule.cost} below {least}")
        require(schedule.status == "optimal" or method != "auto", f"{order}: not proven")
        if schedule.status == "optimal":
            require(schedule.cost <= least * (1 + OPTIMAL), f"{method}, {order}: not optimal: {schedule.cost}, {least}")
    if rng.random() < 0.03:
        counts["bounds alone"] += 1
        least = truth(graph, budget, "given")
        for bound, source in bounds_alone(rng, graph, budget):
            require(least is None or bound <= rounded(least), f"bound {bound} above {least} ({source})")
        peak = least_peak_bound(problem_of(graph), graph.no_recompute_peak)
        require(truth(graph, peak - 1, "any") is None, f"{peak - 1} bytes would do")


def large(rng: random.Random, limit: float, counts: Counter[str], in_place: bool) -> None:
    """A graph of 10 to 200 ops: all methods, against each other."""
    graph = drawn(rng, lambda: random_graph(rng, max_ops=rng.choice([20, 50, 200]), min_ops=10), counts, in_place)
    # More often in the upper half: close to the minimum most methods find nothing.
    budget = graph.min_working_set + int(rng.random() ** 0.5 * (graph.no_recompute_peak - graph.min_working_set))
    found = {}
    for method in checkmate.methods():
        if method not in OPTIONAL:
            try:
                found[method] = searched(graph, budget, method, "given", 1e-3, limit, counts)
            except Failure as failure:
                raise Failure(f"{method}: {failure}") from None
    compare([(method, "given", run) for method, run in found.items()])
    if any(run.schedule is not None for run in found.values()):
        require(found["auto"].schedule is not None, "auto found nothing, but others did")


def step(rng: random.Random, limit: float, counts: Counter[str], in_place: bool) -> None:
    """A training step: several settings and all bounds alone, against each other."""
    graph = drawn(rng, lambda: random_step(rng), counts, in_place)
    least, most = graph.min_working_set, graph.no_recompute_peak
    budget = least + int(rng.random() ** 2 * (most - least))
    runs = []
    for method, order, seed, share in SETTINGS:
        name = f"{method} with seed {seed} for {share * limit:g} s"
        try:
            runs.append((name, order, searched(graph, budget, method, order, 0.0, share * limit, counts, seed)))
        except Failure as failure:
            raise Failure(f"{name}, {order}: {failure}") from None
    runs += [(source, "given", Run(None, bound, source)) for bound, source in bounds_alone(rng, graph, budget)]
    compare(runs)


def compare(runs: list[tuple[str, str, Run]]) -> None:
    """No bound is above a cost that another run found in the same order, or in the given one, which is among all orders."""
    for name, order, run in runs:
        for other, theirs, found in runs:
            if found.schedule is not None and order in (theirs, "any"):
                cost = found.schedule.cost
                bound = f"bound {run.bound!r} ({run.source}) of {name}, {order}"
                require(run.bound <= rounded(cost), f"{bound} above the cost {cost!r} of {other}, {theirs}")


def check(task: tuple[str, int], share: float, limit: float, in_place: bool) -> tuple[int, str | None, dict[str, int]]:
    """One graph: its seed, what is wrong (None if nothing), counts."""
    kind, seed = task
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    if kind == "graph":
        kind = "large" if rng.random() < share else "small"
    counts["steps" if kind == "step" else f"{kind} graphs"] = 1
    run: Callable[[random.Random, float, Counter[str], bool], None] = {"small": small, "large": large, "step": step}[kind]
    try:
        run(rng, limit, counts, in_place)
    except Failure as failure:
        return seed, f"{kind}: {failure}", counts
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return seed, f"{kind}: {traceback.format_exc(limit=-4)}", counts
    return seed, None, counts


def start_worker() -> None:
    """Ctrl-C is for the parent; what searches load is loaded before a clock runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()


def warm_up() -> None:
    """Load what the first searches of a process load."""
    for seed in range(3):
        for run in (small, large):
            with suppress(Failure):  # it will be found again, or is the clock
                run(random.Random(seed), 10.0, Counter(), False)


def results(options: argparse.Namespace) -> Iterator[tuple[int, str | None, dict[str, int]]]:
    """Of all seeds, as they come; what takes longest first."""
    one = partial(check, share=options.large_share, limit=options.time_limit, in_place=options.in_place)
    first = options.seed
    steps = [("step", seed) for seed in range(first, first + options.steps)]
    graphs = [("graph", seed) for seed in range(first, first + options.graphs)]
    if options.workers <= 1:
        warm_up()
        yield from map(one, chain(steps, graphs))
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers, start_worker) as pool:
        yield from pool.imap_unordered(one, steps)
        yield from pool.imap_unordered(one, graphs, chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--graphs", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--large-share", type=float, default=0.005, help="part with 10 to 200 ops (default: 0.005)")
    parser.add_argument("--steps", type=int, default=500, help="training steps of 12 to 90 ops (default: 500)")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds for each search (default: 2)")
    parser.add_argument("--in-place", action="store_true", help="in every graph ops write in their inputs, not in about a third")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--output", type=Path, default=Path("fuzz.json"), help="JSON file (default: fuzz.json)")
    options = parser.parse_args()
    began, done = time.perf_counter(), 0
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    interrupted = False
    try:
        for seed, wrong, found in results(options):
            done += 1
            counts.update(found)
            if wrong is not None:
                failures.append({"seed": seed, "wrong": wrong})
                print(f"seed {seed}: {wrong}", flush=True)
            if done % 1000 == 0:
                rate = done / (time.perf_counter() - began)
                print(f"{done} graphs, {rate:.1f} per second, {len(failures)} failures", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.perf_counter() - began
    settings = {
        key: getattr(options, key) for key in ("graphs", "large_share", "steps", "time_limit", "in_place", "workers", "seed")
    }
    data = {"environment": environment(), "settings": settings, "interrupted": interrupted, "done": done, "seconds": seconds}
    data |= {"counts": dict(sorted(counts.items())), "failures": sorted(failures, key=lambda one: one["seed"])}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{done} graphs in {seconds:.0f} s: {dict(sorted(counts.items()))}, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
