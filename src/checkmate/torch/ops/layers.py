"""Which module of the user's model an FX node comes from, by the names of `model.named_modules()`.

PyTorch's compiler writes down for every op the modules whose `forward` it is in, from the outside in, each with its id and with the
expression that led to it, such as `L['self'].blocks.0`. AOT autograd hands that on to the ops of the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from ...graph import Graph, common_layer
from ...planning.parts import PartGraph
from .sizes import storage_key

#: For the id of a module, as text, its name in the model.
Names = Mapping[str, str]
#: For the id of each module that an op is in, the expression that led there and its class.
Stack = Mapping[str, tuple[str, type]]

#: What wrappers of the compiler add to the names of modules.
_WRAPPER = re.compile(r"(^|\.)_orig_mod(?=\.|$)")
#: A variable or an argument, and how a module is reached from there.
_ROOT = re.compile(r"^[LG]\[[^\]]*\](\.__\w+__|\.cell_contents|\[[^\]]*\])*")
_ITEM = re.compile(r"(?:\._modules)?\[['\"]?([^'\"\]]*)['\"]?\]")


def names_of(model: object) -> Names:
    """The names of the modules in a model; none if it is not a module."""
    if not isinstance(model, torch.nn.Module):
        return {}
    return {str(id(module)): _WRAPPER.sub("", name).removeprefix(".") for name, module in model.named_modules()}


class Layers:
    """The layers of the nodes of one graph, whose inputs are asked for before them.

    Args:
        names: of the modules of the model. Where they are not known, the expressions that led to the modules have to do.
        nodes: of the graph. What its code does outside of the modules that it calls belongs to the module whose code it is.
    """

    def __init__(self, names: Names, nodes: Iterable[fx.Node] = ()):
        self._names = names
        self._known: dict[fx.Node, str] = {}
        self._places: dict[fx.Node, int] = {}
        self._holding: set[str] = set()  # layers with others inside
        stacks = (node.meta.get("nn_module_stack") for node in nodes)
        self._home = next((home for stack in stacks if stack and (home := self._home_by(stack)) is not None), "")

    def of(self, node: fx.Node, phase: str) -> str:
        """The innermost module that the node, or for the backward pass its forward op, comes from; "": none below the model itself.

        A sum of gradients comes from what all those have in common that are added up, but from no more than the module that calls the
        one whose gradient came last: gradients from outside of that came in through what it returns.
        """
        meta, key = node.meta, "nn_module_stack" if phase == "forward" else "fwd_nn_module_stack"
        if phase == "backward" and key not in meta and "nn_module_stack" not in meta:
            layer = self._of_sum([source for source in node.all_input_nodes if source in self._known])
        else:
            layer = self._innermost(meta.get(key) or meta.get("nn_module_stack") or {})
        self._known[node] = layer
        self._places[node] = len(self._places)
        self._holding.update(_around(layer))
        return layer

    def _of_sum(self, terms: Sequence[fx.Node]) -> str:
        if not terms:
            return ""
        common = common_layer(self._known[term] for term in terms)
        last = self._known[max(terms, key=self._places.__getitem__)]
        caller = last if last in self._holding else last.rpartition(".")[0]
        return common if _is_in(common, caller) else caller

    def _innermost(self, stack: Stack) -> str:
        for key, (expression, _) in reversed(list(stack.items())):
            if (name := self._name(key)) is not None:
                return name
            if not self._names:
                return _relative(expression)
        return "" if stack else self._home

    def _name(self, key: str) -> str | None:
        return self._names.get(key.partition("@")[0])  # what follows counts the calls

    def _home_by(self, stack: Stack) -> str | None:
        """The module whose code leads to this stack: a part of the model is called `up` there, and `blocks.2.up` in the model."""
        key, (expression, _) = next(iter(stack.items()))
        name, path = self._name(key), _relative(expression)
        return (
            name.removesuffix(path).removesuffix(".") if name is not None and path and f".{name}".endswith(f".{path}") else None
        )


def owners_of(model: torch.nn.Module) -> dict[int, str]:
    """For the storage of each parameter the module that has it."""
    found: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        found.setdefault(storage_key(parameter), _WRAPPER.sub("", name.rpartition(".")[0]).removeprefix("."))
    return found


def with_own_layers(part: PartGraph, read: Sequence[int | None], owners: Mapping[int, str]) -> PartGraph:
    """A graph with the names of the modules that it runs for: PyTorch may run one graph for all modules of a class.

    Args:
        part: with the layers of the modules that it was made of. read: the storage of each of its inputs in this run; None where that
            does not matter. owners: of parameters.
    """
    graph = part.graph
    found: Counter[tuple[str, str]] = Counter()
    for given, storage in zip(part.inputs, read, strict=True):
        if storage is not None and storage in owners and given.readers:
            found[_without_common_end(graph.ops[given.readers[0]].layer, owners[storage])] += 1
    was, now = found.most_common(1)[0][0] if found else ("", "")
    if not was or was == now:
        return part
    inside = re.compile(rf"^{re.escape(was)}(?=\.|$)")
    ops = [replace(op, layer=inside.sub(lambda _: now, op.layer)) for op in graph.ops]
    return replace(part, graph=Graph(ops, graph.values, graph.fixed_memory, graph.name))


def _around(layer: str) -> Iterator[str]:
    while layer:
        layer = layer.rpartition(".")[0]
        yield layer


def _is_in(layer: str, other: str) -> bool:
    return not other or f"{layer}.".startswith(f"{other}.")


def _without_common_end(one: str, other: str) -> tuple[str, str]:
    levels, others = one.split("."), other.split(".")
    while levels and others and levels[-1] == others[-1]:
        levels.pop()
        others.pop()
    return ".".join(levels), ".".join(others)


def _relative(expression: str) -> str:
    path = _ITEM.sub(r".\1", _ROOT.sub("", expression))
    return _WRAPPER.sub("", path).removeprefix(".")
