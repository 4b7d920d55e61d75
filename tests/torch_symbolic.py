"""Training with one symbolic trace: each schedule runs for two steps, at whatever sizes they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx

from checkmate.graph import Graph
from checkmate.planning import OpCost
from checkmate.schedule import Step, steps_from_sequence
from checkmate.torch.graphs.capture import Captured, read_joint_graph
from checkmate.torch.graphs.emit import Emitted, emit
from checkmate.torch.ops.sizes import Bindings, Number
from checkmate.torch.pytorch.internals import Boxed, boxed, mark_boxed, trace_and_compile


def one_second_each(nodes: Sequence[fx.Node], number: Number) -> Mapping[fx.Node, OpCost]:
    return dict.fromkeys(nodes, OpCost(1.0, 100))


class SymbolicTraining:
    """A backend for `torch.compile`. PyTorch's own functions save one tiny tensor; what really crosses waits in `crossing`.

    Args:
        choose: a schedule, from the graph at the sizes of a step.
        profile: of ops.
    """

    def __init__(
        self,
        choose: Callable[[Graph], Sequence[Step]] = lambda graph: steps_from_sequence(graph, range(graph.num_ops)),
        profile: Any = one_second_each,
    ):
        self.choose, self.profile = choose, profile
        self.captured: list[Captured] = []
        self.seen: list[Bindings] = []
        self.crossing: dict[int, tuple[Emitted, Captured, list[Any]]] = {}

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return trace_and_compile(module, inputs, self._partition, self._forward, self._backward, boxed)

    def _partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **unused: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        captured = read_joint_graph(joint, num_fwd_outputs, self.profile)
        self.captured.append(captured)
        like = next(node.meta["val"] for node in joint.graph.nodes if isinstance(node.meta.get("val"), Tensor))
        ticket = like.new_empty((1,), dtype=torch.int64, device="cpu")
        placeholders = joint.graph.find_nodes(op="placeholder")
        forward = fx.Graph()
        given = [forward.node_copy(node) for node in placeholders if "tangents" not in node.target]
        run = forward.call_function(lambda *unused: None, tuple(given))
        results = []
        for position, output in enumerate([*captured.outputs, ticket]):
            item = forward.call_function(lambda run, position: run[position], (run, position))
            item.meta = dict(output.meta) if isinstance(output, fx.Node) else {"val": output}
            results.append(item)
        forward.output(tuple(results))
        backward = fx.Graph()
        shown = backward.placeholder("ticket")
        shown.meta = {"val": ticket}
        tangents = [backward.node_copy(node) for node in placeholders if "tangents" in node.target]
        run = backward.call_function(lambda *unused: None, (shown, *tangents))
        gradients: list[fx.Node | None] = []
        for position, output in enumerate(captured.gradients):
            item = backward.call_function(lambda run, position: run[position], (run, position))
            item.meta = {} if output is None else dict(output.meta)
            gradients.append(None if output is None else item)
        backward.output(tuple(gradients))
        return fx.GraphModule(joint, forward), fx.GraphModule(joint, backward)

    def _forward(self, module: fx.GraphModule) -> Boxed:
        traced = self.captured[-1]
        made: list[Emitted] = []
        calls = count()

        def run(arguments: list[Any]) -> Any:
            bindings = traced.sizes.bind(arguments)
            self.seen.append(bindings)
            captured = traced.at(bindings, costs_of=traced)
            if next(calls) % 2 == 0:  # every second step runs under the schedule of the one before, which had other sizes
                made[:] = [emit(captured, self.choose(captured.graph))]
            (emitted,) = made
            outputs = boxed(emitted.forward)([*arguments, *emitted.forward_numbers(bindings)])
            returned, number = len(captured.outputs), len(self.seen)
            self.crossing[number] = emitted, captured, list(outputs[returned:])
            return [*outputs[:returned], torch.tensor([number])]

        return mark_boxed(run)

    def _backward(self, module: fx.GraphModule) -> Boxed:
        def run(arguments: list[Any]) -> Any:
            emitted, captured, saved = self.crossing.pop(int(arguments[0]))
            assert emitted.backward is not None
            return boxed(emitted.backward)([*saved, *arguments[1:], *emitted.backward_numbers(captured.bindings)])

        return mark_boxed(run)
