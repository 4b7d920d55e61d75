"""Where the time of a search goes, by phase: seconds spent in each, without what it spends in another one.

    python benchmarks/solver_profile.py [--layers 117 118 588] [--budgets 50% 15%] [--time-limit 60] [--output profile.json]

117 layers make a graph of 3,989 ops, the largest for which the default method still takes its course for small graphs.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import highspy
from solver import budget_of, environment

import checkmate
from checkmate import networks, schedule, solvers
from checkmate.solvers.bounds import snapshot_relaxation as snapshot
from checkmate.solvers.default import (
    annealing_runs,
    auto,
    bound_phases,
    common_state,
    large_neighbourhood,
)
from checkmate.solvers.default import large_graphs as large
from checkmate.solvers.heuristics import annealing as anneal
from checkmate.solvers.heuristics import greedy_eviction as greedy
from checkmate.solvers.heuristics import hill_climbing as climb
from checkmate.solvers.heuristics import nested_checkpointing as nested
from checkmate.solvers.interface import running_search as search
from checkmate.solvers.mixed_integer import highs, program
from checkmate.solvers.representation import decoding as decode
from checkmate.solvers.representation import graph_arrays as problem

#: phase -> functions, as (holder, name); every name under which a module knows the function is replaced.
PHASES: dict[str, list[tuple[Any, str]]] = {
    "graph as arrays": [(problem.Problem, "inputs"), (problem.Problem, "outputs"), (problem.Problem, "users")],
    "build relaxation": [
        (snapshot.SnapshotRelaxation, "__init__"),
        (snapshot.SnapshotRelaxation, "_build"),
        (program.Program, "arrays"),
        (highs, "_lp"),
    ],
    "HiGHS": [(highspy.Highs, "run")],
    "read relaxation": [(snapshot.SnapshotRelaxation, "solve"), (snapshot.SnapshotRelaxation, "relax"), (large, "rounded")],
    "decode": [(module, "decode") for module in (decode, large)] + [(common_state, "retained_by")],
    "evaluate": [(module, "evaluate") for module in (decode, auto, large, greedy, anneal)],
    "greedy eviction": [(greedy.Greedy, "__init__"), (greedy.Greedy, "run")],
    "nested": [(nested.Nested, "__init__"), (nested.Nested, "run"), (bound_phases, "nested_bound")],
    "climb": [(climb.Climb, "__init__"), (climb.Climb, "start"), (climb.Climb, "step")],
    "annealing": [(anneal.Anneal, "__init__"), (anneal.Anneal, "run"), (annealing_runs.AnnealingRuns, "_side_by_side")],
    "large neighbourhoods": [(large_neighbourhood.LargeNeighbourhood, "run")],
    "steps of the schedule": [(search, "steps_from_sequence")],
    "simulate": [(schedule, "simulate")],
}


class Clock:
    """Exclusive times: what runs inside another phase is not counted there. What other threads do is the phase that waits."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._running = ["other"]
        self._since = time.perf_counter()

    def switch(self) -> None:
        """Book the time since the last switch."""
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, phase: str, function: Any) -> Any:
        """The function, with its time booked to the phase."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            self.switch()
            self.calls[phase] += 1
            self._running.append(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self.switch()
                self._running.pop()

        return wrapper

    def install(self) -> None:
        """Time every function of the phases."""
        for phase, functions in PHASES.items():
            for holder, name in functions:
                known = inspect.getattr_static(holder, name)
                if isinstance(known, functools.cached_property):
                    fresh = functools.cached_property(self.timed(phase, known.func))
                    fresh.__set_name__(holder, name)
                    setattr(holder, name, fresh)
                else:
                    setattr(holder, name, self.timed(phase, known))

    def restart(self) -> None:
        """Forget what was booked."""
        self.seconds.clear()
        self.calls.clear()
        self._since = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", nargs="+", type=int, default=[117, 118, 588], help="of the transformers")
    parser.add_argument("--budgets", nargs="+", default=["50%", "15%"])
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each search (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("profile.json"), help="JSON file (default: profile.json)")
    options = parser.parse_args()
    for warm in (networks.transformer(12), networks.transformer(118)):
        solvers.solve(warm, "60%", gap=0.0, time_limit=4.0)  # loads what searches load
    clock, rows = Clock(), []
    clock.install()
    for layers in options.layers:
        for text in options.budgets:
            graph = networks.transformer(layers)
            budget = budget_of(graph, text)
            if budget is None:
                continue
            clock.restart()
            found = checkmate.solve(graph, budget, time_limit=options.time_limit, seed=options.seed)
            clock.switch()
            total = sum(clock.seconds.values())
            row = {"graph": graph.name, "ops": graph.num_ops, "budget_text": text, "gap": found.gap, "total": total}
            rows.append(row | {"seconds": dict(clock.seconds), "calls": dict(clock.calls)})
            print(f"{graph.name}, {graph.num_ops} ops, {text}: {total:.2f} s, gap {100 * found.gap:.4f}%")
            for phase in (*PHASES, "other"):
                print(f"  {phase:24} {clock.seconds[phase]:8.3f} s {clock.calls[phase]:8} calls", flush=True)
    settings = {"seed": options.seed, "time_limit": options.time_limit}
    options.output.write_text(
        json.dumps({"environment": environment(), **settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
