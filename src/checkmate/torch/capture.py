"""The joint forward and backward graph of PyTorch -> `checkmate.Graph`, and which FX nodes stand behind its ops.

An op is one FX node that computes something; its `getitem`s belong to it. A value is a storage that an op allocates.
Views are neither: they cost nothing, are made again wherever they are needed, and a reader of a view reads its storage.

The step is the forward ops, then one op that stands for what the user's script does between the forward and the
backward pass (a loss outside the compiled function), then the backward ops. Ops that only the backward pass needs are
backward ops even if they do not depend on a gradient (zeros to scatter into), so that they are not kept across.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from ..errors import CheckmateError
from ..graph import Graph, Op, Value
from ..planning import OpCost
from .internals import forward_outputs, is_tangent
from .measure import same_device
from .random import RANDOM_DEVICES

aten = torch.ops.aten
#: Name of the op between the two passes.
BETWEEN = "between forward and backward"
_COLLECTIVES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d")
#: Bytes that a saved state of the random number generator takes (it lives on the CPU, whatever the device).
RNG_STATE_BYTES = 5056
#: CUDA memory comes in blocks of 512 bytes.
_CUDA_BLOCK = 512

Profiler = Callable[[Sequence[fx.Node]], Mapping[fx.Node, OpCost]]


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


def read_joint_graph(
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

    Raises:
        CheckmateError: a size depends on data, or a view of an overwritten input is read by the backward pass.
    """
    module.graph.eliminate_dead_code()
    _, _, overwritten, _ = forward_outputs(module, num_forward_outputs)
    _unpin_overwritten(module, overwritten)
    module.recompile()
    return _JointReader(module, num_forward_outputs).read(profile, between_workspace, name)


@dataclass(frozen=True)
class _Part:
    """An op before its cost is known: what computes it (None: the user's script), the values it reads and makes."""

    node: fx.Node | None
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    phase: str


class _JointReader:
    """Goes through a clean joint graph once, in the order of execution, and notes ops, values and who holds which value."""

    def __init__(self, module: fx.GraphModule, num_forward_outputs: int):
        self.module = module
        self.outputs, self.gradients, overwritten, self.is_update = forward_outputs(module, num_forward_outputs)
        self.overwritten = {_storage(tensor) for node in overwritten for tensor in tensors_of(node)}
        self.device = _main_device(module)
        self.tangents = [node for node in module.graph.nodes if is_tangent(node)]
        self.fixed: dict[int, int] = {}  # storages that live all the time: bytes
        for node in module.graph.nodes:
            if node.op in ("placeholder", "get_attr") and not is_tangent(node):
                self.fixed.update((_storage(tensor), self._bytes(tensor)) for tensor in tensors_of(node))
        self.resident = sum(self.fixed.values())
        self.parts: list[_Part] = []
        self.values: list[Value] = []
        self.bases: list[fx.Node] = []
        self.holders: list[list[fx.Node]] = []
        self.value_of: dict[fx.Node, int] = {}
        self.owner: dict[int, int] = {}  # storages that ops make: values
        self.sticky: set[fx.Node] = set()

    def read(self, profile: Profiler, between_workspace: int | None, name: str) -> Captured:
        """Ops, values and the nodes behind them."""
        forward, backward = _split(self.module, self.outputs)
        for node in forward:
            self._visit(node, "forward")
        between = None
        if self.tangents:
            between = len(self.parts)
            self._add_between()
        for node in backward:
            self._visit(node, "backward")
        if between_workspace is None:
            between_workspace = self._estimate_between()
        returned = self._returned()
        kept = self._kept(returned)
        values = [Value(value.name, value.size, keep=number in kept) for number, value in enumerate(self.values)]
        ops = self._ops(profile, set(returned), between_workspace)
        states = sum(
            RNG_STATE_BYTES for part, op in zip(self.parts, ops, strict=True) if self._saves_state(part.node, op.recomputable)
        )
        return Captured(
            graph=Graph(ops, values, sum(self.fixed.values()) + states, name),
            module=self.module,
            nodes=[part.node for part in self.parts],
            between=between,
            value=self.value_of,
            holders=self.holders,
            bases=self.bases,
            outputs=[node if isinstance(node, fx.Node) else None for node in self.outputs],
            gradients=[node if isinstance(node, fx.Node) else None for node in self.gradients],
            sticky=self.sticky,
            device=self.device,
            resident=self.resident,
        )

    # --- nodes, one by one ---

    def _visit(self, node: fx.Node, phase: str) -> None:
        """Take in the next node: a part of a tuple, a view, or an op."""
        made = tensors_of(node)
        if node.target is operator.getitem:
            if made and node not in self.value_of:
                self._hold_as_view(node, made[0])
            return
        fresh = {_storage(t): t for t in made if _storage(t) not in self.owner and _storage(t) not in self.fixed}
        if made and not fresh and not _has_side_effects(node):
            self._hold_as_view(node, made[0])
            return
        reads = self._values_of(node.all_input_nodes)
        if isinstance(node.meta.get("val"), torch.Tensor):
            makes = [self._new_value([node], tensor) for tensor in fresh.values()]
        else:
            makes = self._parts_of_tuple(node, fresh)
        self.parts.append(_Part(node, reads, tuple(makes), phase))

    def _parts_of_tuple(self, node: fx.Node, fresh: Mapping[int, torch.Tensor]) -> list[int]:
        """The values of an op with several outputs, each held by the `getitem`s that take it.

        An output that nobody takes dies with the op: its bytes are part of the workspace.
        """
        makes = []
        items = {user: tensors_of(user) for user in node.users if user.target is operator.getitem}
        for storage, tensor in fresh.items():
            users = [user for user, yielded in items.items() if [_storage(t) for t in yielded] == [storage]]
            if is_batch_norm(node) and users and all(user.args[1] in (3, 4) for user in users):
                self.sticky.update(users)
                self.fixed[storage] = self._bytes(tensor)
            elif users:
                makes.append(self._new_value(users, tensor))
        return makes

    def _add_between(self) -> None:
        """What the user's script does between the passes: it reads the outputs and makes their gradients."""
        reads = self._values_of([node for node in self.outputs if isinstance(node, fx.Node)])
        makes = [self._new_value([node], tensor) for node in self.tangents for tensor in tensors_of(node)]
        self.parts.append(_Part(None, reads, tuple(makes), "loss"))

    def _new_value(self, nodes: Sequence[fx.Node], tensor: torch.Tensor) -> int:
        """A value for the storage of `tensor`, held by these nodes, the first of which is its base."""
        value = self.owner[_storage(tensor)] = len(self.values)
        self.values.append(Value(nodes[0].name, self._bytes(tensor)))
        self.bases.append(nodes[0])
        self.holders.append([])
        for node in nodes:
            self._hold(node, value)
        return value

    def _hold(self, node: fx.Node, value: int) -> None:
        self.value_of[node] = value
        self.holders[value].append(node)

    def _hold_as_view(self, node: fx.Node, tensor: torch.Tensor) -> None:
        """A view of something that an op made holds that value; a view of an input holds nothing."""
        if _storage(tensor) in self.owner:
            self._hold(node, self.owner[_storage(tensor)])

    def _values_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        """The values behind these nodes, each once."""
        storages = [_storage(tensor) for node in nodes for tensor in tensors_of(node)]
        return tuple(dict.fromkeys(self.owner[storage] for storage in storages if storage in self.owner))

    def _bytes(self, tensor: torch.Tensor) -> int:
        """Bytes of the tensor's storage on the device that the budget is for."""
        if not same_device(tensor.device, self.device):
            return 0
        size = tensor.untyped_storage().nbytes()
        if not isinstance(size, int):
            raise CheckmateError("a tensor of this graph has a size that depends on data: compile with dynamic=False")
        return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK if self.device.type == "cuda" else size

    # --- once all nodes are known ---

    def _estimate_between(self) -> int:
        tensors = [tensor for node in self.tangents for tensor in tensors_of(node) if tensor.numel() > 1]
        return 2 * sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def _returned(self) -> dict[int, bool]:
        """Values that the forward pass returns: whether the caller holds them to the end.

        The new content of an input is copied into it right after the forward pass.
        """
        returned: dict[int, bool] = {}
        for output, update in zip(self.outputs, self.is_update, strict=True):
            if isinstance(output, fx.Node) and output in self.value_of:
                value = self.value_of[output]
                returned[value] = returned.get(value, False) or not (update and self.tangents)
        return returned

    def _kept(self, returned: Mapping[int, bool]) -> set[int]:
        """Values that are live to the end: what the caller gets, gradients, and the gradient of a scalar, which is the root of
        the backward pass: autograd holds it to its end."""
        kept = {value for value, to_the_end in returned.items() if to_the_end}
        kept.update(self.value_of[node] for node in self.gradients if isinstance(node, fx.Node) and node in self.value_of)
        scalars = [node for node in self.tangents if node in self.value_of and tensors_of(node)[0].numel() <= 1]
        return kept.union(self.value_of[node] for node in scalars)

    def _ops(self, profile: Profiler, returned: set[int], between_workspace: int) -> list[Op]:
        costs = profile([part.node for part in self.parts if part.node is not None])
        ops = []
        for part in self.parts:
            if part.node is None:
                ops.append(Op(BETWEEN, 0.0, part.reads, part.makes, between_workspace, recomputable=False, phase=part.phase))
                continue
            cost = costs[part.node]
            again = self._can_run_again(part.node) and returned.isdisjoint(part.makes)
            # While random numbers are drawn again, the state to go back to is kept.
            workspace = cost.workspace + (RNG_STATE_BYTES if self._saves_state(part.node, again) else 0)
            ops.append(Op(part.node.name, cost.seconds, part.reads, part.makes, workspace, again, part.phase))
        return ops

    def _can_run_again(self, node: fx.Node) -> bool:
        """It changes nothing but its outputs, and everything it reads and draws can be had a second time."""
        if _has_side_effects(node) or (is_random(node) and self.device.type not in RANDOM_DEVICES):
            return False
        # An input that the forward pass overwrites is another one afterwards; batch norm does not look at it the second time.
        read = {_storage(tensor) for source in node.all_input_nodes for tensor in tensors_of(source)}
        return is_batch_norm(node) or read.isdisjoint(self.overwritten)

    def _saves_state(self, node: fx.Node | None, recomputable: bool) -> bool:
        """The state of the random number generator is saved for this op, on the device of the budget."""
        return node is not None and recomputable and is_random(node) and self.device.type == "cpu"


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
