"""Rows that are looked up in variables which scatter ops change, such as embeddings with sparse gradients.

Once a scatter op has changed a variable, TensorFlow copies it whenever it is read as a whole, as Keras reads a table before it looks up
rows. Such rows are looked up in the variable itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..internals import is_stateful_type
from ..ops.op_kinds import READERS


def look_up_in_place(nodes: Sequence[Any]) -> None:
    """Have rows be looked up in place where nothing else of a read is needed, and no change of the variable can come in between.

    Args:
        nodes: of a rewritten graph; they are changed.
    """
    scattered = {node.input[0] for node in nodes if node.op.startswith("ResourceScatter")}
    for read in nodes:
        if read.op != "ReadVariableOp" or read.input[0] not in scattered:
            continue
        gathers = [node for node in nodes if read.name in map(_made_by, node.input)]
        if gathers and all(_takes_rows(node, read, nodes) for node in gathers):
            _look_up(gathers, read, nodes)


def _takes_rows(node: Any, read: Any, nodes: Sequence[Any]) -> bool:
    """It takes whole rows of what was read."""
    if node.op != "GatherV2" or node.attr["batch_dims"].i or _made_by(node.input[0]) != read.name:
        return False
    axis = next((one for one in nodes if one.name == _made_by(node.input[2]) and one.op == "Const"), None)
    return axis is not None and tf.make_ndarray(axis.attr["value"].tensor).item() == 0 and _made_by(node.input[1]) != read.name


def _look_up(gathers: Sequence[Any], read: Any, nodes: Sequence[Any]) -> None:
    handle = read.input[0]
    changes = [node for node in nodes if handle in node.input and is_stateful_type(node.op) and not _only_reads(node)]
    following = _following(nodes)
    after = _behind(read.name, following)
    later = [node for node in changes if node.name in after]
    if any(read.name not in _behind(node.name, following) for node in changes if node not in later):
        return  # nothing tells which comes first
    if any(gather.name in _behind(node.name, following) for node in later for gather in gathers):
        return  # what is looked up is what was there before a change
    for node in nodes:
        if f"^{read.name}" in node.input:
            node.input.remove(f"^{read.name}")
    for gather in gathers:
        control = [edge for edge in (*gather.input, *read.input) if edge.startswith("^")]
        gather.input[:] = [handle, gather.input[1], *dict.fromkeys(control)]
        gather.op = "ResourceGather"
        gather.attr["dtype"].type = gather.attr["Tparams"].type
        del gather.attr["Tparams"], gather.attr["Taxis"]
        for node in later:
            node.input.append(f"^{gather.name}")


def _only_reads(node: Any) -> bool:
    return node.op == "ReadVariableOp" or node.op in READERS


def _following(nodes: Sequence[Any]) -> dict[str, list[str]]:
    """Names of the nodes that wait for each."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for edge in node.input:
            found[_made_by(edge.removeprefix("^"))].append(node.name)
    return found


def _behind(name: str, following: dict[str, list[str]]) -> set[str]:
    """Names of the nodes that come after one."""
    found: set[str] = set()
    stack = [name]
    while stack:
        new = [one for one in following.get(stack.pop(), ()) if one not in found]
        found.update(new)
        stack += new
    return found


def _made_by(edge: str) -> str:
    """The node that a tensor is of; a control edge stays as it is."""
    return edge.partition(":")[0]
