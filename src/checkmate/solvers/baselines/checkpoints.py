"""What the checkpointing baselines share: candidates in the forward graph, and the schedule that checkpoints imply.

Checkpoints are chosen among the values of the forward pass and kept to the end of the step. The ops between two of them form
a segment: its values are kept until the next checkpoint is there, dropped, and computed again, all together, when the
backward pass arrives at the segment; they and the segment's gradients are kept until it leaves (Chen et al., 2016,
arXiv:1604.06174). This is also what the code of Checkmate (Jain et al., MLSys 2020) measures as the baselines on general
graphs, so that its figures are reproduced to the byte; it means that some values are kept longer than they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ...graph import Graph
from ..representation.retention import Retention
from .articulation_points import articulation_points


@dataclass(frozen=True)
class Forward:
    """The forward pass of a graph: its first ops, up to the loss or the backward phase.

    Attributes:
        graph: the step.
    """

    graph: Graph

    @cached_property
    def num_ops(self) -> int:
        """Ops before the first one of phase "backward" (or "loss"); all if there is none."""
        phases = (index for index, op in enumerate(self.graph.ops) if op.phase in ("backward", "loss"))
        return next(phases, self.graph.num_ops)

    @cached_property
    def backward_begin(self) -> int:
        """The first op of phase "backward"; the number of ops if there is none."""
        return next((index for index, op in enumerate(self.graph.ops) if op.phase == "backward"), self.graph.num_ops)

    @cached_property
    def first_backward_use(self) -> list[int]:
        """Per op before the backward phase the first backward op that reads a value of it, -1 if none does."""
        first = [-1] * self.backward_begin
        for index in range(self.graph.num_ops - 1, self.backward_begin - 1, -1):
            for value in self.graph.ops[index].inputs:
                if self.graph.producer[value] < self.backward_begin:
                    first[self.graph.producer[value]] = index
        return first

    @cached_property
    def articulation_points(self) -> list[int]:
        """Ops whose removal cuts the forward graph (edges without direction, input before op 0, output after the last).

        Ops that no edge touches are left out.
        """
        n = self.num_ops
        if not n:
            return []
        edges = [(self.graph.producer[value], user) for user in range(n) for value in self.graph.ops[user].inputs]
        touched = {op for edge in edges for op in edge}
        last = max(touched, default=0)
        return sorted(touched & articulation_points([*edges, (n, 0), (last, n + 1)], n + 2)) or [last]

    def checkpointed(self, checkpoints: Iterable[int]) -> Retention:
        """What is retained with these ops (ascending) as checkpoints."""
        graph, n = self.graph, self.graph.num_ops
        retention = Retention(graph)
        chosen = list(checkpoints)
        for user, op in enumerate(graph.ops):
            for value in op.inputs:
                origin = graph.producer[value]
                # A value is there when the stage begins that reads it; gradients stay from where they are made to there.
                retention.add(value, origin + 1 if origin >= self.backward_begin else user, user)
        for checkpoint in chosen:
            for value in graph.ops[checkpoint].outputs:
                retention.add(value, checkpoint + 1, n - 1)
        segments = list(zip([0, *chosen], [*chosen, min(self.num_ops + 1, self.backward_begin)], strict=True))  # with the loss
        for (start, end), (arrives, leaves) in zip(segments, self.backward_intervals(segments), strict=True):
            for index in range(start, end):
                for value in graph.ops[index].outputs:
                    retention.add(value, index + 1, end)
                    retention.add(value, arrives, leaves)
            for index in range(arrives, leaves):
                for value in graph.ops[index].outputs:
                    retention.add(value, index + 1, leaves)
        return retention

    def backward_intervals(self, segments: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Per segment (begin, end) of forward ops, ascending: the first and the last stage in which the backward pass is in it.

        It arrives with the first op that reads a value of the segment, and leaves when it arrives at the segment before. The
        interval (n, 0) is empty: nothing of the segment is read.
        """
        limit = n = self.graph.num_ops
        result = []
        for start, end in segments:
            uses = [use for use in (self.first_backward_use[op] for op in range(start, end)) if use >= 0]
            if not uses:
                result.append((n, 0))
                continue
            result.append((min(uses), max(*uses, limit - 1)))
            limit = min(limit, min(uses))
        return result
