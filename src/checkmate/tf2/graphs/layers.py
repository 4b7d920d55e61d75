"""Which layer of a Keras model an op of a trace comes from.

Every layer opens a name scope of its name around what it computes, and TensorFlow changes that name where the graph has it already: in
`sub_1/dense_1/MatMul`, `dense_1` may be a layer `dense` that is called for the second time. So it is written down, while the step is
traced, which name each scope was asked for. Ops of the backward pass are named after those of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from ..internals import layers_in

_GRADIENT = "gradient_tape"


@dataclass
class Scopes:
    """The name scopes of a graph.

    Attributes:
        model: its name. layers: the names of its layers, those inside of others included.
        asked: for each scope the names that it and those around it were asked for.
    """

    model: str = ""
    layers: set[str] = field(default_factory=set)
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def opened_as(self, path: str) -> tuple[str, ...]:
        """What a scope was asked for that is opened by its whole path."""
        if path not in self.asked:
            around, _, name = path.rpartition("/")
            self.asked[path] = (*(self.opened_as(around) if around else ()), name)
        return self.asked[path]

    def layer_of(self, name: str) -> str:
        """The innermost layer that the op of this name comes from, with the layers that it is in before it, by dots; "" if none is
        known."""
        levels = name.split("/")
        while levels and levels[0] == _GRADIENT:
            levels.pop(0)
        for length in range(len(levels) - 1, 0, -1):
            asked = self.asked.get("/".join(levels[:length]))
            if asked is not None:
                inside = asked[1:] if asked[0] == self.model else asked
                return ".".join(takewhile(self.layers.__contains__, inside))
        return ""


_known: WeakKeyDictionary[tf.Graph, Scopes] = WeakKeyDictionary()


def scopes_of(graph: tf.Graph) -> Scopes:
    """What was noted of the scopes of a graph."""
    return _known.get(graph, Scopes())


def note_layers(model: Any) -> None:
    """Note what the scopes of the graph that is being traced are asked for, from here on."""
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or graph in _known:
        return
    scopes = _known[graph] = Scopes(str(model.name), {str(layer.name) for layer in layers_in(model)})
    graph.name_scope = _noting(scopes, graph.name_scope)


def _noting(scopes: Scopes, open_scope: Callable[..., Any]) -> Callable[..., Any]:
    around: tuple[str, ...] = ()

    @contextmanager
    def name_scope(name: str | None) -> Iterator[str]:
        nonlocal around
        before = around
        with open_scope(name) as scope:
            if not name:
                around = ()
            elif name.endswith("/"):  # the whole path, as tf_keras does; or a scope is opened again
                around = scopes.opened_as(name[:-1])
            else:
                around = (*around, *name.split("/"))
                scopes.asked[scope.rstrip("/")] = around
            try:
                yield scope
            finally:
                around = before

    return name_scope
