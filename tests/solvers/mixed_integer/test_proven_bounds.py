"""What answers of HiGHS prove, against exact rational arithmetic."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from checkmate.solvers.mixed_integer import dispatch
from checkmate.solvers.mixed_integer.program import Program, ProgramArrays
from checkmate.solvers.mixed_integer.proven_bounds import dual_bound, mip_error


def random_program(rng: random.Random, variables: int, integer: bool) -> Program:
    """Covering rows and one limit, as in the relaxations; costs of very different sizes."""
    program = Program()
    spread = rng.choice([0.0, 1.0, 6.0])
    costs = np.array([1000 * 10 ** -rng.uniform(0, spread) for _ in range(variables)])
    columns = program.variables(costs, integer)
    for _ in range(variables):
        few = np.array(rng.sample(range(variables), min(variables, 3)))
        signs = [1.0, 1.0, rng.choice([1.0, -1.0])][: len(few)]
        lower = rng.choice([0.0, 1.0])
        program.at_least(lower, [(columns[few[place : place + 1]], sign) for place, sign in enumerate(signs)])
    sizes = np.array([rng.random() for _ in range(variables)])
    program.at_most(columns, sizes, rng.uniform(0.3, 1.0) * float(sizes.sum()))
    return program


def exactly(numbers: np.ndarray) -> list[Fraction]:
    return [Fraction(number) if math.isfinite(number) else Fraction() for number in np.ravel(numbers).tolist()]


def exact_dual_bound(arrays: ProgramArrays, dual: np.ndarray) -> Fraction:
    """Weak duality, without rounding."""
    matrix = arrays.matrix.dense()
    total, reduced = Fraction(), exactly(arrays.cost)
    for row, multiplier in enumerate(dual.tolist()):
        side = arrays.row_lower[row] if multiplier > 0 else arrays.row_upper[row]
        if not multiplier or not math.isfinite(side):
            continue
        total += Fraction(multiplier) * Fraction(float(side))
        for column in np.flatnonzero(matrix[row]).tolist():
            reduced[column] -= Fraction(multiplier) * Fraction(matrix[row, column].item())
    return total + sum(min(one * Fraction(low), one) for one, low in zip(reduced, arrays.lower.tolist(), strict=True))


def exact_optimum(arrays: ProgramArrays) -> Fraction | None:
    """Of a program of binary variables, by trying all of their values."""
    matrix, cost = arrays.matrix.dense(), exactly(arrays.cost)
    rows = [[Fraction(entry) for entry in row] for row in matrix.tolist()]
    best = None
    for x in itertools.product((0, 1), repeat=len(cost)):
        activity = [sum((entry for entry, one in zip(row, x, strict=True) if one), Fraction()) for row in rows]
        sides = zip(activity, arrays.row_lower.tolist(), arrays.row_upper.tolist(), strict=True)
        if all(lower <= value <= upper for value, lower, upper in sides):  # Python compares fractions with floats exactly
            total = sum((one for one, taken in zip(cost, x, strict=True) if taken), Fraction())
            best = total if best is None else min(best, total)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_weak_duality_is_never_above_what_it_is_without_rounding(seed: int) -> None:
    """For any multipliers, whatever their size; and it is close."""
    rng = random.Random(seed)
    arrays = random_program(rng, rng.randint(2, 40), integer=False).arrays()
    dual = np.array([rng.gauss(0, 1) * 10 ** rng.uniform(-6, 4) for _ in arrays.row_lower])
    exact, bound = exact_dual_bound(arrays, dual), dual_bound(arrays, dual)
    assert bound <= exact
    assert float(exact) - bound <= 1e-12 * (
        np.abs(arrays.cost).sum() + np.abs(arrays.matrix.times_from_left(dual)).sum() + np.abs(dual).sum()
    )


def test_the_linear_relaxation_proves_nearly_its_optimum() -> None:
    """Wherever the interior point method says that it got there."""
    solved = 0
    for seed in range(30):
        answer = dispatch.relax(random_program(random.Random(seed), 30, integer=False), 10.0)
        if answer.optimal:
            solved += 1
            assert answer.objective - 1e-4 * max(1.0, answer.objective) <= answer.bound
    assert solved >= 15


def test_integer_programs_against_all_their_points() -> None:
    solved = none = 0
    for seed in range(150):
        rng = random.Random(seed)
        program = random_program(rng, rng.randint(2, 9), integer=True)
        arrays = program.arrays()
        optimum, answer = exact_optimum(arrays), dispatch.minimise(program, 10.0, 0.0, 0, lambda _: False)
        if optimum is None:
            none += 1
            assert answer.infeasible
        else:
            solved += 1
            assert optimum - Fraction(1, 10**4) <= Fraction(answer.bound) <= optimum
    assert solved >= 50 and none >= 5


def test_what_tolerances_can_add_grows_with_the_program_and_stays_small() -> None:
    few, many = (mip_error(random_program(random.Random(0), count, integer=True).arrays()) for count in (10, 1000))
    assert few < many / 20 and many < 1e-3, "a millionth of the objective, which is scaled to 1000"
