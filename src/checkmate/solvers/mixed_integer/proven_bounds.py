"""What the answer of a solver proves about the optimum, once its tolerances and the rounding of sums are taken off.

Linear programs: any multipliers of the rows give a bound by weak duality, so those of the solver, cut to the right sign, are taken
as they are and the bound is computed here, with a bound on its own rounding (`dual_bound`). Nothing has to be believed.

Integer programs: the bound is that of a search tree which HiGHS does not hand out. `mip_error` says by how much its tolerances can
have raised it. That its branching, its cuts and its presolve lose no solution is believed; the fuzzing compares their bounds with
brute force, and with schedules found by other methods.
"""

from __future__ import annotations

import math

import numpy as np

from ...float_rounding import UNIT, summation_error
from ..representation.graph_arrays import Floats
from .program import ProgramArrays

#: HiGHS's own choices, stated: how far reduced costs may have the wrong sign, and rows, integers and objectives may be off.
DUAL_TOLERANCE, ROW_TOLERANCE = 1e-7, 1e-6


def dual_bound(arrays: ProgramArrays, dual: Floats) -> float:
    """The bound on the objective that row multipliers prove: the least of the Lagrangian over the box of the variables.

    Multipliers of the wrong sign for their row are set to zero. The reduced cost of a column with k entries passes through k + 1
    additions and k products, and the products with the sides and the lower limits through one; one more rounding is granted to
    every number of the program, which may itself be rounded from a quotient. The sums over columns and rows are exact (fsum).
    """
    positive = np.where(np.isfinite(arrays.row_lower), np.maximum(dual, 0.0), 0.0)
    negative = np.where(np.isfinite(arrays.row_upper), np.minimum(dual, 0.0), 0.0)
    multipliers = positive + negative
    reduced = arrays.cost - arrays.matrix.times_from_left(multipliers)
    sides = np.where(positive > 0, arrays.row_lower, np.where(negative < 0, arrays.row_upper, 0.0)) * multipliers
    least = np.minimum(reduced * arrays.lower, reduced)
    longest = int(np.diff(arrays.matrix.pointers).max(initial=0)) + 4
    products = arrays.matrix.column_sums(np.abs(arrays.matrix.entries * multipliers[arrays.matrix.rows]))
    magnitude = math.fsum(np.abs(arrays.cost)) + math.fsum(products) + math.fsum(np.abs(sides))
    return math.fsum(sides) + math.fsum(least) - summation_error(longest, magnitude * (1 + longest * UNIT)) - 4 * UNIT * magnitude


def mip_error(arrays: ProgramArrays, row_tolerance: float = ROW_TOLERANCE) -> float:
    """The most by which HiGHS's bound on an integer program over [0, 1] can be above the optimum, in units of the objective.

    The bound of a node is the objective of a basic solution of its linear program. Of the n columns and m slacks all but n are basic
    and have no reduced cost; the others may have one of the wrong sign by up to the dual tolerance d. By weak duality each of these
    raises the bound by at most d times the range of the column (1 at most) or of the slack (how far the row can go beyond its side
    while the variables are in their box). So the n widest ranges, times d, are enough. Rows that a solution breaks within their
    tolerance only lower the bound. A node is also dropped when its bound is within the tolerance of objectives of the best solution,
    which is then the bound of the tree: that is added.
    """
    highest = arrays.matrix.row_sums(np.maximum(arrays.matrix.entries, 0.0))
    lowest = arrays.matrix.row_sums(np.minimum(arrays.matrix.entries, 0.0))
    slack = np.where(np.isfinite(arrays.row_lower), highest - arrays.row_lower, arrays.row_upper - lowest)
    ranges = np.sort(np.concatenate([1.0 - arrays.lower, np.maximum(0.0, slack)]))
    return DUAL_TOLERANCE * float(ranges[len(ranges) - len(arrays.cost) :].sum()) + row_tolerance
