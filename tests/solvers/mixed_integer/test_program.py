"""Programs as arrays, and bounds from multipliers."""

from __future__ import annotations

import numpy as np

from checkmate.solvers.mixed_integer import dispatch
from checkmate.solvers.mixed_integer.program import Program
from checkmate.solvers.mixed_integer.proven_bounds import dual_bound
from checkmate.solvers.mixed_integer.sparse import ByColumns


def random_program(seed: int, integer: bool = False, variables: int = 12, rows: int = 8) -> Program:
    """Feasible at 1: covering rows, and packing rows that all ones just meet. Some variables have a least value."""
    rng = np.random.default_rng(seed)
    program = Program()
    x = program.variables(rng.normal(size=variables), integer)
    y = program.variables(rng.random(3), False, least=np.array([0.0, 0.25, 1.0]))
    for _ in range(rows):
        chosen = rng.choice(x, 4, replace=False)
        weights = rng.random(4) / 3
        program.at_most(np.append(chosen, y[1]), np.append(weights, 0.1), float(weights.sum() + 0.1))
    program.at_least(0.3, [(x[:5], 1.0), (x[5:10], rng.random())])
    program.at_most_rows(np.array([0, 1, 1]), np.array([x[0], x[1], y[0]]), np.array([1.0, 2.0, 1.0]), np.array([1.0, 3.0]))
    return program


def test_any_multipliers_prove_a_bound() -> None:
    """None above the optimum; that of the solver's own multipliers at it."""
    for seed in range(20):
        program = random_program(seed)
        arrays = program.arrays()
        answer = dispatch.minimise(program, 10.0, 0.0, 0, lambda bound: False)
        assert answer.optimal
        rng = np.random.default_rng(seed)
        for scale in (0.0, 0.1, 1.0, 10.0):
            assert dual_bound(arrays, scale * rng.normal(size=program.num_rows)) <= answer.objective + 1e-6
        relaxed = dispatch.relax(program, 10.0)
        assert answer.objective - 1e-4 < relaxed.bound <= answer.objective + 1e-6 and relaxed.x is not None


def test_sparse_matrices_are_dense_ones() -> None:
    """What is stated twice counts twice; empty columns, rows and matrices are none less."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        shape = int(rng.integers(1, 6)), int(rng.integers(0, 6))
        count = int(rng.integers(0, 20)) if shape[1] else 0
        rows, columns = rng.integers(0, shape[0], count), rng.integers(0, max(1, shape[1]), count)
        entries = rng.integers(-4, 5, count).astype(np.float64)
        dense = np.zeros(shape)
        np.add.at(dense, (rows, columns), entries)
        matrix = ByColumns.from_triplets(entries, rows, columns, shape)
        assert np.array_equal(matrix.dense(), dense) and (matrix.num_rows, matrix.num_columns) == shape
        assert matrix.num_entries == len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
        x, y = rng.integers(-9, 9, shape[1]).astype(np.float64), rng.integers(-9, 9, shape[0]).astype(np.float64)
        assert np.array_equal(matrix.times(x), dense @ x) and np.array_equal(matrix.times_from_left(y), y @ dense)
        places = [(int(column), int(row)) for column, row in zip(matrix.columns, matrix.rows, strict=True)]
        assert places == sorted(places)
