"""Outputs that a graph returns more than once, as where the compiler breaks a function off in the middle of an object that holds one."""

from __future__ import annotations

import torch
from torch import fx

from ..ops.nodes import look_at_what_they_read
from ..ops.sizes import storage_key
from ..pytorch.internals import FakeTensor, is_tangent


def tell_gradients_apart(joint: fx.GraphModule) -> None:
    """Give each gradient that the backward pass is called with a fake tensor of its own, and views of it with it.

    Those of an output that is returned twice are traced as one, and are several tensors in a run.
    """
    known: set[int] = set()
    mode = None
    for node in filter(is_tangent, joint.graph.find_nodes(op="placeholder")):
        fake = node.meta.get("val")
        if isinstance(fake, FakeTensor) and fake.layout is torch.strided:
            if storage_key(fake) in known:
                mode = fake.fake_mode
                with mode:
                    node.meta["val"] = torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device)
            known.add(storage_key(fake))
    if mode is not None:
        look_at_what_they_read(joint, mode)
