"""Hill climbing around greedy eviction: better exponents, and weights for classes of values, stretches, or single ones.

Equal layers make equal values: the most useful move changes the weight of all values of one class at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..representation.decoding import Evaluation
from ..representation.graph_arrays import Floats, Ints, Problem
from .greedy_eviction import SETTINGS, Greedy, Weights

#: Start points that are developed side by side.
_POOL = 4
_EXPONENT_STEP, _CLASS_STEP, _STRETCH_STEP, _SINGLE_STEP = 0.2, 1.5, 1.0, 2.0


@dataclass(frozen=True)
class _Point:
    setting: Weights
    weight: Floats
    cost: float


def value_classes(problem: Problem) -> Ints:
    """Per value a class number: equal producer cost, size, number of users and phase."""
    users = np.diff(problem.users[0])
    ideal = problem.graph.ideal_cost or 1.0
    keys: dict[tuple[float, float, int, bool], int] = {}
    classes = np.zeros(len(problem.size), np.int64)
    for value, producer in enumerate(problem.producer.tolist()):
        # Costs to three significant digits: profiled costs of equal layers may differ a little.
        key = (
            float(f"{problem.cost[producer] / ideal:.2e}"),
            float(problem.size[value]),
            int(users[value]),
            bool(problem.backward[producer]),
        )
        classes[value] = keys.setdefault(key, len(keys))
    return classes


class Climb:
    """A resumable climb for one graph and budget."""

    def __init__(self, greedy: Greedy, budget: int, seed: int):
        self._greedy, self._budget = greedy, budget
        self._rng = np.random.default_rng(seed)
        problem = greedy.problem
        self._classes = value_classes(problem)
        forward = np.flatnonzero(~problem.backward[problem.producer] & problem.recomputable[problem.producer])
        self._forward = forward if len(forward) else np.arange(len(problem.size))
        self._pool: list[_Point] = []

    def start(self, stop: Callable[[], bool] = lambda: False) -> list[Evaluation]:
        """Run all settings with equal weights, until `stop`; returns the schedules found."""
        equal = np.ones(len(self._greedy.problem.size))
        found = []
        for setting in SETTINGS:
            if stop():
                break
            evaluation = self._try(setting, equal)
            if evaluation is not None:
                found.append(evaluation)
        return found

    def step(self) -> Evaluation | None:
        """One move from one of the points; returns a schedule within budget if it is no worse than that point."""
        if not self._pool:
            return None
        point = self._pool[0 if self._rng.random() < 0.6 else self._rng.integers(len(self._pool))]
        setting, weight = self._moved(point)
        return self._try(setting, weight, point)

    def _try(self, setting: Weights, weight: Floats, point: _Point | None = None) -> Evaluation | None:
        # Equal cost is progress too: it moves on where the cost does not change.
        below = math.inf if point is None else point.cost * (1 + 1e-6)
        found = self._greedy.run(self._budget, setting, weight=weight, longest=8, below=below)
        if found is None or found.peak > self._budget:
            return None
        self._pool = [other for other in self._pool if other is not point] + [_Point(setting, weight, found.cost)]
        self._pool.sort(key=lambda other: other.cost)
        del self._pool[_POOL:]
        return found

    def _moved(self, point: _Point) -> tuple[Weights, Floats]:
        rng, setting, weight = self._rng, point.setting, point.weight.copy()
        move = rng.random()
        if move < 0.2:
            cost, distance, size = (
                float(np.clip(exponent + _EXPONENT_STEP * rng.normal(), 0.0, 4.0))
                for exponent in (setting.cost, setting.distance, setting.size)
            )
            return Weights(cost, distance, size), weight
        if move < 0.65:
            for _ in range(1 + rng.integers(3)):
                chosen = self._classes[rng.choice(self._forward)]
                weight[self._classes == chosen] *= np.exp(_CLASS_STEP * rng.normal())
        elif move < 0.8:
            begin = rng.choice(self._forward)
            weight[begin : begin + 1 + rng.integers(max(2, len(self._forward) // 8))] *= np.exp(_STRETCH_STEP * rng.normal())
        else:
            chosen_values = rng.choice(self._forward, size=1 + rng.integers(5))
            weight[chosen_values] *= np.exp(_SINGLE_STEP * rng.normal(size=len(chosen_values)))
        return setting, np.clip(weight, 1e-9, 1e9)
