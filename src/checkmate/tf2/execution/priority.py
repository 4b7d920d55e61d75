"""Among ops that are ready at the same time, those that most of the step waits for go first.

When an op ends, TensorFlow goes through what reads it in the order in which the nodes stand in the graph. The thread that ran it
goes on with the last one that takes time; the others are for threads that are free. So a node had better stand the later, the
more time passes from its begin to the end of the step along the longest path (the priority of list scheduling: Graham, "Bounds
on multiprocessing timing anomalies", 1969; Adam, Chandy and Dickson, "A comparison of list schedules", 1974).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter

from ..ops.nodes import Emitted


def prioritized(emitted: Emitted, seconds: Callable[[str], float]) -> Emitted:
    """The same nodes in another order.

    Args:
        seconds: that the op of a name takes.
    """
    before = {
        node.name: [name for name in dict.fromkeys(map(_node, node.input)) if name not in emitted.arguments]
        for node in emitted.nodes
    }
    return emitted.in_order(in_order_of_priority(before, seconds))


def in_order_of_priority(before: Mapping[str, Sequence[str]], seconds: Callable[[str], float]) -> list[str]:
    """Names in a topological order; where several could be next, the one from whose begin to the end it takes the least time.

    Args:
        before: name -> those that it waits for, each once.
    """
    rest = {name: seconds(name) for name in before}  # from the begin of an op to the end of the step
    for name in reversed(list(TopologicalSorter(before).static_order())):
        for other in before[name]:
            rest[other] = max(rest[other], seconds(other) + rest[name])
    place = {name: number for number, name in enumerate(before)}
    sorter = TopologicalSorter(before)
    sorter.prepare()
    ready: list[tuple[float, int, str]] = []
    order: list[str] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, (rest[name], place[name], name))
        *_, name = heapq.heappop(ready)
        order.append(name)
        sorter.done(name)
    return order


def _node(name: str) -> str:
    """Of the name of a node's input."""
    return name.removeprefix("^").partition(":")[0]
