"""Work: a clock by which the same search takes the same turns, on any machine and however busy that is.

A unit is about what one core does in a second. The seconds that a search may take only end it; which phase comes next, and for how
long, is decided by what has been done. What a unit is of each kind is a matter of a factor, not of percents:
`python benchmarks/work_units.py` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

#: HiGHS asks whether to go on between the parts of its search, each of which takes longer the more nonzeros a program has.
_NONZEROS, _LEAST_NONZEROS = 700_000, 1000
#: The fewest times that it asks before it is stopped: of these none is before the first linear program.
_LEAST_CALLS = 3
#: Nonzeros times iterations of the interior point method.
_INTERIOR_POINT = 5e6
#: Moves of the annealing, times ops and a share that does not depend on them.
_MOVES, _MORE_OPS = 1.6e8, 100
#: Ops of the graph, for each pass of greedy eviction.
_EVICTION = 4e5
#: Successors of states in the exact search.
_SUCCESSORS = 5e6
#: Entries of the tables of the Lagrangian relaxation, and a share that does not depend on them.
_ENTRIES, _MORE_ENTRIES = 7.5e7, 100_000
#: Programs of blocks; sets of values; cells of nested checkpointing.
_PROGRAMS, _SETS, _CELLS = 700, 2e6, 4e8
#: Sets of items in a phase, and states of the search, of the tail bound.
_TAIL_SETS, _TAIL_STATES = 1e7, 2e5


@dataclass
class Work:
    """What has been done, and how much may be.

    Attributes:
        limit, done: in units.
        whole: what this is a part of.
    """

    limit: float = math.inf
    done: float = 0.0
    whole: Work | None = None

    def spend(self, units: float) -> None:
        """So much was done."""
        self.done += units
        if self.whole is not None:
            self.whole.spend(units)

    def part(self, units: float) -> Work:
        """So much of it, or what is left: what is spent there is spent here."""
        return Work(min(units, self.left), 0.0, self)

    @property
    def left(self) -> float:
        """Units; never negative."""
        return max(0.0, self.limit - self.done)

    @property
    def used_up(self) -> bool:
        """Whether the limit is reached."""
        return self.done >= self.limit


@dataclass(frozen=True)
class Limits:
    """What a part of a search may take.

    Attributes:
        work: to which it adds what it does; it may go on until that is used up.
        stop: True ends it. time_left: seconds for all of it.
    """

    work: Work = field(default_factory=Work)
    stop: Callable[[], bool] = lambda: False
    time_left: Callable[[], float] = lambda: math.inf

    def over(self) -> bool:
        """Time to end."""
        return self.work.used_up or self.stop()


def highs(nonzeros: int, calls: int) -> float:
    """Of an integer program during which HiGHS has asked so often whether to go on."""
    return calls * (nonzeros + _LEAST_NONZEROS) / _NONZEROS


def highs_calls(nonzeros: int, units: float) -> float:
    """How often HiGHS asks in so much work."""
    return max(_LEAST_CALLS, units * _NONZEROS / (nonzeros + _LEAST_NONZEROS))


def interior_point(nonzeros: int, iterations: int) -> float:
    """Of a linear program."""
    return (iterations + 1) * nonzeros / _INTERIOR_POINT


def annealing(moves: float, ops: int) -> float:
    """Of a run of so many moves on a graph of so many ops."""
    return moves * (ops + _MORE_OPS) / _MOVES


def annealing_moves(units: float, ops: int) -> float:
    """In so much annealing."""
    return units / annealing(1, ops)


def eviction(ops: int) -> float:
    """Of a pass of greedy eviction."""
    return ops / _EVICTION


def exact_search(successors: int) -> float:
    """Of the exact search."""
    return successors / _SUCCESSORS


def successors(units: float) -> float:
    """Of states, in so much exact search."""
    return units * _SUCCESSORS


def lagrangian(entries: int) -> float:
    """Of a solution of the Lagrangian relaxation, whose tables have so many entries."""
    return (entries + _MORE_ENTRIES) / _ENTRIES


def block_programs(count: int) -> float:
    """Of the small programs of the nested snapshot bound."""
    return count / _PROGRAMS


def sets_of_values(count: int) -> float:
    """Of the peak bound."""
    return count / _SETS


def nested_cells(count: float) -> float:
    """Of the dynamic program of nested checkpointing."""
    return count / _CELLS


def tail_sets(count: int) -> float:
    """Of the dynamic program of the tail bound."""
    return count / _TAIL_SETS


def tail_states(count: int) -> float:
    """Of the search of the tail bound."""
    return count / _TAIL_STATES
