"""A graph as a list of nodes, as TensorFlow stores it. Nodes are made here without TensorFlow's Python graphs, which take a
millisecond for each op: a step of ten thousand ops is emitted time and again, for every schedule that is tried out."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

from ..internals import (
    add_function,
    call_function,
    captured_in,
    copy_functions,
    op_definition,
    remove_function,
    variable_shapes,
)

_NUMBERS = itertools.count()

#: What the names of placed nodes begin with, and a slash.
PLACED = "planned"


@dataclass(eq=False)
class Emitted:
    """Nodes that compute a step.

    Attributes:
        arguments: what stood for them in the trace, by name; nodes read them as if nodes of these names made them. captured: what stands
            behind the last of them.
        nodes: every one after those that it reads, unless they were put in another order. outputs: names of tensors, as in "relu:0".
        effects: names of nodes that have to run. source: the graph whose functions they call.
    """

    arguments: dict[str, tf.Tensor]
    captured: list[Any]
    nodes: list[Any]
    outputs: list[str]
    effects: list[str]
    source: tf.Graph

    def in_order(self, names: Iterable[str]) -> Emitted:
        """The same nodes in another order."""
        nodes = {node.name: node for node in self.nodes}
        return replace(self, nodes=[nodes[name] for name in names])

    def place(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Add the nodes to the graph that is being built; its outputs."""
        copy_functions(self.source)
        inputs = [*arguments, *map(captured_in, self.captured)]
        read = {edge for node in self.nodes for edge in node.input}
        given = {f"{name}:0": tensor for name, tensor in zip(self.arguments, inputs, strict=True)}
        wanted = [name for name in self.outputs if name not in given]
        definition = tf.compat.v1.GraphDef(node=self.nodes)
        definition.versions.CopyFrom(tf.compat.v1.get_default_graph().graph_def_versions)
        used = {name: tensor for name, tensor in given.items() if name in read}
        made = dict(zip(wanted, tf.graph_util.import_graph_def(definition, used, wanted, name=PLACED), strict=True))
        return [given[name] if name in given else made[name] for name in self.outputs]

    def function(self) -> Callable[..., list[tf.Tensor]]:
        """What runs the nodes: from arguments to outputs. It is gone when nothing refers to it any more."""
        return _Function(self)


class _Function:
    def __init__(self, emitted: Emitted):
        self._name = f"checkmate_step_{next(_NUMBERS)}"
        self._captured = list(emitted.captured)
        self._outputs = len(emitted.outputs)
        self._source = emitted.source  # the functions that it calls are there as long as this is
        add_function(function_definition_of(self._name, emitted), emitted.source)
        weakref.finalize(self, remove_function, self._name).atexit = False

    def __call__(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        return call_function(self._name, [*arguments, *self._captured], self._outputs)


def function_definition_of(name: str, emitted: Emitted) -> Any:
    """The nodes as a function of TensorFlow: there an input is named after the output of the op that it is."""
    definition = function_pb2.FunctionDef()
    signature = definition.signature
    signature.name, signature.is_stateful = name, True
    for number, (argument, tensor) in enumerate(emitted.arguments.items()):
        signature.input_arg.add(name=argument, type=tensor.dtype.as_datatype_enum)
        _note_shape(definition.arg_attr[number].attr, tensor)
    kinds = {node.name: node for node in emitted.nodes}
    places: dict[str, list[str]] = {}

    def edge(tensor: str) -> str:
        made_by, _, number = tensor.rpartition(":")
        if made_by in emitted.arguments:
            return made_by
        if made_by not in places:
            places[made_by] = _output_names(kinds[made_by])
        return f"{made_by}:{places[made_by][int(number)]}"

    for node in emitted.nodes:
        copy = definition.node_def.add()
        copy.CopyFrom(node)
        copy.input[:] = [name if name.startswith("^") else edge(name) for name in node.input]
    for number, tensor in enumerate(emitted.outputs):
        made_by = tensor.rpartition(":")[0]
        kind = (
            emitted.arguments[made_by].dtype.as_datatype_enum
            if made_by in emitted.arguments
            else _type_of(kinds[made_by], tensor)
        )
        signature.output_arg.add(name=f"output_{number}", type=kind)
        definition.ret[f"output_{number}"] = edge(tensor)
    for number, effect in enumerate(dict.fromkeys(emitted.effects)):
        signature.control_output.append(f"effect_{number}")
        definition.control_ret[f"effect_{number}"] = effect
    return definition


def _note_shape(attributes: Any, tensor: tf.Tensor) -> None:
    """What graph rewriting wants to know of an argument: its shape, or that of the variable it stands for."""
    if tensor.dtype != tf.resource:
        attributes["_output_shapes"].list.shape.append(tensor.shape.as_proto())
        return
    for dtype, shape in variable_shapes(tensor):
        attributes["_handle_dtypes"].list.type.append(dtype)
        attributes["_handle_shapes"].list.shape.append(shape)


def _counts(node: Any) -> list[tuple[Any, int]]:
    """The outputs that a node's op is defined with, and of how many tensors each consists."""
    found = []
    for output in op_definition(node.op).output_arg:
        if output.number_attr:
            count = int(node.attr[output.number_attr].i)
        elif output.type_list_attr:
            count = len(node.attr[output.type_list_attr].list.type)
        else:
            count = 1
        found.append((output, count))
    return found


def _output_names(node: Any) -> list[str]:
    return [f"{output.name}:{number}" for output, count in _counts(node) for number in range(count)]


def _type_of(node: Any, tensor: str) -> int:
    types: list[int] = []
    for output, count in _counts(node):
        if output.type_list_attr:
            types += node.attr[output.type_list_attr].list.type
        else:
            types += [node.attr[output.type_attr].type if output.type_attr else output.type] * count
    return types[int(tensor.rpartition(":")[2])]


class Nodes:
    """Nodes that are made one after the other. Tensors are names, as in "relu:0"."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._constants: dict[bytes, str] = {}

    def copy(self, node: Any, name: str, inputs: Sequence[str], before: Sequence[str]) -> None:
        """The same op under another name, with other inputs, that waits for the nodes `before`."""
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        copy.name = name
        copy.input[:] = [*inputs, *(f"^{other}" for other in dict.fromkeys(before))]
        if "parallel_iterations" in copy.attr:
            # A loop ends one iteration before it begins the next: how many it has open is a matter of chance, and so what it takes.
            copy.attr["parallel_iterations"].i = 1
        self.made.append(copy)

    def add(self, kind: str, inputs: Sequence[str], before: Sequence[str] = (), **attributes: Any) -> str:
        """A new node; its name."""
        node = node_def_pb2.NodeDef(name=f"checkmate_{kind}_{len(self.made)}", op=kind)
        for key, given in attributes.items():
            node.attr[key].CopyFrom(_attribute(given))
        self.copy(node, node.name, inputs, before)
        return node.name

    def constant(self, array: np.ndarray) -> str:
        """A tensor with these numbers."""
        proto = tf.make_tensor_proto(array)
        key = proto.SerializeToString(deterministic=True)
        if key not in self._constants:
            dtype = tf.as_dtype(proto.dtype)
            self._constants[key] = self.add("Const", [], value=proto, dtype=dtype) + ":0"
        return self._constants[key]

    def first_number(self, tensor: str, dtype: tf.DType, before: Sequence[str] = ()) -> str:
        """A tensor with the first number of another one."""
        ends = [self.constant(np.array([number], np.int32)) for number in (-1, 0, 1)]
        flat = self.add("Reshape", [tensor, ends[0]], before, T=dtype, Tshape=tf.int32)
        return self.add("Slice", [f"{flat}:0", *ends[1:]], before, T=dtype, Index=tf.int32) + ":0"


def _attribute(given: Any) -> Any:
    if isinstance(given, tf.DType):
        return attr_value_pb2.AttrValue(type=given.as_datatype_enum)
    if isinstance(given, bool):
        return attr_value_pb2.AttrValue(b=given)
    return attr_value_pb2.AttrValue(tensor=given)
