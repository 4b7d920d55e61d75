"""What ops that run graphs of their own, such as `torch.cond`, hold while they run."""

from __future__ import annotations

import torch
from torch import fx

from .nodes import tensors_of
from .sizes import Number, storage_bytes, storage_key


def bytes_inside(node: fx.Node, number: Number) -> int:
    """The most bytes that are live in a graph which a node runs, beyond what it reads and what it returns; 0 for other nodes.

    Args:
        number: what symbolic sizes are.
    """
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return 0
    owner = node.graph.owning_module
    named = [other.target for other in node.all_input_nodes if other.op == "get_attr"]
    graphs = [graph for name in named if isinstance(graph := getattr(owner, str(name), None), fx.GraphModule)]
    return max((_peak(graph, number) for graph in graphs), default=0)


def _peak(module: fx.GraphModule, number: Number) -> int:
    given = {storage_key(t) for node in module.graph.find_nodes(op="placeholder") for t in tensors_of(node)}
    last: dict[int, fx.Node] = {}
    for node in module.graph.nodes:
        last.update({storage_key(t): node for other in (node, *node.all_input_nodes) for t in tensors_of(other)})
    live: dict[int, int] = {}
    peak = 0
    for node in module.graph.nodes:
        if node.op == "output":
            break
        live.update({key: int(number(storage_bytes(t))) for t in tensors_of(node) if (key := storage_key(t)) not in given})
        peak = max(peak, sum(live.values()) + bytes_inside(node, number))
        for key in [key for key in live if last[key] is node]:
            del live[key]
    return max(0, peak - sum(live.values()))  # what is left is returned
