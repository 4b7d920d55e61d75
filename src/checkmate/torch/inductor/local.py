"""What kernels compute by themselves from what they read.

A value that several kernels of one pass read is computed by Inductor in each of them, where that takes little: it is never in memory.

The backward pass of an elementwise op reads values of the forward pass: where something was positive, what was normalized. Often its
kernel reads all that such a value is made of, too. To compute the value in that kernel once more takes arithmetic, which is there in
plenty, and saves the bytes of the value, which is what kernels wait for; and if nothing else reads it, it need not be kept, or even be
written.

Here ops are copied in the graph before it is planned, so that plans know what is really read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx
from torch.utils._pytree import tree_map

from ...graph import Op
from ...planning.fusion import Fusion, Kind
from ..ops.nodes import tensors_of
from ..ops.sizes import Number, storage_key
from .kinds import RatesOf, Work, is_heavy, is_reduction, kernel_rates, kind_of

#: The part of a value that may have to be kept in its place: statistics that it was normalized with, and the like.
_SMALL = 16
#: What reads more than this is written by Inductor where several kernels read it (its `realize_reads_threshold`).
_MOST_READS = 4


@dataclass(frozen=True)
class _Kernel:
    """A kernel that could compute a value by itself.

    Attributes:
        group: its ops. readers: those that read the value. seconds: that it would take more.
    """

    group: int
    readers: list[fx.Node]
    seconds: float


class ComputeWhereRead:
    """Copies ops to the kernels that read their results, where Inductor does, or where that takes less time and not more memory.

    Args:
        module: the joint graph, which is changed. fusion: its ops and kernels. nodes: of the ops.
        returned: values that the forward pass returns. overwritten: storages that it changes.
        number: what symbolic sizes are.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        fusion: Fusion,
        nodes: Sequence[fx.Node | None],
        returned: Collection[int],
        overwritten: Collection[int],
        number: Number,
        rates_of: RatesOf,
    ):
        self._module, self._fusion, self._all, self._graph = module, fusion, nodes, fusion.single
        self._returned, self._overwritten, self._number, self._rates_of = returned, overwritten, number, rates_of
        self._kinds = [kind_of(node) for node in nodes]
        self._readers: list[list[int]] = [[] for _ in self._graph.values]
        for place, op in enumerate(self._graph.ops):
            for value in op.inputs:
                self._readers[value].append(place)
        #: Values that the backward pass reads.
        self._late = {value for op in self._graph.ops if op.phase == "backward" for value in op.inputs}
        self._works: dict[int, Work] = {}

    def run(self) -> bool:
        """Whether anything was copied: then the graph is to be read again."""
        groups = range(len(self._fusion.members))
        return sum(map(self.inlined, groups)) > 0 or sum(map(self.computed_again, groups)) > 0  # all of a kind, then look anew

    def inlined(self, group: int) -> bool:
        """A value that one pass alone reads: copy its ops to all kernels but one, if Inductor will compute it in all of them."""
        root, readers = self._root(group), self._groups_that_read(group)
        if (
            len(readers) < 2
            or any(self._root(reader).phase != root.phase for reader in readers)
            or not self._can_be_copied(group)
        ):
            return False
        nodes = self._nodes(self._fusion.members[group])
        if len(self._work(group).read) > _MOST_READS or any(map(is_heavy, nodes)) or not all(map(self._is_kernel, readers)):
            return False
        _, *others = readers.items()
        self._copy(group, [_Kernel(reader, self._nodes(ops), 0.0) for reader, ops in others])
        return True

    def computed_again(self, group: int) -> bool:
        """A value of the forward pass: copy its ops to kernels of the backward pass that had better compute it by themselves."""
        root, readers = self._root(group), self._groups_that_read(group)
        late = {reader: ops for reader, ops in readers.items() if self._root(reader).phase == "backward"}
        if root.phase != "forward" or not late or not self._can_be_copied(group):
            return False
        size = self._graph.values[root.outputs[0]].size
        kernels = self._kernels(group, {reader: ops for reader, ops in late.items() if self._is_kernel(reader)})
        if len(kernels) == len(late):  # none needs it in memory: it will not be kept
            written = not all(self._is_kernel(reader) for reader in readers)
            saved = 0.0 if written else size / kernel_rates(self._last(group), self._rates_of).bytes_per_second
            if sum(kernel.seconds for kernel in kernels) < saved and self._kept_instead(group) <= size + size // _SMALL:
                self._copy(group, kernels)
                return True
        kernels = [kernel for kernel in kernels if kernel.seconds < 0]
        if not kernels or self._kept_instead(group) > size // _SMALL:
            return False
        self._copy(group, kernels)
        return True

    # --- what there is ---

    def _root(self, group: int) -> Op:
        return self._graph.ops[self._fusion.members[group][-1]]

    def _last(self, group: int) -> fx.Node:
        return self._nodes(self._fusion.members[group])[-1]

    def _is_kernel(self, group: int) -> bool:
        return self._kinds[self._fusion.members[group][-1]] is not Kind.CALL

    def _groups_that_read(self, group: int) -> dict[int, list[int]]:
        """The groups that read what this one makes, each with its ops that do."""
        found: dict[int, list[int]] = {}
        for op in (op for value in self._root(group).outputs for op in self._readers[value]):
            found.setdefault(self._fusion.group_of[op], []).append(op)
        return found

    def _work(self, group: int) -> Work:
        if group not in self._works:
            self._works[group] = Work.of(self._nodes(self._fusion.members[group]), self._number)
        return self._works[group]

    def _nodes(self, ops: Iterable[int]) -> list[fx.Node]:
        return [node for op in ops if (node := self._all[op]) is not None]

    # --- what can be copied, and is worth it ---

    def _can_be_copied(self, group: int) -> bool:
        """It is elementwise, makes one value, which nobody outside of the graph reads, and reads what is the same later."""
        outputs, members = self._root(group).outputs, self._fusion.members[group]
        if len(outputs) != 1 or self._graph.values[outputs[0]].keep or outputs[0] in self._returned:
            return False
        if not all(self._kinds[op] is Kind.INLINE and self._graph.ops[op].recomputable for op in members):
            return False
        return self._work(group).read.keys().isdisjoint(self._overwritten)

    def _kernels(self, group: int, readers: dict[int, list[int]]) -> list[_Kernel]:
        own, rates = self._work(group), kernel_rates(self._last(group), self._rates_of)
        (made,) = tensors_of(self._last(group))
        found = []
        for reader, ops in readers.items():
            # Sums of one shape run as one kernel: what one of them reads is there for all.
            together = [other for other in readers if self._sums(other) == self._sums(reader) is not None] or [reader]
            read = {storage: size for other in together for storage, size in self._work(other).read.items()}
            more = sum(size for storage, size in own.read.items() if storage not in read) - read.get(storage_key(made), 0)
            seconds = more / rates.bytes_per_second + own.flops / rates.flops_per_second
            found.append(_Kernel(reader, self._nodes(ops), seconds))
        return found

    def _sums(self, group: int) -> object:
        """The shape of the sums over elements that a kernel makes; None if it makes none."""
        last = self._last(group)
        return tuple(tensors_of(last)[0].shape) if self._is_kernel(group) and is_reduction(last) else None

    def _kept_instead(self, group: int) -> int:
        """Bytes of what the backward pass would read and does not read now."""
        members = self._fusion.members[group]
        inside = {value for op in members for value in self._graph.ops[op].outputs}
        read = {value for op in members for value in self._graph.ops[op].inputs}
        return sum(self._graph.values[value].size for value in read - inside - self._late)

    # --- the copies ---

    def _copy(self, group: int, kernels: Iterable[_Kernel]) -> None:
        members = self._fusion.members[group]
        own, nodes = self._work(group), self._nodes(members)
        (made,) = tensors_of(nodes[-1])
        for kernel in kernels:
            before = self._work(kernel.group)
            read = {storage: size for storage, size in before.read.items() if storage != storage_key(made)}
            self._works[kernel.group] = Work(before.flops + own.flops, before.made, {**own.read, **read})
            copies = _Copies(self._module, nodes, kernel.readers[0])
            for reader in kernel.readers:
                reader.args, reader.kwargs = fx.map_arg((reader.args, reader.kwargs), copies.of)
        self._late.update(value for op in members for value in self._graph.ops[op].inputs)


class _Copies:
    """Copies of ops, and of views of what they make, as they are asked for.

    Args:
        before: where they are put.
    """

    def __init__(self, module: fx.GraphModule, nodes: Sequence[fx.Node], before: fx.Node):
        self._module, self._before = module, before
        self._ops = set(nodes)
        self._storages = {storage_key(tensor) for node in nodes for tensor in tensors_of(node)}
        self._known: dict[fx.Node, fx.Node] = {}
        self._made: dict[int, torch.Tensor] = {}  # by the storage that it takes the place of

    def of(self, node: fx.Node) -> fx.Node:
        """The copy of a node, or the node itself if it is none of them."""
        if node not in self._known:
            mine = any(storage_key(tensor) in self._storages for tensor in tensors_of(node))
            self._known[node] = self._copied(node) if mine else node
        return self._known[node]

    def _copied(self, node: fx.Node) -> fx.Node:
        for source in node.all_input_nodes:
            self.of(source)  # first: what it reads comes before it
        with self._module.graph.inserting_before(self._before):
            copy = self._module.graph.node_copy(node, self.of)
        copy.meta = {**node.meta, "val": tree_map(partial(self._own, node in self._ops), node.meta["val"])}
        return copy

    def _own(self, made: bool, tensor: torch.Tensor) -> torch.Tensor:
        """What a copy makes, or a view of it, in place of this tensor."""
        if not made:  # several views of a value come as one list (split)
            return torch.as_strided(self._made[storage_key(tensor)], tensor.shape, tensor.stride(), tensor.storage_offset())
        self._made[storage_key(tensor)] = own = tensor.new_empty_strided(tensor.shape, tensor.stride())
        return own
