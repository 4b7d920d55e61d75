"""The joint forward and backward graph of PyTorch -> `checkmate.Graph`, and which FX nodes stand behind its ops.

An op is one FX node that computes something; its `getitem`s belong to it. A value is a storage that an op allocates.
Views are neither: they cost nothing, are made again wherever they are needed, and a reader of a view reads its storage.

The step is the forward ops, then one op that stands for what the user's script does between the forward and the
backward pass (a loss outside the compiled function), then the backward ops. Ops that only the backward pass needs are
backward ops even if they do not depend on a gradient (zeros to scatter into), so that they are not kept across.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx

from ..errors import CheckmateError
from ..graph import Graph, Op, Value
from .internals import forward_outputs, is_tangent

aten = torch.ops.aten
#: Name of the op between the two passes.
BETWEEN = "between forward and backward"
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d")
#: Bytes that a saved state of the random number generator takes (it lives on the CPU, whatever the device).
RNG_STATE_BYTES = 5056
#: CUDA memory comes in blocks of 512 bytes.
_CUDA_BLOCK = 512


class Cost(Protocol):
    """What a profiler says about one node."""

    @property
    def seconds(self) -> float: ...

    @property
    def workspace(self) -> int: ...


Profiler = Callable[[Sequence[fx.Node]], Mapping[fx.Node, Cost]]


@dataclass
class Captured:
    """A graph and the FX nodes behind it.

    Attributes:
        graph: what is scheduled.
        module: the joint graph.
        nodes: for each op the node that computes it; None for the op between the passes.
        between: the id of that op; None in a graph without a backward pass.
        value: for each node with a tensor that an op allocated, the value it reads (views included).
        holders: the inverse of `value`.
        bases: for each value the node that holds all of it.
        outputs: of the forward pass, in order. gradients: outputs of the backward pass, in order; None where there is none.
        sticky: nodes whose first computation is the one that counts (new running statistics of batch norm).
        device: where the budget applies.
        resident: bytes of parameters, buffers and inputs.
    """

    graph: Graph
    module: fx.GraphModule
    nodes: list[fx.Node | None]
    between: int | None
    value: dict[fx.Node, int]
    holders: list[list[fx.Node]]
    bases: list[fx.Node]
    outputs: list[fx.Node | None]
    gradients: list[fx.Node | None]
    sticky: set[fx.Node]
    device: torch.device
    resident: int


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


def is_batch_norm(node: fx.Node) -> bool:
    """Training-mode batch norm that yields new running statistics: recomputed without them."""
    return node.target is aten._native_batch_norm_legit_functional.default and bool(node.args[5])


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


def _has_side_effects(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable or target.namespace in _COLLECTIVES or (node.is_impure() and not is_random(node))
    return node.is_impure() or "effect" in str(target)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # the identity of a storage; every fake tensor is kept alive by its node


def _main_device(module: fx.GraphModule) -> torch.device:
    """The device of the graph: an accelerator if any tensor is on one."""
    devices = dict.fromkeys(tensor.device for node in module.graph.nodes for tensor in tensors_of(node))
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    return accelerators[0] if accelerators else torch.device("cpu")


class _Storages:
    """Bytes of storages on the device that the budget is for."""

    def __init__(self, device: torch.device):
        self.device = device

    def size(self, tensor: torch.Tensor) -> int:
        if tensor.device.type != self.device.type:
            return 0
        size = tensor.untyped_storage().nbytes()
        if not isinstance(size, int):
            raise CheckmateError("a tensor of this graph has a size that depends on data: compile with dynamic=False")
        return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK if self.device.type == "cuda" else size


def capture_joint(
    module: fx.GraphModule,
    num_forward_outputs: int,
    profile: Profiler,
    *,
    between_workspace: int | None = None,
    name: str = "graph",
) -> Captured:
    """Read a joint graph. It is cleaned in place: dead code goes, batch norm loses what would pin its running statistics.

    Args:
        module: the joint forward and backward graph of AOT autograd, with fake tensors in `node.meta["val"]`.
        num_forward_outputs: how many of its outputs are the forward's.
        profile: cost and workspace of ops.
        between_workspace: bytes that the user's script needs between the passes, beyond outputs and their gradients; None:
            an estimate, twice the bytes of the outputs with a gradient (what a cross entropy outside the graph takes).
        name: of the graph.
    """
    graph = module.graph
    graph.eliminate_dead_code()
    _, _, overwritten, _ = forward_outputs(module, num_forward_outputs)
    _unpin_overwritten(module, overwritten)
    module.recompile()
    outputs, gradients, overwritten, is_update = forward_outputs(module, num_forward_outputs)
    device = _main_device(module)
    storages = _Storages(device)

    inputs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr") and not is_tangent(node)]
    fixed: dict[int, int] = {}
    for node in inputs:
        for tensor in tensors_of(node):
            fixed[_storage(tensor)] = storages.size(tensor)
    resident = sum(fixed.values())
    forward, backward = _split(module, outputs)

    # Values: storages in the order in which ops make them.
    owner: dict[int, int] = {}
    values: list[Value] = []
    bases: list[fx.Node] = []
    holders: list[list[fx.Node]] = []
    value_of: dict[fx.Node, int] = {}
    sticky: set[fx.Node] = set()

    def new_value(node: fx.Node, tensor: torch.Tensor) -> int:
        owner[_storage(tensor)] = len(values)
        values.append(Value(node.name, storages.size(tensor)))
        bases.append(node)
        holders.append([])
        return len(values) - 1

    def hold(node: fx.Node, value: int) -> None:
        value_of[node] = value
        holders[value].append(node)

    parts: list[tuple[fx.Node | None, tuple[int, ...], tuple[int, ...], str]] = []
    tangents = [node for node in graph.nodes if is_tangent(node)]

    def read(nodes: Sequence[fx.Node]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for node in nodes:
            for tensor in tensors_of(node):
                value = owner.get(_storage(tensor))
                if value is not None:
                    found[value] = None
        return tuple(found)

    def add(node: fx.Node, phase: str) -> None:
        if node.op != "call_function" or node.target is operator.getitem:
            tensors = tensors_of(node)
            if node.op == "call_function" and tensors and _storage(tensors[0]) in owner and node not in value_of:
                hold(node, owner[_storage(tensors[0])])
            return
        made = tensors_of(node)
        fresh = {_storage(t): t for t in made if _storage(t) not in owner and _storage(t) not in fixed}
        if made and not fresh and not _has_side_effects(node):  # a view
            if _storage(made[0]) in owner:
                hold(node, owner[_storage(made[0])])
            return
        reads = read(node.all_input_nodes)
        produced: list[int] = []
        if isinstance(node.meta.get("val"), torch.Tensor):
            for tensor in fresh.values():
                produced.append(new_value(node, tensor))
                hold(node, produced[-1])
        else:
            items = {user: tensors_of(user) for user in node.users if user.target is operator.getitem}
            for storage, tensor in fresh.items():
                users = [user for user, yielded in items.items() if [_storage(t) for t in yielded] == [storage]]
                if is_batch_norm(node) and users and all(user.args[1] in (3, 4) for user in users):
                    sticky.update(users)
                    fixed[storage] = storages.size(tensor)
                elif users:
                    produced.append(new_value(users[0], tensor))
                    for user in users:
                        hold(user, produced[-1])
                # An output that nobody takes dies with the op: its bytes are part of the workspace.
        parts.append((node, reads, tuple(produced), phase))

    for node in forward:
        add(node, "forward")
    between = None
    if tangents:
        between = len(parts)
        reads = read([node for node in outputs if isinstance(node, fx.Node)])
        produced = []
        for node in tangents:
            for tensor in tensors_of(node):
                produced.append(new_value(node, tensor))
                hold(node, produced[-1])
        if between_workspace is None:
            big = sum(t.untyped_storage().nbytes() for node in tangents for t in tensors_of(node) if t.numel() > 1)
            between_workspace = 2 * big
        parts.append((None, reads, tuple(produced), "loss"))
    for node in backward:
        add(node, "backward")

    # What the caller gets is live to the end. An update of an input is copied into it right after the forward pass.
    # The gradient of a scalar is the root of the backward pass, which autograd holds to its end.
    kept = {value_of[node] for node in tangents if node in value_of and tensors_of(node)[0].numel() <= 1}
    returned: set[int] = set()
    for output, update in zip(outputs, is_update, strict=True):
        if isinstance(output, fx.Node) and output in value_of:
            returned.add(value_of[output])
            if not (update and tangents):
                kept.add(value_of[output])
    kept.update(value_of[node] for node in gradients if isinstance(node, fx.Node) and node in value_of)
    values = [Value(v.name, v.size, keep=i in kept) for i, v in enumerate(values)]

    roots = {_storage(t) for node in overwritten for t in tensors_of(node)}
    costs = profile([node for node, *_ in parts if node is not None])
    ops = []
    states = 0
    for node, reads, made_values, phase in parts:
        if node is None:
            ops.append(Op(BETWEEN, 0.0, reads, made_values, between_workspace or 0, recomputable=False, phase=phase))
            continue
        cost = costs[node]
        # An output that the script holds cannot be dropped, and an input that the forward pass overwrites cannot be read
        # again once it has been.
        reads_overwritten = any(_storage(t) in roots for n in node.all_input_nodes for t in tensors_of(n))
        again = not (
            _has_side_effects(node)
            or any(value in returned for value in made_values)
            or (reads_overwritten and not is_batch_norm(node))
        )
        workspace = cost.workspace
        if again and is_random(node) and device.type == "cpu":
            states += RNG_STATE_BYTES
            workspace += RNG_STATE_BYTES  # while the op is replayed, the state to go back to
        ops.append(Op(node.name, cost.seconds, reads, made_values, workspace, again, phase))
    scheduled = Graph(ops, values, sum(fixed.values()) + states, name)
    return Captured(
        scheduled,
        module,
        [part[0] for part in parts],
        between,
        value_of,
        holders,
        bases,
        [node if isinstance(node, fx.Node) else None for node in outputs],
        [node if isinstance(node, fx.Node) else None for node in gradients],
        sticky,
        device,
        resident,
    )


def _unpin_overwritten(module: fx.GraphModule, overwritten: Sequence[fx.Node]) -> None:
    """Make sure that no op of the backward pass reads an input that the forward pass overwrites.

    Batch norm's backward takes the running statistics but, in training mode, does not look at them. Anything else that
    reads such an input in the backward pass gets a copy made in the forward pass.
    """
    for node in module.graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.args = (*node.args[:3], None, None, *node.args[5:])
    depends = _depends_on_tangents(module)
    for source in overwritten:
        views = [source]
        for view in views:  # grows while it is read: views of views
            storages = {_storage(t) for t in tensors_of(view)}
            views += [
                u for u in view.users if u not in views and tensors_of(u) and {_storage(t) for t in tensors_of(u)} == storages
            ]
        late = [user for view in views for user in view.users if user in depends]
        if late:
            after = source
            while after.next.op == "placeholder":
                after = after.next
            with module.graph.inserting_after(after):
                copy = module.graph.call_function(aten.clone.default, (source,))
            value = source.meta["val"]
            copy.meta = {"val": value.new_empty_strided(value.shape, value.stride())}
            for view in views:
                if view is source:
                    source.replace_all_uses_with(copy, delete_user_cb=lambda user: user in depends)
                else:
                    raise CheckmateError(
                        f"a view of {source.name}, which the forward pass overwrites, is read by the backward pass"
                    )


def _depends_on_tangents(module: fx.GraphModule) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op != "output" and (is_tangent(node) or any(n in found for n in node.all_input_nodes)):
            found.add(node)
    return found


def _split(module: fx.GraphModule, outputs: Sequence[object]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Nodes of the forward pass (up to the last one that an output needs), then the others, each in the graph's order."""
    needed: set[fx.Node] = set()
    stack = [node for node in outputs if isinstance(node, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    depends = _depends_on_tangents(module)
    order = [node for node in module.graph.nodes if node.op == "call_function"]
    last = max((index for index, node in enumerate(order) if node in needed), default=-1)
    if not any(is_tangent(node) for node in module.graph.nodes):
        last = len(order)
    forward = [node for index, node in enumerate(order) if index <= last and node not in depends]
    early = set(forward)
    return forward, [node for node in order if node not in early]
