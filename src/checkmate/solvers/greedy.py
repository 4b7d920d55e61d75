"""Offline greedy eviction: run the ops in order, and when memory is short evict what is cheap to have again, and not soon.

The eviction score is that of DTR (Kirisame et al., ICLR 2021) with the future known. What is missing for an op is
recomputed as a list in graph order, with only the inputs of the running op locked: this stays feasible essentially down to the
minimum working set, where a depth-first recursion fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from .decode import Evaluation, evaluate
from .problem import Bools, Floats, Ints, Problem
from .search import Search


@dataclass(frozen=True, slots=True)
class Weights:
    """Exponents of the eviction score: size^size * distance to next use^distance / recomputation cost^cost."""

    cost: float
    distance: float
    size: float


#: Settings that between them are near the best one on every graph tried.
SETTINGS = (
    Weights(1, 1, 1),
    Weights(1, 0.5, 0),
    Weights(1, 0, 1),
    Weights(0.5, 1, 1),
    Weights(2, 1, 1),
    Weights(1, 2, 1),
    Weights(1.5, 1, 0.5),
    Weights(0.3, 0, 0.25),
)


#: A pass that goes in circles is given up after this much work per op; passes that succeed take a small part of it.
_WORK_PER_OP = 100_000


def greedy(search: Search) -> None:
    """The best of a handful of settings; no bound beyond the cost of computing everything once."""
    planner = Greedy(Problem(search.graph))
    for setting in SETTINGS:
        found = planner.run(search.budget, setting)
        if found is not None and found.peak <= search.budget:
            search.offer(found.sequence, found.cost, "greedy")
        if search.done():
            return


@dataclass(frozen=True)
class _Arrays:
    inputs: tuple[Ints, Ints]
    outputs: tuple[Ints, Ints]
    users: tuple[Ints, Ints]
    cost: Floats
    workspace: Floats


def _with_sink(problem: Problem, cost_unit: float) -> _Arrays:
    """The graph with one more op at the end that reads every kept value, so that they are all live when it runs."""
    kept = np.flatnonzero(problem.keep)
    sink = problem.graph.num_ops
    (in_pointers, in_values), (out_pointers, out_values) = problem.inputs, problem.outputs
    user_pointers, user_ops = problem.users
    return _Arrays(
        (np.append(in_pointers, in_pointers[-1] + len(kept)), np.append(in_values, kept)),
        (np.append(out_pointers, out_pointers[-1]), out_values),
        (user_pointers + np.append(0, np.cumsum(problem.keep)), np.insert(user_ops, user_pointers[1:][kept], sink)),
        np.append(problem.cost / cost_unit, 0.0),
        np.append(problem.workspace, 0.0),
    )


class Greedy:
    """Greedy eviction on one graph."""

    def __init__(self, problem: Problem):
        self.problem = problem
        # Letting go of what only recomputed backward ops could use is right nearly always, and never final, except for
        # values that cannot be had again.
        needed_until = problem.useful_until(problem.recomputable)
        mostly_until = problem.useful_until(problem.recomputable & ~problem.backward)
        self._useful_until = np.where(problem.recomputable[problem.producer], mostly_until, needed_until)
        unit = problem.size.max(initial=1.0)
        ideal = problem.graph.ideal_cost or 1.0
        self._size_unit = max(unit, 1.0)
        self._arrays = _with_sink(problem, ideal / max(1, problem.graph.num_ops))

    def run(
        self,
        budget: int,
        setting: Weights,
        snapshots: Sequence[int] = (),
        retained: Sequence[Bools] = (),
        weight: Floats | None = None,
        longest: int = 30,
        below: float = math.inf,
    ) -> Evaluation | None:
        """One pass.

        Args:
            budget: bytes, fixed memory included.
            snapshots, retained: a plan to repair: right after op snapshots[k] first ran, values not in retained[k] are
                dropped, and values in it are evicted before only if nothing else is left.
            weight: per value, multiplies its eviction score.
            longest: give up on sequences longer than this many times the number of ops.
            below: only sequences that cost less are of interest.

        Returns:
            The sequence found, simulated; None if the pass got stuck or cost too much.
        """
        problem, arrays = self.problem, self._arrays
        snapshot_at = np.full(len(arrays.cost), -1)
        snapshot_at[list(snapshots)] = range(len(snapshots))
        length, sequence = _run(
            float(budget - problem.graph.fixed_memory),
            *arrays.inputs,
            *arrays.outputs,
            *arrays.users,
            problem.producer,
            arrays.cost,
            problem.size,
            problem.size / self._size_unit,
            arrays.workspace,
            problem.recomputable,
            problem.backward,
            self._useful_until,
            setting.cost,
            setting.distance,
            setting.size,
            np.ones(len(problem.size)) if weight is None else weight,
            snapshot_at,
            np.array(retained, np.bool_).reshape(len(snapshots), problem.graph.num_values),
            longest * problem.graph.num_ops + 100,
        )
        if length < 0:
            return None
        found = sequence[:length]
        found = found[found < problem.graph.num_ops]
        return evaluate(problem.graph, found.tolist()) if problem.cost[found].sum() < below else None


@njit(cache=True, error_model="numpy")
def _run(
    budget: float,
    in_pointers: Ints,
    in_values: Ints,
    out_pointers: Ints,
    out_values: Ints,
    user_pointers: Ints,
    user_ops: Ints,
    producer: Ints,
    cost: Floats,
    size: Floats,
    relative_size: Floats,
    workspace: Floats,
    recomputable: np.ndarray,
    backward: np.ndarray,
    useful_until: Ints,
    cost_power: float,
    distance_power: float,
    size_power: float,
    weight: Floats,
    snapshot_at: Ints,
    retained: np.ndarray,
    longest: int,
) -> tuple[int, Ints]:
    n, m = len(cost), len(size)
    resident = np.zeros(m, np.bool_)
    sequence = np.zeros(longest, np.int64)
    length, live = 0, 0.0
    plan = np.zeros(n + 1, np.int64)
    stack = np.zeros(n + 1, np.int64)
    in_plan = np.full(n, -1)  # stamp of the plan that an op is in, while it has not run in it
    visited = np.full(n, -1)
    locked = np.full(m, -1)
    stamp, visit, limit = 0, 0, 40 * n + 1000
    work, most_work = 0, _WORK_PER_OP * n
    group = 0  # snapshots passed
    for stage in range(n):
        steps = 0
        finished = False
        while not finished:
            # Plan: everything missing for this stage, in graph order.
            stamp += 1
            count, top = 0, 1
            stack[0] = stage
            in_plan[stage] = stamp
            while top > 0:
                top -= 1
                op = stack[top]
                if op != stage and not recomputable[op]:
                    return -1, sequence  # its value is gone for good
                plan[count] = op
                count += 1
                for x in range(in_pointers[op], in_pointers[op + 1]):
                    value = in_values[x]
                    if not resident[value] and in_plan[producer[value]] != stamp:
                        in_plan[producer[value]] = stamp
                        stack[top] = producer[value]
                        top += 1
            todo = np.sort(plan[:count])
            replan = False
            for op in todo:
                steps += 1
                if steps > limit or length >= longest:
                    return -1, sequence
                need = workspace[op]
                for x in range(out_pointers[op], out_pointers[op + 1]):
                    need += size[out_values[x]]
                    if resident[out_values[x]]:  # an old copy: nothing reads it before the new one is there
                        resident[out_values[x]] = False
                        live -= size[out_values[x]]
                for x in range(in_pointers[op], in_pointers[op + 1]):
                    locked[in_values[x]] = length
                while live + need > budget:
                    work += m
                    if work > most_work:
                        return -1, sequence
                    best, chosen = -1.0, -1
                    for value in range(m):
                        origin = producer[value]
                        if not resident[value] or locked[value] == length or not recomputable[origin] or size[value] == 0:
                            continue
                        later = user_ops[user_pointers[value] : user_pointers[value + 1]]
                        planned = -1
                        for user in later:
                            if user > stage:
                                break
                            if user != op and in_plan[user] == stamp:
                                planned = user
                                break
                        position = np.searchsorted(later, stage + 1)
                        next_use = later[position] if position < len(later) else n
                        if planned < 0 and next_use == n and useful_until[value] <= stage:
                            best, chosen = 1e300, value
                            break
                        visit += 1
                        total, top = cost[origin], 1
                        stack[0] = origin
                        visited[origin] = visit
                        while top > 0:
                            top -= 1
                            work += 1
                            above = stack[top]
                            for x in range(in_pointers[above], in_pointers[above + 1]):
                                i = in_values[x]
                                if not resident[i] and visited[producer[i]] != visit:
                                    visited[producer[i]] = visit
                                    total += cost[producer[i]]
                                    stack[top] = producer[i]
                                    top += 1
                        score = weight[value] * relative_size[value] ** size_power / (total + 1e-9) ** cost_power
                        score *= (next_use - stage + 1.0) ** distance_power
                        if planned >= 0:  # needed again within this stage: only if nothing else is left
                            score *= 1e-6 * (1.0 + planned - op)
                        if backward[origin]:  # recomputing gradients drags the whole backward pass along
                            score *= 1e-12
                        if group < len(retained) and retained[group, value]:
                            score *= 1e-3
                        if score > best:
                            best, chosen = score, value
                    if chosen < 0:
                        return -1, sequence
                    resident[chosen] = False
                    live -= size[chosen]
                    for x in range(user_pointers[chosen], user_pointers[chosen + 1]):
                        user = user_ops[x]
                        if user != op and user <= stage and in_plan[user] == stamp:
                            replan = True
                sequence[length] = op
                length += 1
                in_plan[op] = -1
                for x in range(out_pointers[op], out_pointers[op + 1]):
                    resident[out_values[x]] = True
                    live += size[out_values[x]]
                # Free what nothing can use any more: the op's inputs and outputs are all that can have become useless.
                for side in range(2):
                    pointers, values = (in_pointers, in_values) if side == 0 else (out_pointers, out_values)
                    for x in range(pointers[op], pointers[op + 1]):
                        value = values[x]
                        # A value that cannot come back stays to the end of the stage: a new plan may need it.
                        if resident[value] and useful_until[value] <= stage and recomputable[producer[value]]:
                            wanted = False
                            for y in range(user_pointers[value], user_pointers[value + 1]):
                                user = user_ops[y]
                                if user > stage or in_plan[user] == stamp:
                                    wanted = True
                                    break
                            if not wanted:
                                resident[value] = False
                                live -= size[value]
                if op == stage:
                    finished = True
                    for value in range(m):
                        if resident[value] and useful_until[value] <= stage and not recomputable[producer[value]]:
                            users = user_ops[user_pointers[value] : user_pointers[value + 1]]
                            if len(users) == 0 or users[-1] <= stage:
                                resident[value] = False
                                live -= size[value]
                    if snapshot_at[stage] >= 0:
                        for value in range(m):
                            if resident[value] and not retained[group, value] and recomputable[producer[value]]:
                                resident[value] = False
                                live -= size[value]
                        group += 1
                elif replan:
                    break
    return length, sequence
