"""Outputs that a graph returns more than once, as where the compiler breaks a function off in the middle of an object that holds one."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses import FakeTensor

from .internals import is_tangent
from .nodes import tensors_of
from .sizes import storage_key


def tell_gradients_apart(joint: fx.GraphModule) -> None:
    """Give each gradient that the backward pass is called with a fake tensor of its own, and views of it with it.

    Those of an output that is returned twice are traced as one, and are several tensors in a run.
    """
    known: set[int] = set()
    moved: set[fx.Node] = set()
    for node in joint.graph.nodes:
        fake = node.meta.get("val")
        if is_tangent(node):
            if isinstance(fake, FakeTensor) and fake.layout is torch.strided and storage_key(fake) in known:
                with fake.fake_mode:
                    node.meta["val"] = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device)
                moved.add(node)
            known.update(storage_key(tensor) for tensor in tensors_of(node))
        elif not moved.isdisjoint(node.all_input_nodes) and any(storage_key(tensor) in known for tensor in tensors_of(node)):
            mode = next(x.fake_mode for source in node.all_input_nodes for x in tensors_of(source) if isinstance(x, FakeTensor))
            arguments, keywords = fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
            with mode:
                node.meta["val"] = node.target(*arguments, **keywords)
            moved.add(node)
