"""What a joint graph returns, and what it writes into its inputs.

New contents of inputs (running statistics, counters) are outputs of the forward pass here, whatever AOT autograd makes of them: it copies
some itself from what the forward pass returns, one by one, and has others written by the graph. Those come last, see `lift_written`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..pytorch.internals import InputMutationAOTOutput, TangentAOTInput, tree_leaves

aten = torch.ops.aten


@dataclass(frozen=True)
class Written:
    """Describes an output that the forward pass writes into an input, and does not return."""

    placeholder: fx.Node


@dataclass(frozen=True)
class Outputs:
    """The outputs of a joint graph.

    Attributes:
        forward: what the forward pass returns, then what it writes. gradients: what the backward pass returns.
        tangents: for each of `forward` the placeholder of its gradient; None where it has none.
        is_update: of each of `forward`, whether it is only the new content of an input.
        overwritten: the placeholders of those inputs, in this order.
        written: the last of them, whose new contents AOT autograd does not know of.
    """

    forward: list[Any]
    gradients: list[Any]
    tangents: list[fx.Node | None]
    is_update: list[bool]
    overwritten: list[fx.Node]
    written: list[fx.Node]


def outputs_of(module: fx.GraphModule, count: int) -> Outputs:
    """Sort the outputs of a joint graph.

    Args:
        count: how many of them the forward pass returns.
    """
    outputs, described = flat_outputs(module), _descriptions(module)
    written = [known.placeholder for known in described if isinstance(known, Written)]
    end = count + len(written)
    placeholders = module.graph.find_nodes(op="placeholder")
    by_description = {node.meta.get("desc"): node for node in placeholders}
    tangent_of = {known.output: node for node in placeholders if isinstance(known := node.meta.get("desc"), TangentAOTInput)}
    updated = [known.mutated_input for known in described[:count] if isinstance(known, InputMutationAOTOutput)]
    return Outputs(
        outputs[:end],
        outputs[end:],
        [None if known is None else tangent_of.get(known) for known in described[:end]],
        [isinstance(known, InputMutationAOTOutput | Written) for known in described[:end]],
        [*(by_description[one] for one in updated if one in by_description), *written],
        written,
    )


def flat_outputs(module: fx.GraphModule) -> list[Any]:
    """The outputs of a traced graph."""
    (output,) = module.graph.find_nodes(op="output")
    return tree_leaves(output.args, is_leaf=lambda leaf: leaf is None)


def lift_written(module: fx.GraphModule, count: int, late: set[fx.Node]) -> None:
    """Make what the graph writes into its inputs outputs of the forward pass. It is changed in place; a second time there is nothing to do.

    Args:
        count: so many of its outputs the forward pass returns. late: what belongs to the backward pass, and stays.
    """
    writes = [
        node
        for node in module.graph.nodes
        if node.target is aten.copy_.default and node.args[0].op == "placeholder" and node not in late
    ]
    if not writes:
        return
    for node in writes:
        node.replace_all_uses_with(node.args[1])
    outputs, described = flat_outputs(module), _descriptions(module)
    outputs[count:count] = [node.args[1] for node in writes]
    described[count:count] = [Written(node.args[0]) for node in writes]
    for node in writes:
        module.graph.erase_node(node)
    _set_outputs(module, outputs, described)


def drop_written(module: fx.GraphModule, outputs: set[Any]) -> None:
    """The graph writes these into its inputs by other means than as outputs."""
    pairs = zip(flat_outputs(module), _descriptions(module), strict=True)
    kept = [(node, known) for node, known in pairs if not (isinstance(known, Written) and node in outputs)]
    _set_outputs(module, [node for node, _ in kept], [known for _, known in kept])


def write(graph: fx.Graph, inputs: Sequence[fx.Node], contents: Sequence[fx.Node], functional: bool) -> None:
    """New contents of inputs, at the end of a graph.

    Args:
        functional: one by one, for a compiler, which writes each where it is computed; else all at once.
    """
    if functional:
        for node, content in zip(inputs, contents, strict=True):
            graph.call_function(aten.copy_.default, (node, content)).meta = dict(node.meta)
    elif inputs:
        graph.call_function(aten._foreach_copy_.default, (list(inputs), list(contents)))


def with_writes(module: fx.GraphModule, count: int, functional: bool) -> fx.GraphModule:
    """A graph without a backward pass that writes its inputs itself, and returns the other outputs."""
    outputs, graph = outputs_of(module, count), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    kept = [copies[node] if isinstance(node, fx.Node) else node for node in outputs.forward]
    write(graph, [copies[node] for node in outputs.written], kept[count:], functional)
    graph.output(tuple(kept[:count]))
    return fx.GraphModule(module, graph)


def _descriptions(module: fx.GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    described = output.meta.get("desc")
    return [None] * len(flat_outputs(module)) if described is None else tree_leaves(described)


def _set_outputs(module: fx.GraphModule, outputs: Sequence[Any], described: Sequence[Any]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    output.args = (tuple(outputs),)
    output.meta["desc"] = list(described)
