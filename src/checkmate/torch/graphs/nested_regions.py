"""Regions that a script has compiled once (`torch.compiler.nested_compile_region`), put back in the places where they are called.

A plan may keep one thing of the first call and another of the second. So there is no graph that does for both.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def with_regions_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """The graph from PyTorch, changed in place, with the ops of regions instead of calls of them."""
    graph = module.graph
    calls = graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
    for call in calls:
        region, _, *inputs = call.args
        inner = with_regions_in_place(getattr(module, region.target))
        places: dict[fx.Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), inputs, strict=True))
        with graph.inserting_before(call):
            for node in inner.graph.find_nodes(op="get_attr"):
                name = f"{region.target}_{node.target}"
                setattr(module, name, getattr(inner, node.target))
                places[node] = graph.get_attr(name)
            results: Any = graph.graph_copy(inner.graph, places)
        for user in list(call.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(call)
    if calls:
        module.recompile()
    return module
