"""Sizes that a trace knows only as symbols, and what they are in one call.

A graph may be traced once for all shapes: sizes are then expressions of symbols such as the batch size and the length of the
text. The inputs of a call bind the symbols to whole numbers, and with them every size of the trace. Nothing here asks PyTorch
to compare symbolic numbers: that would tie the trace to the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

import torch
from torch import fx

from ...errors import CheckmateError
from ..pytorch.internals import SIZE_FUNCTIONS, size_as_python

#: What the symbols of a trace are in one call, in the order of `Sizes.symbols`: equal for calls with the same sizes.
Bindings = tuple[int, ...]
#: From a number of a trace, symbolic or not, to a plain one.
Number = Callable[[Any], Any]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def hint(number: Any) -> Any:
    """The number that the trace was made with; 1 where nothing is known about it."""
    if not isinstance(number, _SYMBOLIC):
        return number
    return _plain(number, 1 if _is_unknown(number) else number.node.hint)


def _is_unknown(number: Any) -> bool:
    """A symbolic number that stands for no plain one: it depends on data, or is the length of sequences that differ in length."""
    return not isinstance(number.node.hint, int | float)


def _plain(symbolic: Any, number: Any) -> Any:
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(symbolic)]
    return kind(number)


@dataclass(frozen=True)
class _Source:
    """Where an input of a call shows a number: itself, or a size, a stride, the offset of a tensor, or the bytes of its storage."""

    position: int
    kind: str
    axis: int

    def read(self, inputs: Sequence[Any]) -> Any:
        value = inputs[self.position]
        if self.kind == "number":
            return value
        if self.kind == "size":
            return value.shape[self.axis]
        if self.kind == "bytes":
            return value.untyped_storage().nbytes()
        return value.stride(self.axis) if self.kind == "stride" else value.storage_offset()


class Sizes:
    """The symbols of one trace.

    Args:
        inputs: the (fake) inputs of the trace, in the order in which calls give real ones.

    Attributes:
        hints: what the symbols were when the trace was made.
    """

    def __init__(self, inputs: Sequence[Any]):
        self._sources: dict[Any, _Source] = {}
        self._bytes: dict[Any, str] = {}  # of storages, and names for these numbers
        hints: dict[Any, int] = {}
        # A number that is an input by itself is the quickest to read, and an offset the last that one would ask for.
        shown = sorted(_numbers_of(inputs), key=lambda item: ("number", "size", "stride", "offset").index(item[0].kind))
        for source, number in shown:
            symbol = _expression(number)
            if symbol is not None and symbol.is_symbol and symbol not in self._sources and not _is_unknown(number):
                self._sources[symbol] = source
                hints[symbol] = int(number.node.hint)
        # The storage of a view is as large as the tensor that it is a part of, whose sizes the view need not show.
        for position, value in enumerate(inputs):
            whole: Any = storage_bytes(value) if isinstance(value, torch.Tensor) else 0
            if not self.knows(whole) and not _is_unknown(whole):
                name = self._bytes[_expression(whole)] = f"bytes_{position}"
                self._sources[name] = _Source(position, "bytes", 0)
                hints[name] = int(whole.node.hint)
        self._readers = list(self._sources.values())
        self._parameters = ", ".join(map(str, self._sources))
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self.hints: Bindings = tuple(hints.values())

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols; none for a trace with fixed sizes."""
        return tuple(map(str, self._sources))

    def bind(self, inputs: Sequence[Any]) -> Bindings:
        """What the symbols are for the inputs of one call."""
        return tuple(int(source.read(inputs)) for source in self._readers)

    def knows(self, number: Any) -> bool:
        """The number follows from the inputs' sizes; False if it depends on data."""
        expression = _expression(number)
        return expression is None or expression in self._bytes or expression.free_symbols <= self._sources.keys()

    def function(self, numbers: Iterable[Any]) -> Callable[[Bindings], tuple[int, ...]]:
        """Sizes of the trace as a function of the bindings, compiled once.

        Raises:
            CheckmateError: one of them depends on data.
        """
        places: dict[Any, int] = {}
        order = []
        for number in numbers:
            if not self.knows(number):
                raise CheckmateError(
                    f"a tensor of this graph has a size that depends on data ({number}): leave "
                    "torch._dynamo.config.capture_dynamic_output_shape_ops and capture_scalar_outputs switched off"
                )
            expression = _expression(number)
            order.append(places.setdefault(int(number) if expression is None else expression, len(places)))
        code = ", ".join(str(item) if isinstance(item, int) else self._as_python(item) for item in places)
        evaluate = self._compile(f"({code},)" if places else "()")
        return lambda bindings: tuple(map(evaluate(*bindings).__getitem__, order))

    def at(self, bindings: Bindings) -> Number:
        """Every number of the trace at these bindings. One that depends on data takes its hint."""

        def number(given: Any) -> Any:
            expression = _expression(given)
            if expression is None:
                return given
            if not self.knows(given):
                return hint(given)
            if expression not in self._compiled:
                self._compiled[expression] = self._compile(self._as_python(expression))
            return _plain(given, self._compiled[expression](*bindings))

        return number

    def _as_python(self, expression: Any) -> str:
        return self._bytes.get(expression) or size_as_python(expression)

    def _compile(self, code: str) -> Callable[..., Any]:
        # The code is arithmetic on symbols that PyTorch has named.
        function: Callable[..., Any] = eval(f"lambda {self._parameters}: {code}", dict(SIZE_FUNCTIONS))
        return function


def _expression(number: Any) -> Any:
    """The expression behind a symbolic number; None for a plain one."""
    return number.node.expr if isinstance(number, _SYMBOLIC) else None


def _numbers_of(inputs: Sequence[Any]) -> Iterator[tuple[_Source, Any]]:
    """The symbolic whole numbers among inputs and in their shapes."""
    for position, value in enumerate(inputs):
        if isinstance(value, torch.SymInt):
            yield _Source(position, "number", 0), value
        elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
            places = [("size", axis, n) for axis, n in enumerate(value.shape)]
            places += [("stride", axis, n) for axis, n in enumerate(value.stride())]
            for kind, axis, number in [*places, ("offset", 0, value.storage_offset())]:
                if isinstance(number, torch.SymInt):
                    yield _Source(position, kind, axis), number


def within(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """None of these sizes is larger than the other in its place."""
    return len(sizes) == len(others) and all(map(le, sizes, others))


# --- tensors ---


def storage_key(tensor: torch.Tensor) -> int:
    """The identity of what holds a tensor's bytes; every fake tensor is kept alive by its node.

    A tensor without a plain storage (a sparse one) stands for itself: what it holds together is counted as its own.
    """
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def storage_bytes(tensor: torch.Tensor) -> Any:
    """Bytes of a tensor's storage, perhaps symbolic; of a sparse tensor those of its parts."""
    if tensor.layout is torch.strided:
        return tensor.untyped_storage().nbytes()
    if tensor.layout is torch.sparse_coo:
        return sum(part.numel() * part.element_size() for part in (tensor._indices(), tensor._values()))
    return tensor.numel() * tensor.element_size()  # no more than that, as sparse tensors are made to be smaller


def elements(tensor: torch.Tensor, number: Number) -> int:
    """How many a tensor has, where sizes are what `number` says."""
    return math.prod(int(number(size)) for size in tensor.shape)


@dataclass(frozen=True)
class Concrete:
    """A (fake) tensor at given sizes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor, number: Number) -> Concrete:
        """`nbytes` is that of the storage. A sparse tensor counts as a dense one of its shape in everything else."""
        shape = tuple(int(number(n)) for n in tensor.shape)
        stride = tuple(int(number(n)) for n in tensor.stride()) if tensor.layout is torch.strided else _contiguous(shape)
        return cls(shape, stride, int(number(storage_bytes(tensor))), tensor.dtype, tensor.device)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(shape)])


# --- nodes ---


class Scalars:
    """The nodes of a trace that stand for numbers which follow from its sizes: they are no ops and no values."""

    def __init__(self, module: fx.GraphModule, sizes: Sizes):
        self.sizes = sizes
        self._known: set[fx.Node] = set()
        for node in module.graph.nodes:
            if self._follows(node):
                self._known.add(node)

    def __contains__(self, node: object) -> bool:
        return node in self._known

    def _follows(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not isinstance(value, (int, float, *_SYMBOLIC)) or not self.sizes.knows(value):
            return False
        return isinstance(value, (int, torch.SymInt)) or all(source in self._known for source in node.all_input_nodes)

    def constant(self, node: fx.Node) -> Any:
        """The number, if the trace has it as a plain one; else None."""
        value = node.meta["val"]
        return None if isinstance(value, _SYMBOLIC) else value

    def function(self, nodes: Sequence[fx.Node]) -> Callable[[Bindings], tuple[Any, ...]]:
        """The numbers that nodes stand for, as a function of the bindings.

        Whole numbers come from their expressions. The others are computed step by step as the trace has it, because an
        expression may have been brought into another form, which rounds in another way.
        """
        needed = list(nodes)
        for node in needed:  # grows while it is read
            if not isinstance(node.meta["val"], (int, torch.SymInt)):
                needed += [source for source in node.all_input_nodes if source not in needed]
        whole = [node for node in needed if isinstance(node.meta["val"], (int, torch.SymInt))]
        evaluate = self.sizes.function(node.meta["val"] for node in whole)

        def numbers(bindings: Bindings) -> tuple[Any, ...]:
            found: dict[fx.Node, Any] = dict(zip(whole, evaluate(bindings), strict=True))
            return tuple(_computed(node, found) for node in nodes)

        return numbers


def _computed(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    if node not in found:
        if node.op != "call_function" or not callable(node.target):
            return hint(node.meta["val"])
        arguments, keywords = fx.map_arg((node.args, node.kwargs), lambda source: _computed(source, found))
        found[node] = node.target(*arguments, **keywords)
    return found[node]
