"""The graphs that ops call: bodies of loops, branches, functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ..internals import function_definition, is_stateful, is_stateful_type
from .op_kinds import CALLS, READERS, SMALL

#: Random ops: each place in a graph has a state of its own, so that running a copy of it changes nothing.
_OWN_STATE = frozenset(
    {
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "RandomShuffle",
        "Multinomial",
        "RandomGamma",
    }
)

#: Stateful for TensorFlow, but running them changes nothing. (`Empty` is so that it is not taken for a constant.)
_UNCHANGING = READERS | {"ReadVariableOp", "Empty"}

#: The same for what is only inside of functions.
_HARMLESS = _UNCHANGING | _OWN_STATE | {"VarIsInitializedOp", "Placeholder", "_Arg", "_Retval"}


#: So far back it is followed what is in a list.
_MOST_STEPS = 100


def called(op: tf.Operation) -> list[str]:
    """Names of the functions that an op of a graph calls itself."""
    return _functions(op.node_def)


def changes_something(op: tf.Operation) -> bool:
    """Running the op does more than to give its outputs: a variable changes, or something is drawn, read or written."""
    if op.type not in CALLS:
        return is_stateful(op) and op.type not in _UNCHANGING
    return any(
        is_stateful_type(node.op) and node.op not in _HARMLESS and not _called_by(node, op.graph)
        for definition in _definitions(op)
        for node in definition.node_def
    )


def draws(op: tf.Operation) -> bool:
    """The op draws random numbers with a state of its own: a copy of it in another graph draws without changing anything here."""
    return op.type in _OWN_STATE


def resources_of(op: tf.Operation) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Handles of variables and the like that an op reads, and those that it may change."""
    handles = {tensor.name: number for number, tensor in enumerate(op.inputs) if tensor.dtype == tf.resource}
    if op.type == "ReadVariableOp" or op.type in READERS:
        return [op.inputs[number] for number in handles.values()], []
    only_read = set(op.node_def.attr["_read_only_resource_inputs"].list.i) if op.type in CALLS else set()
    reads = [op.inputs[number] for number in handles.values() if number in only_read]
    return reads, [op.inputs[number] for number in handles.values() if number not in only_read]


def lasting_bytes(op: tf.Operation) -> int:
    """Bytes that the graphs an op calls make in their first run and keep: large constants, and what stands for outputs of branches
    that are not taken."""
    return sum(_lasting(node) for definition in _definitions(op) for node in definition.node_def) if op.type in CALLS else 0


def _lasting(node: tf.compat.v1.NodeDef) -> int:
    if node.op == "Const":
        tensor = node.attr["value"].tensor
        shape, dtype = tf.TensorShape(tensor.tensor_shape), tf.as_dtype(tensor.dtype)
    elif node.op == "FakeParam":
        shape, dtype = tf.TensorShape(node.attr["shape"].shape), tf.as_dtype(node.attr["dtype"].type)
    else:
        return 0
    if dtype in (tf.string, tf.variant, tf.resource) or not shape.is_fully_defined():
        return 0
    size = (shape.num_elements() or 0) * dtype.size
    return int(size) if size > SMALL else 0


def digest(op: tf.Operation) -> str:
    """What an op does, without the names that one and the same graph is given anew whenever it is traced."""
    return _digest(op.node_def, op.graph)


def element_types(tensor: tf.Tensor) -> tuple[bool, tf.DType] | None:
    """Whether something is a list (or else an optional value), and the type of what is in it; None if that cannot be told."""
    op, number = tensor.op, tensor.value_index
    for _ in range(_MOST_STEPS):
        if (found := _element_type(op.node_def)) is not None:
            return found
        if op.type in CALLS:
            return _element_type_of_result(op, number)
        same = next((one for one in op.inputs if one.dtype == tf.variant), None)  # AddN, ZerosLike
        if same is None:
            return None
        op, number = same.op, same.value_index
    return None


def _element_type_of_result(op: tf.Operation, number: int) -> tuple[bool, tf.DType] | None:
    """The same for an output of a loop or a branch: of what its graph puts there, or else of the input that it passes on."""
    for name in called(op):
        definition = function_definition(op.graph, name)
        if definition is None or len(definition.signature.output_arg) != len(op.outputs):
            continue  # the condition of a loop
        nodes = {node.name: node for node in definition.node_def}
        arguments = [one.name for one in definition.signature.input_arg]
        edge = definition.ret[definition.signature.output_arg[number].name]
        for _ in range(_MOST_STEPS):
            node = nodes.get(edge.partition(":")[0])
            if node is None:
                break
            if (found := _element_type(node)) is not None:
                return found
            edge = node.input[0] if node.input else ""
        if edge in arguments and len(arguments) == len(op.inputs):
            return element_types(op.inputs[arguments.index(edge)])
    return None


def _element_type(node: Any) -> tuple[bool, tf.DType] | None:
    if "element_dtype" in node.attr:
        return True, tf.as_dtype(node.attr["element_dtype"].type)
    if node.op == "OptionalFromValue" and len(node.attr["Toutput_types"].list.type) == 1:
        return False, tf.as_dtype(node.attr["Toutput_types"].list.type[0])
    return None


def _digest(node: Any, graph: tf.Graph) -> str:
    parts = [node.op]
    for name, attribute in sorted(node.attr.items()):
        if name.startswith("_"):
            continue
        if names := [*([attribute.func.name] if attribute.HasField("func") else ()), *(f.name for f in attribute.list.func)]:
            parts += [name, *(_digest_of_function(one, graph) for one in names)]
        else:
            parts.append(f"{name}:{attribute.SerializeToString(deterministic=True).hex()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digest_of_function(name: str, graph: tf.Graph) -> str:
    definition = function_definition(graph, name)
    if definition is None:
        return name
    places = {one.name: str(number) for number, one in enumerate((*definition.signature.input_arg, *definition.node_def))}

    def placed(edge: str) -> str:
        first, *rest = edge.removeprefix("^").split(":")
        return ":".join((edge[: edge.startswith("^")] + places.get(first, first), *rest))

    parts = [str(one.type) for one in definition.signature.input_arg]
    parts += [f"{_digest(node, graph)} {' '.join(map(placed, node.input))}" for node in definition.node_def]
    parts += [placed(definition.ret[one.name]) for one in definition.signature.output_arg]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _definitions(op: tf.Operation) -> Iterator[Any]:
    """The graph of every function that is called, once for each place that calls it."""
    stack = called(op)
    while stack:
        definition = function_definition(op.graph, stack.pop())
        if definition is not None:
            yield definition
            for node in definition.node_def:
                stack += _called_by(node, op.graph)


def _called_by(node: Any, graph: tf.Graph) -> list[str]:
    """Names of the functions that a node of a function calls: those it is given, or the one whose name is its op."""
    if node.op in CALLS:
        return _functions(node)
    return [] if function_definition(graph, node.op) is None else [node.op]


def _functions(node: Any) -> list[str]:
    names: list[str] = []
    for name in sorted(node.attr):
        if not name.startswith("_"):
            attribute = node.attr[name]
            names += [attribute.func.name] if attribute.HasField("func") else []
            names += [one.name for one in attribute.list.func]
    return names
