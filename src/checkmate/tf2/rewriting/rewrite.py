"""What TensorFlow makes of a traced step before it runs it: the graph after its rewriting (Grappler).

That graph is planned and emitted, with no rewriting afterwards. So the step runs the kernels of plain training: additions in
the same order and convolutions fused with what follows. Rewriting the emitted graph does not lead there, because control
edges keep the rewriting from many ops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from ..internals import copy_handle_data, is_stateful_type, replace_input, rewritten_graph
from ..ops.op_kinds import READERS, are_sizes_known, counts_elements, is_handle
from .branches import is_taken_apart, rewrite_branches, zeros
from .known_sizes import fill_in_sizes
from .lookups import look_up_in_place
from .sums import with_sums

#: Loops and branches.
_WHOLE = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"})

#: Stateful for TensorFlow, but nothing need wait for them.
_READING = READERS | {"ReadVariableOp", "VarHandleOp", "_Arg", "_Retval"}

#: They pass a control edge on.
_PASSED_ON = frozenset({"NoOp", "Identity", "IdentityN"})


class Rewritten(NamedTuple):
    """A graph with the inputs and outputs of the function that it was made of."""

    graph: tf.Graph
    inputs: list[tf.Tensor]
    outputs: list[tf.Tensor]


def rewriting_of(function: Any, argument_count: int) -> Rewriting | None:
    """What TensorFlow runs in place of a function. Nothing is run and no variable changes.

    Args:
        function: a concrete function; sizes of its arguments may be open. argument_count: how many of its inputs are arguments; the rest
            are captures.

    Returns:
        None where there are loops, or branches that compute more for other ops than numbers of numbers; where some were taken apart all
        the same, which only the executor of TensorFlow can put in order; and where other threads were in the way.
    """
    if not all(_may_stay_whole(op) for op in function.graph.get_operations() if op.type in _WHOLE):
        return None
    values = [*map(zeros, function.inputs[:argument_count]), *function.captured_inputs]
    definition = rewritten_graph(function, values)
    if definition is None or is_taken_apart(definition):
        return None
    rewrite_branches(definition, values, function.graph, definition.library)
    places: dict[str, int] = {}
    results: dict[int, str] = {}
    kept = tf.compat.v1.GraphDef(versions=definition.versions, library=definition.library)
    nodes = list(with_sums(definition))
    look_up_in_place(nodes)
    passing = {node.name: node.op in _PASSED_ON or is_stateful_type(node.op) for node in definition.node}
    handed_on = _handed_on(nodes, passing)
    for node in nodes:
        if node.op == "_Arg":
            places[node.name] = node.attr["index"].i
        elif node.op == "_Retval":
            results[node.attr["index"].i] = node.input[0]
        else:
            copy = kept.node.add()
            copy.CopyFrom(node)
            _name_as_of_onednn(copy)
            # Every node is on its device by now; what it shares that with may be gone, as arguments are.
            copy.attr.pop("_class", None)
            # What is left of ops that are gone: a constant does not wait for what it was folded from.
            edges = [name for name in node.input if name.startswith("^") and not (passing[node.name] and passing[name[1:]])]
            for name in edges:
                copy.input.remove(name)
            copy.input.extend(sorted(handed_on[node.name] - {*copy.input}))
    return Rewriting(function, kept, places, [results[number] for number in range(len(results))])


@dataclass(eq=False)
class Rewriting:
    """The nodes that TensorFlow runs in place of a function.

    Attributes:
        function: it is concrete, and may leave sizes open. places: for nodes that stand for inputs the numbers of these. results: tensors
            that are its outputs.
    """

    function: Any
    definition: tf.compat.v1.GraphDef
    places: dict[str, int]
    results: list[str]

    def at(self, arguments: Sequence[tf.TensorSpec], traced: Callable[[], tf.Graph]) -> Rewritten | None:
        """The graph of the nodes for arguments of known sizes.

        Args:
            traced: the function's graph where all sizes are known. It is asked for where some are lost.

        Returns:
            None where there are ops that TensorFlow makes only while it rewrites.
        """
        definition = tf.compat.v1.GraphDef()
        definition.CopyFrom(self.definition)
        taken = self.function.inputs
        shapes = [*(spec.shape for spec in arguments), *(tensor.shape for tensor in taken[len(arguments) :])]
        is_open = not are_sizes_known(taken[: len(arguments)])
        graph, inputs = self._made(definition, shapes)
        while graph is not None and is_open and fill_in_sizes(definition, self.results, graph):
            graph, inputs = self._made(definition, shapes)
        if graph is not None and (lost := _lost_shapes(graph, traced)):
            for node in definition.node:
                if node.name in lost:
                    known = node.attr["_output_shapes"].list.shape
                    known.extend(tensor.shape.as_proto() for tensor in lost[node.name].outputs)
            graph, inputs = self._made(definition, shapes)
        return None if graph is None else Rewritten(graph, inputs, [self._output(graph, name, inputs) for name in self.results])

    def _made(self, definition: Any, shapes: Sequence[tf.TensorShape]) -> tuple[tf.Graph | None, list[tf.Tensor]]:
        graph = tf.Graph()
        with graph.as_default():
            inputs = []
            for number, (tensor, shape) in enumerate(zip(self.function.inputs, shapes, strict=True)):
                # A name that is no part of another: the other ops keep theirs.
                place = tf.compat.v1.placeholder(tensor.dtype, shape, name=f"step_input__{number}")
                copy_handle_data(tensor, place)
                inputs.append(place)
            read = {name.partition(":")[0] for node in definition.node for name in node.input}
            given = {f"{name}:0": inputs[number] for name, number in self.places.items() if name in read}
            try:
                tf.graph_util.import_graph_def(definition, input_map=given, name="")
            except ValueError:
                return None, []
        return graph, inputs

    def _output(self, graph: tf.Graph, name: str, inputs: list[tf.Tensor]) -> tf.Tensor:
        node, _, number = name.partition(":")
        return inputs[self.places[node]] if node in self.places else graph.get_tensor_by_name(f"{node}:{number or 0}")


def _lost_shapes(graph: tf.Graph, traced: Callable[[], tf.Graph]) -> dict[str, tf.Operation]:
    """Traced ops, by name, whose shapes are known and those of their successors in the graph are not: `set_shape` told them, which is in
    no definition."""
    unknown = [op for op in graph.get_operations() if not are_sizes_known(op.outputs)]
    known = {op.name: op for op in traced().get_operations() if are_sizes_known(op.outputs)} if unknown else {}
    return {op.name: known[op.name] for op in unknown if op.name in known and known[op.name].type == op.type}


def _handed_on(nodes: Sequence[Any], passing: Mapping[str, bool]) -> defaultdict[str, set[str]]:
    """Control edges that nodes need in place of those of what they read.

    Where a change of a variable waits for others, as counting a step does for the updates of a legacy optimizer, it may be left to the
    constant that it reads to wait for them.

    Args:
        passing: of nodes, by name, whether they keep control edges.
    """
    changing = {node.name for node in nodes if node.op == "NoOp" or (is_stateful_type(node.op) and node.op not in _READING)}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for edge in node.input:
            readers[edge.partition(":")[0]].append(node.name)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        edges = {edge for edge in node.input if edge.startswith("^") and edge[1:] in changing}
        stack, seen = [] if passing.get(node.name) or not edges else [node.name], set()
        while stack:
            for name in readers[stack.pop()]:
                if name not in seen:
                    seen.add(name)
                    if passing.get(name):
                        found[name] |= edges
                    else:
                        stack.append(name)
    return found


def _may_stay_whole(op: tf.Operation) -> bool:
    """A branch that changes variables, as where an optimizer accumulates gradients, or makes numbers of numbers, as where a learning rate
    warms up.

    What TensorFlow makes of the inside of other ones in plain training, where it takes them apart, it does not make of whole ones.
    """
    if op.type == "StatelessIf":
        return all(tensor.shape.num_elements() == 1 and not is_handle(tensor) for tensor in (*op.inputs, *op.outputs))
    return op.type == "If" and all(tensor.shape.num_elements() == 1 for tensor in op.outputs)


def _name_as_of_onednn(node: Any) -> None:
    """Give a fused convolution of bfloat16 the name under which oneDNN has its kernel, as TensorFlow does before it runs one.

    Under its first name only its rewriting may make one.
    """
    if node.op == "_FusedConv2D" and node.attr["T"].type == tf.bfloat16.as_datatype_enum:
        node.op = "_MklNativeFusedConv2D"
        node.attr["_kernel"].s = b"MklNameChangeOp"


def hide_counts(ops: Iterable[tf.Operation]) -> None:
    """Keep the numbers of elements by which gradients are divided from the rewriting; see `op_kinds.counts_elements`."""
    for op in ops:
        if counts_elements(op):
            count = op.inputs[1]
            replace_input(op, 1, tf.raw_ops.PlaceholderWithDefault(input=count, shape=count.shape))
