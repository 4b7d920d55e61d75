"""What PyTorch's caching allocator on CUDA counts as allocated, and reserves, when tensors come and go.

It takes segments from the device and gives out blocks of them: the smallest free block that is large enough, of which it splits off
what is left if that is worth it. So it counts more than tensors ask for, and reserves more than it counts. Both depend on the order of
requests alone, which a schedule says. This is the allocator as it is without `expandable_segments`, and for one stream.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ...graph import Graph
from ...schedule import Compute, Step, freed_next

#: Bytes: what sizes are multiples of; up to what they are small; and from what on they get segments of their own.
_UNIT, _SMALL, _LARGE = 512, 1 << 20, 10 << 20
#: Bytes of a segment for small requests, for others, and what those for one request are multiples of.
_SMALL_SEGMENT, _SEGMENT, _WHOLE = 2 << 20, 20 << 20, 2 << 20
#: Bytes that stay with a tensor of 1 MiB and more which found a block of any size: 46 to 100 KiB on average where steps of seven networks
#: peaked on an H100 (`requested` beside `peak` in `benchmarks/gpu.py`).
_LEFT_OVER = 96 << 10
#: In the names of ops that take a workspace for each gradient; all but the last are smaller by a sixteenth, about, so that the last may
#: find no room where they were (ResNet-50 on an H100: 91.9 and 97.9 MiB, 183.8 and 189.8, 77.7 and 84.4).
_TWICE, _LESS = "convolution_backward", 16
#: Of addresses, so that segments do not touch.
_APART = 1 << 44
#: From the third step on the same requests meet the same blocks, or nearly.
_STEPS = 3


@dataclass(eq=False)
class _Block:
    address: int
    size: int
    small: bool
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None


class CachingAllocator:
    """An allocator that nobody has asked for anything yet.

    Attributes:
        allocated, reserved: bytes now. most_allocated, most_reserved: at most so far.
    """

    def __init__(self) -> None:
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # by size and address
        self._segments = 0

    def allocate(self, size: int) -> int:
        """The address of a block for `size` bytes."""
        asked = max(_UNIT, in_blocks(size, _UNIT))
        small = asked <= _SMALL
        place = bisect_left(self._free[small], (asked, 0))
        if place == len(self._free[small]):
            self.add_segment(self._segments * _APART, segment_for(asked), small)
            place = bisect_left(self._free[small], (asked, 0))
        _, address = self._free[small].pop(place)
        block = self._blocks[address]
        block.free = False
        if (block.size - asked >= _UNIT) if small else (block.size - asked > _SMALL):
            rest = _Block(address + asked, block.size - asked, small, True, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, asked
            self._add(rest)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return address

    def allocate_for_a_moment(self, size: int) -> None:
        """A block that goes back at once; none for nothing."""
        if size:
            self.free(self.allocate(size))

    def free(self, address: int) -> None:
        """Take a block back; free ones beside it become one with it."""
        block = self._blocks.pop(address)
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._drop(before)
            block = _Block(before.address, before.size + block.size, block.small, True, before.before, after)
        if after is not None and after.free:
            self._drop(after)
            block = _Block(block.address, block.size + after.size, block.small, True, block.before, after.after)
        block.free = True
        if block.before is not None:
            block.before.after = block
        if block.after is not None:
            block.after.before = block
        self._add(block)

    def add_segment(self, address: int, size: int, small: bool) -> None:
        """Take a segment from the device."""
        self._segments += 1
        self._add(_Block(address, size, small))
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)

    def _add(self, block: _Block) -> None:
        self._blocks[block.address] = block
        insort(self._free[block.small], (block.size, block.address))

    def _drop(self, block: _Block) -> None:
        del self._blocks[block.address]
        blocks = self._free[block.small]
        del blocks[bisect_left(blocks, (block.size, block.address))]


def is_native(device: torch.device) -> bool:
    """Memory of the device is given out as this module says."""
    if device.type != "cuda":
        return False
    settings = "".join(os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    return "expandable_segments:True" not in settings and (
        not torch.cuda.is_available() or torch.cuda.get_allocator_backend() == "native"
    )


def by_chance(device: torch.device) -> int:
    """Bytes by which tensors may take more than is modelled. Which blocks are free depends on all that ran before, and one that is given
    out whole is as much too large at most."""
    return _SMALL if is_native(device) else 0


def segment_for(size: int) -> int:
    """Bytes of the segment that is taken for a request that no free block is large enough for."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _SEGMENT if size < _LARGE else in_blocks(size, _WHOLE)


def block_of(device: torch.device) -> int:
    """Bytes in multiples of which memory of a device is given out, as far as it is counted so."""
    return _UNIT if device.type == "cuda" else 1


def in_blocks(size: int, block: int) -> int:
    """Bytes of the blocks that so many bytes need."""
    return -(-size // block) * block


def bytes_taken(size: int, block: int) -> int:
    """What a storage takes of a device that gives memory out so, about: with what its block is larger than it, if that is not split off."""
    taken = in_blocks(size, block)
    if block == 1 or taken < _SMALL:
        return taken
    rest = segment_for(taken) - taken if taken >= _LARGE else _LEFT_OVER
    return taken + (rest if rest <= _SMALL else _LEFT_OVER)


def bytes_asked(taken: int) -> int:
    """What a storage asks of a CUDA device for that takes so much of it, or a size that takes as much."""
    exact = taken < _SMALL or (taken >= _LARGE and taken % _WHOLE == 0)
    return taken if exact else taken - _LEFT_OVER


def counted(graph: Graph, steps: Sequence[Step]) -> tuple[int, int]:
    """The most bytes that count as allocated, and that are reserved, when a schedule runs again and again, fixed memory left out.

    Values that are kept, such as gradients, are released before the next step.

    Args:
        graph: of a CUDA device, whose values are as large as `bytes_taken` says. steps: a valid schedule.
    """
    allocator = CachingAllocator()
    for _ in range(_STEPS):
        left = _step(allocator, graph, steps)
        for address in left:
            allocator.free(address)
    return allocator.most_allocated, allocator.most_reserved


def _step(allocator: CachingAllocator, graph: Graph, steps: Sequence[Step]) -> Iterable[int]:
    """Run a schedule; the addresses of what is live at its end."""
    at: dict[int, int] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Compute):
            op = graph.ops[step.op]
            old = [at.pop(value) for value in op.outputs if value in at]
            handed = at.pop(op.reuses, None) if op.reuses is not None and op.reuses in freed_next(steps, number) else None
            for value in op.outputs:
                size = graph.values[value].size
                if handed is not None and size == graph.values[op.reuses or 0].size:
                    at[value], handed = handed, None
                elif size:
                    at[value] = allocator.allocate(bytes_asked(size))
                if _TWICE in op.name:
                    allocator.allocate_for_a_moment(op.workspace - op.workspace // _LESS)
            allocator.allocate_for_a_moment(op.workspace)
            for address in old if handed is None else [*old, handed]:
                allocator.free(address)
        elif step.value in at:
            allocator.free(at.pop(step.value))
    return at.values()
