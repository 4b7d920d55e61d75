"""What kind of op an FX node is, and which pass of a joint graph it belongs to."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ..pytorch.internals import FakeTensorMode, is_tangent
from ..pytorch.random import RANDOM_DEVICES
from .batch_norm import is_batch_norm, writes_statistics
from .sizes import storage_key

aten = torch.ops.aten
#: Operators for several processes. A process that ran one of them again would wait for the others, whose plans need not be the same.
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem", "fsdp")

#: In the metadata of a node: the group that it is planned in, where a compiler joins groups; and which computation of its op it is.
GROUP, COMPUTATION = "checkmate_group", "checkmate_computation"
#: A group, and which of its computations: 1 for the first.
Computation: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class OpNode:
    """An op before its cost is known: what computes it (None: the user's script), the values it reads and makes, its layer."""

    node: fx.Node | None
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    phase: str
    layer: str = ""


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The (fake) tensors that a node yields, those inside tuples included."""
    found: list[torch.Tensor] = []
    stack = [node.meta.get("val")]
    while stack:
        item = stack.pop(0)
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            stack = list(item) + stack
    return found


def look_at_what_they_read(module: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Where what a view reads has another fake tensor than when it was traced, give the view one of that storage: with the old one it
    would count as a tensor of its own."""
    for node in module.graph.nodes:
        source: Any = node.args[0] if node.args else None
        is_part = node.target is operator.getitem
        if not isinstance(source, fx.Node) or not _is_view(source.target if is_part else node.target):
            continue
        read, seen = ({storage_key(tensor) for tensor in tensors_of(one)} for one in (source, node))
        if not read.isdisjoint(seen):
            continue
        if is_part:
            node.meta["val"] = source.meta["val"][node.args[1]]
        else:
            with mode:
                node.meta["val"] = _computed(node)


def _is_view(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or target is aten._unsafe_view.default)


def _computed(node: fx.Node) -> Any:
    """What it yields from the fake tensors that it reads."""
    target: Any = node.target
    return target(*fx.map_arg(node.args, _value), **fx.map_arg(node.kwargs, _value))


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def is_random(node: fx.Node) -> bool:
    """The op draws random numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":  # attention is tagged as random whether it drops anything or not
            given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given != 0.0)
    return True


def is_collective(node: fx.Node) -> bool:
    """Other processes take part in the op."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COLLECTIVES


def has_side_effects(node: fx.Node) -> bool:
    """The op does more than making its outputs, so it runs exactly once."""
    target = node.target
    if is_batch_norm(node):
        return False  # the second time without running statistics
    if isinstance(target, torch._ops.OpOverload):
        # Whether it draws random numbers is another question: attention is tagged as random though it mostly drops nothing.
        return target._schema.is_mutable or is_collective(node) or node.is_impure(impure_random=False)
    return node.is_impure() or "effect" in str(target)


def is_clone(node: fx.Node) -> bool:
    """A `clone()` that a script asked for; those that `contiguous()` makes name a format."""
    return node.target is aten.clone.default and node.kwargs.get("memory_format") is None


def is_repeatable(node: fx.Node, device: torch.device, compiled: bool) -> bool:
    """The op changes nothing but its outputs, and the random numbers that it draws can be had a second time.

    Args:
        compiled: by a compiler, which knows nothing of the states of random number generators.
    """
    return not has_side_effects(node) and (not is_random(node) or (device.type in RANDOM_DEVICES and not compiled))


def checkpoint_of(node: fx.Node) -> object | None:
    """Which `torch.utils.checkpoint` the node is inside of, if its results are not to be kept there; PyTorch notes it."""
    if node.meta.get("recompute") not in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return None
    return node.meta.get("ac_graph_id", 0)


# --- the passes of a joint graph ---


def unpin_overwritten(module: fx.GraphModule, overwritten: Sequence[fx.Node]) -> None:
    """Make sure that no op of the backward pass reads an input that the forward pass overwrites.

    Batch norm's backward takes the running statistics but, in training mode, does not look at them. Anything else that
    reads such an input in the backward pass gets a copy made in the forward pass.
    """
    for node in module.graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    depends = depends_on_tangents(module)
    for source in overwritten:
        views, copies = _views_of(source), dict[fx.Node, fx.Node]()
        for view in views:
            if view not in depends and not depends.isdisjoint(view.users):
                view.replace_all_uses_with(_copied(view, views, copies), delete_user_cb=depends.__contains__)


def _views_of(source: fx.Node) -> list[fx.Node]:
    """A node, and all that views its storage."""
    views = [source]
    for view in views:  # grows while it is read: views of views
        storages = {storage_key(t) for t in tensors_of(view)}
        views += [
            u for u in view.users if u not in views and tensors_of(u) and {storage_key(t) for t in tensors_of(u)} == storages
        ]
    return views


def _copied(view: fx.Node, views: list[fx.Node], copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """The same view of a copy of the first of `views`, which is made before all else; what is put in for that is noted in `copies`."""
    if view in copies:
        return copies[view]
    graph, after = view.graph, view
    if view is views[0]:
        while after.next.op == "placeholder":
            after = after.next
        with graph.inserting_after(after):
            made = graph.call_function(aten.clone.default, (view,))
        value = view.meta["val"]
        made.meta = {"val": value.new_empty_strided(value.shape, value.stride())}
    else:
        with graph.inserting_after(view):
            made = graph.node_copy(view, lambda read: _copied(read, views, copies) if read in views else read)
        made.meta["val"] = _computed(made)
    copies[view] = made
    return made


def arguments_of(module: fx.GraphModule) -> list[fx.Node]:
    """Placeholders of what the forward pass is called with, in their order."""
    return [node for node in module.graph.find_nodes(op="placeholder") if not is_tangent(node)]


def depends_on_tangents(module: fx.GraphModule) -> set[fx.Node]:
    return reached_from(filter(is_tangent, module.graph.nodes))


def reached_from(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Some nodes and all that are computed from them."""
    found = set(nodes)
    pending = list(found)
    while pending:
        new = [user for user in pending.pop().users if user.op != "output" and user not in found]
        found.update(new)
        pending += new
    return found


def split_passes(module: fx.GraphModule, outputs: Sequence[object]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Nodes of the forward pass (up to the last one that an output needs, or that writes into an input), then the others, each in the graph's order."""
    needed: set[fx.Node] = set()
    stack = [node for node in outputs if isinstance(node, fx.Node)]
    stack += [node for node in module.graph.nodes if writes_statistics(node)]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    depends = depends_on_tangents(module)
    order = [node for node in module.graph.nodes if node.op == "call_function"]
    last = max((index for index, node in enumerate(order) if node in needed), default=-1)
    if not any(is_tangent(node) for node in module.graph.nodes):
        last = len(order)
    forward = [node for index, node in enumerate(order) if index <= last and node not in depends]
    early = set(forward)
    return forward, [node for node in order if node not in early]
