"""What a block of a step costs at least, by the big values that it holds at a snapshot: the parts of nested_bound.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from ..mixed_integer.dispatch import minimise
from ..mixed_integer.program import Program
from ..representation.graph_arrays import Bools, Floats, Ints

#: For the program of one block, which never needs it.
_SECONDS = 5.0
#: Units of the objective per cost of the block, as HiGHS likes them; and what its tolerance of 1e-6 per row can add, at most.
_SCALE, _SAFETY = 1000.0, 0.01
#: What a block may hold of its big values: none, a single one that is not large or that is, or more.
NONE, SMALL, LARGE, MORE = range(4)
#: Cost of what cannot be, as a multiple of the cost of all blocks: infinity minus itself is no number.
_MOST = 1000.0


@dataclass(frozen=True)
class Block:
    """The forward ops of one block and the values they make, by position.

    Attributes:
        cost, recomputable, chain: per op; chain: recomputed whenever the gate is, unless a big value is held.
        size, producer, big, large: per value; large are some of the big ones.
        source, user: (value, op that reads it) inside the block.
        ever, below: per value, read after the first snapshot, and after the tau of the nearest block above.
        soon, late: per value, read between the latter (if there is none, the former) and the block's own tau, and after that.
        at_first, at_tau, at_above: per value, free at the first snapshot, at tau, at the tau of a block above: the op of that
            moment reads it, so its bytes are counted with the op.
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
    at_tau: Bools
    at_above: Bools

    def key(self) -> tuple[bytes, ...]:
        """Equal for blocks that do the same."""
        return tuple(getattr(self, field.name).tobytes() for field in fields(self))


@dataclass(frozen=True)
class Tables:
    """Least costs by the big values held (NONE, ...), price and block (entry 0 unused): arrays (4, prices, L + 1).

    Attributes:
        first: recomputation after the first snapshot, and the bytes held then. below: the same at the tau of a block above.
        top: recomputation of the block whose tau it is, and the bytes held at tau; by what is held at the snapshot before (MORE
            is not used).
    """

    first: Floats
    below: Floats
    top: Floats


def price_blocks(blocks: list[Block], prices: Floats, stop: Callable[[], bool]) -> Tables | None:
    """The tables for these prices of a byte (cost per byte); equal blocks are solved once. None if stopped."""
    known: dict[tuple[bytes, ...], Floats] = {}
    table = np.zeros((3, MORE + 1, len(prices), len(blocks) + 1))
    for number, block in enumerate(blocks, 1):
        key = block.key()
        if key not in known:
            known[key] = np.zeros((3, MORE + 1, len(prices)))
            for k, price in enumerate(prices):
                if stop():
                    return None
                for held in (NONE, SMALL, LARGE, MORE):
                    known[key][0, held, k] = _held(block, block.ever, block.at_first, held, price, None)
                    known[key][1, held, k] = _held(block, block.below, block.at_above, held, price, ~block.chain)
                for held in (NONE, SMALL, LARGE):
                    known[key][2, held, k] = _topmost(block, held, price)
        table[..., number] = known[key]
    table = np.minimum(
        table, _MOST * max(1e-300, sum(float(block.cost.sum()) for block in blocks))
    )  # infinity minus itself is none
    return Tables(*table)


def _held(block: Block, needed: Bools, free: Bools, held: int, price: float, charged: Bools | None) -> float:
    """Least cost of recomputing after a snapshot what is `needed`, and of the bytes held at it.

    Args:
        held: NONE, ...
        charged: ops that have to be recomputed before the snapshot for their big values to be held.
    """
    program, scale = Program(), _scale(block)
    retain = _retained(program, block, held, scale * price * np.where(free, 0.0, block.size))
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


def _topmost(block: Block, held: int, price: float) -> float:
    """Least cost of recomputing in the block whose tau it is, before and after tau, and of the bytes held at tau.

    Args:
        held: NONE, ..., at the snapshot before.
    """
    program, scale = Program(), _scale(block)
    before = _retained(program, block, held, np.zeros(len(block.size)))
    if before is None:
        return np.inf
    sooner = _again(program, block, scale)
    _recompute(program, block, block.soon, before, sooner)
    retain = program.variables(scale * price * np.where(block.at_tau, 0.0, block.size), integer=True)
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
    return np.inf if answer.infeasible else max(0.0, answer.bound - _SAFETY) / scale
