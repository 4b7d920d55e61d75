"""Random graphs against exact brute force, and every method against its promises, in worker processes.

Most graphs have at most 8 ops and are compared with brute force (tests/support.py): a schedule is valid and within the budget,
it costs no less than the truth, no bound is above it, what is called optimal is, and a budget that is called impossible is. The
default method must find and prove the optimum, or that there is none, and the exact minimum budget. The rest have 10 to 200 ops
and are given to all methods: no budget may be broken, no bound be above the best cost that any method found, no search may crash
or go on for more than 2 s past its time limit. Graphs have chains, skips, several outputs per op, workspaces, kept values, ops
that must not be recomputed, and zero costs and sizes.

    python benchmarks/fuzz.py [--graphs 100000] [--large-share 0.005] [--time-limit 2] [--workers 2] [--seed 0] [--output fuzz.json]

Ctrl-C stops it and writes what was found so far. Every failure is reported with the seed that makes it again:
`--graphs 1 --seed SEED`, and `--large-share 1` if it is a large one. Exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import checkmate
from checkmate import Graph, InfeasibleBudget, Schedule, simulate
from checkmate.solvers import Search
from checkmate.solvers.default.auto import relaxations

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from solver import environment

from support import brute_force, random_budget, random_graph

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
#: Fractions of the cost: sums of floats, and the tolerance of what counts as optimal.
ROUNDING, OPTIMAL = 1e-9, 2e-6


class Failure(Exception):
    """A promise that was broken."""


def require(kept: bool, promise: str) -> None:
    """Raise a Failure unless it was kept."""
    if not kept:
        raise Failure(promise)


@lru_cache(64)
def truth(graph: Graph, budget: int, order: str) -> float | None:
    """The least cost, by brute force; graphs are their own keys."""
    return brute_force(graph, budget, order)


def solve(graph: Graph, budget: int, method: str, order: str, limit: float, gap: float) -> Schedule:
    """`checkmate.solve`, and the same for what is no method of its own."""
    if method != RELAXATIONS:
        return checkmate.solve(graph, budget, method, order, limit, gap)
    search = Search(graph, budget, order, limit, gap)
    if budget >= graph.min_working_set:
        relaxations(search, ROUNDS)
    if search.best is None:
        minimum = checkmate.minimum_budget(graph)
        raise InfeasibleBudget(
            budget, max(minimum.proven_minimum, (budget + 1) * search.proven_infeasible), minimum.smallest_found
        )
    return search.schedule("auto")


def searched(
    graph: Graph, budget: int, method: str, order: str, gap: float, limit: float, counts: Counter[str]
) -> Schedule | None:
    """One search, whose schedule is checked; None if there is none."""
    schedule = error = None
    for turn in ("at first", "again"):
        began, worked = time.perf_counter(), time.process_time()
        try:
            schedule = solve(graph, budget, method, order, limit, gap)
        except InfeasibleBudget as caught:
            error = caught
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        # Without a schedule the search for a budget that would do comes on top, and has its own limit.
        most = limit + GRACE + (15.0 if schedule is None else 0.0)
        if worked <= most and seconds <= most + BUSY:
            break
        # Once may be kernels that were not compiled yet.
        require(turn == "at first", f"took {seconds:.2f} s of {limit} s, twice")
        counts["late once"] += 1
    counts["searches"] += 1
    if schedule is None:
        assert error is not None
        require(error.proven_minimum <= error.smallest_found, "smallest budget found is below the proven minimum")
        counts["infeasible"] += 1
        if graph.num_ops <= SMALL:
            require(truth(graph, error.smallest_found, order) is not None, f"{error.smallest_found} bytes do not fit")
            require(truth(graph, error.proven_minimum - 1, order) is None, f"{error.proven_minimum - 1} bytes would do")
            require(error.proven_minimum == error.smallest_found, "the minimum is not exact")
        return None
    trace = simulate(graph, schedule.steps)
    require(trace.peak <= budget, f"peak {trace.peak} over the budget")
    require(
        graph.ideal_cost * (1 - ROUNDING) <= schedule.lower_bound <= trace.cost,
        f"bound {schedule.lower_bound}, cost {trace.cost}",
    )
    counts[schedule.status] += 1
    return schedule


def small(rng: random.Random, limit: float, counts: Counter[str]) -> None:
    """A small graph: `auto` in both orders, and another method, against brute force."""
    graph = random_graph(rng, max_ops=SMALL)
    budget = random_budget(rng, graph)
    names = [name for name in checkmate.methods() if name not in (*OPTIONAL, "auto")] + [RELAXATIONS]
    orders = [("auto", "given"), (rng.choice(names), "given")] + [("auto", "any")] * (rng.random() < 0.2)
    for method, order in orders:
        least = truth(graph, budget, order)
        schedule = searched(graph, budget, method, order, 0.0, limit, counts)
        if schedule is None:
            require(least is None or method != "auto", f"{order}: nothing found where there is a schedule")
            continue
        require(least is not None, f"{method}, {order}: a schedule where there is none")
        assert least is not None
        require(schedule.lower_bound <= least * (1 + ROUNDING), f"{method}, {order}: bound {schedule.lower_bound} above {least}")
        require(schedule.cost >= least * (1 - ROUNDING), f"{method}, {order}: cost {schedule.cost} below {least}")
        require(schedule.status == "optimal" or method != "auto", f"{order}: not proven")
        if schedule.status == "optimal":
            require(schedule.cost <= least * (1 + OPTIMAL), f"{method}, {order}: not optimal: {schedule.cost}, {least}")


def large(rng: random.Random, limit: float, counts: Counter[str]) -> None:
    """A graph of 10 to 200 ops: all methods, against each other."""
    graph = random_graph(rng, max_ops=rng.choice([20, 50, 200]), min_ops=10)
    # More often in the upper half: close to the minimum most methods find nothing.
    budget = graph.min_working_set + int(rng.random() ** 0.5 * (graph.no_recompute_peak - graph.min_working_set))
    found = {}
    for method in checkmate.methods():
        if method not in OPTIONAL:
            try:
                schedule = searched(graph, budget, method, "given", 1e-3, limit, counts)
            except Failure as failure:
                raise Failure(f"{method}: {failure}") from None
            if schedule is not None:
                found[method] = schedule
    if not found:
        return
    bound, cost = max(s.lower_bound for s in found.values()), min(s.cost for s in found.values())
    require(bound <= cost * (1 + ROUNDING), f"bound {bound} above cost {cost}")
    require("auto" in found, f"auto found nothing, but {', '.join(found)} did")


def check(seed: int, share: float, limit: float) -> tuple[int, str | None, dict[str, int]]:
    """One graph: its seed, what is wrong (None if nothing), counts."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    is_large = rng.random() < share
    counts["large graphs" if is_large else "small graphs"] = 1
    try:
        (large if is_large else small)(rng, limit, counts)
    except Failure as failure:
        return seed, f"{'large' if is_large else 'small'}: {failure}", counts
    except Exception:  # noqa: BLE001 - whatever it is, it is a finding
        return seed, f"{'large' if is_large else 'small'}: {traceback.format_exc(limit=-4)}", counts
    return seed, None, counts


def start_worker() -> None:
    """Ctrl-C is for the parent; compiled kernels are loaded before a clock runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up()


def warm_up() -> None:
    """Load what the first searches of a process load."""
    for seed in range(3):
        for run in (small, large):
            with suppress(Failure):  # it will be found again, or is the clock
                run(random.Random(seed), 10.0, Counter())


def results(options: argparse.Namespace) -> Iterator[tuple[int, str | None, dict[str, int]]]:
    """Of all seeds, as they come."""
    one = partial(check, share=options.large_share, limit=options.time_limit)
    seeds = range(options.seed, options.seed + options.graphs)
    if options.workers <= 1:
        warm_up()
        yield from map(one, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.workers, start_worker) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--graphs", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--large-share", type=float, default=0.005, help="part with 10 to 200 ops (default: 0.005)")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds for each search (default: 2)")
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
    settings = {key: getattr(options, key) for key in ("graphs", "large_share", "time_limit", "workers", "seed")}
    data = {"environment": environment(), "settings": settings, "interrupted": interrupted, "done": done, "seconds": seconds}
    data |= {"counts": dict(sorted(counts.items())), "failures": sorted(failures, key=lambda one: one["seed"])}
    options.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{done} graphs in {seconds:.0f} s: {dict(sorted(counts.items()))}, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
