"""What TensorFlow's rewriting makes of sums.

It turns some into additions to a temporary variable, where it reckons that memory is short. The terms of such a sum are added one after
the other, each as soon as it is there: so they are rounded in another order than those of an `AddN`. The temporary variable cannot be
made twice, for its name may exist once only. So the sum becomes an `AddN` again, of its terms in the order in which they come when one
thread of TensorFlow runs the graph. It is the order that is seen most, not the only one: plain training does not quite repeat itself
here, for several threads take turns by chance.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

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
