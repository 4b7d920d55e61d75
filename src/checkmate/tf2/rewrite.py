"""What TensorFlow makes of a traced step before it runs it: the graph after its rewriting (Grappler).

That graph is planned and emitted, with no rewriting afterwards. So the step runs the kernels of plain training: additions in
the same order and convolutions fused with what follows. Rewriting the emitted graph does not lead there, because control
edges keep the rewriting from many ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .internals import copy_handle_data, is_stateful_type, replace_input, rewritten_graph
from .measure import zeros_outside
from .op_kinds import counts_elements
from .sums import may_be_of_other_sizes, merged_additions, with_additions_apart, with_sums, with_terms_in_order

#: Loops and branches.
_WHOLE = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"})

#: What loops and branches inside of functions are taken apart into: cycles, and values that may never come.
_TAKEN_APART = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"})

#: They pass a control edge on.
_PASSED_ON = frozenset({"NoOp", "Identity", "IdentityN"})


@dataclass(eq=False)
class Rewritten:
    """A graph with the inputs and outputs of the function that it was made of."""

    graph: tf.Graph
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]


def rewritten(function: Any, argument_count: int, of_any_batch: Callable[[], Any] | None = None) -> Rewritten | None:
    """The graph that TensorFlow runs in place of a function's own. Nothing is run and no variable changes.

    Args:
        function: a concrete function. argument_count: how many of its inputs are arguments; the rest are captures.
        of_any_batch: makes the same for batches of any size, where that is what plain training runs.

    Returns:
        None where there are loops, or branches whose results other ops read; where some were taken apart all the same, which only the
        executor of TensorFlow can put in order; where there are ops that nobody else may make, and where other threads were in the way.
    """
    if not all(_only_acts(op) for op in function.graph.get_operations() if op.type in _WHOLE):
        return None
    zeros = [zeros_outside(t.shape, t.dtype) for t in function.inputs[:argument_count]]
    definition = rewritten_graph(function, zeros)
    if definition is None or any(node.op in _TAKEN_APART for node in definition.node):
        return None
    nodes = [*with_sums(definition)]
    if of_any_batch is not None:
        merged = merged_additions(definition, function.graph)
        if may_be_of_other_sizes(function.graph, merged) and (of_any := _of_any_batch(of_any_batch, zeros)) is not None:
            with_terms_in_order(nodes, of_any)
            apart = merged - merged_additions(of_any, function.graph)
            nodes = with_additions_apart(nodes, function.graph, apart)
    places: dict[str, int] = {}  # name of a node -> number of the input that it stands for
    results: dict[int, str] = {}
    kept = tf.compat.v1.GraphDef(versions=definition.versions, library=definition.library)
    passing = {node.name: node.op in _PASSED_ON or is_stateful_type(node.op) for node in definition.node}
    for node in nodes:
        if node.op == "_Arg":
            places[node.name] = node.attr["index"].i
        elif node.op == "_Retval":
            results[node.attr["index"].i] = node.input[0]
        else:
            copy = kept.node.add()
            copy.CopyFrom(node)
            _name_as_of_onednn(copy)
            # What is left of ops that are gone: a constant does not wait for what it was folded from.
            edges = [name for name in node.input if name.startswith("^") and not (passing[node.name] and passing[name[1:]])]
            for name in edges:
                copy.input.remove(name)
    graph, inputs = _made(function, kept, places)
    if graph is not None and (lost := _lost_shapes(graph, function.graph)):
        for node in kept.node:
            if node.name in lost:
                shapes = node.attr["_output_shapes"].list.shape
                shapes.extend(tensor.shape.as_proto() for tensor in lost[node.name].outputs)
        graph, inputs = _made(function, kept, places)
    if graph is None:
        return None
    return Rewritten(graph, inputs, [_output(graph, results[number], places, inputs) for number in range(len(results))])


def _of_any_batch(make: Callable[[], Any], zeros: list[tf.Tensor]) -> tf.compat.v1.GraphDef | None:
    """What TensorFlow runs in place of the function that is made. None if the user's code cannot be traced so: then it is not what plain
    training runs."""
    try:
        traced = make()
    except Exception:  # noqa: BLE001 - of any kind
        return None
    return rewritten_graph(traced, zeros)


def _made(function: Any, definition: Any, places: dict[str, int]) -> tuple[tf.Graph | None, list[tf.Tensor]]:
    """A graph by its definition, and its inputs in place of those of the function; None where there are ops that TensorFlow makes only
    while it rewrites."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = []
        for number, tensor in enumerate(function.inputs):
            # A name that is no part of another: the other ops keep theirs.
            place = tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"step_input__{number}")
            copy_handle_data(tensor, place)
            inputs.append(place)
        read = {name.partition(":")[0] for node in definition.node for name in node.input}
        given = {f"{name}:0": inputs[number] for name, number in places.items() if name in read}
        try:
            tf.graph_util.import_graph_def(definition, input_map=given, name="")
        except ValueError:
            return None, []
    return graph, inputs


def _lost_shapes(graph: tf.Graph, traced: tf.Graph) -> dict[str, tf.Operation]:
    """Traced ops, by name, whose shapes are known and those of their successors in the graph are not: `set_shape` told them, which is in
    no definition."""
    known = {op.name: op for op in traced.get_operations() if all(tensor.shape.is_fully_defined() for tensor in op.outputs)}
    return {
        op.name: known[op.name]
        for op in graph.get_operations()
        if op.name in known
        and known[op.name].type == op.type
        and not all(tensor.shape.is_fully_defined() for tensor in op.outputs)
    }


def _only_acts(op: tf.Operation) -> bool:
    """A branch that changes variables and computes nothing for other ops, as where an optimizer accumulates gradients.

    What TensorFlow makes of the inside of other ones in plain training, where it takes them apart, it does not make of whole ones.
    """
    return op.type == "If" and all(tensor.shape.num_elements() == 1 for tensor in op.outputs)


def _name_as_of_onednn(node: Any) -> None:
    """Give a fused convolution of bfloat16 the name under which oneDNN has its kernel, as TensorFlow does before it runs one.

    Under its first name only its rewriting may make one.
    """
    if node.op == "_FusedConv2D" and node.attr["T"].type == tf.bfloat16.as_datatype_enum:
        node.op = "_MklNativeFusedConv2D"
        node.attr["_kernel"].s = b"MklNameChangeOp"


def _output(graph: tf.Graph, name: str, places: dict[str, int], inputs: list[tf.Tensor]) -> tf.Tensor:
    node, _, number = name.partition(":")
    return inputs[places[node]] if node in places else graph.get_tensor_by_name(f"{node}:{number or 0}")


def hide_counts(ops: Iterable[tf.Operation]) -> None:
    """Keep the numbers of elements by which gradients are divided from the rewriting; see `op_kinds.counts_elements`."""
    for op in ops:
        if counts_elements(op):
            count = op.inputs[1]
            replace_input(op, 1, tf.raw_ops.PlaceholderWithDefault(input=count, shape=count.shape))
