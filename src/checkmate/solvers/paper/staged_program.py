"""The rows of Checkmate's integer program (see `checkmate_milp`), from arrays alone.

On graphs with many edges they take minutes and gigabytes. So how many there are is known before they are made, and whoever solves the
program makes them: where that cannot be stopped in time, in a process that can be ended (see `mixed_integer.dispatch`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..mixed_integer.program import Program, ProgramArrays
from ..representation.graph_arrays import Bools, Floats, Ints, Problem


@dataclass(frozen=True)
class OpsAndValues:
    """A graph with an op at the end that reads the kept values, if there are any."""

    cost: Floats
    workspace: Floats
    reuses: Ints  # the value in which an op may write, or -1
    recomputable: Bools
    producer: Ints
    size: Floats
    values: Ints  # of all (value, op that reads it) pairs, by op
    readers: Ints


def with_sink(problem: Problem) -> OpsAndValues:
    """The graph of a problem."""
    values, readers = problem.edges
    kept = np.flatnonzero(problem.keep)
    ends = min(1, len(kept))
    return OpsAndValues(
        np.append(problem.cost, np.zeros(ends)),
        np.append(problem.workspace, np.zeros(ends)),
        np.append(problem.reuses, np.full(ends, -1)),
        np.append(problem.recomputable, np.ones(ends, np.bool_)),
        problem.producer,
        problem.size,
        np.append(values, kept),
        np.append(readers, np.full(len(kept), problem.graph.num_ops)),
    )


@dataclass(frozen=True)
class StagedProgram:
    """The program of one graph and budget; a `mixed_integer.program.Model`.

    Attributes:
        graph: its ops and values.
        begin: the first stage that has variables; everything is retained before.
        retain: index of S[begin + row, v], -1 where there is none; shape (stages, values).
        compute: index of R[begin + row, o], those of S come first; shape (stages, ops).
        cost: in objective units, of computing each op again.
        budget: bytes without fixed memory.
        integral: False for the linear relaxation.
    """

    graph: OpsAndValues
    begin: int
    retain: Ints
    compute: Ints
    cost: Floats
    budget: float
    integral: bool

    @property
    def num_variables(self) -> int:
        """S, R, F, and a U for every R."""
        return int(np.sum(self.retain >= 0) + 2 * np.sum(self.compute >= 0)) + self._frees_and_clashes[0]

    @property
    def num_nonzeros(self) -> int:
        """Of the matrix, or a few more: what every kind of row has at most."""
        retained, computed = int(np.sum(self.retain >= 0)), np.sum(self.compute >= 0, axis=0)
        reads, ops = int(computed[self.graph.readers].sum()), int(computed.sum())
        frees, clashes = self._frees_and_clashes
        return 3 * reads + 5 * retained + 4 * frees + 2 * clashes + (5 * ops + retained + frees)

    def arrays(self) -> ProgramArrays:
        """The program."""
        program = Program()
        program.variables(np.zeros(int(np.sum(self.retain >= 0))), self.integral)
        stage, op = np.nonzero(self.compute >= 0)
        frontier = op == stage + self.begin
        program.variables(np.where(frontier, 0.0, self.cost[op]), self.integral, frontier.astype(np.float64))
        self._dependencies(program)
        self._memory(program, *self._frees(program))
        return program.arrays()

    @cached_property
    def _touching(self) -> tuple[Ints, Ints]:
        """Every (op, value) such that the op reads or makes the value, by value; those of no size need not be freed."""
        graph = self.graph
        ops = np.concatenate([graph.readers, graph.producer])
        values = np.concatenate([graph.values, np.arange(len(graph.size))])
        counted = graph.size[values] > 0
        ops, values = ops[counted], values[counted]
        by_value = np.lexsort((ops, values))
        return ops[by_value], values[by_value]

    @cached_property
    def _read_at_end(self) -> Bools:
        """Per stage and value, whether the op that ends the stage reads it: it runs for certain, so no op before can free the value."""
        graph = self.graph
        result = np.zeros(self.retain.shape, np.bool_)
        late = graph.readers >= self.begin
        result[graph.readers[late] - self.begin, graph.values[late]] = True
        return result

    @cached_property
    def _frees_and_clashes(self) -> tuple[int, int]:
        """How many F there are, and rows that say that the value has a later user in the stage."""
        ops, values = self._touching
        touches = np.zeros((self.compute.shape[1], self.retain.shape[1]))
        np.add.at(touches, (ops, values), 1.0)
        together = (self.compute >= 0).astype(np.float64) @ touches
        free = together[~self._read_at_end]
        at_end = touches[self.begin : self.begin + len(together)][self._read_at_end]
        return int(free.sum() + at_end.sum()), int((free * (free - 1) / 2).sum())

    def _dependencies(self, program: Program) -> None:
        """Rows (1b) and (1c)."""
        producer = self.graph.producer
        values, readers = self.graph.values, self.graph.readers
        stage, edge = np.nonzero(self.compute[:, readers] >= 0)
        v, o = values[edge], readers[edge]
        program.at_least(
            0.0,
            [(self.compute[stage, producer[v]], 1.0), (self.retain[stage, v], 1.0), (self.compute[stage, o], -1.0)],
        )
        # What was first computed in the stage before is there.
        row, v = np.nonzero(
            (self.retain[1:] >= 0) & (producer < np.arange(self.begin, self.begin + len(self.retain) - 1)[:, None])
        )
        program.at_least(
            0.0, [(self.retain[row, v], 1.0), (self.compute[row, producer[v]], 1.0), (self.retain[row + 1, v], -1.0)]
        )
        # Nobody reads a value before its op's turn: a value that is computed in the stage need not be there at its begin.
        row, v = np.nonzero(self.retain >= 0)
        again = self.compute[row, producer[v]]
        both = again >= 0
        program.at_least(-1.0, [(self.retain[row[both], v[both]], -1.0), (again[both], -1.0)])

    def _frees(self, program: Program) -> tuple[Ints, Ints, Ints, Ints]:
        """Variables F and their rows; returns (rows of stages, ops, values, indices of the variables)."""
        touching_ops, touched = self._touching
        row, pair = np.nonzero(self.compute[:, touching_ops] >= 0)
        op, value = touching_ops[pair], touched[pair]
        possible = (op == row + self.begin) | ~self._read_at_end[row, value]
        row, pair, op, value = row[possible], pair[possible], op[possible], value[possible]
        free = program.variables(np.zeros(len(op)), integer=False)
        program.at_least(0.0, [(self.compute[row, op], 1.0), (free, -1.0)])
        following = np.full(len(op), -1)
        inner = row + 1 < len(self.retain)
        following[inner] = self.retain[row[inner] + 1, value[inner]]
        held = following >= 0
        program.at_least(-1.0, [(free[held], -1.0), (following[held], -1.0)])
        # Later users of the same value are the entries after it, up to where the next value begins.
        last = np.searchsorted(touched, touched, side="right")
        for step in range(1, int(np.max(last - np.arange(len(touched)), initial=1))):
            later = np.minimum(pair + step, len(touched) - 1)
            user = np.where(pair + step < last[pair], self.compute[row, touching_ops[later]], -1)
            clash = user >= 0
            program.at_least(-1.0, [(free[clash], -1.0), (user[clash], -1.0)])
        return row, op, value, free

    def _memory(self, program: Program, row: Ints, op: Ints, value: Ints, free: Ints) -> None:
        """Variables U, and their rows (2), (3) and (8); in units of the budget and what ops may write in, since U counts it twice."""
        reuses = self.graph.reuses
        unit = self.budget + np.max(self.graph.size[reuses[reuses >= 0]], initial=0.0)
        size, limit = self.graph.size / unit, self.budget / unit
        made = np.zeros(len(self.graph.cost))
        np.add.at(made, self.graph.producer, size)
        stage, ops = np.nonzero(self.compute >= 0)
        live = np.full(self.compute.shape, -1)
        live[stage, ops] = program.variables(np.zeros(len(ops)), integer=False)
        number = np.full(self.compute.shape, -1)  # of the row for (stage, op); the row of the next op uses what op frees
        number[stage, ops] = np.arange(len(ops))
        first = np.append(True, stage[1:] != stage[:-1])
        here = np.arange(len(ops))
        s_row, s_value = np.nonzero(self.retain >= 0)
        follows = number[row, op] + 1
        inside = follows < len(ops)
        inside[inside] &= ~first[follows[inside]]
        program.at_most_rows(
            np.concatenate([here, here, here[~first], number[s_row, ops[first][s_row]], follows[inside]]),
            np.concatenate(
                [
                    live[stage, ops],
                    self.compute[stage, ops],
                    live[stage, ops][here[~first] - 1],
                    self.retain[s_row, s_value],
                    free[inside],
                ]
            ),
            np.concatenate(
                [np.full(len(ops), -1.0), made[ops], np.ones(int((~first).sum())), size[s_value], -size[value[inside]]]
            ),
            np.zeros(len(ops)),
        )
        works = np.flatnonzero((self.graph.workspace[ops] > 0) | (limit < 1.0))
        place = np.full(len(ops), -1)
        place[works] = np.arange(len(works))
        # What is freed right after the op that may write in it takes no room beside the output.
        written = np.flatnonzero(reuses[op] == value)
        program.at_most_rows(
            np.concatenate([np.tile(np.arange(len(works)), 2), place[number[row[written], op[written]]]]),
            np.concatenate([live[stage[works], ops[works]], self.compute[stage[works], ops[works]], free[written]]),
            np.concatenate([np.ones(len(works)), self.graph.workspace[ops[works]] / unit, -size[value[written]]]),
            np.full(len(works), limit),
        )
