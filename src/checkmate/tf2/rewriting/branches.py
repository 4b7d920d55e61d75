"""What TensorFlow makes of the inside of branches.

Plain training runs branches taken apart, and TensorFlow rewrites them with the rest of the step: where an optimizer accumulates the
gradients of three batches, it multiplies by a third in place of dividing by three. Here branches stay whole until the plan runs, and each
of their functions is rewritten by itself. When it runs they are taken apart all the same: ops in whole ones would not run the kernels of
oneDNN, and of a convolution the gradient alone would take 30 MB more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..internals import is_stateful_type, known_with_whole_branches, rewritten_function, take_apart
from ..memory.branch_memory import BRANCH_BYTES, BRANCHES, in_turn
from ..memory.measure import zeros_outside
from ..ops.nodes import Emitted, function_definition_of

#: What loops and branches are taken apart into: cycles, and values that may never come.
_TAKEN_APART = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"})


def is_taken_apart(definition: tf.compat.v1.GraphDef) -> bool:
    """Loops or branches have been taken apart, which only the executor of TensorFlow can put in order."""
    return any(node.op in _TAKEN_APART for node in definition.node)


def rewrite_branches(definition: tf.compat.v1.GraphDef, values: Sequence[tf.Tensor], source: tf.Graph, library: Any) -> None:
    """Have the branches of a graph call what TensorFlow makes of their functions.

    Args:
        definition: what TensorFlow has made of a function; it is changed. values: what could be given to that. source: the graph that was
            traced. library: what has the new functions afterwards.
    """
    functions = {one.signature.name: one for one in library.function}
    library.function.extend(one for one in definition.library.function if one.signature.name not in functions)
    functions |= {one.signature.name: one for one in definition.library.function}
    take_apart(definition.node, True)  # when it runs
    given = {node.name: values[node.attr["index"].i] for node in definition.node if node.op == "_Arg"}
    for node in definition.node:
        if node.op not in BRANCHES:
            continue
        read = [given.get(edge) for edge in node.input if not edge.startswith("^")]
        for branch in (node.attr["then_branch"].func, node.attr["else_branch"].func):
            made = _rewritten(functions[branch.name], read[1:], source, library)
            if made is not None:
                emitted, taken = in_turn(made)
                node.attr[BRANCH_BYTES].i = max(node.attr[BRANCH_BYTES].i, taken)
                branch.name += f"_rewritten_{len(library.function)}"
                library.function.append(function_definition_of(branch.name, emitted))


def zeros(argument: tf.Tensor | tf.TensorSpec) -> tf.Tensor:
    """Something that can be taken for an argument; sizes that it leaves open are 1."""
    sizes = argument.shape if argument.shape.rank else ()
    return zeros_outside(tf.TensorShape([1 if size is None else size for size in sizes]), argument.dtype)


def _rewritten(function: Any, given: Sequence[tf.Tensor | None], source: tf.Graph, library: Any) -> Emitted | None:
    """What TensorFlow makes of the function of a branch; None where that cannot be told.

    Args:
        function: its definition. given: what it could be given, as far as that is known; variables have to be.
    """
    arguments: list[tf.Tensor | tf.TensorSpec] = []
    for number, value in enumerate(given):
        spec = _spec(function, number)
        if spec.dtype not in (tf.resource, tf.variant):
            arguments.append(spec)
        elif value is None:
            return None
        else:
            arguments.append(value)
    values = [zeros(argument) if isinstance(argument, tf.TensorSpec) else argument for argument in arguments]
    with known_with_whole_branches(_without_identities(function), source, library.function) as name:
        definition = rewritten_function(name, values, len(function.signature.output_arg))
    if definition is None or is_taken_apart(definition):
        return None
    rewrite_branches(definition, values, source, library)
    return _nodes(definition, arguments, source)


def _spec(function: Any, number: int) -> tf.TensorSpec:
    """What a function says of one of its arguments."""
    known = function.arg_attr[number].attr["_output_shapes"].list.shape
    return tf.TensorSpec(known[0] if known else None, function.signature.input_arg[number].type)


def _without_identities(function: Any) -> Any:
    """The definition of a function in which nothing reads identities of several tensors, which are gone where a branch was taken apart."""
    copy = type(function)()
    copy.CopyFrom(function)
    nodes = {node.name: node for node in copy.node_def}

    def origin(edge: str) -> str:
        made_by, _, place = edge.partition(":")
        node = nodes.get(made_by)
        if not place or node is None or node.op != "IdentityN":
            return edge
        return origin(node.input[int(place.rpartition(":")[2])])

    for node in copy.node_def:
        node.input[:] = map(origin, node.input)
    for name, edge in copy.ret.items():
        copy.ret[name] = origin(edge)
    return copy


def _nodes(definition: tf.compat.v1.GraphDef, arguments: Sequence[tf.Tensor | tf.TensorSpec], source: tf.Graph) -> Emitted:
    """The nodes of a rewritten function of so many arguments."""
    places = {node.attr["index"].i: node.name for node in definition.node if node.op == "_Arg"}
    results = {node.attr["index"].i: _in_full(node.input[0]) for node in definition.node if node.op == "_Retval"}
    nodes = [node for node in definition.node if node.op not in ("_Arg", "_Retval")]
    for node in nodes:
        node.input[:] = map(_in_full, node.input)
    return Emitted(
        arguments={places.get(number, f"not_read__{number}"): argument for number, argument in enumerate(arguments)},
        captured=[],
        nodes=nodes,
        outputs=[results[number] for number in range(len(results))],
        effects=[node.name for node in nodes if is_stateful_type(node.op)],
        source=source,
    )


def _in_full(edge: str) -> str:
    return edge if edge.startswith("^") or ":" in edge else f"{edge}:0"
