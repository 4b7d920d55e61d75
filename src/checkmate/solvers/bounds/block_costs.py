"""Least costs of one block of a step, by what it holds of its big values at a snapshot: tables for nested_snapshot_bound.py.

Each entry is the optimum of a small integer program: recomputations cost what their ops cost, and what is held at the snapshot
costs its bytes times a Lagrange multiplier. Values from other blocks are taken to be there, so an entry is a bound on what any
schedule spends within the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from ...float_rounding import UNIT
from ..mixed_integer.dispatch import minimise
from ..mixed_integer.program import Program
from ..representation.graph_arrays import Bools, Floats, Ints
from .nested_bound_kernels import LARGE, MORE, NONE, SMALL

#: For the program of one block, which never needs it.
_SECONDS = 5.0
#: Units of the objective per cost of the block, as HiGHS likes them. An entry passes through two products and two quotients.
_SCALE, _PRODUCTS = 1000.0, 1.0 - 8 * UNIT
#: Cost of what cannot be, as a multiple of the cost of all blocks: infinity minus itself is no number.
_MOST = 1000.0


@dataclass(frozen=True)
class Block:
    """The forward ops of one block and the values they make, by position. For outputs and deadlines see nested_snapshot_bound.py.

    Attributes:
        cost, recomputable, chain: per op; chain: recomputed whenever the block's output is, unless a big value is held.
        size, producer, big, large: per value; large are some of the big ones.
        source, user: (value, op that reads it) inside the block.
        ever, below: per value, read after the first snapshot, and after the deadline of the nearest block above.
        soon, late: per value, read between the latter (if there is none, the former) and the block's own deadline, and after that.
        at_first, at_deadline, at_above: per value, free at the first snapshot, at the deadline, at the deadline of a block above:
            the op of that moment reads it, so its bytes are counted with the op.
    """

    cost: Floats
    recomputable: Bools
    chain: Bools
    size: Floats
    producer: Ints
    big: Bools
    large: Bools
    source: Ints
    user: Ints
    ever: Bools
    below: Bools
    soon: Bools
    late: Bools
    at_first: Bools
    at_deadline: Bools
    at_above: Bools

    def key(self) -> tuple[bytes, ...]:
        """Equal for blocks that do the same."""
        return tuple(getattr(self, field.name).tobytes() for field in fields(self))


@dataclass(frozen=True)
class Tables:
    """Least costs by the big values held (NONE, ...), multiplier and block (entry 0 unused): arrays (4, multipliers, L + 1).

    Attributes:
        first: recomputation after the first snapshot, and the bytes held then. below: the same at the deadline of a block above.
        top: recomputation of the block whose deadline it is, and the bytes held at it; by what is held at the snapshot before (MORE
            is not used).
    """

    first: Floats
    below: Floats
    top: Floats


def block_tables(blocks: list[Block], multipliers: Floats, stop: Callable[[], bool]) -> Tables | None:
    """The tables for these multipliers (cost per byte held); equal blocks are solved once. None if stopped."""
    known: dict[tuple[bytes, ...], Floats] = {}
    table = np.zeros((3, MORE + 1, len(multipliers), len(blocks) + 1))
    for number, block in enumerate(blocks, 1):
        key = block.key()
        if key not in known:
            known[key] = np.zeros((3, MORE + 1, len(multipliers)))
            for k, multiplier in enumerate(multipliers):
                if stop():
                    return None
                for held in (NONE, SMALL, LARGE, MORE):
                    known[key][0, held, k] = _held(block, block.ever, block.at_first, held, multiplier, None)
                    known[key][1, held, k] = _held(block, block.below, block.at_above, held, multiplier, ~block.chain)
                for held in (NONE, SMALL, LARGE):
                    known[key][2, held, k] = _topmost(block, held, multiplier)
        table[..., number] = known[key]
    return Tables(*np.minimum(table, _MOST * sum(float(block.cost.sum()) for block in blocks)))


def _held(block: Block, needed: Bools, free: Bools, held: int, multiplier: float, charged: Bools | None) -> float:
    """Least cost of recomputing after a snapshot what is `needed`, and of the bytes held at it.

    Args:
        held: NONE, ...
        charged: ops that have to be recomputed before the snapshot for their big values to be held.
    """
    program, scale = Program(), _scale(block)
    retain = _retained(program, block, held, scale * multiplier * np.where(free, 0.0, block.size))
    if retain is None:
        return np.inf
    again = _again(program, block, scale)
    _recompute(program, block, needed, retain, again)
    if charged is not None:
        before = np.full(len(charged), -1)
        before[charged] = program.variables(scale * block.cost[charged], integer=False)
        made = np.flatnonzero(block.big & (retain >= 0) & charged[block.producer])
        program.at_least(0.0, [(before[block.producer[made]], 1.0), (retain[made], -1.0)])
    return _solve(program, scale)


def _topmost(block: Block, held: int, multiplier: float) -> float:
    """Least cost of recomputing in the block whose deadline it is, before and after it, and of the bytes held at it.

    Args:
        held: NONE, ..., at the snapshot before.
    """
    program, scale = Program(), _scale(block)
    before = _retained(program, block, held, np.zeros(len(block.size)))
    if before is None:
        return np.inf
    sooner = _again(program, block, scale)
    _recompute(program, block, block.soon, before, sooner)
    retain = program.variables(scale * multiplier * np.where(block.at_deadline, 0.0, block.size), integer=True)
    program.at_least(0.0, [(before, 1.0), (sooner[block.producer], 1.0), (retain, -1.0)])
    _recompute(program, block, block.late, retain, _again(program, block, scale))
    return _solve(program, scale)


def _scale(block: Block) -> float:
    total = float(block.cost.sum())
    return _SCALE / total if total else 1.0


def _retained(program: Program, block: Block, held: int, cost: Floats) -> Ints | None:
    choice = {NONE: np.zeros_like(block.big), SMALL: block.big & ~block.large, LARGE: block.large, MORE: block.big}[held]
    allowed = ~block.big | choice
    retain = np.full(len(block.big), -1)
    retain[allowed] = program.variables(cost[allowed], integer=True)
    columns, least = retain[choice], (0, 1, 1, 2)[held]
    if len(columns) < least:
        return None
    if least == 1:
        program.at_most(columns, np.ones(len(columns)), 1.0)
    if least:
        program.at_most(columns, -np.ones(len(columns)), -float(least))
    return retain


def _again(program: Program, block: Block, scale: float) -> Ints:
    again = np.full(len(block.cost), -1)
    again[block.recomputable] = program.variables(scale * block.cost[block.recomputable], integer=False)
    return again


def _recompute(program: Program, block: Block, needed: Bools, retain: Ints, again: Ints) -> None:
    """What is needed is retained or recomputed; and so are the inputs of what is recomputed, those from other blocks left out."""
    need = np.flatnonzero(needed)
    program.at_least(1.0, [(retain[need], 1.0), (again[block.producer[need]], 1.0)])
    chained = again[block.user] >= 0
    source, user = block.source[chained], block.user[chained]
    program.at_least(0.0, [(retain[source], 1.0), (again[block.producer[source]], 1.0), (again[user], -1.0)])


def _solve(program: Program, scale: float) -> float:
    answer = minimise(program, _SECONDS, absolute_gap=1e-6, seed=0, stop=lambda bound: False)
    return np.inf if answer.infeasible else max(0.0, answer.bound) / scale * _PRODUCTS
