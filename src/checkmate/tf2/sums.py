"""What TensorFlow's rewriting makes of sums.

It turns some into additions to a temporary variable, where it reckons that memory is short. The terms of such a sum are added one after
the other, each as soon as it is there: so they are rounded in another order than those of an `AddN`. The temporary variable cannot be
made twice, for its name may exist once only. So the sum becomes an `AddN` again, of its terms in the order in which they come when one
thread of TensorFlow runs the graph. It is the order that is seen most, not the only one: plain training does not quite repeat itself
here, for several threads take turns by chance.

And it makes one `AddN` of additions in a row where it knows that the sizes are equal. A trace for batches of any size may not tell that
where one for a given size does.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .op_kinds import IN_PLACE
from .order import is_gradient

#: The kernel of `AddN` adds so many terms from the first to the last; of more, it adds the rest by themselves before.
_IN_ONE_GO = 9

#: A thread that finds one of these ready runs it at once, before anything that takes time.
_AT_ONCE = frozenset(
    {
        *(
            "Assign",
            "AssignVariableOp",
            "Const",
            "ExpandDims",
            "Identity",
            "NoOp",
            "ReadVariableOp",
            "Reshape",
            "Shape",
            "Squeeze",
        ),
        *("_Arg", "_Retval"),
    }
)

#: In the names of nodes that stand for additions in a row, before the name of the last of these.
_IN_A_ROW = "ArithmeticOptimizer/AddOpsRewrite_"

#: What can be among them.
_ADDITIONS = frozenset({"Add", "AddN", "AddV2"})

#: The sizes of what they give follow from those of one large input.
_OF_ONE_SIZE = IN_PLACE | {"Cast", "Identity", "Max", "Mean", "Min", "StopGradient", "Sum"}


def with_sums(definition: tf.compat.v1.GraphDef) -> Iterator[Any]:
    """The nodes of a rewritten graph, with sums again where there were temporary variables."""
    nodes = {node.name: node for node in definition.node}
    ends = [node for node in definition.node if node.op == "DestroyTemporaryVariable"]
    places = {name: place for place, name in enumerate(_as_run(definition))} if ends else {}
    additions: dict[str, list[Any]] = {}
    left_out: set[str] = set()
    for end in ends:
        begin = nodes[_node(end.input[0])]  # zeros are assigned
        found = [nodes[_node(edge)] for edge in end.input[1:]]
        additions[end.name] = sorted((node for node in found if node.op == "AssignAdd"), key=lambda node: places[node.name])
        left_out.update([begin.name, *map(_node, begin.input), *(node.name for node in additions[end.name])])
    for node in definition.node:
        if node.name in additions:
            edges = [edge for edge in node.input[1:] if _node(edge) not in left_out]
            yield from _sum(node, [addition.input[1] for addition in additions[node.name]], edges)
        elif node.name not in left_out:
            yield node


def merged_additions(definition: tf.compat.v1.GraphDef, traced: tf.Graph) -> set[str]:
    """The last of additions in a row of tensors that became one node, by their names in the traced graph."""
    names = {node.name for node in definition.node}
    return {op.name for op in traced.get_operations() if _merged(op.name) in names and op.outputs[0].shape.rank}


def may_be_of_other_sizes(traced: tf.Graph, names: Iterable[str]) -> bool:
    """The rewriting may not know that the terms of one of these sums are of one size, if it does not know how many examples there are.

    It follows sizes that it does not know from tensor to tensor, but not through a `Reshape`.

    Args:
        names: of `merged_additions`.
    """
    ops = traced.get_operations()
    if not any(op.type == "Reshape" and _may_hold_examples(op.outputs[0]) and not is_gradient(op) for op in ops):
        return False
    places = {op.name: place for place, op in enumerate(ops)}
    return not all(_have_one_source(traced.get_operation_by_name(name), places) for name in names)


def _have_one_source(addition: tf.Operation, places: Mapping[str, int]) -> bool:
    """What is added up was computed from one tensor by ops that leave its size as it is, as in layer normalization.

    Args:
        places: of ops in the order in which they were made.
    """
    sources = {addition.name: addition}
    while True:
        op = sources.pop(max(sources, key=places.__getitem__))
        rank = op.outputs[0].shape.rank
        large = [tensor for tensor in op.inputs if _may_hold_examples(tensor) and tensor.shape.rank >= (rank or 0)]
        if rank is None or op.type not in _OF_ONE_SIZE or any(tensor.shape.rank > rank for tensor in large):
            return False
        sources |= {tensor.op.name: tensor.op for tensor in large}
        if len(sources) <= 1:
            return True


def _may_hold_examples(tensor: tf.Tensor) -> bool:
    """Its first dimension may be that of the batch."""
    return bool(tensor.shape.rank) and tensor.shape[0] != 1 and tensor.op.type not in ("Const", "ReadVariableOp")


def with_additions_apart(nodes: Sequence[Any], traced: tf.Graph, names: Iterable[str]) -> list[Any]:
    """The nodes of a rewritten graph with additions as they were traced, where their terms are still there.

    Args:
        names: of `merged_additions`.
    """
    found = list(nodes)
    for name in names:
        merged = _merged(name)
        scope, _, last = merged.partition(_IN_A_ROW)
        # Terms of several sizes are added up in groups.
        one = re.compile(f"{re.escape(scope + _IN_A_ROW)}((Leaf|Internal)_[0-9]+_)?{re.escape(last)}")
        made = {node.name: node for node in found if one.fullmatch(node.name)}
        if merged not in made:
            continue
        kept = {node.name for node in found} - {*made}
        additions: dict[str, Any] = {}
        rest = [traced.get_operation_by_name(name)]
        while rest:
            op = rest.pop()
            node = additions[op.name] = op.node_def
            node.device = made[merged].device
            edges = []
            for tensor, edge in zip(op.inputs, node.input, strict=False):  # control edges come last
                term = tensor.op.name
                edges.append(_merged(term) if _merged(term) in kept else edge)
                if edges[-1] == edge and term not in kept and term not in additions:
                    rest.append(tensor.op)
            node.input[:] = edges
        if all(node.op in _ADDITIONS for node in additions.values()):
            additions[name].name = merged  # by which others read it
            found = [*(node for node in found if node.name not in made), *additions.values()]
    return found


def _merged(name: str) -> str:
    """The name of the node that stands for additions in a row, by that of the last."""
    scope, slash, last = name.rpartition("/")
    return f"{scope}{slash}{_IN_A_ROW}{last}"


def with_terms_in_order(nodes: Sequence[Any], like: tf.compat.v1.GraphDef) -> None:
    """Put the terms of sums in the order that they have in another rewritten graph of the same step.

    The rewriting sorts them by name, and the gradient of an addition has one of its own where sizes are not known.
    """
    others = {node.name: node for node in like.node}
    for node in nodes:
        other = others.get(node.name)
        if node.op == "AddN" and other is not None and other.op == "AddN" and len(other.input) == len(node.input):
            terms = sorted(node.input)
            wanted = [_passed_on(edge, others, terms) for edge in other.input]
            if sorted(wanted) == terms:
                node.input[:] = wanted


def _passed_on(edge: str, nodes: Mapping[str, Any], terms: Sequence[str]) -> str:
    """Which of some terms comes to an edge, by ops that leave it as it is where the sizes of what was added up are equal."""
    while edge not in terms and (node := nodes.get(_node(edge))) is not None and node.op in ("Reshape", "Sum"):
        edge = node.input[0]
    return edge


def _sum(like: Any, terms: Iterable[str], edges: Iterable[str]) -> Iterator[Any]:
    """Nodes that add up terms one after the other; the last has the name, the type and the device of another node.

    Args:
        edges: control edges of the first.
    """
    rest = [*terms]
    while rest:
        some, rest = rest[:_IN_ONE_GO], rest[_IN_ONE_GO:]
        node = tf.compat.v1.NodeDef(name=f"{like.name}/{len(rest)}" if rest else like.name, op="AddN", device=like.device)
        node.input.extend([*some, *edges])
        node.attr["T"].CopyFrom(like.attr["T"])
        node.attr["N"].i = len(some)
        yield node
        rest, edges = [node.name, *rest] if rest else [], ()


def _as_run(definition: tf.compat.v1.GraphDef) -> list[str]:
    """Names of the nodes in the order in which one thread runs them.

    Of the ops that become ready when one is over it goes on with the last, and puts the others in front of what waits already.
    """
    waits = {node.name: len(node.input) for node in definition.node}
    at_once = {node.name: node.op in _AT_ONCE for node in definition.node}
    following: defaultdict[tuple[str, bool], list[str]] = defaultdict(list)
    for node in definition.node:
        for edge in node.input:
            following[_node(edge), edge.startswith("^")].append(node.name)
    order: list[str] = []
    waiting = deque(name for name, count in waits.items() if not count)
    while waiting:
        now = deque([waiting.popleft()])
        while now:
            done = now.popleft()
            order.append(done)
            later: list[str] = []
            for name in [*following[done, False], *following[done, True]]:
                waits[name] -= 1
                if not waits[name]:
                    (now if at_once[name] else later).append(name)
            if later and not now:
                now.append(later.pop())
            waiting.extendleft(later)
    return order


def _node(edge: str) -> str:
    return edge.removeprefix("^").partition(":")[0]
